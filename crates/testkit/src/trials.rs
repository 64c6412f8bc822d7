//! Test programs outside of the suite that need something which may be missing.
//!
//! The usual harness has no way to say at run time that a test could not be run.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use servers::{Recipe, Require, Unavailable};
use std::process::ExitCode;
use tokio::runtime::Builder;

/// A test: its name, and what it does.
pub type Test = (String, Box<dyn FnOnce() -> anyhow::Result<()> + Send>);

/// A test that runs on a runtime of its own.
pub fn test<F, V>(name: impl Into<String>, body: F) -> Test
where
    F: FnOnce() -> V + Send + 'static,
    V: Future<Output = anyhow::Result<()>>,
{
    let run = move || {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(body())
    };
    (name.into(), Box::new(run))
}

/// What this recipe lacks on this machine.
#[must_use]
pub fn lacks(recipe: &Recipe) -> Option<Unavailable> {
    Some(Unavailable { store: recipe.name, reason: recipe.obstacle()? })
}

/// Runs the tests as a test program. If something is missing they are ignored with the reason, or failed
/// where `LOCKKEEPER_REQUIRE` demands it.
#[must_use]
pub fn main(missing: Option<&Unavailable>, tests: Vec<Test>) -> ExitCode {
    main_of([(missing, tests)])
}

/// The same, for tests that do not all need the same.
#[must_use]
pub fn main_of<'a>(
    groups: impl IntoIterator<Item = (Option<&'a Unavailable>, Vec<Test>)>,
) -> ExitCode {
    let arguments = Arguments::from_args();
    let trials = groups.into_iter().flat_map(|(missing, tests)| {
        tests.into_iter().map(move |(name, body)| {
            let missing = missing.cloned();
            Trial::ignorable_test(name, move || attempt(missing, body))
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn attempt(
    missing: Option<Unavailable>,
    body: impl FnOnce() -> anyhow::Result<()>,
) -> Result<Completion, Failed> {
    match missing {
        Some(missing) if Require::from_env().wants(missing.store) => {
            Err(missing.to_string().into())
        }
        Some(missing) => Ok(Completion::ignored_with(missing.to_string())),
        None => Ok(body().map(|()| Completion::Completed)?),
    }
}
