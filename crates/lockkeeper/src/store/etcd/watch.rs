//! Hints for the waiters of a session: one stream of watches.
//!
//! | ticket | watches |
//! |---|---|
//! | exclusive, reader | the key that blocks it |
//! | permits | its whole line |
//! | any | the session's inbox, where evictions and hand-offs are told |
//!
//! A watch begins at the revision after the read that found the ticket waiting, so no event is missed
//! between the two. When the stream breaks, nothing is resumed: the core polls, and each poll asks for the
//! watches that its tickets need. A poll also finds a waiting ticket whose key was deleted by hand.

use super::{
    Etcd, KIND,
    client::{
        HasHeader as _, KeyRange, KeyValue, NO_PUT, WatchRequest, WatchResponse, cancel_watch,
        create_watch,
    },
    error,
    handoff::HandoffNotice,
    line::Blocker,
    local_session::public_id,
};
use crate::{
    error::StoreError,
    model::ticket::{SessionId, TicketId},
    store::{Hints, StoreResult},
};
use std::{collections::HashMap, future::poll_fn, mem::take, pin::Pin, sync::Arc, task::Poll};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};

/// The id of the watch on the session's inbox.
const INBOX: i64 = 1;
/// How many responses that have arrived are taken in before waiters are woken. A hand-off notice among
/// them spares its ticket the read that a mere wake-up costs.
const AT_ONCE: usize = 32;

/// What a waiting ticket has to hear of.
pub(super) struct WaitTarget {
    pub(super) ticket: TicketId,
    pub(super) blocker: Blocker,
    /// The keys to watch, and from which revision on.
    pub(super) keys: KeyRange,
    pub(super) from: i64,
}

/// The watches of a session. If their stream has ended, requests go nowhere, and the core's next poll finds
/// what the watches would have told.
pub(super) struct Watches {
    requests: mpsc::UnboundedSender<WatchRequest>,
    /// Dropped with the session, which its stream notices.
    _session: oneshot::Sender<()>,
    last_id: i64,
    /// What each watch is for.
    targets: HashMap<i64, WaitTarget>,
    ids: HashMap<TicketId, i64>,
    /// Tickets that may be granted now. They are woken after all responses that have arrived were taken in.
    unblocked: Vec<TicketId>,
}

impl Watches {
    fn new(requests: mpsc::UnboundedSender<WatchRequest>, session: oneshot::Sender<()>) -> Self {
        let (targets, ids, unblocked) = Default::default();
        Self { requests, _session: session, last_id: INBOX, targets, ids, unblocked }
    }

    fn send(&self, request: WatchRequest) {
        let _ = self.requests.send(request);
    }

    /// Watches what a ticket waits for.
    pub(super) fn watch(&mut self, target: WaitTarget) {
        let ticket = target.ticket;
        let current = self.ids.get(&ticket).and_then(|id| self.targets.get(id));
        if current.is_some_and(|current| current.blocker.covers(&target.blocker)) {
            return;
        }
        self.stop(ticket);
        self.last_id += 1;
        self.send(create_watch(self.last_id, target.keys.clone(), target.from, &[NO_PUT]));
        self.ids.insert(ticket, self.last_id);
        self.targets.insert(self.last_id, target);
    }

    pub(super) fn stop(&mut self, ticket: TicketId) {
        if let Some(id) = self.ids.remove(&ticket) {
            self.targets.remove(&id);
            self.send(cancel_watch(id));
        }
    }

    /// Takes in a response to the watch of a ticket.
    fn hear(&mut self, response: &WatchResponse) {
        let Some(target) = self.targets.get_mut(&response.watch_id) else { return };
        let left = || response.events.iter().filter_map(|event| event.kv.as_ref());
        let ticket = target.ticket;
        // If the server has ended the watch, a poll says what to watch then.
        let done = response.canceled || left().any(|kv| target.blocker.left(&kv.key));
        // A watch that begins in the past may take a tenth of a second to reach the present, so the ticket is
        // polled for what has happened meanwhile.
        let behind = response.created && response.revision() >= target.from;
        if done {
            self.stop(ticket);
        }
        if done || behind {
            self.unblocked.push(ticket);
        }
    }
}

/// Does this response end the stream? Either a watch was refused, or the session's inbox is not watched
/// any more. Servers before 3.4.22 and 3.5.6 refuse a watch under the id that was asked for, later ones
/// under none.
fn ends_stream(response: &WatchResponse) -> bool {
    let whole = response.watch_id <= 0 || response.watch_id == INBOX;
    response.canceled && (whole || response.created)
}

impl Etcd {
    /// Passes on what a session's watches tell, until the stream breaks.
    pub(super) async fn listen(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        match self.session(session).await {
            Err(e) => return e,
            Ok(None) => return StoreError::session_over(KIND),
            Ok(Some(_)) => {}
        }
        let ended = self.serve_watches(session, &*to).await;
        self.sessions.with(session, |local| local.watches = None);
        ended.err().unwrap_or_else(|| error::not_now("the watches ended"))
    }

