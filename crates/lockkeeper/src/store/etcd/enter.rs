//! Entering a line: one transaction.
//!
//! If nobody stands in the way the ticket is put, and granted by that. If somebody does, a contender's
//! transaction only reads the line, and a queueing one puts the ticket all the same and reads it.

use super::{
    Etcd, KIND, Nature,
    keys::Seats,
    ops,
    proto::{Compare, Headed as _, RangeRequest, RequestOp, TxnRequest, TxnResponse},
    row::{Row, State},
    sessions::{Known, tag},
    standing::{LineRow, Queue, RECHECK, UNNUMBERED},
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::{
        line::LINE_MAX,
        ticket::{Mode, Place},
    },
    store::{Enter, Entered, Leave, Manner, StoreResult, TicketStatus, Wait},
};
use std::{collections::HashSet, sync::Arc};

/// A line that is not longer is read together with the write.
const SHORT: i64 = 64;

/// How often an enter begins again because others came between, or stood in its slot.
const TRIES: usize = 16;

/// An enter, with all that its transactions need.
struct Ask<'a> {
    place: &'a Place,
    mode: Mode,
    seats: Seats,
    lease: i64,
    row: Row,
}

impl Ask<'_> {
    fn key(&self, taken: Option<i64>) -> &[u8] {
        if taken.is_some() { &self.seats.own } else { &self.seats.slot }
    }
}

/// On what condition a ticket is put to be granted at once.
#[derive(Clone, Copy)]
enum Guard {
    /// Nobody stands in the way.
    Free,
    /// Those who stood in the line at this revision leave room, and nobody has come since.
    Since(i64),
}

impl Etcd {
    pub(super) async fn enter_line(&self, ask: Enter) -> StoreResult<Entered> {
        let session = ask.place.session;
        self.good(&ask.place.name)?;
        let Some((_, owner)) = self.life(session).await? else {
            return Err(StoreError::session_over(KIND));
        };
        let Place { name, ticket, .. } = &ask.place;
        let before =
            self.sessions.with(session, |life| life.tickets.get(ticket).cloned()).flatten();
        let lease = match &before {
            Some(known) => known.lease,
            None => self.roomy_lease(session).await?,
        };
        let seats = self.keys.seats(name, ask.mode, *ticket, tag(session));
        let (entered, note) = (self.wall_ms(), ask.label);
        let row = Row { ticket: *ticket, edit: 0, state: State::AtOnce, entered, owner, note };
        let known = Known {
            name: name.clone(),
            key: seats.slot.clone(),
            mode: ask.mode,
            lease,
            created: None,
            fence: None,
            behind: Arc::default(),
            called: false,
            stray: false,
            long: false,
            edit: 0,
        };
        self.sessions.with(session, |life| {
            if !life.tickets.contains_key(ticket) {
                life.attach(session, *ticket, known);
            }
        });
        let (place, mut traces) = (&ask.place, Traces::default());
        let put = Ask { place, mode: ask.mode, seats, lease, row };
        let entered = match ask.manner {
            Manner::Contend => self.contend(&put, &mut traces).await,
            Manner::Queue => self.stand_in_line(&put, &mut traces).await,
        };
        let entered = traces.judge(entered);
        // An earlier enter of it may stand.
        let absent = before.is_none()
            && (matches!(entered, Ok(Entered::Busy(_))) || surely_absent(&entered));
        self.sessions.with(session, |life| {
            if absent {
                life.detach(session, *ticket);
            } else if let Some(known) = life.tickets.get_mut(ticket) {
                known.stray |= traces.stray;
            }
        });
        entered
    }

    /// Takes what is free, and leaves nothing if it is not.
    async fn contend(&self, ask: &Ask<'_>, traces: &mut Traces) -> StoreResult<Entered> {
        // The revision of whoever stands in the ticket's slot, and the condition for a grant.
        let (mut taken, mut guard) = (None, Guard::Free);
        for _ in 0..TRIES {
            let failure = self.reasons(ask);
            let txn = TxnRequest { failure, ..self.at_once(ask, guard, taken) };
            let answer = self.send(txn, traces).await?;
            let revision = answer.revision();
            if answer.succeeded {
                self.note_key(ask, taken);
                return Ok(self.granted(ask.place, revision));
            }
            let found = (revision, ops::Answers::of(answer));
            match self.refused(ask, Manner::Contend, taken, found, traces).await? {
                Refused::Told(entered) => return Ok(entered),
                Refused::Line { queue, .. } if !queue.fits(ask.mode) => {
                    let wait = queue.wait(queue.0.len(), self.wall_ms());
                    return Ok(Entered::Busy(Wait { recheck: RECHECK, ..wait }));
                }
                Refused::Line { read, slot, .. } => (guard, taken) = (Guard::Since(read), slot),
                Refused::Slot(slot) => taken = slot,
            }
        }
        Err(too_quick())
    }

