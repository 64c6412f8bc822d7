//! A real lock: taken, checked, renewed and handed over, between two keepers.

use super::{
    Report,
    verdict::{Level, Verdict},
};
use crate::{
    duration,
    handover::{Trouble, hand_over, lock, micros, short, within},
};
use lockkeeper::{Guard, Keeper, Owner, Sequencer};
use std::time::{Duration, Instant};

/// The lock's name. It is always the same, because stores remember for a while that there was a name. Two doctors at a
/// time wait for each other.
const NAME: &str = "lockkeeper-doctor";
/// How often a short step is repeated; its median is told.
const REPEATS: usize = 5;
/// A hand-over that takes longer is worth a word.
const SLOW: Duration = Duration::from_secs(1);

impl Report {
    /// Tries what locks need, with a lock of its own that is gone at the end.
    pub(super) async fn try_a_lock(&mut self, one: &Keeper, two: &Keeper) {
        let guard = match self.take(one, two).await {
            Ok(Some(guard)) => guard,
            Ok(None) => return,
            Err(trouble) => return self.failed("lock", trouble),
        };
        match self.pass_on(guard, one, two).await {
            Ok(()) => {}
            Err(trouble) => self.failed("hand-over", trouble),
        }
    }

    /// Takes the lock; none if the store is not to be trusted.
    async fn take(&mut self, one: &Keeper, two: &Keeper) -> Result<Option<Guard>, Trouble> {
        let limit = self.limit;
        let began = Instant::now();
        let guard = within(limit, lock(one, NAME).wait(limit).into_future()).await?;
        let acquire = began.elapsed();
        if let Some(second) = within(limit, two.lock(NAME).try_now()).await? {
            drop(second);
            self.unsafe_store("exclusion", "two held one lock at the same time");
            return Ok(None);
        }
        let sequencer = guard.sequencer();
        let round_trip = self.round_trip(one, &sequencer).await?;
        let began = Instant::now();
        within(limit, guard.extend(Duration::ZERO)).await?;
        let renew = began.elapsed();
        self.figures.acquire_us = Some(micros(acquire));
        self.figures.round_trip_us = Some(micros(round_trip));
        self.figures.renew_us = Some(micros(renew));
        self.verdicts.push(Verdict::ok(
            "lock",
            format!(
                "taken in {}, session included; checked in {}; renewed in {}",
                short(acquire),
                short(round_trip),
                short(renew)
            ),
        ));
        self.tell_terms(&guard);
        Ok(Some(guard))
    }

    /// The median of a few checks, each of which must say that the lock is held.
    async fn round_trip(&mut self, one: &Keeper, held: &Sequencer) -> Result<Duration, Trouble> {
        let mut times = Vec::new();
        for _ in 0..REPEATS {
            let began = Instant::now();
            if !within(self.limit, one.check(held)).await? {
                self.unsafe_store("check", "the store did not know a lock that is held");
            }
            times.push(began.elapsed());
        }
        Ok(median(times))
    }

    /// Not all stores can keep to the times that are asked for.
    fn tell_terms(&mut self, guard: &Guard) {
        let terms = guard.terms();
        let [ttl, delay] = [terms.ttl, terms.lock_delay].map(duration::flag);
        let what = format!(
            "a lock outlives its holder's last renewal by {ttl}, and is closed for {delay} after that"
        );
        self.verdicts.push(Verdict::ok("terms", what));
    }

    /// Hands the lock over and back, releases it, and sees that nothing is left.
    async fn pass_on(&mut self, guard: Guard, one: &Keeper, two: &Keeper) -> Result<(), Trouble> {
        let (fenced, mut guard) = (one.capabilities().fenced, guard);
        let first = guard.sequencer();
        let mut times = Vec::new();
        for turn in 0..REPEATS {
            let (fence, next) = (guard.fence(), if turn % 2 == 0 { two } else { one });
            let (granted, took) = hand_over(guard, next, self.limit).await?;
            if fenced && granted.fence() <= fence {
                self.unsafe_store(
                    "fence",
                    "a later grant has no greater fence than the one before it",
                );
            }
            guard = granted;
            times.push(took);
        }
        if within(self.limit, one.check(&first)).await? {
            self.unsafe_store("check", "the store takes a lock for held that was released");
        }
        within(self.limit, guard.release()).await?;
        let took = median(times);
        self.figures.hand_over_us = Some(micros(took));
        let what = format!("the next in line had the lock {} after a release", short(took));
        self.verdicts.push(if took < SLOW {
            Verdict::ok("hand-over", what)
        } else {
            Verdict::note("hand-over", what)
        });
        let (line, us) = (within(self.limit, one.get(NAME)).await?, Owner::this_process());
        let left = line.into_iter().flat_map(|line| line.tickets);
        if left
            .filter_map(|ticket| ticket.owner)
            .any(|owner| (owner.host, owner.pid) == (us.host.clone(), us.pid))
        {
            let remedy = format!("look at it with `lockkeeper show {NAME}`");
            self.verdicts.push(Verdict {
                level: Level::Warning,
                remedy: Some(remedy),
                ..Verdict::ok("left-behind", format!("`{NAME}` is still there after its release"))
            });
        }
        Ok(())
    }

    fn unsafe_store(&mut self, code: &'static str, message: &str) {
        let remedy = "do not use this store for locks, and report how it is set up";
        self.verdicts.push(Verdict {
            level: Level::Unsafe,
            remedy: Some(remedy.to_owned()),
            ..Verdict::ok(code, message)
        });
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
