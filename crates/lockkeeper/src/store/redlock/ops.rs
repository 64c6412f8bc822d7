//! What Redlock does with the votes of its nodes.

use super::{
    IDLE, Redlock,
    answers::{self, Shown},
    book::{Admission, Held, Life},
    decide::{Verdict, Vote, propose, raise},
    greet::BOOT,
    nodes::{Answers, Ballot, most_answered},
    scripts::Flavour,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::{Mode, Place, SessionId, TicketId},
    },
    store::{
        Edit, Enter, Entered, Open, STRAY_MAX, StoreResult, TicketStatus, Wait,
        redis::{Call, hex, micros, pack},
    },
    sync::Mutex,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// How often a proposal that was too low is raised before the name counts as busy.
const RAISES: usize = 3;
/// For how long a node may take where no TTL presses.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// When to try again if no node says.
const RECHECK: Duration = Duration::from_millis(50);

/// For how long one node may take. Much shorter than the TTL: a slow node is a silent one.
pub(super) fn patience(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(100), PATIENCE)
}

/// Nothing that comes in can change it.
fn decided(so_far: Verdict) -> bool {
    so_far != Verdict::Open
}

/// All nodes that answer in time are heard, unless it is in vain.
fn lost(so_far: Verdict) -> bool {
    so_far == Verdict::Failed
}

fn busy(recheck: Duration) -> Wait {
    Wait { ahead: 1, holder: None, recheck }
}

/// What came of a proposal.
pub(super) enum Carried {
    Yes(Held),
    No(Wait),
}

impl Redlock {
    pub(super) fn key(&self, name: &Name) -> String {
        match self.flavour {
            Flavour::Fenced => format!("{}:rl:{name}", self.prefix),
            Flavour::Plain => name.to_string(),
        }
    }

    /// The number of a grant as the outside sees it. Plain strings have none: other libraries draw no
    /// numbers for theirs, so ours would order nothing.
    pub(super) fn fence(&self, held: &Held) -> u64 {
        match self.flavour {
            Flavour::Fenced => held.fence,
            Flavour::Plain => 0,
        }
    }

    /// A plain string of such a name would write over keys of ours.
    pub(super) fn allows(&self, name: &Name) -> StoreResult<()> {
        let own = format!("{}:", self.prefix);
        let reserved = [&own[..], "lk:", "lockkeeper:"];
        let taken = reserved.into_iter().find(|prefix| name.as_str().starts_with(prefix));
        let Some(prefix) = taken.filter(|_| self.flavour == Flavour::Plain) else { return Ok(()) };
        let what = format!(
            "with compat=string a lock's key is its name, and {name:?} begins with {prefix:?}: keys of \
             lockkeeper itself begin so"
        );
        Err(self.refused(ErrorKind::Name, what))
    }

    /// Before a lock is asked for, a majority of the nodes must have been told our `max_ttl`, and none another.
    pub(super) async fn settles(&self) -> StoreResult<()> {
        self.agrees().await?;
        self.nodes.settle_max_ttl(PATIENCE).await?;
        self.agrees().await
    }

    /// All clients must say the same `max_ttl`.
    pub(super) async fn agrees(&self) -> StoreResult<()> {
        let Some(other) = self.nodes.other_max_ttl(PATIENCE).await else { return Ok(()) };
        let ours = self.max_ttl;
        let what = format!(
            "this client says max_ttl={ours:?}, and a server was told {other:?} by other clients; all \
             must say the same (docs/redis.md says how to change it)"
        );
        Err(self.refused(ErrorKind::Misconfigured, what))
    }

    fn closed_key(&self, name: &Name) -> String {
        format!("{}:rl-closed:{name}", self.prefix)
    }

    /// The keys of the quarantine. Plain strings know none; there a key takes their place that may be
    /// named in any case.
    fn boot(&self) -> [String; 2] {
        match &self.nodes.agreement {
            Some(agreement) => [BOOT.to_owned(), agreement.key.clone()],
            None => [self.index(), self.index()],
        }
    }

    fn index(&self) -> String {
        format!("{}:rl-index", self.prefix)
    }

    /// For how long from now a node shall keep a ticket so that it has it at `till`, wherever the
    /// request spends its time, and for the lock-delay after that.
    fn length(&self, till: Moment, ask: &Open) -> u64 {
        micros(till.saturating_since(self.nodes.clock.now()) + ask.lock_delay)
    }

    pub(super) fn enter_script(&self, ask: &Enter, life: &Open, t: u64, till: Moment) -> Call {
        self.script_with(&ask.place, life, t, till, &ask.label, false)
    }

