//! Leaving a line, so that a late duplicate of the enter is refused; and evicting a ticket.

use super::{
    Etcd,
    client::{RequestOp, Retry, TxnRequest, lease_gone, malformed, txn},
    error, handoff,
    line::{LineEntry, LineSnapshot},
    local_session::{LocalTicket, public_id},
    row::{Row, State},
    session::seconds,
};
use crate::{
    error::ErrorKind,
    model::{
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
    store::{Leave, Left, STRAY_MAX, StoreResult},
};
use std::time::Duration;

/// How often a ticket is read again because it was written meanwhile.
const TRIES: usize = 8;

/// A granted ticket, as a release has to find it.
struct Held<'a> {
    session: SessionId,
    key: &'a [u8],
    created: i64,
}

impl Etcd {
    pub(super) async fn leave_line(&self, leave: Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &leave.place;
        if !self.is_owner(*session).await? {
            return Ok(Left::Gone);
        }
        let local = self.sessions.ticket(*session, *ticket);
        let mut also = Vec::new();
        if leave.stray || local.as_ref().is_some_and(|local| local.stray) {
            let (key, lease) = (self.keys.closed(public_id(*session), *ticket), random_lease());
            self.client.grant(lease, seconds(STRAY_MAX)).await?;
            also.push(txn::put(&key, Vec::new(), lease));
        }
        if self.keys.is_raw() {
            also.push(txn::delete(&self.keys.fence(name, *ticket)));
        }
        let left = match local {
            Some(LocalTicket {
                key, created: Some(created), fence: Some(_), successors, ..
            }) if leave.keep.is_none() => {
                let notice = handoff::notify_next(&self.keys, name, &successors);
                let held = Held { session: *session, key: &key, created };
                self.release_and_notify(held, also, notice).await?
            }
            _ => self.find_and_leave(&leave, also).await?,
        };
        self.sessions.with(*session, |local| local.remove(*ticket));
        Ok(left)
    }

    /// Leaves a granted ticket and notifies the next one. If the server refuses the notice, the release is
    /// sent without it, because a notice must not hold up a release. A server that gets full may say so
    /// after it has carried out the request.
    async fn release_and_notify(
        &self,
        held: Held<'_>,
        also: Vec<RequestOp>,
        notice: Option<RequestOp>,
    ) -> StoreResult<Left> {
        let notifies = notice.is_some();
        let full = match self.release(&held, also.clone(), notice).await {
            Err(e) if notifies && !e.is_transient() => e.kind == ErrorKind::Full,
            left => return left,
        };
        let left = self.release(&held, also, None).await?;
        Ok(if full { Left::Released } else { left })
    }

    /// Leaves a granted ticket: one transaction. A key that was created at another time is another ticket's,
    /// and a key of another lease is a ticket that was left behind to keep the lock closed.
    async fn release(
        &self,
        held: &Held<'_>,
        also: Vec<RequestOp>,
        notice: Option<RequestOp>,
    ) -> StoreResult<Left> {
        let compare = vec![
            txn::created(held.key, held.created),
            txn::leased(held.key, public_id(held.session)),
        ];
        let mut success = also.clone();
        success.push(txn::delete(held.key));
        success.extend(notice);
        let request = TxnRequest { compare, success, failure: also };
        let answer = self.client.txn(request, Retry::Never).await?;
        Ok(if answer.succeeded { Left::Released } else { Left::Gone })
    }

    /// Leaves a ticket that may be granted or not. The mark is written first: after it no enter of this
    /// ticket is carried out.
    async fn find_and_leave(&self, leave: &Leave, also: Vec<RequestOp>) -> StoreResult<Left> {
        let Place { session, name, ticket } = &leave.place;
        for _ in 0..TRIES {
            let mut success = also.clone();
            success.push(txn::range(txn::all(&self.keys.line(name))));
            let mut answer = self.client.read(success).await?;
            let line = answer.skip(also.len()).range()?.kvs;
            let line = LineSnapshot::read(&self.keys, name, line);
            let Some(at) = line.own(*ticket, public_id(*session)) else { return Ok(Left::Gone) };
            let (own, granted) = (&line.0[at], at < line.admitted());
            let Some(keep) = leave.keep.filter(|_| granted) else {
                let held = Held { session: *session, key: &own.key, created: own.created };
                let left = self.release(&held, Vec::new(), None).await?;
                let withdrawn = left == Left::Released && !granted;
                return Ok(if withdrawn { Left::Withdrawn } else { left });
            };
            if self.keep(own, keep).await? {
                return Ok(Left::Released);
            }
            // A late edit of the label has written the ticket meanwhile.
        }
        Err(error::contended())
    }

    /// Hands the ticket over to a lease that is never renewed, unless the ticket was written since it was
    /// read. Its place in the line stays the same.
    async fn keep(&self, own: &LineEntry, keep: Duration) -> StoreResult<bool> {
        let Some(row) = own.row.clone() else { return Err(malformed("a ticket")) };
        let lease = random_lease();
        self.client.grant(lease, seconds(keep)).await?;
        let value = Row { state: State::Kept, ..row }.write();
        let request = TxnRequest {
            compare: vec![txn::unchanged(&own.key, own.modified), txn::leased(&own.key, own.lease)],
            success: vec![txn::put(&own.key, value, lease)],
            failure: Vec::new(),
        };
        Ok(self.client.txn(request, Retry::Never).await?.succeeded)
    }

    /// Ends a ticket by an operator's wish and tells its session.
    pub(super) async fn evict_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        self.check_name(name)?;
        for _ in 0..TRIES {
            let line = self.read_line(name).await?;
            let Some(own) = line.0.iter().find(|entry| entry.ticket == ticket) else {
                return Ok(false);
            };
            let mut success = vec![txn::delete(&own.key)];
            if self.keys.is_raw() {
                success.push(txn::delete(&self.keys.fence(name, ticket)));
            }
            let deletes = success.len();
            let notice = own.parsed.session.filter(|_| !own.is_kept()).map(|session| {
                let text = ticket.to_string().into_bytes();
                txn::put(&self.keys.evicted(session), text, session)
            });
            success.extend(notice);
            let compare = vec![txn::unchanged(&own.key, own.modified)];
            let mut request = TxnRequest { compare, success, failure: Vec::new() };
            let answer = match self.client.txn(request.clone(), Retry::Never).await {
                // The session has just ended, so no notice is needed.
                Err(e) if lease_gone(&e) => {
                    request.success.truncate(deletes);
                    self.client.txn(request, Retry::Never).await?
                }
                answer => answer?,
            };
            if answer.succeeded {
                return Ok(true);
            }
        }
        Err(error::contended())
    }
}

pub(super) fn random_lease() -> i64 {
    rand::random_range(1..i64::MAX)
}
