//! Entering a line: one transaction.
//!
//! If the line has room the ticket is put, and is granted by that. If it has none, the transaction of a
//! ticket that queues puts it all the same and reads the line; that of a contender only reads the line.

use super::{
    Etcd, KIND,
    client::{Answer, Compare, HasHeader as _, RangeRequest, RequestOp, Retry, TxnRequest, txn},
    error,
    keys::TicketKeys,
    line::LineSnapshot,
    local_session::{LocalTicket, public_id},
    row::{Row, State},
};
use crate::{
    error::{ErrorKind, Outcome, StoreError},
    model::{
        line::LINE_MAX,
        name::Name,
        ticket::{Mode, Place},
    },
    store::{Enter, Entered, Leave, Manner, StoreResult, TicketStatus, Wait, common::refusal},
};
use std::{collections::HashSet, time::Duration};

/// A line that is not longer is read together with the write.
const SHORT: i64 = 64;

/// How often an enter begins again because the line or its slot has changed meanwhile.
const TRIES: usize = 16;

/// When a contender that was refused looks again.
const RECHECK: Duration = Duration::from_secs(1);

/// An enter, with all that its transactions need, and what they may have left in the store.
struct Attempt<'a> {
    place: &'a Place,
    mode: Mode,
    keys: TicketKeys,
    row: Row,
    /// Another ticket of the session stands in the slot, written at this revision. Then this ticket takes
    /// its own key.
    taken: Option<i64>,
    /// A contender for permits has seen room in its line, at this revision.
    room_at: Option<i64>,
    /// The ticket was put.
    written: bool,
    /// A copy of a request got no answer and may still be carried out.
    stray: bool,
}

impl Attempt<'_> {
    fn key(&self) -> &[u8] {
        if self.taken.is_some() { &self.keys.own } else { &self.keys.slot }
    }

    /// The ticket stands at neither of its keys. Another one may stand in its slot, if it was written then.
    fn is_nowhere(&self) -> [Compare; 2] {
        let slot = match self.taken {
            Some(modified) => txn::unchanged(&self.keys.slot, modified),
            None => txn::absent(&self.keys.slot),
        };
        [slot, txn::absent(&self.keys.own)]
    }

    /// Only an enter that has left nothing in the store may say that there is no ticket.
    fn judge(&self, entered: StoreResult<Entered>) -> StoreResult<Entered> {
        match entered {
            Ok(Entered::Busy(_)) if self.stray => Err(error::unknown(
                "busy, but an earlier copy of the request may still be under way",
            )),
            Err(e) if self.written || self.stray => {
                Err(StoreError { outcome: Outcome::Unknown, ..e })
            }
            entered => entered,
        }
    }
}

impl Etcd {
    /// Refuses a name of which there can be no lock.
    pub(super) fn check_name(&self, name: &Name) -> StoreResult<()> {
        match self.keys.refusal(name) {
            None => Ok(()),
            Some(rule) => Err(StoreError::not_applied(KIND, ErrorKind::Name, rule)),
        }
    }

    pub(super) async fn enter_line(&self, enter: Enter) -> StoreResult<Entered> {
        let Enter { place, mode, manner, label } = enter;
        let Place { session, name, ticket } = &place;
        self.check_name(name)?;
        let Some((_, owner)) = self.session(*session).await? else {
            return Err(StoreError::session_over(KIND));
        };
        let before = self.sessions.ticket(*session, *ticket);
        let keys = self.keys.of_ticket(name, mode, *ticket, public_id(*session));
        let known = LocalTicket::new(name.clone(), keys.slot.clone(), mode);
        self.sessions.with(*session, |local| {
            local.tickets.entry(*ticket).or_insert(known);
        });
        let (ticket, entered) = (*ticket, self.wall_ms());
        let row = Row { ticket, edit: 0, state: State::AtOnce, entered, owner, label };
        let mut attempt = Attempt {
            place: &place,
            mode,
            keys,
            row,
            taken: None,
            room_at: None,
            written: false,
            stray: false,
        };
        let entered = self.put_ticket(&mut attempt, manner).await;
        let entered = attempt.judge(entered);
        let absent = match &entered {
            Ok(entered) => matches!(entered, Entered::Busy(_)),
            Err(e) => e.outcome == Outcome::NotApplied,
        };
        self.sessions.with(*session, |local| {
            // An earlier enter of the ticket may stand.
            if absent && before.is_none() {
                local.remove(ticket);
            } else if let Some(known) = local.tickets.get_mut(&ticket) {
                known.stray |= attempt.stray;
            }
        });
        entered
    }