    /// A proposal; or, to mend, a ticket that a majority has.
    pub(super) fn script_with(
        &self,
        place: &Place,
        life: &Open,
        t: u64,
        till: Moment,
        note: &[u8],
        mend: bool,
    ) -> Call {
        let Place { session, name, ticket } = place;
        let [boot, max_ttl] = self.boot();
        let keys = [self.key(name), boot, self.index(), self.closed_key(name), max_ttl];
        let mut script = Call::new(&self.scripts.enter, &keys);
        script.arg(ticket.to_string()).arg(hex(*session)).arg(t);
        script.arg(self.length(till, life)).arg(pack(&life.owner)).arg(note);
        script.arg(micros(self.max_ttl)).arg(micros(IDLE)).arg(name.as_str()).arg(u8::from(mend));
        script
    }

    pub(super) fn leave_script(&self, place: &Place, stray: bool) -> Call {
        let Place { session, name, ticket } = place;
        let keys = [self.key(name), self.index(), self.closed_key(name)];
        let mut script = Call::new(&self.scripts.leave, &keys);
        script.arg(ticket.to_string()).arg(hex(*session));
        script.arg(if stray { micros(STRAY_MAX) } else { 0 }).arg(name.as_str());
        script
    }

    /// One proposal after the other, each above what stood in the way of the last. The nodes keep
    /// the ticket until the session expires as it stands now; see [`admit`](Self::admit).
    pub(super) async fn carry(&self, ask: &Enter, life: &Life) -> StoreResult<Carried> {
        let mut recheck = None;
        for _ in 0..RAISES {
            let t = propose(self.nodes.clock.wall_micros(), self.seen.load(Ordering::Relaxed));
            self.seen.fetch_max(t, Ordering::Relaxed);
            let (ballot, remaining) = self.propose(ask, life, t).await;
            let differs = ballot.votes.iter().any(|vote| matches!(vote, Some(Vote::Differs(_))));
            if ballot.verdict() == Verdict::Carried && !differs {
                let (name, note) = (ask.place.name.clone(), ask.label.clone());
                let (till, late) = (life.expires, ballot.late);
                return Ok(Carried::Yes(Held { name, fence: t, till, note, late }));
            }
            recheck = remaining;
            self.take_back(&ask.place, &ballot.votes, patience(life.ask.ttl)).await;
            self.agrees().await?;
            let raised = raise(&ballot.votes);
            if let Some(e) = self.obstacle(ballot, remaining) {
                return Err(e);
            }
            match raised {
                Some(counter) => self.seen.fetch_max(counter, Ordering::Relaxed),
                None => break,
            };
        }
        Ok(Carried::No(busy(recheck.unwrap_or(RECHECK))))
    }

    /// Why a proposal has failed, if not because somebody else holds the name.
    fn obstacle(&self, ballot: Ballot, remaining: Option<Duration>) -> Option<StoreError> {
        let (nodes, voids) = (ballot.votes.len(), ballot.count(Vote::Void));
        if ballot.count(Vote::Closed) > 0 {
            let what = "the ticket was closed by its owner";
            return Some(self.refused(ErrorKind::TicketClosed, what));
        }
        if nodes - voids < self.nodes.majority() {
            let left = remaining.unwrap_or_default();
            let what = format!(
                "{voids} of {nodes} servers have started empty not long ago and have no vote until \
                 max_ttl has passed, for another {left:.0?}"
            );
            return Some(StoreError::unknown(self.nodes.kind, ErrorKind::Unavailable, what));
        }
        let undecided = ballot.verdict() != Verdict::Failed;
        let refusal = |vote: &Option<Vote>| matches!(vote, Some(Vote::No | Vote::Low(_)));
        let taken = ballot.votes.iter().any(refusal);
        let few = ballot.answered() < self.nodes.majority();
        (undecided && (few || !taken)).then(|| self.nodes.shortage(ballot.errors))
    }

    /// The votes, and after what time a node may vote otherwise although no client has written to it.
    async fn propose(&self, ask: &Enter, life: &Life, t: u64) -> (Ballot, Option<Duration>) {
        let soonest = Arc::new(Mutex::new(None::<Duration>));
        let script = self.enter_script(ask, &life.ask, t, life.expires);
        let heard = Arc::clone(&soonest);
        let read = move |answer| {
            let said = answers::vote(answer)?;
            let mut soonest = heard.lock();
            *soonest = soonest.into_iter().chain(said.remaining).min();
            Ok(said.vote)
        };
        // Longer than a renewal may take: nobody waits for it in vain while a majority answers.
        let patience = patience(life.ask.ttl).max(Duration::from_millis(500));
        let ballot = self.nodes.vote(patience, script, read, decided).await;
        let remaining = *soonest.lock();
        (ballot, remaining)
    }

