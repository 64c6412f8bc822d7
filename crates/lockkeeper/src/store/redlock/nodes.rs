//! The servers, all asked at once.

use super::{
    decide::{Verdict, Vote, majority, tally},
    handshake::{Agreement, BOOT, TELL, WAIVE},
    votes,
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

/// For how long a node may take where no TTL presses.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// For how long requests go on in the background. Later they would only do harm.
const BACKGROUND: Duration = Duration::from_secs(5);
/// For how long a new handle waits for the other nodes when a majority has answered. They may remember what
/// the majority has forgotten; but a node that stands still must not delay the program.
const GRACE: Duration = Duration::from_millis(50);
/// The same where the nodes seem to be new to us, which only all of them together can show.
const GRACE_OF_NEW: Duration = Duration::from_secs(1);

/// For how long one node may take. It is much shorter than the TTL: a slow node counts as a silent one.
pub(super) fn patience(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(100), PATIENCE)
}

/// Whether no vote that is still to come can change the verdict.
pub(super) fn is_decided(so_far: Verdict) -> bool {
    so_far != Verdict::Open
}

/// Servers that know nothing of each other.
pub(super) struct Nodes {
    /// The kind of store, as errors name it.
    pub(super) kind: &'static str,
    /// What the nodes must agree about; plain strings know no such thing.
    pub(super) agreement: Option<Arc<Agreement>>,
    pub(super) connections: Vec<Arc<Connection>>,
    pub(super) clock: Clock,
    /// How many tasks send requests on to slow nodes in the background.
    finishing: watch::Sender<usize>,
}

/// One reply for each node, as far as they have come in.
pub(super) type Replies<T> = [Option<StoreResult<T>>];

/// Requests without a reply.
type Rest<T> = Vec<Pin<Box<dyn Future<Output = StoreResult<T>> + Send>>>;

/// Stands for requests that go on in the background; it is dead when they are over.
pub(super) type InFlight = Weak<()>;

/// What the nodes said to one question.
#[derive(Debug)]
pub(super) struct Ballot {
    /// One for each node; `None` of a node that has not answered yet.
    pub(super) votes: Vec<Option<Vote>>,
    /// Why nodes were silent.
    pub(super) errors: Vec<StoreError>,
    /// What is still under way to slow nodes, of a vote that has carried.
    pub(super) in_flight: InFlight,
}

impl Ballot {
    pub(super) fn verdict(&self) -> Verdict {
        tally(&self.votes)
    }

    /// How many nodes have answered, whatever they said.
    pub(super) fn answered(&self) -> usize {
        self.votes.iter().flatten().filter(|vote| **vote != Vote::Silent).count()
    }

    pub(super) fn nodes_that_said(&self, vote: Vote) -> Vec<usize> {
        (0..self.votes.len()).filter(|node| self.votes[*node] == Some(vote)).collect()
    }
}

/// Whether a majority has answered.
pub(super) fn most_answered<T>(replies: &Replies<T>) -> bool {
    replies.iter().flatten().filter(|reply| reply.is_ok()).count() >= majority(replies.len())
}

fn votes_of(replies: &Replies<Vote>) -> Vec<Option<Vote>> {
    let of = |reply: &StoreResult<Vote>| reply.as_ref().map_or(Vote::Silent, |vote| *vote);
    replies.iter().map(|reply| reply.as_ref().map(of)).collect()
}

impl Nodes {
    pub(super) fn new(
        kind: &'static str,
        connections: Vec<Connection>,
        agreement: Option<Arc<Agreement>>,
    ) -> Self {
        let connections = connections.into_iter().map(Arc::new).collect();
        let (clock, finishing) = (Clock::system(), watch::Sender::default());
        Self { kind, agreement, connections, clock, finishing }
    }

    /// The error for too few replies, with the cause of one node's silence if it is known.
    pub(super) fn shortage(&self, mut errors: Vec<StoreError>) -> StoreError {
        let worst = errors.iter().position(|e| e.kind != ErrorKind::Unavailable).unwrap_or(0);
        let alone = self.connections.len() == 1;
        let what = match alone {
            true => "the server does not answer in time",
            false => "fewer than a majority of the servers answer in time",
        };
        if errors.is_empty() {
            return StoreError::unknown(self.kind, ErrorKind::Unavailable, what);
        }
        let StoreError { kind, what: cause, source, .. } = errors.swap_remove(worst);
        let what = if alone { cause } else { format!("{what}: {cause}") };
        StoreError { source, ..StoreError::unknown(self.kind, kind, what) }
    }

