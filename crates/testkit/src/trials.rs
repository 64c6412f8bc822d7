//! Test programs whose tests need something that a machine may lack: a server, another lock library.
//!
//! Each module of such a program lists its tests by what they need, and `main` runs all modules:
//!
//! ```
//! use servers::{REDIS, REDIS_CLUSTER, Running};
//!
//! testkit::tests! {
//!     [REDIS, REDIS_CLUSTER] => a_lock_outlives_its_connection;
//!     [()] => a_url_without_a_host_is_refused;
//! }
//!
//! async fn a_lock_outlives_its_connection(server: Running) { drop(server) }
//! async fn a_url_without_a_host_is_refused(_: ()) {}
//!
//! # fn started_only_by_hand() {
//! testkit::trials::main([tests()]);
//! # }
//! ```
//!
//! A test runs once for each [`Fixture`] of the array, which is started for it alone. Where one cannot be had the
//! test is reported as ignored with the reason, or as failed if `LOCKKEEPER_REQUIRE` asks for it. The harness of the
//! compiler cannot do that: it must know before it starts what to ignore.

use crate::live::Server;
use libtest_mimic::{Arguments, Completion, Failed};
use servers::{Recipe, Require, Running, Unavailable};
use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::runtime::Builder;

pub use libtest_mimic::Trial;

/// What a test needs.
pub trait Fixture: Copy + Send + 'static {
    /// What the test is given.
    type Ready;

    /// What tells this fixture from the others of the same test.
    fn variant(&self) -> &'static str;

    /// Why it cannot be had on this machine; `None` if it can.
    fn missing(&self) -> Option<Unavailable>;

    /// Starts it.
    ///
    /// # Errors
    /// Why it does not start.
    fn start(&self) -> anyhow::Result<Self::Ready>;
}

/// Nothing.
impl Fixture for () {
    type Ready = ();

    fn variant(&self) -> &'static str {
        "alone"
    }

    fn missing(&self) -> Option<Unavailable> {
        None
    }

    fn start(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A server.
impl Fixture for Recipe {
    type Ready = Running;

    fn variant(&self) -> &'static str {
        self.name
    }

    fn missing(&self) -> Option<Unavailable> {
        Some(Unavailable { store: self.name, reason: self.obstacle()? })
    }

    fn start(&self) -> anyhow::Result<Running> {
        Self::start(self)
    }
}

/// A server that all tests of the program share: started for the first of them, ended with the program.
#[derive(Clone, Copy, Debug)]
pub struct Shared(pub Recipe);

fn shared() -> MutexGuard<'static, BTreeMap<&'static str, Arc<Server>>> {
    static SHARED: Mutex<BTreeMap<&str, Arc<Server>>> = Mutex::new(BTreeMap::new());
    // A panic elsewhere must not hide behind a poisoned lock.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fixture for Shared {
    type Ready = Arc<Server>;

    fn variant(&self) -> &'static str {
        self.0.name
    }

    fn missing(&self) -> Option<Unavailable> {
        self.0.missing()
    }

    fn start(&self) -> anyhow::Result<Arc<Server>> {
        let server = || Arc::new(Server::of(self.0));
        let server = Arc::clone(shared().entry(self.0.name).or_insert_with(server));
        server.running()?;
        Ok(server)
    }
}

/// A server whose processes get more arguments.
#[derive(Clone, Copy, Debug)]
pub struct WithArgs(pub Recipe, pub &'static [&'static str]);

impl Fixture for WithArgs {
    type Ready = Running;

    fn variant(&self) -> &'static str {
        self.0.name
    }

    fn missing(&self) -> Option<Unavailable> {
        self.0.missing()
    }

    fn start(&self) -> anyhow::Result<Running> {
        self.0.start_with_args(self.1)
    }
}

/// A server whose processes go by clocks that the test moves.
#[derive(Clone, Copy, Debug)]
pub struct WithClocks(pub Recipe);

impl Fixture for WithClocks {
    type Ready = Running;

    fn variant(&self) -> &'static str {
        self.0.name
    }

    fn missing(&self) -> Option<Unavailable> {
        self.0.missing()
    }

    fn start(&self) -> anyhow::Result<Running> {
        self.0.start_with_clocks()
    }
}

/// Both.
impl<A: Fixture, B: Fixture> Fixture for (A, B) {
    type Ready = (A::Ready, B::Ready);

    fn variant(&self) -> &'static str {
        self.0.variant()
    }

    fn missing(&self) -> Option<Unavailable> {
        self.0.missing().or_else(|| self.1.missing())
    }

    fn start(&self) -> anyhow::Result<Self::Ready> {
        Ok((self.0.start()?, self.1.start()?))
    }
}

/// How a test ends that neither panics nor hangs.
pub trait Outcome {
    /// Why it failed.
    ///
    /// # Errors
    /// If it failed.
    fn verdict(self) -> anyhow::Result<()>;
}