    /// Takes what is free. If nothing is, a contender leaves no ticket, and any other takes the end of the line.
    async fn put_ticket(&self, attempt: &mut Attempt<'_>, manner: Manner) -> StoreResult<Entered> {
        for _ in 0..TRIES {
            let failure = match manner {
                Manner::Contend => self.reasons(attempt),
                Manner::Queue => vec![txn::txn(self.put_last(attempt))],
            };
            let request = TxnRequest { failure, ..self.put_granted(attempt) };
            let (mut answer, stray) = self.client.txn_with_stray(request, Retry::Safe).await?;
            attempt.stray |= stray;
            if answer.succeeded {
                return Ok(self.granted(attempt, answer.revision));
            }
            if manner == Manner::Queue {
                let last = answer.txn()?;
                if last.succeeded {
                    return self.queued(attempt, last).await;
                }
                // A refusal is rare, so its reasons have a request of their own.
                answer = self.client.read(self.reasons(attempt)).await?;
            }
            if let Some(entered) = self.refused(attempt, manner, answer).await? {
                return Ok(entered);
            }
        }
        Err(error::not_now("the line changes too quickly for an enter"))
    }

    /// Notes at which key the ticket stands.
    fn note_key(&self, attempt: &Attempt<'_>) {
        let Place { session, ticket, .. } = attempt.place;
        let key = attempt.key().to_vec();
        self.sessions.with_ticket(*session, *ticket, |known| known.key = key);
    }

    /// Notes that the ticket was granted as it was created.
    fn granted(&self, attempt: &Attempt<'_>, created: i64) -> Entered {
        self.note_key(attempt);
        Entered::Granted { fence: self.record_grant(attempt.place, created, created) }
    }

    fn put(&self, attempt: &Attempt<'_>, state: State) -> RequestOp {
        let row = Row { state, ..attempt.row.clone() };
        let value = if self.keys.is_raw() { row.label } else { row.write() };
        txn::put(attempt.key(), value, public_id(attempt.place.session))
    }

