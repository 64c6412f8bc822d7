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
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};

/// The id of the watch on the session's inbox.
const INBOX: i64 = 1;
/// How many responses that have arrived are taken in before waiters are woken. A hand-off notice among
/// them spares its ticket the read that a mere wake-up costs.
const AT_ONCE: usize = 32;

/// Tells a session's stream what to watch.
pub(super) struct WatchHandle(mpsc::UnboundedSender<Command>);

enum Command {
    Watch(Box<WaitTarget>),
    Stop(TicketId),
}

/// What a waiting ticket has to hear of.
pub(super) struct WaitTarget {
    pub(super) ticket: TicketId,
    pub(super) blocker: Blocker,
    /// The keys to watch, and from which revision on.
    pub(super) keys: KeyRange,
    pub(super) from: i64,
}

impl WatchHandle {
    /// Never blocks. If the stream has ended, the core's next poll finds what the watch would have told.
    pub(super) fn watch(&self, target: WaitTarget) {
        let _ = self.0.send(Command::Watch(Box::new(target)));
    }

    pub(super) fn stop(&self, ticket: TicketId) {
        let _ = self.0.send(Command::Stop(ticket));
    }
}

/// The watches of a session.
struct Watches<'a> {
    etcd: &'a Etcd,
    session: SessionId,
    hints: &'a dyn Hints,
    requests: mpsc::UnboundedSender<WatchRequest>,
    last_id: i64,
    /// The ticket that each watch is for.
    tickets: HashMap<i64, TicketId>,
    /// What each ticket waits for, with the id of its watch.
    targets: HashMap<TicketId, (i64, WaitTarget)>,
    /// Tickets whose blocker has left. They are woken after all responses that have arrived were taken in.
    unblocked: Vec<TicketId>,
}