impl Outcome for () {
    fn verdict(self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl Outcome for anyhow::Result<()> {
    fn verdict(self) -> anyhow::Result<()> {
        self
    }
}

/// Lists the tests of a module by their fixtures, as `tests()`. A test that is not listed is dead code to the compiler.
#[macro_export]
macro_rules! tests {
    ($( $fixtures:expr => $($test:ident),+ $(,)? );+ $(;)?) => {
        /// The tests of this module.
        pub(crate) fn tests() -> Vec<$crate::trials::Trial> {
            let mut all = Vec::new();
            $(
                let fixtures = $fixtures;
                $(
                    let name = concat!(module_path!(), "::", stringify!($test));
                    all.extend($crate::trials::for_each(&fixtures, name, $test));
                )+
            )+
            all
        }
    };
}

/// The same asynchronous test for each of these fixtures, on a runtime of its own with two workers. Of the name the
/// program's own, which comes first, is left out.
pub fn for_each<F, V>(fixtures: &[F], name: &str, body: fn(F::Ready) -> V) -> Vec<Trial>
where
    F: Fixture,
    V: Future<Output: Outcome> + 'static,
{
    let name = name.split_once("::").map_or(name, |(_program, name)| name);
    let named = |fixture: &F| match fixtures {
        [_] => name.to_owned(),
        _ => format!("{name}::{}", fixture.variant()),
    };
    let one = |fixture: &F| trial(*fixture, named(fixture), move |ready| block_on(body(ready)));
    fixtures.iter().map(one).collect()
}

/// Runs this on a runtime of its own with two workers.
///
/// # Errors
/// As it says.
pub fn block_on(test: impl Future<Output: Outcome>) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(test).verdict()
}

/// A test that gets this fixture and may block.
pub fn trial<F: Fixture>(
    fixture: F,
    name: impl Into<String>,
    body: impl FnOnce(F::Ready) -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || attempt(fixture, &Require::from_env(), body))
}

fn attempt<F: Fixture>(
    fixture: F,
    require: &Require,
    body: impl FnOnce(F::Ready) -> anyhow::Result<()>,
) -> Result<Completion, Failed> {
    match fixture.missing() {
        Some(missing) if require.wants(missing.store) => {
            Err(format!("{missing} ({} asks for it)", Require::VARIABLE).into())
        }
        Some(missing) => Ok(Completion::ignored_with(missing.to_string())),
        None => Ok(body(fixture.start()?).map(|()| Completion::Completed)?),
    }
}

/// Runs the tests of these modules as a test program.
#[must_use]
pub fn main(modules: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    let trials = modules.into_iter().flatten().collect();
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    // A static is never dropped.
    shared().clear();
    conclusion.exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: Recipe =
        Recipe { name: "missing", programs: &["no-such-program"], ..servers::REDIS };

    fn never<R>(_: R) -> anyhow::Result<()> {
        panic!("the test ran without what it needs")
    }

    fn reason(done: Result<Completion, Failed>) -> String {
        match done {
            Ok(Completion::Ignored { reason }) => reason.expect("a reason"),
            Ok(Completion::Completed) => panic!("passed"),
            Err(failed) => panic!("failed: {:?}", failed.message()),
        }
    }

    #[test]
    fn a_test_whose_server_is_missing_is_ignored_with_the_reason() {
        for reason in [
            reason(attempt(MISSING, &Require::default(), never)),
            reason(attempt(((), MISSING), &Require::default(), never)),
            reason(attempt(WithClocks(MISSING), &Require::default(), never)),
            reason(attempt(WithArgs(MISSING, &["-v"]), &Require::default(), never)),
            reason(attempt(Shared(MISSING), &Require::default(), never)),
        ] {
            assert_eq!(reason, "missing: no-such-program is not installed");
        }
    }

    #[test]
    fn a_missing_server_that_is_required_is_a_failure() {
        for required in ["all", "missing"] {
            let Err(failed) = attempt(MISSING, &Require::parse(required), never) else {
                panic!("not failed")
            };
            let why = failed.message().unwrap_or_default();
            assert!(why.contains("no-such-program") && why.contains(Require::VARIABLE), "{why}");
        }
    }

    #[test]
    fn an_error_is_a_failure() {
        let wrong = |()| block_on(async { anyhow::bail!("wrong") });
        assert!(attempt((), &Require::default(), wrong).is_err());
        let right = |()| block_on(async {});
        assert!(matches!(attempt((), &Require::default(), right), Ok(Completion::Completed)));
    }

    #[test]
    fn each_fixture_is_a_test_of_its_own() {
        let names = |fixtures: &[Recipe]| -> Vec<String> {
            let all = for_each(fixtures, "program::module::test", |_| async {});
            all.iter().map(|trial| trial.name().to_owned()).collect()
        };
        assert_eq!(names(&[MISSING]), ["module::test"]);
        assert_eq!(
            names(&[MISSING, servers::ETCD]),
            ["module::test::missing", "module::test::etcd"]
        );
    }
}
