//! Taking a name: one proposal to all nodes at once, and another one only if the first was too low.

use super::{
    IDLE, Redlock,
    decide::{Verdict, Vote, propose, raise},
    flavour::Flavour,
    nodes::{Ballot, PATIENCE, Replies, is_decided, patience},
    session::{Admission, Held, LocalSession},
    votes,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{Mode, Place},
    store::{
        Enter, Entered, Manner, Open, StoreResult, TicketStatus, Wait,
        redis::{Call, hex, micros, pack},
    },
    sync::Mutex,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How often a proposal that was too low is raised before the name counts as busy.
const RAISES: usize = 3;
/// When to try again if no node says.
const RECHECK: Duration = Duration::from_millis(50);

fn busy(recheck: Duration) -> Entered {
    Entered::Busy(Wait { ahead: 1, holder: None, recheck })
}

impl Redlock {
    pub(super) async fn enter_line(&self, ask: &Enter) -> StoreResult<Entered> {
        let missing = match (ask.manner, ask.mode) {
            (Manner::Contend, Mode::Exclusive) => None,
            (_, Mode::Exclusive) => Some("waiting in line; use unfair()"),
            _ => Some("readers and semaphores"),
        };
        if let Some(what) = missing {
            return Err(self.refused(ErrorKind::Unsupported(what), what));
        }
        self.allows(&ask.place.name)?;
        let Place { session, name, ticket } = &ask.place;
        let local = self.session(*session)?;
        if let Some(held) = local.tickets.get(ticket).filter(|held| held.name == *name)
            && let TicketStatus::Granted { fence } = self.verify(*session, *ticket, held).await?
        {
            return Ok(Entered::Granted { fence });
        }
        self.agree().await?;
        self.take(ask, &local).await
    }

    /// One proposal after the other, each above what stood in the way of the last. The nodes keep the
    /// ticket until the session expires as it stands now; see [`admit`](Self::admit).
    async fn take(&self, ask: &Enter, local: &LocalSession) -> StoreResult<Entered> {
        let mut recheck = None;
        for _ in 0..RAISES {
            let fence = propose(self.nodes.clock.wall_micros(), self.seen.load(Ordering::Relaxed));
            self.seen.fetch_max(fence, Ordering::Relaxed);
            let (ballot, remaining) = self.propose(ask, local, fence).await;
            let differs = ballot.votes.iter().any(|vote| matches!(vote, Some(Vote::Differs(_))));
            if ballot.verdict() == Verdict::Carried && !differs {
                let (name, label) = (ask.place.name.clone(), ask.label.clone());
                let (till, enter) = (local.expires, ballot.in_flight);
                let held = Held { name, fence, till, label, enter };
                return self.admit(&ask.place, &local.ask, held).await;
            }
            recheck = remaining;
            self.take_back(&ask.place, &ballot.votes, patience(local.ask.ttl)).await;
            self.check_max_ttl().await?;
            let raised = raise(&ballot.votes);
            if let Some(e) = self.obstacle(ballot, remaining) {
                return Err(e);
            }
            let Some(counter) = raised else { break };
            self.seen.fetch_max(counter, Ordering::Relaxed);
        }
        Ok(busy(recheck.unwrap_or(RECHECK)))
    }

    /// Why a proposal has failed, if not because another client holds the name.
    fn obstacle(&self, ballot: Ballot, remaining: Option<Duration>) -> Option<StoreError> {
        if !ballot.nodes_that_said(Vote::Closed).is_empty() {
            let what = "the ticket was closed by its owner";
            return Some(self.refused(ErrorKind::TicketClosed, what));
        }
        let (nodes, voids) = (ballot.votes.len(), ballot.nodes_that_said(Vote::Void).len());
        if nodes - voids < self.nodes.majority() {
            let left = remaining.unwrap_or_default();
            let what = format!(
                "{voids} of {nodes} servers have started or lost their data not long ago and have no vote until \
                 max_ttl has passed, for another {left:.0?}"
            );
            return Some(StoreError::unknown(self.nodes.kind, ErrorKind::Unavailable, what));
        }
        let is_refusal = |vote: &Option<Vote>| matches!(vote, Some(Vote::No | Vote::Low(_)));
        let is_taken = ballot.votes.iter().any(is_refusal);
        let is_open = ballot.verdict() != Verdict::Failed;
        let few = ballot.answered() < self.nodes.majority();
        (is_open && (few || !is_taken)).then(|| self.nodes.shortage(ballot.errors))
    }

    /// The votes, and after what time a node may vote otherwise although no client has written to it.
    async fn propose(
        &self,
        ask: &Enter,
        local: &LocalSession,
        fence: u64,
    ) -> (Ballot, Option<Duration>) {
        let soonest = Arc::new(Mutex::new(None::<Duration>));
        let heard = Arc::clone(&soonest);
        let read = move |reply| {
            let (vote, remaining) = votes::vote(reply)?;
            let mut soonest = heard.lock();
            *soonest = soonest.into_iter().chain(remaining).min();
            Ok(vote)
        };
        let call = self.proposal(&ask.place, &local.ask, fence, local.expires, &ask.label, false);
        // Longer than a renewal may take: while a majority answers, no caller waits for it in vain.
        let patience = patience(local.ask.ttl).max(Duration::from_millis(500));
        let ballot = self.nodes.vote(patience, call, read, is_decided).await;
        let remaining = *soonest.lock();
        (ballot, remaining)
    }

    /// A proposal; or, as a repair, a ticket that a majority has.
    pub(super) fn proposal(
        &self,
        Place { session, name, ticket }: &Place,
        ask: &Open,
        fence: u64,
        till: Moment,
        label: &[u8],
        repair: bool,
    ) -> Call {
        let [boot, max_ttl] = self.quarantine_keys();
        let keys = [self.key(name), boot, self.index(), self.closed_key(name), max_ttl];
        let mut call = Call::new(&self.scripts.enter, &keys);
        call.arg(ticket.to_string()).arg(hex(*session)).arg(fence);
        call.arg(self.length(till, ask)).arg(pack(&ask.owner)).arg(label);
        call.arg(micros(self.max_ttl)).arg(micros(IDLE)).arg(name.as_str()).arg(u8::from(repair));
        call
    }

    /// Adds a grant to its session. A renewal that was answered while the vote was under way has moved the
    /// core's belief beyond what the nodes were asked for: then the ticket is prolonged first.
    async fn admit(&self, place: &Place, ask: &Open, mut held: Held) -> StoreResult<Entered> {
        let refusal = loop {
            let now = self.nodes.clock.now();
            let admission = self.sessions.lock().admit(place.session, place.ticket, &held, now);
            let till = match admission {
                Admission::Admitted => return Ok(Entered::Granted { fence: self.fence(&held) }),
                Admission::Over => break Err(StoreError::session_over(self.nodes.kind)),
                Admission::Behind(till) => till,
            };
            match self.nodes.decision(self.prolong(place, ask, till).await) {
                Ok(true) => held.till = till,
                Ok(false) => break Ok(busy(RECHECK)),
                Err(e) => break Err(e),
            }
        };
        self.nodes.finished(patience(ask.ttl)).await;
        let all = vec![Some(Vote::Yes); self.nodes.connections.len()];
        self.take_back(place, &all, patience(ask.ttl)).await;
        refusal
    }

    /// Takes a ticket away that has not become a grant, so that it keeps no other client out. The ticket may
    /// be entered again, so nothing of this goes on in the background: what is sent now reaches its node
    /// before the next enter, and what is not sent now is never sent. Silent nodes are not waited for.
    async fn take_back(&self, place: &Place, votes: &[Option<Vote>], patience: Duration) {
        let is_silent = |vote: &Option<Vote>| matches!(vote, None | Some(Vote::Silent));
        let enough = |replies: &Replies<bool>| {
            replies.iter().zip(votes).all(|(reply, vote)| reply.is_some() || is_silent(vote))
        };
        let call = self.leave_call(place, false);
        let _ = self.nodes.read(patience, call, votes::flag, enough).await;
    }

    /// Before the first proposal, a majority of the nodes must have been told our `max_ttl`, and none another.
    async fn agree(&self) -> StoreResult<()> {
        self.check_max_ttl().await?;
        self.nodes.settle_max_ttl(PATIENCE).await?;
        self.check_max_ttl().await
    }

    /// All clients must say the same `max_ttl`.
    pub(super) async fn check_max_ttl(&self) -> StoreResult<()> {
        let Some(other) = self.nodes.other_max_ttl(PATIENCE).await else { return Ok(()) };
        let ours = self.max_ttl;
        let what = format!(
            "this client says max_ttl={ours:?}, and a server was told {other:?} by other clients; all \
             must say the same (docs/redis.md says how to change it)"
        );
        Err(self.refused(ErrorKind::Misconfigured, what))
    }

    /// For how long from now a node shall keep a ticket so that it has it at `till`, wherever the request
    /// spends its time, and for the lock-delay after that.
    pub(super) fn length(&self, till: Moment, ask: &Open) -> u64 {
        micros(till.saturating_since(self.nodes.clock.now()) + ask.lock_delay)
    }

    /// The number of a grant as the outside sees it. Plain strings have none: other libraries draw no numbers
    /// for theirs, so ours would order nothing.
    pub(super) fn fence(&self, held: &Held) -> u64 {
        match self.flavour {
            Flavour::Fenced => held.fence,
            Flavour::Plain => 0,
        }
    }
}