    async fn serve_watches(&self, session: SessionId, hints: &dyn Hints) -> StoreResult<()> {
        let (requests, sent) = mpsc::unbounded_channel();
        let (stands, mut forgotten) = oneshot::channel();
        let watches = Watches::new(requests, stands);
        watches.send(create_watch(INBOX, self.keys.inbox(public_id(session)), 0, &[]));
        self.sessions.with(session, |local| local.watches = Some(watches));
        let logins = self.client.logins();
        let (epoch, mut stream) = self.client.watch(UnboundedReceiverStream::new(sent)).await?;
        loop {
            let response = tokio::select! {
                // The client has left this endpoint, so something is wrong with it.
                () = self.client.endpoint_changed(epoch) => return Ok(()),
                _ = &mut forgotten => return Ok(()),
                response = stream.next() => response,
            };
            let (mut arrived, mut left) = (Poll::Ready(response), AT_ONCE);
            while let Poll::Ready(response) = arrived {
                let Some(response) = response.transpose()? else { return Ok(()) };
                if response.header().is_some_and(|h| h.cluster_id != self.client.cluster()) {
                    return Ok(());
                }
                if ends_stream(&response) {
                    // A stream keeps the token that it was opened with, so the next one needs a new token.
                    return self.client.log_in(logins).await;
                }
                self.take_in(session, &response, hints);
                left -= 1;
                arrived = if left > 0 { arrived_now(&mut stream).await } else { Poll::Pending };
            }
            self.wake_unblocked(session, hints);
        }
    }

    fn take_in(&self, session: SessionId, response: &WatchResponse, hints: &dyn Hints) {
        if response.watch_id != INBOX {
            self.sessions.with(session, |local| {
                if let Some(watches) = &mut local.watches {
                    watches.hear(response);
                }
            });
            return;
        }
        if response.created {
            // From here on notices are heard. A poll finds what happened before.
            hints.recheck(None);
        }
        for notice in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            self.read_notice(session, notice, hints);
        }
    }

    fn read_notice(&self, session: SessionId, notice: &KeyValue, hints: &dyn Hints) {
        if notice.key == self.keys.evicted(public_id(session)) {
            let ticket = std::str::from_utf8(&notice.value).ok().and_then(|text| text.parse().ok());
            ticket.into_iter().for_each(|ticket| hints.ended(ticket));
        } else if notice.key == self.keys.handoff(public_id(session))
            && let Some(notice) = HandoffNotice::read(&notice.value)
            && let Some((ticket, fence)) = self.take_over(session, notice)
        {
            hints.granted(ticket, fence);
        }
    }

    /// Has the tickets polled whose blocker has left, unless a hand-off notice has granted them.
    fn wake_unblocked(&self, session: SessionId, hints: &dyn Hints) {
        let woken = self.sessions.with(session, |local| {
            let mut woken =
                local.watches.as_mut().map(|w| take(&mut w.unblocked)).unwrap_or_default();
            woken.retain(|ticket| {
                let waits = local.tickets.get_mut(ticket).filter(|known| known.fence.is_none());
                waits.map(|known| known.unblocked = true).is_some()
            });
            woken
        });
        woken.into_iter().flatten().for_each(|ticket| hints.recheck(Some(ticket)));
    }

    /// Notes the grant that a hand-off notice tells of. `None` if this handle does not know the ticket yet;
    /// then the answer to its enter tells.
    fn take_over(&self, session: SessionId, notice: HandoffNotice) -> Option<(TicketId, u64)> {
        if self.client.is_restored() {
            return None;
        }
        let HandoffNotice { created, successors } = notice;
        let fence = u64::try_from(created).unwrap_or(0);
        let granted = self.sessions.with(session, |local| {
            let mut tickets = local.tickets.iter_mut();
            let (ticket, known) = tickets
                .find(|(_, known)| known.created == Some(created) && known.fence.is_none())?;
            known.successors = successors;
            let ticket = *ticket;
            Some((ticket, local.record_grant(ticket, created, fence)?))
        });
        granted.flatten()
    }
}

/// What has arrived already.
async fn arrived_now<S: Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_next(cx))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_watch_or_a_closed_inbox_ends_the_stream() {
        let response = |watch_id, created, canceled| WatchResponse {
            watch_id,
            created,
            canceled,
            ..WatchResponse::default()
        };
        for refusal in
            [(-1, true, true), (INBOX, true, true), (INBOX, false, true), (7, true, true)]
        {
            let (id, created, canceled) = refusal;
            assert!(ends_stream(&response(id, created, canceled)), "{refusal:?}");
        }
        // A watch that we have cancelled, and good ones.
        for good in [(7, false, true), (7, true, false), (INBOX, true, false)] {
            let (id, created, canceled) = good;
            assert!(!ends_stream(&response(id, created, canceled)), "{good:?}");
        }
    }
}
