//! A tiny reference of what a store does, and random histories that compare a store with it.
//!
//! The reference ([`Model`]) is written from the contract and shares no code with any store: vectors
//! of places, and one loop for admission. It knows no time, so the sessions in it live until they are
//! closed. After every step the store must have answered as the reference did, must show the same
//! lines, notes and values, and every new grant must have a higher fence than those before it.

mod history;
mod machine;
mod reference;

pub use history::{Histories, Step};
pub use reference::{Model, Place, Reply, Shape};

use crate::{
    case::{Verdict, runtime},
    subject::Subject,
};
use anyhow::anyhow;
use machine::Machine;
use proptest::test_runner::{Config, TestError, TestRunner};
use proptest_state_machine::ReferenceStateMachine as _;
use std::{panic::AssertUnwindSafe, sync::atomic::Ordering};

/// Compares a store with the reference over so many histories of so many steps. A history that shows
/// a difference is shrunk and told.
///
/// # Errors
/// The shortest history found that shows a difference.
pub fn compare(subject: &Subject, histories: u32, steps: usize) -> Verdict {
    let runtime = runtime(1)?;
    let config = Config { cases: histories, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let strategy = Histories::sequential_strategy(1..=steps);
    let outcome = runner.run(&strategy, |(mut model, steps, seen)| {
        runtime.block_on(AssertUnwindSafe(async {
            let mut machine = Machine::new(subject).await;
            for step in steps {
                if let Some(seen) = &seen {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                let reply = model.apply(&step);
                machine.apply(&step, &reply).await;
                machine.compare(&model).await;
            }
        }));
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Abort(why)) => Err(anyhow!("no history could be made: {why}")),
        Err(TestError::Fail(why, (_, steps, _))) => Err(anyhow!("{why}, after {steps:#?}")),
    }
}
