//! The servers, asked all at once.

use super::{
    answers,
    decide::{Verdict, Vote, majority, tally},
    greet::{Agreement, BOOT, TELL, WAIVE},
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{
        StoreResult,
        common::join,
        redis::{Call, Connection},
    },
};
use redis::Value;
use std::{
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::watch;

/// For how long requests go on in the background. Later they would only do harm.
const LINGER: Duration = Duration::from_secs(5);
/// For how long a new handle waits for the last nodes when a majority has answered. They may remember what
/// the others have forgotten; but one that stands still must not delay the program.
const GRACE: Duration = Duration::from_millis(50);
/// The same where the nodes seem to be new to us, which only all of them together can show.
const GRACE_OF_NEW: Duration = Duration::from_secs(1);

/// Servers that know nothing of each other.
pub(super) struct Nodes {
    /// The kind of store, as errors say it.
    pub(super) kind: &'static str,
    /// What the nodes must agree about; plain strings know no such thing.
    pub(super) agreement: Option<Arc<Agreement>>,
    pub(super) links: Vec<Arc<Connection>>,
    pub(super) clock: Clock,
    /// How many tasks finish what nobody waits for any more.
    finishing: watch::Sender<usize>,
}

/// One answer for each node, as far as they have come in.
pub(super) type Answers<T> = [Option<StoreResult<T>>];

/// Requests without an answer.
type Rest<T> = Vec<Pin<Box<dyn Future<Output = StoreResult<T>> + Send>>>;

/// Requests under way that nobody waits for any more.
pub(super) type Late = Weak<()>;

/// What the nodes said to one question.
#[derive(Debug)]
pub(super) struct Ballot {
    pub(super) votes: Vec<Option<Vote>>,
    /// Why nodes were silent.
    pub(super) errors: Vec<StoreError>,
    /// What is still under way to slow nodes, of a vote that has carried.
    pub(super) late: Late,
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

/// Has a majority answered?
pub(super) fn most_answered<T>(answers: &Answers<T>) -> bool {
    answers.iter().flatten().filter(|answer| answer.is_ok()).count() >= majority(answers.len())
}

fn votes(answers: &Answers<Vote>) -> Vec<Option<Vote>> {
    let of = |answer: &StoreResult<Vote>| answer.as_ref().map_or(Vote::Silent, |vote| *vote);
    answers.iter().map(|answer| answer.as_ref().map(of)).collect()
}

impl Nodes {
    pub(super) fn new(
        kind: &'static str,
        links: Vec<Connection>,
        agreement: Option<Arc<Agreement>>,
    ) -> Self {
        let links = links.into_iter().map(Arc::new).collect();
        Self { kind, agreement, links, clock: Clock::system(), finishing: watch::Sender::default() }
    }

    /// Too few nodes have answered: what they suffer from, if it is more than silence.
    pub(super) fn shortage(&self, mut errors: Vec<StoreError>) -> StoreError {
        let worst = errors.iter().position(|e| e.kind != ErrorKind::Unavailable).unwrap_or(0);
        let alone = self.links.len() == 1;
        let what = match alone {
            true => "the server does not answer in time",
            false => "fewer than a majority of the servers answer in time",
        };
        if errors.is_empty() {
            return StoreError::unknown(self.kind, ErrorKind::Unavailable, what);
        }
        let StoreError { kind: trouble, what: cause, source, .. } = errors.swap_remove(worst);
        let what = if alone { cause } else { format!("{what}: {cause}") };
        StoreError { source, ..StoreError::unknown(self.kind, trouble, what) }
    }

    /// How many nodes are more than half.
    pub(super) fn majority(&self) -> usize {
        majority(self.links.len())
    }

    /// Asks all nodes at once, until their answers suffice or the patience is over. What is left may
    /// be dropped: a request that was not sent by then never is, and one that was sent comes before
    /// all that follows it.
    async fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<T> + Clone + Send + Sync + 'static,
        enough: impl Fn(&Answers<T>) -> bool + Send + Sync,
    ) -> (Vec<Option<StoreResult<T>>>, Rest<T>) {
        let call = Arc::new(call);
        let mut asks: Rest<T> = Vec::with_capacity(self.links.len());
        for node in &self.links {
            let (node, call, read) = (Arc::clone(node), Arc::clone(&call), read.clone());
            asks.push(Box::pin(async move { read(node.run(&call).await?) }));
        }
        join::until(asks, enough, self.clock.sleep(patience)).await
    }

    /// Goes on with requests in the background, so that slow nodes get them as well and the next loss
    /// of a fast one does no harm.
    fn finish<T: Send + 'static>(&self, rest: Rest<T>) -> Late {
        if rest.is_empty() {
            return Late::new();
        }
        let under_way = Arc::new(());
        let (late, finishing) = (Arc::downgrade(&under_way), self.finishing.clone());
        finishing.send_modify(|tasks| *tasks += 1);
        let clock = self.clock.clone();
        tokio::spawn(async move {
            join::until(rest, |_| false, clock.sleep(LINGER)).await;
            drop(under_way);
            finishing.send_modify(|tasks| *tasks -= 1);
        });
        late
    }

    /// Waits for what goes on in the background, but not for long.
    pub(super) async fn finished(&self, patience: Duration) {
        let mut finishing = self.finishing.subscribe();
        tokio::select! {
            _ = finishing.wait_for(|tasks| *tasks == 0) => {}
            () = self.clock.sleep(patience) => {}
        }
    }

    /// A vote on something that is written. It stops when `enough` says so of the verdict so far; if
    /// it has carried, the other nodes get it in the background.
    pub(super) async fn vote(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<Vote> + Clone + Send + Sync + 'static,
        enough: fn(Verdict) -> bool,
    ) -> Ballot {
        let stop = |answers: &Answers<Vote>| enough(tally(&votes(answers)));
        let (answers, rest) = self.ask(patience, call, read, stop).await;
        let votes = votes(&answers);
        for (node, vote) in votes.iter().enumerate() {
            if let (Some(Vote::Differs(told)), Some(agreement)) = (vote, &self.agreement) {
                agreement.hear(node, *told);
            }
        }
        let carried = tally(&votes) == Verdict::Carried;
        let late = if carried { self.finish(rest) } else { Late::new() };
        let errors = answers.into_iter().flatten().filter_map(Result::err).collect();
        Ballot { votes, errors, late }
    }

    /// What nodes say, a majority of them at least, until it is enough.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<T> + Clone + Send + Sync + 'static,
        enough: impl Fn(&Answers<T>) -> bool + Send + Sync,
    ) -> StoreResult<Vec<T>> {
        let (answers, _) = self.ask(patience, call, read, enough).await;
        self.most(answers)
    }

    /// The same of something that all nodes shall get, the slow ones in the background.
    pub(super) async fn tell<T: Send + 'static>(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<T> + Clone + Send + Sync + 'static,
    ) -> StoreResult<Vec<T>> {
        let (answers, rest) = self.ask(patience, call, read, most_answered).await;
        self.finish(rest);
        self.most(answers)
    }

    /// Tells some nodes something, and does not mind what they say to it.
    pub(super) async fn tell_some(&self, which: &[usize], patience: Duration, call: &Call) {
        let asks = which.iter().map(|at| Box::pin(self.links[*at].run::<Value>(call)));
        join::until(asks.collect(), |_| false, self.clock.sleep(patience)).await;
    }

    /// The names in the index of any node. A majority knows all that are held.
    pub(super) async fn index(&self, key: &str, patience: Duration) -> StoreResult<Vec<String>> {
        let mut all = redis::cmd("ZRANGE");
        all.arg(key).arg(0).arg(-1);
        let asks = self.links.iter().map(|node| Box::pin(node.query::<Vec<String>>(&all)));
        let over = self.clock.sleep(patience);
        let (pages, _) = join::until(asks.collect(), most_answered, over).await;
        Ok(self.most(pages)?.into_iter().flatten().collect())
    }

    fn most<T>(&self, answers: Vec<Option<StoreResult<T>>>) -> StoreResult<Vec<T>> {
        let (mut said, mut errors) = (Vec::new(), Vec::new());
        for answer in answers.into_iter().flatten() {
            match answer {
                Ok(answer) => said.push(answer),
                Err(e) => errors.push(e),
            }
        }
        if said.len() < self.majority() { Err(self.shortage(errors)) } else { Ok(said) }
    }

    /// Connects to all nodes at once, and goes on when a majority has answered: the others are connected
    /// in the background. Where all of them have been up for long and have never heard of us, they are
    /// new to us, not forgetful.
    pub(super) async fn meet(&self, agreement: &Agreement, max_ttl: Duration) {
        let asks = self.links.iter().map(|node| Box::pin(node.ready())).collect();
        let (said, rest) = join::until(asks, most_answered, std::future::pending()).await;
        let answered = said.iter().flatten().filter(|answer| answer.is_ok()).count();
        let grace = if agreement.may_be_new(answered) { GRACE_OF_NEW } else { GRACE };
        join::until(rest, |_| false, self.clock.sleep(grace)).await;
        let Some(new) = agreement.all_new() else { return };
        if new.iter().all(|node| node.uptime > max_ttl) {
            let waive = self.links.iter().zip(new).map(|(link, node)| async move {
                let mut waive = Call::new(&WAIVE, &[BOOT]);
                waive.arg(node.run);
                link.run::<Value>(&waive).await
            });
            // What fails here stays in quarantine.
            join::all(waive).await;
        }
    }

    /// What else than ours a node was told about `max_ttl`. It may have been changed since it was heard.
    pub(super) async fn other_max_ttl(&self, patience: Duration) -> Option<Duration> {
        let agreement = self.agreement.as_deref()?;
        agreement.other()?;
        self.max_ttl(agreement, false, patience, Duration::MAX).await;
        agreement.other()
    }

    /// Sees to it that a majority of the nodes was told our `max_ttl` before the first lock is asked for. Nothing
    /// is written before a majority has answered and none of them was told something else.
    pub(super) async fn settle_max_ttl(&self, patience: Duration) -> StoreResult<()> {
        let Some(agreement) = self.agreement.as_deref() else { return Ok(()) };
        for write in [false, true] {
            if agreement.is_settled() {
                return Ok(());
            }
            self.most(self.max_ttl(agreement, write, patience, GRACE).await)?;
            if agreement.other().is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Asks the nodes what they were told, and tells those that were told nothing. When a majority has answered,
    /// the others have this grace.
    async fn max_ttl(
        &self,
        agreement: &Agreement,
        write: bool,
        patience: Duration,
        grace: Duration,
    ) -> Vec<Option<StoreResult<()>>> {
        let mut call = Call::new(&TELL, &[&agreement.key]);
        call.arg(if write { agreement.ours } else { 0 });
        let call = &call;
        let ask = |(node, link): (usize, &Arc<Connection>)| {
            let link = Arc::clone(link);
            async move {
                let told = answers::told(link.run(call).await?)?;
                agreement.hear(node, told);
                Ok(())
            }
        };
        let asks = self.links.iter().enumerate().map(|node| Box::pin(ask(node))).collect();
        let over = self.clock.sleep(patience);
        let (mut said, rest) = join::until(asks, most_answered, over).await;
        let over = self.clock.sleep(grace.min(patience));
        said.extend(join::until(rest, |_| false, over).await.0);
        said
    }
}
