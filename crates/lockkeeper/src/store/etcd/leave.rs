//! Leaving a line, and seeing to it that a late copy of an enter is refused.

use super::{
    Etcd, KIND, Nature, error, ops,
    proto::{RequestOp, TxnRequest},
    row::{Row, State},
    sessions::{Known, tag},
    standing::{LineRow, Queue},
    turn,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::Place,
    store::{Leave, Left, STRAY_MAX, StoreResult},
    sync::Mutex,
};
use std::{sync::MutexGuard, time::Duration};

/// How often a ticket is kept anew because it was written meanwhile.
const TRIES: usize = 8;

/// The lease that the marks of closed tickets belong to. One serves many marks, and all of them stay
/// for long enough.
#[derive(Default)]
pub(super) struct Strays(Mutex<Option<(i64, Moment)>>);

impl Strays {
    fn present(&self) -> MutexGuard<'_, Option<(i64, Moment)>> {
        self.0.lock()
    }
}

impl Etcd {
    /// A lease for marks that lives for at least [`STRAY_MAX`].
    async fn stray_lease(&self) -> StoreResult<i64> {
        let now = self.clock.now();
        let present = self.strays.present().filter(|(_, until)| now < *until);
        if let Some((id, _)) = present {
            return Ok(id);
        }
        // Several may do this at once; in an outage nobody waits for another.
        let id = random_lease();
        self.client.grant(id, seconds(STRAY_MAX * 2)).await?;
        *self.strays.present() = Some((id, now + STRAY_MAX));
        Ok(id)
    }

    pub(super) async fn leave_line(&self, ask: Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        if !self.is_owner(*session).await? {
            return Ok(Left::Gone);
        }
        let known = self.sessions.with(*session, |life| life.tickets.get(ticket).cloned());
        let known = known.flatten();
        let mut mark = if ask.stray || known.as_ref().is_some_and(|known| known.stray) {
            let key = self.keys.closed(tag(*session), *ticket);
            vec![ops::put(&key, Vec::new(), self.stray_lease().await?)]
        } else {
            Vec::new()
        };
        let marked = !mark.is_empty();
        if self.keys.is_raw() {
            mark.push(ops::delete(&self.keys.number(name, *ticket)));
        }
        let left = match known {
            Some(Known { key, created: Some(created), lease, fence: Some(_), behind, .. })
                if ask.keep.is_none() =>
            {
                let next = turn::pass_on(&self.keys, name, &behind);
                self.release_and_tell(&key, created, lease, mark, next).await
            }
            _ => self.find_and_leave(&ask, mark).await,
        };
        let left = match left {
            // It can only be the marks' lease, since the next one is not told of it any more: somebody has
            // revoked it.
            Err(e) if marked && error::lease_gone(&e) => {
                *self.strays.present() = None;
                let what = "the lease of closed tickets' marks was revoked";
                return Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what));
            }
            left => left?,
        };
        self.sessions.with(*session, |life| life.detach(*session, *ticket));
        Ok(left)
    }

    /// Leaves a granted ticket, and tells the next one. That is a favour: whatever the store has against
    /// it must not hold up the release. A server that gets full may say so after it has done as it was
    /// told.
    async fn release_and_tell(
        &self,
        key: &[u8],
        created: i64,
        lease: i64,
        mark: Vec<RequestOp>,
        next: Option<RequestOp>,
    ) -> StoreResult<Left> {
        let tells = next.is_some();
        let full = match self.release(key, created, lease, mark.clone(), next).await {
            Err(e) if tells && !e.is_transient() => e.kind == ErrorKind::Full,
            left => return left,
        };
        let left = self.release(key, created, lease, mark, None).await?;
        Ok(if full { Left::Released } else { left })
    }

    /// Leaves a granted ticket: one transaction. If the key was created at another time it is another
    /// ticket's by now. What another has kept is not ours any more, and belongs to another lease. The
    /// next one is told, if it is known.
    async fn release(
        &self,
        key: &[u8],
        created: i64,
        lease: i64,
        mark: Vec<RequestOp>,
        next: Option<RequestOp>,
    ) -> StoreResult<Left> {
        let compare = vec![ops::created(key, created), ops::leased(key, lease)];
        let mut success = mark.clone();
        success.push(ops::delete(key));
        success.extend(next);
        let ask = TxnRequest { compare, success, failure: mark };
        let answer = self.client.txn(ask, Nature::Once).await?;
        Ok(if answer.succeeded { Left::Released } else { Left::Gone })
    }

    /// Leaves a ticket of which it is not known whether it is granted. The mark comes first: after it
    /// no enter of this ticket can come.
    async fn find_and_leave(&self, ask: &Leave, mark: Vec<RequestOp>) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        let marks = mark.len();
        for _ in 0..TRIES {
            let mut success = mark.clone();
            success.push(ops::range(ops::all(&self.keys.line(name))));
            let read = TxnRequest { success, ..TxnRequest::default() };
            let answer = self.client.txn(read, Nature::Repeatable).await?;
            let mut answers = ops::Answers::of(answer);
            for _ in 0..marks {
                answers.skip();
            }
            let queue = Queue::read(&self.keys, name, answers.range()?.kvs);
            let Some(at) = queue.own(*ticket, tag(*session)) else { return Ok(Left::Gone) };
            let (own, granted) = (&queue.0[at], at < queue.admitted());
            let Some(keep) = ask.keep.filter(|_| granted) else {
                let left = self.release(&own.key, own.created, own.lease, Vec::new(), None).await?;
                let withdrawn = left == Left::Released && !granted;
                return Ok(if withdrawn { Left::Withdrawn } else { left });
            };
            // Written meanwhile, by a late edit of its note, it is read again.
            if self.keep(own, keep).await? {
                return Ok(Left::Released);
            }
        }
        Err(StoreError::not_applied(
            KIND,
            ErrorKind::Unavailable,
            "the ticket is written all the time",
        ))
    }

    /// Hands the ticket over to a lease that nobody renews, unless it was written since. Its place in the line stays the same.
    async fn keep(&self, own: &LineRow, keep: Duration) -> StoreResult<bool> {
        let Some(row) = own.row.clone() else { return Err(error::nonsense("a ticket")) };
        let lease = random_lease();
        self.client.grant(lease, seconds(keep)).await?;
        let value = Row { state: State::Kept, ..row }.write();
        let ask = TxnRequest {
            compare: vec![ops::unchanged(&own.key, own.modified), ops::leased(&own.key, own.lease)],
            success: vec![ops::put(&own.key, value, lease)],
            failure: Vec::new(),
        };
        Ok(self.client.txn(ask, Nature::Once).await?.succeeded)
    }
}

pub(super) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX)
}

pub(super) fn random_lease() -> i64 {
    rand::random_range(1..i64::MAX)
}
