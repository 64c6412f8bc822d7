//! A store that fails at random, the same way every time it is given the same seed.

use crate::fault_store::{Call, Fate, Op, locked};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{sync::Mutex, time::Duration};

/// How often which fault happens, in parts of a hundred.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// The request does not arrive, and the sender knows.
    pub refused: u32,
    /// The answer is lost.
    pub lost: u32,
    /// The request arrives twice.
    pub twice: u32,
    /// Request and answer take up to so long, in milliseconds.
    pub slow_ms: u64,
}

impl Chaos {
    /// A bad day: one request in four fails in some way.
    pub const BAD_DAY: Self = Self { refused: 10, lost: 10, twice: 5, slow_ms: 3 };

    /// The plan for a [`FaultStore`](crate::fault_store::FaultStore). What the case itself uses to look at the store is
    /// left alone.
    pub fn plan(self, seed: u64) -> impl Fn(&Call) -> Fate + Send + Sync + 'static {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        move |call| match call.op {
            Op::List | Op::Check | Op::LeaveNow => Fate::Pass,
            _ => self.fate(&mut locked(&rng)),
        }
    }

    fn fate(self, rng: &mut StdRng) -> Fate {
        let Self { refused, lost, twice, slow_ms } = self;
        let dice = rng.random_range(0..100);
        let mut some_time = || Duration::from_micros(rng.random_range(0..=slow_ms * 1000));
        match dice {
            d if d < refused => Fate::Refuse,
            d if d < refused + lost => Fate::Lose,
            d if d < refused + lost + twice => Fate::Twice,
            d if d % 2 == 0 => Fate::Slow { before: some_time(), after: some_time() },
            _ => Fate::Pass,
        }
    }
}
