//! A run inside the command of another run: the locks that are held around it.
//!
//! Each run adds its grant, as a sequencer, to a variable of its command's environment. A run of a name that
//! stands there asks the store whether that grant is still held, so an environment that has outlived its lock
//! changes nothing. If it is held and leaves no room, waiting for the lock would be waiting for our own end.

use crate::{exit_code, failure::Failure, output};
use lockkeeper::{Error, Guard, Keeper, Mode, Name, Sequencer};
use std::{env, time::Duration};
use tokio::time::sleep;

/// The pause between two questions to a store that does not answer.
const PAUSE: Duration = Duration::from_millis(250);

/// The grants of the run and of all those around it, the outermost first, with blanks between them.
pub(crate) const VARIABLE: &str = "LOCKKEEPER_HELD";

/// What a run does about the locks that are held around it.
#[derive(Debug, PartialEq)]
pub(crate) enum Nesting {
    /// It asks for the lock as any other run does.
    Apart,
    /// It runs the command under this grant.
    Under(Sequencer),
    /// It would wait for itself. The best of the grants that are in its way.
    Waits(Sequencer),
}

/// The grants that the environment speaks of. What cannot be read is not from us.
pub(crate) fn inherited() -> Vec<Sequencer> {
    let text = env::var(VARIABLE).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|one| one.parse().ok()).collect()
}

/// What the command of this run finds in [`VARIABLE`].
pub(crate) fn for_the_command(guard: &Guard) -> String {
    let all = inherited().into_iter().chain([guard.sequencer()]);
    all.map(|sequencer| sequencer.to_string()).collect::<Vec<_>>().join(" ")
}

/// Looks whether the lock is held around this run. Costs nothing if the environment does not name it, and a
/// request to the store for each time that it does.
pub(crate) async fn look(
    keeper: &Keeper,
    around: Vec<Sequencer>,
    name: &Name,
    wanted: Mode,
    reentrant: bool,
) -> Nesting {
    let mut held = Vec::new();
    for grant in around.into_iter().filter(|grant| grant.name() == name) {
        // While the store does not answer, the lock may be our own: to wait for it would never end.
        let is_held = loop {
            match keeper.check(&grant).await {
                Err(Error::Store(e)) if e.is_transient() => sleep(PAUSE).await,
                answer => break answer.unwrap_or(false),
            }
        };
        if is_held {
            held.push(grant);
        }
    }
    judge(held, wanted, reentrant)
}

fn judge(mut held: Vec<Sequencer>, wanted: Mode, reentrant: bool) -> Nesting {
    let weight = |grant: &Sequencer| u64::from(grant.mode().weight());
    let taken: u64 = held.iter().map(weight).sum();
    held.sort_by_key(weight);
    let Some(best) = held.pop() else { return Nesting::Apart };
    let same_kind = best.mode().capacity() == wanted.capacity();
    let fits = taken + u64::from(wanted.weight()) <= u64::from(wanted.capacity());
    match same_kind {
        // The store will say that the name is used with another limit.
        false => Nesting::Apart,
        true if reentrant && best.mode().weight() >= wanted.weight() => Nesting::Under(best),
        true if fits => Nesting::Apart,
        true => Nesting::Waits(best),
    }
}

/// The run would wait for itself.
pub(crate) fn waits_for_itself(held: &Sequencer, wanted: Mode, reentrant: bool) -> Failure {
    let name = output::printable(held.name().as_str());
    let by = "by the run around this one, which";
    let (what, hint) = if reentrant {
        let held_so = held.mode();
        (
            format!("`{name}` is held {by} has {held_so}: that is not enough for {wanted}"),
            "take all of the lock in the outer run",
        )
    } else {
        (
            format!("`{name}` is held {by} waits for this one: it would wait for itself"),
            "--reentrant runs the command under the lock that is held; -n does not wait",
        )
    };
    Failure::new(exit_code::USAGE, anyhow::Error::msg(what)).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{
        StoreError,
        store::{AnyStore, Claim, StoreResult, memory::Memory},
    };
    use std::sync::atomic::{AtomicUsize, Ordering};
    use testkit::layer::{Layer, Layered};

    /// Loses the answers to the first two checks.
    struct Blip(AnyStore, AtomicUsize);

    impl Layer for Blip {
        fn inner(&self) -> &AnyStore {
            &self.0
        }

        async fn check(&self, claim: Claim) -> StoreResult<bool> {
            if self.1.fetch_add(1, Ordering::Relaxed) < 2 {
                let kind = lockkeeper::ErrorKind::Unavailable;
                return Err(StoreError::not_applied("blip", kind, "a failover"));
            }
            lockkeeper::Store::check(&self.0, claim).await
        }
    }

    #[tokio::test]
    async fn an_outage_is_not_taken_for_a_lock_that_is_held_no_more() {
        let keeper = Keeper::over(Layered(Blip(AnyStore::new(Memory::new()), AtomicUsize::new(0))));
        let guard = keeper.lock("a").await.unwrap();
        let around = vec![guard.sequencer()];
        let name = Name::new("a").unwrap();
        let nesting = look(&keeper, around, &name, Mode::Exclusive, false).await;
        assert_eq!(nesting, Nesting::Waits(guard.sequencer()));
    }

    fn held(modes: &[&str]) -> Vec<Sequencer> {
        let ticket = "00".repeat(16);
        let text = |mode| format!("lk1:0000000000000007:{mode}:1:{ticket}:a");
        modes.iter().map(|mode| text(mode).parse().expect("a sequencer")).collect()
    }

    fn verdict(modes: &[&str], wanted: Mode, reentrant: bool) -> &'static str {
        match judge(held(modes), wanted, reentrant) {
            Nesting::Apart => "apart",
            Nesting::Under(_) => "under",
            Nesting::Waits(_) => "waits",
        }
    }

    #[test]
    fn a_lock_that_leaves_no_room_would_be_waited_for_by_itself() {
        let permits = |weight| Mode::Permits { weight, of: 4 };
        for (modes, wanted, plain, reentrant) in [
            (&[][..], Mode::Exclusive, "apart", "apart"),
            (&["x"], Mode::Exclusive, "waits", "under"),
            (&["x"], Mode::Shared, "waits", "under"),
            (&["s"], Mode::Exclusive, "waits", "waits"),
            (&["s"], Mode::Shared, "apart", "under"),
            (&["s", "s"], Mode::Exclusive, "waits", "waits"),
            (&["2-4"], permits(1), "apart", "under"),
            (&["2-4"], permits(3), "waits", "waits"),
            (&["1-4", "3-4"], permits(1), "waits", "under"),
            (&["1-4", "3-4"], permits(4), "waits", "waits"),
            (&["2-2"], permits(1), "apart", "apart"),
            (&["2-4"], Mode::Exclusive, "apart", "apart"),
        ] {
            assert_eq!(verdict(modes, wanted, false), plain, "{modes:?} {wanted}");
            assert_eq!(verdict(modes, wanted, true), reentrant, "{modes:?} {wanted} reentrant");
        }
    }
}