    /// Puts the ticket if it is granted by that. The precondition leaves no room for a ticket of another
    /// capacity.
    fn put_granted(&self, attempt: &Attempt<'_>) -> TxnRequest {
        let Place { session, name, ticket } = attempt.place;
        let session = public_id(*session);
        let mut compare = vec![txn::absent(&self.keys.closed(session, *ticket))];
        match attempt.room_at {
            Some(revision) => compare.push(txn::none_since(&self.keys.line(name), revision)),
            None => compare.extend(self.keys.in_the_way(name, attempt.mode).iter().map(txn::empty)),
        }
        // In a line that must be empty the ticket itself cannot stand.
        if attempt.mode == Mode::Shared || attempt.room_at.is_some() {
            compare.extend(attempt.is_nowhere());
        }
        let mut success = vec![self.put(attempt, State::AtOnce)];
        if self.keys.is_raw() {
            let fence = self.keys.fence(name, *ticket);
            success.push(txn::put(&fence, Vec::new(), session));
        }
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// Puts the ticket behind all others, and reads what it has to know of its line. A ticket that needs the
    /// whole line reads the first one, to tell its holder, and the one right before it; of a long line
    /// that is little.
    fn put_last(&self, attempt: &Attempt<'_>) -> TxnRequest {
        let Place { session, name, ticket } = attempt.place;
        let mode = attempt.mode;
        let mut compare = vec![txn::absent(&self.keys.closed(public_id(*session), *ticket))];
        compare.extend(attempt.is_nowhere());
        compare.extend(self.keys.of_other_capacity(name, mode).iter().map(txn::empty));
        let line = txn::all(&self.keys.line(name));
        let mut success = vec![self.put(attempt, State::Queued)];
        match mode {
            Mode::Exclusive => {
                success.push(txn::range(txn::first(line.clone(), 1)));
                success.push(txn::range(txn::last(line, 2)));
            }
            Mode::Shared | Mode::Permits { .. } => success.push(txn::range(short(line))),
        }
        TxnRequest { compare, success, failure: Vec::new() }
    }

    /// What [`refused`](Self::refused) has to read.
    fn reasons(&self, attempt: &Attempt<'_>) -> Vec<RequestOp> {
        let Place { session, name, ticket } = attempt.place;
        let session = public_id(*session);
        vec![
            txn::range(txn::key_of(&self.keys.record(session))),
            txn::range(txn::key_of(&self.keys.closed(session, *ticket))),
            txn::range(txn::one(&attempt.keys.slot)),
            txn::range(txn::one(&attempt.keys.own)),
            txn::range(short(txn::all(&self.keys.line(name)))),
        ]
    }

    /// The ticket was put behind others.
    async fn queued(&self, attempt: &mut Attempt<'_>, mut answer: Answer) -> StoreResult<Entered> {
        attempt.written = true;
        self.note_key(attempt);
        let (place, revision) = (attempt.place, answer.revision);
        let mut line = answer.skip(1).range()?;
        let length = usize::try_from(line.count).unwrap_or(0);
        self.sessions.with(place.session, |local| {
            local.record_created(place.ticket, revision);
        });
        if length > LINE_MAX {
            let leave = Leave { place: place.clone(), keep: None, stray: attempt.stray };
            self.leave_line(leave).await?;
            (attempt.written, attempt.stray) = (false, false);
            return Err(refusal::line_full(KIND));
        }
        if attempt.mode == Mode::Exclusive {
            let known: HashSet<Vec<u8>> = line.kvs.iter().map(|kv| kv.key.clone()).collect();
            let last = answer.range()?.kvs.into_iter();
            line.kvs.extend(last.filter(|kv| !known.contains(&kv.key)));
        } else if line.count > SHORT {
            return self.poll_own(place).await;
        }
        let mut line = LineSnapshot::read(&self.keys, &place.name, line.kvs);
        line.identify(attempt.key(), revision, place.ticket);
        let Some(at) = line.own(place.ticket, public_id(place.session)) else {
            return entered(TicketStatus::Gone);
        };
        Ok(match entered(self.status_in(place, &line, at, revision).await?)? {
            // All others were there before.
            Entered::Queued(wait) => {
                let ahead = length - 1;
                Entered::Queued(Wait { ahead, recheck: Wait::rest_most(ahead), ..wait })
            }
            entered => entered,
        })
    }

    /// How the ticket stands, by a read of its own.
    async fn poll_own(&self, place: &Place) -> StoreResult<Entered> {
        let statuses = self.statuses(place.session, vec![(place.name.clone(), place.ticket)]);
        let status = statuses.await?.pop().map_or(TicketStatus::Gone, |(.., status)| status);
        entered(status)
    }

    /// Finds out why a transaction has put nothing. `None`: the enter may try again.
    async fn refused(
        &self,
        attempt: &mut Attempt<'_>,
        manner: Manner,
        mut answer: Answer,
    ) -> StoreResult<Option<Entered>> {
        let (record, closed) = (answer.range()?, answer.range()?);
        let (slot, own, line) = (answer.range()?, answer.range()?, answer.range()?);
        if record.kvs.is_empty() {
            return Err(StoreError::session_over(KIND));
        }
        let Place { session, name, ticket } = attempt.place;
        let both = slot.kvs.into_iter().chain(own.kvs).collect();
        let both = LineSnapshot::read(&self.keys, name, both);
        if let Some(at) = both.own(*ticket, public_id(*session)) {
            // An earlier copy of this enter has put it.
            attempt.written = true;
            let own = &both.0[at];
            self.sessions.with(*session, |local| {
                if let Some(known) = local.record_created(*ticket, own.created) {
                    known.key.clone_from(&own.key);
                }
            });
            return self.poll_own(attempt.place).await.map(Some);
        }
        if !closed.kvs.is_empty() || both.0.iter().any(|entry| entry.ticket == *ticket) {
            return Err(refusal::ticket_closed(KIND));
        }
        attempt.taken = both.0.first().map(|other| other.modified);
        let (mut ahead, mut revision) = (line.count, answer.revision);
        let mut snapshot = LineSnapshot::read(&self.keys, name, line.kvs);
        same_capacity(&snapshot, attempt.mode)?;
        if manner == Manner::Queue {
            return Ok(None);
        }
        if ahead > SHORT && attempt.mode != Mode::Exclusive {
            let all = RangeRequest { keys_only: true, ..txn::all(&self.keys.line(name)) };
            let line = self.client.range(all).await?;
            (ahead, revision) = (line.count, line.revision());
            snapshot = LineSnapshot::read(&self.keys, name, line.kvs);
            same_capacity(&snapshot, attempt.mode)?;
        }
        if snapshot.fits(attempt.mode) {
            // For the others the first comparison says as much.
            let permits = matches!(attempt.mode, Mode::Permits { .. });
            attempt.room_at = permits.then_some(revision);
            return Ok(None);
        }
        let ahead = usize::try_from(ahead).unwrap_or(0);
        let wait = snapshot.wait(ahead, self.wall_ms());
        Ok(Some(Entered::Busy(Wait { recheck: RECHECK, ..wait })))
    }
}

fn short(line: RangeRequest) -> RangeRequest {
    RangeRequest { limit: SHORT, ..line }
}

fn same_capacity(line: &LineSnapshot, mode: Mode) -> StoreResult<()> {
    let mut capacities = line.0.iter().map(|entry| entry.parsed.mode.capacity());
    match capacities.find(|capacity| *capacity != mode.capacity()) {
        None => Ok(()),
        Some(capacity) => Err(refusal::capacity(KIND, capacity)),
    }
}

fn entered(status: TicketStatus) -> StoreResult<Entered> {
    match status {
        TicketStatus::Granted { fence } => Ok(Entered::Granted { fence }),
        TicketStatus::Waiting(wait) => Ok(Entered::Queued(wait)),
        // The session ended in this moment, or the ticket was evicted.
        TicketStatus::Gone => Err(error::unknown("the ticket is gone as soon as it was written")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::{Owner, SessionId, TicketId};

    #[test]
    fn only_an_enter_that_left_nothing_says_that_there_is_no_ticket() {
        let refused = || Err(error::not_now("no leader"));
        let busy = || Ok(Entered::Busy(Wait { ahead: 1, holder: None, recheck: Duration::ZERO }));
        let (session, ticket) = (SessionId::random(), TicketId::random());
        let place = Place { session, name: Name::new("a").unwrap(), ticket };
        let owner = Owner { host: String::new(), pid: 0, program: String::new() };
        let outcome = |written, stray, entered| {
            let (state, owner) = (State::AtOnce, owner.clone());
            let row = Row { ticket, edit: 0, state, entered: 0, owner, label: Vec::new() };
            let attempt = Attempt {
                place: &place,
                mode: Mode::Exclusive,
                keys: TicketKeys { slot: Vec::new(), own: Vec::new() },
                row,
                taken: None,
                room_at: None,
                written,
                stray,
            };
            attempt.judge(entered).map_err(|e| e.outcome)
        };
        assert_eq!(outcome(false, false, refused()), Err(Outcome::NotApplied));
        assert!(outcome(false, false, busy()).is_ok());
        assert_eq!(outcome(true, false, refused()), Err(Outcome::Unknown));
        assert_eq!(outcome(false, true, refused()), Err(Outcome::Unknown));
        assert_eq!(outcome(false, true, busy()), Err(Outcome::Unknown));
        assert!(outcome(false, true, Ok(Entered::Granted { fence: 1 })).is_ok());
    }
}
