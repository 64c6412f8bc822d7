//! The servers, asked all at once.

use super::{
    BOOT, KIND,
    decide::{Verdict, Vote, majority, tally},
};
use crate::{
    clock::Clock,
    error::{StoreError, Trouble},
    store::{StoreResult, redis::Link, together},
};
use redis::{ScriptInvocation, Value};
use std::time::Duration;

/// Servers that know nothing of each other.
pub(super) struct Nodes {
    pub(super) links: Vec<Link>,
    pub(super) clock: Clock,
}

/// What the nodes said to one question.
#[derive(Debug)]
pub(super) struct Ballot {
    pub(super) votes: Vec<Option<Vote>>,
    /// Why nodes were silent.
    pub(super) errors: Vec<StoreError>,
}

impl Ballot {
    pub(super) fn verdict(&self) -> Verdict {
        tally(&self.votes)
    }

    /// How many nodes have answered, whatever they said.
    pub(super) fn answered(&self) -> usize {
        self.votes.iter().flatten().filter(|vote| **vote != Vote::Silent).count()
    }

    pub(super) fn count(&self, vote: Vote) -> usize {
        self.votes.iter().filter(|one| **one == Some(vote)).count()
    }
}

/// Too few nodes have answered: what they suffer from, if it is more than silence.
pub(super) fn shortage(mut errors: Vec<StoreError>) -> StoreError {
    let worst = errors.iter().position(|e| e.trouble != Trouble::Unavailable).unwrap_or(0);
    let what = "fewer than a majority of the servers answer";
    if errors.is_empty() {
        return StoreError::unknown(KIND, Trouble::Unavailable, what);
    }
    let cause = errors.swap_remove(worst);
    StoreError::unknown(KIND, cause.trouble, format!("{what}: {}", cause.what)).because(cause)
}

fn silent() -> StoreError {
    StoreError::unknown(KIND, Trouble::Unavailable, "no answer in time")
}

impl Nodes {
    /// How many nodes are more than half.
    pub(super) fn majority(&self) -> usize {
        majority(self.links.len())
    }

    /// Asks all nodes at once, until their answers suffice or the patience is over.
    pub(super) async fn ask<T: Send>(
        &self,
        patience: Duration,
        script: &ScriptInvocation<'_>,
        read: impl Fn(Value) -> StoreResult<T> + Send + Sync,
        enough: impl Fn(&[Option<StoreResult<T>>]) -> bool + Send + Sync,
    ) -> Vec<Option<StoreResult<T>>> {
        let asks = self.links.iter().map(|node| async {
            let answer = tokio::select! {
                biased;
                answer = node.run::<Value>(script) => answer?,
                () = self.clock.sleep(patience) => return Err(silent()),
            };
            read(answer)
        });
        together::until(asks, enough).await
    }

    /// As [`ask`](Self::ask), for votes: stops when `enough` says so of the verdict so far. Writes
    /// that carry do not stop early: a request that is dropped on a node that has yet to connect or
    /// to learn the script would never get there, and the next loss of a node could take the majority.
    pub(super) async fn vote(
        &self,
        patience: Duration,
        script: &ScriptInvocation<'_>,
        read: impl Fn(Value) -> StoreResult<Vote> + Send + Sync,
        enough: fn(Verdict) -> bool,
    ) -> Ballot {
        let of = |answer: &StoreResult<Vote>| answer.as_ref().map_or(Vote::Silent, |vote| *vote);
        let votes = |answers: &[Option<StoreResult<Vote>>]| -> Vec<Option<Vote>> {
            answers.iter().map(|answer| answer.as_ref().map(of)).collect()
        };
        let stop = |answers: &[Option<StoreResult<Vote>>]| enough(tally(&votes(answers)));
        let answers = self.ask(patience, script, read, stop).await;
        let votes = votes(&answers);
        Ballot { votes, errors: answers.into_iter().flatten().filter_map(Result::err).collect() }
    }

    /// What all nodes say that answer in time, which must be a majority.
    pub(super) async fn all<T: Send>(
        &self,
        patience: Duration,
        script: &ScriptInvocation<'_>,
        read: impl Fn(Value) -> StoreResult<T> + Send + Sync,
    ) -> StoreResult<Vec<T>> {
        let answers = self.ask(patience, script, read, |_| false).await;
        self.most(answers.into_iter().flatten())
    }

    /// The names in the index of any node.
    pub(super) async fn index(&self, key: &str, patience: Duration) -> StoreResult<Vec<String>> {
        let mut all = redis::cmd("ZRANGE");
        all.arg(key).arg(0).arg(-1);
        let asks = self.links.iter().map(|node| async {
            tokio::select! {
                biased;
                names = node.query::<Vec<String>>(&all) => names,
                () = self.clock.sleep(patience) => Err(silent()),
            }
        });
        let pages = self.most(together::all(asks).await)?;
        Ok(pages.into_iter().flatten().collect())
    }

    fn most<T>(&self, answers: impl IntoIterator<Item = StoreResult<T>>) -> StoreResult<Vec<T>> {
        let (mut said, mut errors) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(answer) => said.push(answer),
                Err(e) => errors.push(e),
            }
        }
        if said.len() < self.majority() { Err(shortage(errors)) } else { Ok(said) }
    }

    /// A node that has been up for long and has never heard of us is new to us, not forgetful.
    pub(super) async fn welcome(&self, max_ttl: Duration) -> StoreResult<()> {
        for node in &self.links {
            let known: StoreResult<Option<String>> = node.query(redis::cmd("GET").arg(BOOT)).await;
            let is_new = matches!(known, Ok(None));
            if !is_new || !uptime(node).await.is_ok_and(|up| up > max_ttl) {
                return Ok(());
            }
        }
        for node in &self.links {
            node.query::<Value>(redis::cmd("SET").arg(BOOT).arg(0).arg("NX")).await?;
        }
        Ok(())
    }
}

async fn uptime(node: &Link) -> StoreResult<Duration> {
    let info: String = node.query(redis::cmd("INFO").arg("server")).await?;
    let seconds = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    Ok(Duration::from_secs(seconds.and_then(|s| s.trim().parse().ok()).unwrap_or(0)))
}