    /// Stands in line. If it was free the last time, only that is hoped for at first; if it was not, it
    /// is not asked whether it is.
    async fn stand_in_line(&self, ask: &Ask<'_>, traces: &mut Traces) -> StoreResult<Entered> {
        let Place { session, name, .. } = ask.place;
        let mut taken = None;
        let mut free = self.sessions.with(*session, |life| life.was_free(name)).flatten();
        for _ in 0..TRIES {
            let at_once = || self.at_once(ask, Guard::Free, taken);
            let txn = match free {
                Some(true) => at_once(),
                None => TxnRequest { failure: vec![ops::txn(self.last(ask, taken))], ..at_once() },
                Some(false) => self.last(ask, taken),
            };
            let answer = self.send(txn, traces).await?;
            let revision = answer.revision();
            let stood = match free {
                _ if free != Some(false) && answer.succeeded => {
                    self.note_key(ask, taken);
                    self.sessions.with(*session, |life| life.found_free(name, true));
                    return Ok(self.granted(ask.place, revision));
                }
                Some(true) => {
                    free = Some(false);
                    continue;
                }
                None => ops::Answers::of(answer).txn()?,
                Some(false) => answer,
            };
            if stood.succeeded {
                traces.written = true;
                self.note_key(ask, taken);
                return self.queued(ask, taken, (revision, ops::Answers::of(stood)), traces).await;
            }
            // That is rare, so the reasons have a request of their own.
            let reads = TxnRequest { success: self.reasons(ask), ..TxnRequest::default() };
            let answer = self.client.txn(reads, Nature::Repeatable).await?;
            let found = (answer.revision(), ops::Answers::of(answer));
            match self.refused(ask, Manner::Queue, taken, found, traces).await? {
                Refused::Told(entered) => return Ok(entered),
                Refused::Line { slot, .. } | Refused::Slot(slot) => taken = slot,
            }
        }
        Err(too_quick())
    }

    /// Notes at which key a ticket stands.
    fn note_key(&self, ask: &Ask<'_>, taken: Option<i64>) {
        self.sessions.with(ask.place.session, |life| {
            if let Some(known) = life.tickets.get_mut(&ask.place.ticket) {
                known.key = ask.key(taken).to_vec();
            }
        });
    }

    async fn send(&self, ask: TxnRequest, traces: &mut Traces) -> StoreResult<TxnResponse> {
        let told = self.client.told(ask, Nature::Repeatable).await?;
        traces.stray |= told.stray;
        Ok(told.answer)
    }

    /// What every enter asks for. That the lease is there is checked by the put itself; if it is not the
    /// session's first one, the session has to be there too.
    fn allowed(&self, ask: &Ask<'_>) -> Vec<Compare> {
        let Place { session, ticket, .. } = ask.place;
        let mut compare = vec![ops::absent(&self.keys.closed(tag(*session), *ticket))];
        if ask.lease != tag(*session) {
            compare.push(ops::exists(&self.keys.shard(tag(*session), 0)));
        }
        compare
    }

    fn put(&self, ask: &Ask<'_>, taken: Option<i64>, state: State) -> RequestOp {
        let row = Row { state, ..ask.row.clone() };
        let value = if self.keys.is_raw() { row.note } else { row.write() };
        ops::put(ask.key(taken), value, ask.lease)
    }