impl Watches<'_> {
    fn send(&self, request: WatchRequest) {
        // If the stream has ended, so will the loop that reads from it.
        let _ = self.requests.send(request);
    }

    /// Watches what a ticket waits for.
    fn watch(&mut self, target: WaitTarget) {
        let ticket = target.ticket;
        if self.targets.get(&ticket).is_some_and(|(_, t)| t.blocker.covers(&target.blocker)) {
            return;
        }
        self.stop(ticket);
        self.last_id += 1;
        let keys = target.keys.clone();
        self.send(create_watch(self.last_id, keys, target.from, &[NO_PUT]));
        self.tickets.insert(self.last_id, ticket);
        self.targets.insert(ticket, (self.last_id, target));
    }

    fn stop(&mut self, ticket: TicketId) {
        if let Some((id, _)) = self.targets.remove(&ticket) {
            self.tickets.remove(&id);
            self.send(cancel_watch(id));
        }
    }

    /// Gives the hints that a response leads to.
    fn hear(&mut self, response: &WatchResponse) {
        let left = || response.events.iter().filter_map(|event| event.kv.as_ref());
        if response.watch_id == INBOX {
            return left().for_each(|notice| self.read_notice(notice));
        }
        let Some(ticket) = self.tickets.get(&response.watch_id).copied() else { return };
        let Some((_, target)) = self.targets.get_mut(&ticket) else { return };
        if response.canceled {
            // The server has ended the watch. The next poll says what to watch then.
            self.targets.remove(&ticket);
            self.tickets.remove(&response.watch_id);
            return self.hints.recheck(Some(ticket));
        }
        if response.created && response.revision() >= target.from {
            // A watch that begins in the past may take a tenth of a second to reach the present, so the
            // ticket is polled for what has happened meanwhile.
            return self.recheck(ticket);
        }
        if left().any(|kv| target.blocker.left(&kv.key)) {
            self.unblocked.push(ticket);
        }
    }

    fn read_notice(&mut self, notice: &KeyValue) {
        let (keys, session) = (&self.etcd.keys, public_id(self.session));
        if notice.key == keys.evicted(session) {
            let ticket = std::str::from_utf8(&notice.value).ok().and_then(|text| text.parse().ok());
            ticket.into_iter().for_each(|ticket| self.hints.ended(ticket));
        } else if notice.key == keys.handoff(session)
            && let Some(notice) = HandoffNotice::read(&notice.value)
            && let Some((ticket, fence)) = self.etcd.take_over(self.session, notice)
        {
            self.hints.granted(ticket, fence);
            self.stop(ticket);
        }
    }

    /// Wakes the tickets whose blocker has left, unless a hand-off notice has told them more.
    fn wake_unblocked(&mut self) {
        for ticket in take(&mut self.unblocked) {
            if self.targets.contains_key(&ticket) {
                self.stop(ticket);
                self.recheck(ticket);
            }
        }
    }

    /// Has a ticket polled that seems to be granted.
    fn recheck(&self, ticket: TicketId) {
        let sessions = &self.etcd.sessions;
        sessions.with_ticket(self.session, ticket, |local| local.unblocked = true);
        self.hints.recheck(Some(ticket));
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
        let (handle, commands) = mpsc::unbounded_channel();
        match self.session(session).await {
            Err(e) => return e,
            Ok(None) => return StoreError::session_over(KIND),
            Ok(Some(_)) => {
                self.sessions.with(session, |local| local.watch = Some(WatchHandle(handle)));
            }
        }
        let ended = self.serve_watches(session, commands, &*to).await;
        self.sessions.with(session, |local| local.watch = None);
        ended.err().unwrap_or_else(|| error::not_now("the watches ended"))
    }

    async fn serve_watches(
        &self,
        session: SessionId,
        mut commands: mpsc::UnboundedReceiver<Command>,
        hints: &dyn Hints,
    ) -> StoreResult<()> {
        let (requests, sent) = mpsc::unbounded_channel();
        let mut watches = Watches {
            etcd: self,
            session,
            hints,
            requests,
            last_id: INBOX,
            tickets: HashMap::new(),
            targets: HashMap::new(),
            unblocked: Vec::new(),
        };
        watches.send(create_watch(INBOX, self.keys.inbox(public_id(session)), 0, &[]));
        let logins = self.client.logins();
        let (epoch, mut stream) = self.client.watch(UnboundedReceiverStream::new(sent)).await?;
        loop {
            tokio::select! {
                // The client has left this endpoint, so something is wrong with it.
                () = self.client.endpoint_changed(epoch) => return Ok(()),
                command = commands.recv() => match command {
                    Some(Command::Watch(target)) => watches.watch(*target),
                    Some(Command::Stop(ticket)) => watches.stop(ticket),
                    None => return Ok(()),
                },
                response = stream.next() => {
                    let (mut arrived, mut left) = (Poll::Ready(response), AT_ONCE);
                    while let Poll::Ready(response) = arrived {
                        if !self.take_in(response, logins, &mut watches).await? {
                            return Ok(());
                        }
                        left -= 1;
                        arrived = if left > 0 { arrived_now(&mut stream).await } else { Poll::Pending };
                    }
                }
            }
            watches.wake_unblocked();
        }
    }

    /// Takes in a response. `false`: the stream is of no use any more.
    async fn take_in(
        &self,
        response: Option<StoreResult<WatchResponse>>,
        logins: u64,
        watches: &mut Watches<'_>,
    ) -> StoreResult<bool> {
        let Some(response) = response.transpose()? else { return Ok(false) };
        if response.header().is_some_and(|h| h.cluster_id != self.client.cluster()) {
            return Ok(false);
        }
        if ends_stream(&response) {
            // A stream keeps the token that it was opened with, so the next one needs a new token.
            self.client.log_in(logins).await?;
            return Ok(false);
        }
        if response.watch_id == INBOX && response.created {
            // From here on notices are heard. A poll finds what happened before.
            watches.hints.recheck(None);
        }
        watches.hear(&response);
        Ok(true)
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