    /// Writes a grant down. A renewal that was answered while the vote was under way has moved the
    /// core's belief beyond what the nodes were asked for: then the ticket is prolonged first.
    pub(super) async fn admit(
        &self,
        place: &Place,
        ask: &Open,
        mut held: Held,
    ) -> StoreResult<Entered> {
        loop {
            let now = self.nodes.clock.now();
            let admission = self.book().admit(place.session, place.ticket, &held, now);
            let refusal = match admission {
                Admission::Admitted => {
                    return Ok(Entered::Granted { fence: self.fence(&held) });
                }
                Admission::Over => Err(StoreError::session_over(self.nodes.kind)),
                Admission::Behind(till) => {
                    let ballot = self.prolong(place, ask, till).await;
                    match ballot.verdict() {
                        Verdict::Carried => {
                            held.till = till;
                            continue;
                        }
                        Verdict::Failed => Ok(Entered::Busy(busy(RECHECK))),
                        Verdict::Open => Err(self.nodes.shortage(ballot.errors)),
                    }
                }
            };
            self.nodes.finished(patience(ask.ttl)).await;
            let all = vec![Some(Vote::Yes); self.nodes.links.len()];
            self.take_back(place, &all, patience(ask.ttl)).await;
            return refusal;
        }
    }

    /// Has the nodes keep a ticket until then.
    pub(super) async fn prolong(&self, place: &Place, ask: &Open, till: Moment) -> Ballot {
        let Place { session, name, ticket } = place;
        let mut script = Call::new(&self.scripts.renew, &[self.key(name), self.index()]);
        script.arg(ticket.to_string()).arg(hex(*session));
        script.arg(self.length(till, ask)).arg(micros(IDLE)).arg(name.as_str());
        self.nodes.vote(patience(ask.ttl), script, answers::yes_or_no, lost).await
    }

    /// Puts a ticket back on nodes that have said that they lack it, in the very round in which a
    /// majority has prolonged it. That is no vote: a ticket that had lapsed would rise again.
    pub(super) async fn mend(
        &self,
        place: Place,
        ask: &Open,
        held: &Held,
        ballot: &Ballot,
        till: Moment,
    ) {
        let lack = (0..ballot.votes.len()).filter(|at| ballot.votes[*at] == Some(Vote::No));
        let lack: Vec<usize> = lack.collect();
        // It may have been left meanwhile; from here on a leave comes behind us.
        if lack.is_empty() || !self.tickets(place.session).contains_key(&place.ticket) {
            return;
        }
        let call = self.script_with(&place, ask, held.fence, till, &held.note, true);
        self.nodes.tell_some(&lack, patience(ask.ttl), &call).await;
    }

    /// Takes a ticket away that has not become a grant: it must not stand in anybody's way, nor become
    /// a ghost. It may be entered again, so nothing of this goes on in the background: what is sent now
    /// comes before the next enter, and what is not sent now never is. Nodes that were silent are not
    /// waited for.
    async fn take_back(&self, place: &Place, votes: &[Option<Vote>], patience: Duration) {
        let silent = |vote: &Option<Vote>| matches!(vote, None | Some(Vote::Silent));
        let enough = |answers: &Answers<bool>| {
            answers.iter().zip(votes).all(|(answer, vote)| answer.is_some() || silent(vote))
        };
        let script = self.leave_script(place, false);
        let _ = self.nodes.read(patience, script, answers::flag, enough).await;
    }

    /// Takes a ticket away on all nodes; says whether it was on any. A majority must have answered,
    /// for then no majority has it any more.
    pub(super) async fn take_away(
        &self,
        place: &Place,
        stray: bool,
        patience: Duration,
    ) -> StoreResult<bool> {
        let script = self.leave_script(place, stray);
        Ok(self.nodes.tell(patience, script, answers::flag).await?.contains(&true))
    }

    pub(super) async fn take_from(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        let mut script = Call::new(&self.scripts.evict, &[self.key(name), self.index()]);
        match self.flavour {
            Flavour::Fenced => script.arg(ticket.to_string()),
            Flavour::Plain => match self.value_of(name, ticket).await? {
                Some(value) => script.arg(value),
                None => return Ok(false),
            },
        };
        script.arg(name.as_str());
        Ok(self.nodes.tell(PATIENCE, script, answers::flag).await?.contains(&true))
    }

    /// The plain string that a ticket stands for. Other libraries know nothing of tickets, so only the
    /// string that is there can say.
    async fn value_of(&self, name: &Name, ticket: TicketId) -> StoreResult<Option<Vec<u8>>> {
        let script = Call::new(&self.scripts.show, &[self.key(name)]);
        let keys = self.nodes.read(PATIENCE, script, answers::plain, most_answered).await?;
        match keys.into_iter().flatten().find(|key| key.ticket() == ticket) {
            Some(key) if !key.is_string() => {
                let what = "evicting what is no plain string: it may be no lock at all";
                Err(self.refused(ErrorKind::Unsupported(what), what))
            }
            key => Ok(key.map(|key| key.value)),
        }
    }