    /// Puts the ticket if it is granted by that. The guard leaves no room for a ticket of another capacity.
    fn at_once(&self, ask: &Ask<'_>, guard: Guard, taken: Option<i64>) -> TxnRequest {
        let mut compare = self.allowed(ask);
        compare.extend(self.guard(ask, guard, taken));
        let mut success = vec![self.put(ask, taken, State::AtOnce)];
        if self.keys.is_raw() {
            let number = self.keys.number(&ask.place.name, ask.place.ticket);
            success.push(ops::put(&number, Vec::new(), ask.lease));
        }
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// Puts the ticket behind all others.
    fn last(&self, ask: &Ask<'_>, taken: Option<i64>) -> TxnRequest {
        let name = &ask.place.name;
        let mut compare = self.allowed(ask);
        compare.extend(nowhere(&ask.seats, taken));
        compare.extend(self.keys.of_other_capacity(name, ask.mode).iter().map(ops::empty));
        let mut success = vec![self.put(ask, taken, State::Queued)];
        success.extend(before(ops::all(&self.keys.line(name)), ask.mode));
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// What to read to know why a ticket was not put: see [`refused`](Self::refused).
    fn reasons(&self, ask: &Ask<'_>) -> Vec<RequestOp> {
        let Place { session, name, ticket } = ask.place;
        vec![
            ops::range(ops::key_of(&self.keys.shard(tag(*session), 0))),
            ops::range(ops::key_of(&self.keys.closed(tag(*session), *ticket))),
            ops::range(ops::one(&ask.seats.slot)),
            ops::range(ops::one(&ask.seats.own)),
            ops::range(short(ops::all(&self.keys.line(name)))),
        ]
    }

    fn guard(&self, ask: &Ask<'_>, guard: Guard, taken: Option<i64>) -> Vec<Compare> {
        let name = &ask.place.name;
        let mut compare: Vec<Compare> = match guard {
            Guard::Free => self.keys.in_the_way(name, ask.mode).iter().map(ops::empty).collect(),
            Guard::Since(read) => vec![ops::none_since(&self.keys.line(name), read)],
        };
        // In a line that is empty the ticket is nowhere.
        if !matches!((guard, ask.mode), (Guard::Free, Mode::Exclusive | Mode::Permits { .. })) {
            compare.extend(nowhere(&ask.seats, taken));
        }
        compare
    }

    /// Notes that a ticket was granted as it was created.
    fn granted(&self, place: &Place, created: i64) -> Entered {
        Entered::Granted { fence: self.note_grant(place, created, created) }
    }

    /// Notes a grant and its number, which is the ticket's create revision. In raw mode it is
    /// [drawn](Self::draw).
    pub(super) fn note_grant(&self, place: &Place, created: i64, number: i64) -> u64 {
        let number = u64::try_from(number).unwrap_or(0);
        let Place { session, ticket, .. } = place;
        let noted = self.sessions.with(*session, |life| life.granted(*ticket, created, number));
        noted.flatten().unwrap_or(number)
    }

    /// Among other clients' tickets the number of a grant must be higher than those of all grants before
    /// it, and theirs are the revisions at which the grants were seen. So a key is written when a ticket
    /// is granted, once, and its revision is the number: every handle and every listing finds it there.
    /// `None` if the ticket is gone.
    pub(super) async fn draw(&self, place: &Place, own: &LineRow) -> StoreResult<Option<i64>> {
        let number = self.keys.number(&place.name, place.ticket);
        let ask = TxnRequest {
            // One from before the ticket was created belongs to an earlier grant.
            compare: vec![
                ops::created(&own.key, own.created),
                ops::untouched_since(&number, own.created),
            ],
            success: vec![ops::put(&number, Vec::new(), own.lease)],
            failure: vec![ops::range(ops::key_of(&own.key)), ops::range(ops::key_of(&number))],
        };
        let answer = self.client.txn(ask, Nature::Repeatable).await?;
        if answer.succeeded {
            return Ok(Some(answer.revision()));
        }
        let mut answers = ops::Answers::of(answer);
        let (own_now, number) = (answers.range()?.kvs, answers.range()?.kvs);
        let stands = own_now.first().is_some_and(|kv| kv.create_revision == own.created);
        Ok(number.first().filter(|_| stands).map(|kv| kv.mod_revision))
    }

    /// Gives a number to a grant that has none yet.
    pub(super) async fn numbered(
        &self,
        place: &Place,
        queue: &Queue,
        stand: TicketStatus,
    ) -> StoreResult<TicketStatus> {
        let TicketStatus::Granted { fence: UNNUMBERED } = stand else { return Ok(stand) };
        let at = queue.own(place.ticket, tag(place.session));
        let Some(own) = at.map(|at| &queue.0[at]) else { return Ok(TicketStatus::Gone) };
        Ok(match self.draw(place, own).await? {
            Some(number) => {
                TicketStatus::Granted { fence: self.note_grant(place, own.created, number) }
            }
            None => TicketStatus::Gone,
        })
    }

    /// The ticket has been put into a line in which others stand.
    async fn queued(
        &self,
        ask: &Ask<'_>,
        taken: Option<i64>,
        (revision, mut answers): (i64, ops::Answers),
        traces: &mut Traces,
    ) -> StoreResult<Entered> {
        let place = ask.place;
        let mut line = answers.skip().range()?;
        let (length, long) = (usize::try_from(line.count).unwrap_or(0), line.count > SHORT);
        self.sessions.with(place.session, |life| {
            if let Some(known) = life.born(place.ticket, revision) {
                known.long = long;
            }
        });
        if length > LINE_MAX {
            let (place, stray) = (place.clone(), traces.stray);
            self.leave_line(Leave { place, keep: None, stray }).await?;
            *traces = Traces::default();
            let what = format!("{LINE_MAX} tickets stand in the line already");
            return Err(StoreError::not_applied(KIND, ErrorKind::Full, what));
        }
        if ask.mode == Mode::Exclusive {
            let known: HashSet<Vec<u8>> = line.kvs.iter().map(|kv| kv.key.clone()).collect();
            let last = answers.range()?.kvs.into_iter();
            line.kvs.extend(last.filter(|kv| !known.contains(&kv.key)));
        } else if long {
            return self.stand_again(place).await;
        }
        let mut queue = Queue::read(&self.keys, &place.name, line.kvs);
        queue.name(ask.key(taken), revision, place.ticket);
        let stand = self.verdict(place, &queue, revision);
        let entered = entered(self.numbered(place, &queue, stand).await?)?;
        let free = matches!(entered, Entered::Granted { .. });
        self.sessions.with(place.session, |life| life.found_free(&place.name, free));
        Ok(match entered {
            // All others were there before.
            Entered::Queued(wait) => {
                let ahead = length - 1;
                Entered::Queued(Wait { ahead, recheck: Wait::rest_most(ahead), ..wait })
            }
            entered => entered,
        })
    }

    /// How a ticket stands, by a read of its own.
    async fn stand_again(&self, place: &Place) -> StoreResult<Entered> {
        let ticket = (place.name.clone(), place.ticket);
        let stands = self.stands(place.session, vec![ticket]).await?;
        let stand = stands.into_iter().next().map_or(TicketStatus::Gone, |(.., stand)| stand);
        entered(stand)
    }

    /// The transaction wrote nothing: why not?
    async fn refused(
        &self,
        ask: &Ask<'_>,
        manner: Manner,
        taken: Option<i64>,
        (revision, mut answers): (i64, ops::Answers),
        traces: &mut Traces,
    ) -> StoreResult<Refused> {
        let (session, closed) = (answers.range()?, answers.range()?);
        let (slot, own, line) = (answers.range()?, answers.range()?, answers.range()?);
        if session.kvs.is_empty() {
            return Err(StoreError::session_over(KIND));
        }
        let Place { session, name, ticket } = ask.place;
        let queue = Queue::read(&self.keys, name, line.kvs);
        let seats = Queue::read(&self.keys, name, slot.kvs.into_iter().chain(own.kvs).collect());
        if let Some(at) = seats.own(*ticket, tag(*session)) {
            traces.written = true;
            let own = &seats.0[at];
            self.sessions.with(*session, |life| {
                if let Some(known) = life.born(*ticket, own.created) {
                    (known.lease, known.long) = (own.lease, line.count > SHORT);
                    known.key.clone_from(&own.key);
                }
            });
            if line.count > SHORT {
                return Ok(Refused::Told(self.stand_again(ask.place).await?));
            }
            let stand = self.verdict(ask.place, &queue, revision);
            return Ok(Refused::Told(entered(self.numbered(ask.place, &queue, stand).await?)?));
        }
        let kept = seats.0.iter().any(|s| s.ticket == *ticket);
        if !closed.kvs.is_empty() || kept {
            let what = "the ticket was closed before this request came";
            return Err(StoreError::not_applied(KIND, ErrorKind::TicketClosed, what));
        }
        let slot = seats.0.first().map(|other| other.modified);
        same_capacity(&queue, ask.mode)?;
        if line.count <= SHORT || manner == Manner::Queue {
            return Ok(Refused::Line { queue, read: revision, slot });
        }
        // All of the line was asked for writers, and only the slot may have been in the way.
        if ask.mode == Mode::Shared && slot != taken {
            return Ok(Refused::Slot(slot));
        }
        if let Mode::Permits { .. } = ask.mode {
            let all = RangeRequest { keys_only: true, ..ops::all(&self.keys.line(name)) };
            let line = self.client.range(all).await?;
            let revision = line.revision();
            let queue = Queue::read(&self.keys, name, line.kvs);
            same_capacity(&queue, ask.mode)?;
            return Ok(Refused::Line { queue, read: revision, slot });
        }
        let ahead = usize::try_from(line.count).unwrap_or(0);
        let wait = Wait { ahead, recheck: RECHECK, ..queue.wait(0, 0) };
        Ok(Refused::Told(Entered::Busy(wait)))
    }
}

/// What a ticket that comes last has to know of its line. Who needs the line for himself waits for the
/// one right before him, and is told who is the first; of a long line that is little.
fn before(line: RangeRequest, mode: Mode) -> Vec<RequestOp> {
    match mode {
        Mode::Exclusive => {
            vec![ops::range(ops::first(line.clone(), 1)), ops::range(ops::last(line, 2))]
        }
        Mode::Shared | Mode::Permits { .. } => vec![ops::range(short(line))],
    }
}

fn short(line: RangeRequest) -> RangeRequest {
    RangeRequest { limit: SHORT, ..line }
}

/// Why nothing was written.
enum Refused {
    /// Because this is how it stands.
    Told(Entered),
    /// Because of those who stand in the line, as it was when it was read, or of another ticket of the
    /// session that stands in the slot, written at that revision.
    Line { queue: Queue, read: i64, slot: Option<i64> },
    /// Because another ticket of the session stands in the slot, written at that revision, or stood there
    /// before.
    Slot(Option<i64>),
}

/// What an enter may have left in the store, whatever became of it then.
#[derive(Default)]
struct Traces {
    /// The ticket was put.
    written: bool,
    /// A copy of the request got no answer, and may still come.
    stray: bool,
}

impl Traces {
    /// Only who left no trace may say that there is no ticket.
    fn judge(&self, entered: StoreResult<Entered>) -> StoreResult<Entered> {
        match entered {
            Ok(Entered::Busy(_)) if self.stray => {
                let what = "busy, but an earlier copy of the request may still be under way";
                Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
            }
            Err(e) if self.written || self.stray => {
                Err(StoreError { outcome: Outcome::Unknown, ..e })
            }
            entered => entered,
        }
    }
}

/// The ticket stands at none of its keys. Another one may stand in its slot, if it was written then.
fn nowhere(seats: &Seats, taken: Option<i64>) -> Vec<Compare> {
    let slot = match taken {
        Some(modified) => ops::unchanged(&seats.slot, modified),
        None => ops::absent(&seats.slot),
    };
    vec![slot, ops::absent(&seats.own)]
}

fn same_capacity(queue: &Queue, mode: Mode) -> StoreResult<()> {
    let mut capacities = queue.0.iter().map(|s| s.spot.mode.capacity());
    match capacities.find(|c| *c != mode.capacity()) {
        None => Ok(()),
        Some(capacity) => {
            let what = format!("the line has capacity {capacity}");
            Err(StoreError::not_applied(KIND, ErrorKind::Capacity(capacity), what))
        }
    }
}

fn entered(stand: TicketStatus) -> StoreResult<Entered> {
    match stand {
        TicketStatus::Granted { fence } => Ok(Entered::Granted { fence }),
        TicketStatus::Waiting(wait) => Ok(Entered::Queued(wait)),
        // The session ended in this moment, or the ticket was evicted.
        TicketStatus::Gone => {
            let what = "the ticket is gone as soon as it was written";
            Err(StoreError::unknown(KIND, ErrorKind::Unavailable, what))
        }
    }
}

fn too_quick() -> StoreError {
    let what = "the line changes too quickly for an enter";
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

fn surely_absent(entered: &StoreResult<Entered>) -> bool {
    entered.as_ref().is_err_and(|e| e.outcome == Outcome::NotApplied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_left_no_trace_says_that_there_is_no_ticket() {
        let refused = || Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, "no leader"));
        let busy = || {
            let wait = Wait { ahead: 1, holder: None, recheck: std::time::Duration::ZERO };
            Ok(Entered::Busy(wait))
        };
        let outcome = |traces: &Traces, entered| traces.judge(entered).map_err(|e| e.outcome);
        let none = Traces::default();
        assert_eq!(outcome(&none, refused()), Err(Outcome::NotApplied));
        assert!(outcome(&none, busy()).is_ok());
        let written = Traces { written: true, stray: false };
        assert_eq!(outcome(&written, refused()), Err(Outcome::Unknown));
        let stray = Traces { written: false, stray: true };
        assert_eq!(outcome(&stray, refused()), Err(Outcome::Unknown));
        assert_eq!(outcome(&stray, busy()), Err(Outcome::Unknown));
        assert!(outcome(&stray, Ok(Entered::Granted { fence: 1 })).is_ok());
    }
}