    /// Whether a vote has carried; an error if that depends on nodes that have not answered.
    pub(super) fn decision(&self, ballot: Ballot) -> StoreResult<bool> {
        match ballot.verdict() {
            Verdict::Carried => Ok(true),
            Verdict::Failed => Ok(false),
            Verdict::Open => Err(self.shortage(ballot.errors)),
        }
    }

    /// How many nodes are more than half.
    pub(super) fn majority(&self) -> usize {
        majority(self.connections.len())
    }

    /// Asks all nodes at once, until their replies suffice or the patience is over. The rest may be dropped:
    /// a request that was not sent by then is never sent, and one that was sent reaches its node before
    /// every later request.
    async fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<T> + Clone + Send + Sync + 'static,
        enough: impl Fn(&Replies<T>) -> bool + Send + Sync,
    ) -> (Vec<Option<StoreResult<T>>>, Rest<T>) {
        let call = Arc::new(call);
        let mut asks: Rest<T> = Vec::with_capacity(self.connections.len());
        for node in &self.connections {
            let (node, call, read) = (Arc::clone(node), Arc::clone(&call), read.clone());
            asks.push(Box::pin(async move { read(node.run(&call).await?) }));
        }
        join::until(asks, enough, self.clock.sleep(patience)).await
    }

    /// Goes on with requests in the background, so that slow nodes get them as well and the next loss of a
    /// fast node does no harm.
    fn finish<T: Send + 'static>(&self, rest: Rest<T>) -> InFlight {
        if rest.is_empty() {
            return InFlight::new();
        }
        let under_way = Arc::new(());
        let (in_flight, finishing) = (Arc::downgrade(&under_way), self.finishing.clone());
        finishing.send_modify(|tasks| *tasks += 1);
        let clock = self.clock.clone();
        tokio::spawn(async move {
            join::until(rest, |_| false, clock.sleep(BACKGROUND)).await;
            drop(under_way);
            finishing.send_modify(|tasks| *tasks -= 1);
        });
        in_flight
    }

    /// Waits for what goes on in the background, but not for long.
    pub(super) async fn finished(&self, patience: Duration) {
        let mut finishing = self.finishing.subscribe();
        tokio::select! {
            _ = finishing.wait_for(|tasks| *tasks == 0) => {}
            () = self.clock.sleep(patience) => {}
        }
    }

    /// A vote on a write. It stops when `enough` says so of the verdict so far; if it has carried, the other
    /// nodes get the write in the background.
    pub(super) async fn vote(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<Vote> + Clone + Send + Sync + 'static,
        enough: fn(Verdict) -> bool,
    ) -> Ballot {
        let stop = |replies: &Replies<Vote>| enough(tally(&votes_of(replies)));
        let (replies, rest) = self.ask(patience, call, read, stop).await;
        let votes = votes_of(&replies);
        for (node, vote) in votes.iter().enumerate() {
            if let (Some(Vote::Differs(told)), Some(agreement)) = (vote, &self.agreement) {
                agreement.hear(node, *told);
            }
        }
        let carried = tally(&votes) == Verdict::Carried;
        let in_flight = if carried { self.finish(rest) } else { InFlight::new() };
        let errors = replies.into_iter().flatten().filter_map(Result::err).collect();
        Ballot { votes, errors, in_flight }
    }

    /// What nodes say, a majority of them at least, until `enough` says so.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<T> + Clone + Send + Sync + 'static,
        enough: impl Fn(&Replies<T>) -> bool + Send + Sync,
    ) -> StoreResult<Vec<T>> {
        let (replies, _) = self.ask(patience, call, read, enough).await;
        self.most(replies)
    }

    /// The same for a request that all nodes shall get, the slow ones in the background.
    pub(super) async fn tell<T: Send + 'static>(
        &self,
        patience: Duration,
        call: Call,
        read: impl Fn(Value) -> StoreResult<T> + Clone + Send + Sync + 'static,
    ) -> StoreResult<Vec<T>> {
        let (replies, rest) = self.ask(patience, call, read, most_answered).await;
        self.finish(rest);
        self.most(replies)
    }

    /// Sends a request to some nodes, and ignores their replies.
    pub(super) async fn tell_some(&self, which: &[usize], patience: Duration, call: &Call) {
        let asks = which.iter().map(|at| Box::pin(self.connections[*at].run::<Value>(call)));
        join::until(asks.collect(), |_| false, self.clock.sleep(patience)).await;
    }

    /// The names in the index of any node. A majority knows all that are held.
    pub(super) async fn index(&self, key: &str, patience: Duration) -> StoreResult<Vec<String>> {
        let mut all = redis::cmd("ZRANGE");
        all.arg(key).arg(0).arg(-1);
        let asks = self.connections.iter().map(|node| Box::pin(node.query::<Vec<String>>(&all)));
        let over = self.clock.sleep(patience);
        let (pages, _) = join::until(asks.collect(), most_answered, over).await;
        Ok(self.most(pages)?.into_iter().flatten().collect())
    }

    /// The replies, if a majority has answered.
    fn most<T>(&self, replies: Vec<Option<StoreResult<T>>>) -> StoreResult<Vec<T>> {
        let (mut said, mut errors) = (Vec::new(), Vec::new());
        for reply in replies.into_iter().flatten() {
            match reply {
                Ok(reply) => said.push(reply),
                Err(e) => errors.push(e),
            }
        }
        if said.len() < self.majority() { Err(self.shortage(errors)) } else { Ok(said) }
    }

    /// Connects to all nodes at once, and goes on when a majority has answered: the others are connected in
    /// the background. Fails if no majority answers; each connection limits its own time. If all nodes have been up
    /// for long and are new to us (`handshake.rs`), none has forgotten a holder: their quarantine is ended.
    pub(super) async fn connect(&self, max_ttl: Duration) -> StoreResult<()> {
        let asks = self.connections.iter().map(|node| Box::pin(node.ready())).collect();
        let (said, rest) = join::until(asks, most_answered, std::future::pending()).await;
        let answered = self.most(said)?.len();
        let Some(agreement) = &self.agreement else { return Ok(()) };
        let grace = if agreement.may_be_new(answered) { GRACE_OF_NEW } else { GRACE };
        join::until(rest, |_| false, self.clock.sleep(grace)).await;
        let Some(new) = agreement.all_new() else { return Ok(()) };
        if new.iter().all(|node| node.uptime > max_ttl) {
            let waive = self.connections.iter().zip(new).map(|(connection, node)| async move {
                let mut waive = Call::new(&WAIVE, &[BOOT]);
                waive.arg(node.run);
                connection.run::<Value>(&waive).await
            });
            // A node that is not reached now stays in quarantine.
            join::all(waive).await;
        }
        Ok(())
    }

    /// A `max_ttl` other than ours that a node was told. The nodes are asked again, because it may have been
    /// changed since.
    pub(super) async fn other_max_ttl(&self, patience: Duration) -> Option<Duration> {
        let agreement = self.agreement.as_deref()?;
        agreement.other()?;
        self.max_ttl(agreement, false, patience, Duration::MAX).await;
        agreement.other()
    }

    /// Sees to it that a majority of the nodes was told our `max_ttl` before the first lock is asked for. Nothing
    /// is written before a majority has answered and none of them was told another value.
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

    /// Asks the nodes what they were told; with `write`, tells those that were told nothing. When a majority has
    /// answered, the others have this grace.
    async fn max_ttl(
        &self,
        agreement: &Agreement,
        write: bool,
        patience: Duration,
        grace: Duration,
    ) -> Vec<Option<StoreResult<()>>> {
        let mut call = Call::new(&TELL, &[&agreement.key]);
        call.arg(if write { agreement.ours } else { 0 });
        let ask = async |node: usize, connection: &Connection| {
            agreement.hear(node, votes::number(connection.run(&call).await?)?);
            Ok(())
        };
        let asks = self.connections.iter().enumerate();
        let asks = asks.map(|(node, connection)| Box::pin(ask(node, connection))).collect();
        let over = self.clock.sleep(patience);
        let (mut said, rest) = join::until(asks, most_answered, over).await;
        let over = self.clock.sleep(grace.min(patience));
        said.extend(join::until(rest, |_| false, over).await.0);
        said
    }
}