    /// Does a majority of the nodes hold this grant?
    pub(super) async fn confirm(
        &self,
        name: &Name,
        ticket: TicketId,
        fence: u64,
    ) -> StoreResult<bool> {
        let script = Call::new(&self.scripts.show, &[self.key(name)]);
        let fence = (self.flavour == Flavour::Fenced).then_some(fence);
        let is_it = move |t: &Ticket| t.id == ticket && fence.is_none_or(|f| t.fence == Some(f));
        let shown = self.scripts.shown;
        let read = move |answer| {
            let shown = shown(answer)?;
            Ok(if shown.is_some_and(|s| is_it(&s.ticket)) { Vote::Yes } else { Vote::No })
        };
        let ballot = self.nodes.vote(PATIENCE, script, read, decided).await;
        match ballot.verdict() {
            Verdict::Carried => Ok(true),
            Verdict::Failed => Ok(false),
            Verdict::Open => Err(self.nodes.shortage(ballot.errors)),
        }
    }

    /// How a ticket in the book stands on the nodes; one that is gone leaves the book.
    pub(super) async fn verify(
        &self,
        session: SessionId,
        ticket: TicketId,
        held: &Held,
    ) -> StoreResult<TicketStatus> {
        if self.confirm(&held.name, ticket, held.fence).await? {
            return Ok(TicketStatus::Granted { fence: self.fence(held) });
        }
        self.book().lost(session, ticket, held.fence);
        Ok(TicketStatus::Gone)
    }

    pub(super) async fn edit(&self, edit: &Edit, ttl: Duration) -> StoreResult<Ballot> {
        let Some(script) = &self.scripts.edit else {
            let what = "changing the note of a plain string";
            return Err(self.refused(ErrorKind::Unsupported(what), what));
        };
        let Place { session, name, ticket } = &edit.place;
        let mut script = Call::new(script, &[self.key(name)]);
        script.arg(ticket.to_string()).arg(hex(*session)).arg(edit.edit);
        script.arg(edit.bytes.as_deref().unwrap_or_default());
        Ok(self.nodes.vote(patience(ttl), script, answers::yes_or_no, decided).await)
    }

    /// The ticket that a majority of the nodes shows, with its newest note, and until when a
    /// majority has it.
    async fn holder(&self, name: &Name) -> StoreResult<Option<Ticket>> {
        let script = Call::new(&self.scripts.show, &[self.key(name)]);
        let majority = self.nodes.majority();
        let clear = |answers: &Answers<Option<Shown>>| {
            let said = answers.iter().flatten().flatten();
            let most = groups(said).values().map(Vec::len).max().unwrap_or(0);
            let open = answers.iter().filter(|answer| answer.is_none()).count();
            most >= majority || most + open < majority
        };
        let all = self.nodes.read(PATIENCE, script, self.scripts.shown, clear).await?;
        let most = groups(&all).into_values().find(|group| group.len() >= majority);
        Ok(most.and_then(|mut group| {
            group.sort_by_key(|shown| std::cmp::Reverse(shown.ticket.ends_in));
            let ends_in = group[majority - 1].ticket.ends_in;
            let newest =
                group.into_iter().max_by_key(|shown| (shown.edit, shown.ticket.entered_ago))?;
            Some(Ticket { ends_in, ..newest.ticket.clone() })
        }))
    }

    pub(super) async fn line(&self, name: Name) -> StoreResult<Option<Line>> {
        let ticket = self.holder(&name).await?;
        Ok(ticket.map(|ticket| Line::new(name, Mode::Exclusive.capacity(), vec![ticket])))
    }

    /// The names that begin so, as far as any node knows them.
    pub(super) async fn names(
        &self,
        prefix: &str,
        after: Option<&Name>,
    ) -> StoreResult<BTreeSet<Name>> {
        let names = self.nodes.index(&self.index(), PATIENCE * 4).await?;
        let names = names.iter().filter(|n| n.starts_with(prefix)).flat_map(|n| Name::new(n));
        Ok(names.filter(|name| after.is_none_or(|after| name > after)).collect())
    }
}

/// The nodes that show the same grant.
fn groups<'a>(
    said: impl IntoIterator<Item = &'a Option<Shown>>,
) -> BTreeMap<(TicketId, Option<u64>), Vec<&'a Shown>> {
    let mut groups: BTreeMap<_, Vec<&Shown>> = BTreeMap::new();
    for shown in said.into_iter().flatten() {
        groups.entry((shown.ticket.id, shown.ticket.fence)).or_default().push(shown);
    }
    groups
}
