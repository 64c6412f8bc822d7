//! Hints for the waiters of a session: one stream of watches.
//!
//! | ticket | watches |
//! |---|---|
//! | exclusive, reader | the key that blocks it, and its own key |
//! | permits | its whole line |
//! | any | the session's inbox, where evictions and hand-offs are told |
//!
//! A watch begins at the revision after the read that found the ticket waiting, so no event is missed
//! between the two. Watching a ticket's own key and cancelling idle watches are deferred by 100 ms: a lock
//! that is handed on quickly needs neither. When the stream breaks, nothing is resumed: the core polls, and
//! each poll asks for the watches that its tickets need.

use super::{
    Etcd, KIND,
    client::{
        HasHeader as _, KeyRange, KeyValue, WatchRequest, WatchResponse,
        watch_pool::{WatchPool, create},
    },
    handoff::HandoffNotice,
    line::Blocker,
    local_session::public_id,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{SessionId, TicketId},
    store::{Hints, StoreResult},
};
use std::{
    collections::HashMap, future::poll_fn, mem::take, pin::Pin, sync::Arc, task::Poll,
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};

/// The id of the watch on the session's inbox.
const INBOX: i64 = 1;
/// How long deferred work may wait.
const DEFERRED: Duration = Duration::from_millis(100);
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
    pub(super) own_key: Vec<u8>,
    pub(super) blocker: Blocker,
    pub(super) line: KeyRange,
    /// How much weight has to leave the line before the ticket fits, and the weights of the keys ahead;
    /// used with [`Blocker::WholeLine`].
    pub(super) excess: u64,
    pub(super) ahead: HashMap<Vec<u8>, u32>,
    /// From which revision on.
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

/// What an event of a watch means for a ticket.
#[derive(Clone, Copy)]
enum Purpose {
    /// The ticket's blocker has left.
    Blocker(TicketId),
    /// The ticket itself is gone.
    OwnKey(TicketId),
    /// A ticket of its line has left, perhaps itself.
    Line(TicketId),
}

impl Purpose {
    fn ticket(self) -> TicketId {
        let (Self::Blocker(ticket) | Self::OwnKey(ticket) | Self::Line(ticket)) = self;
        ticket
    }
}

/// How a ticket stands after others have left its line.
enum AfterMove {
    Gone,
    Fits,
    Waits,
}

/// A ticket, and the ids of its watches.
struct Waiting {
    target: WaitTarget,
    watches: Vec<i64>,
}

struct Watches<'a> {
    pool: WatchPool<Purpose>,
    tickets: HashMap<TicketId, Waiting>,
    /// Tickets whose blocker has left. They are woken after all responses that have arrived were taken in.
    unblocked: Vec<TicketId>,
    /// Tickets whose own key is not watched yet.
    own_key_unwatched: Vec<TicketId>,
    etcd: &'a Etcd,
    session: SessionId,
    hints: &'a dyn Hints,
}

impl Watches<'_> {
    /// Watches what a ticket waits for. Returns what to send.
    fn watch(&mut self, target: WaitTarget) -> Vec<WatchRequest> {
        let (ticket, from) = (target.ticket, target.from);
        if self.tickets.get(&ticket).is_some_and(|w| w.target.blocker == target.blocker) {
            return Vec::new();
        }
        self.stop(ticket);
        let (id, requests) = match &target.blocker {
            Blocker::Key(key) => {
                self.own_key_unwatched.push(ticket);
                self.pool.add(Purpose::Blocker(ticket), KeyRange::of_key(key), from)
            }
            Blocker::WholeLine => self.pool.add(Purpose::Line(ticket), target.line.clone(), from),
        };
        self.tickets.insert(ticket, Waiting { target, watches: vec![id] });
        if self.pool.has_heard(id, from) {
            self.unblocked.push(ticket);
        }
        requests
    }

    fn stop(&mut self, ticket: TicketId) {
        let watches = self.tickets.remove(&ticket).map(|waiting| waiting.watches);
        watches.into_iter().flatten().for_each(|id| self.pool.release(id));
    }

    fn has_deferred_work(&self) -> bool {
        self.pool.has_idle() || !self.own_key_unwatched.is_empty()
    }

    /// Does the deferred work that is still of use. Returns what to send.
    fn deferred_work(&mut self) -> Vec<WatchRequest> {
        let mut requests = self.pool.age();
        for ticket in take(&mut self.own_key_unwatched) {
            let waiting = self.tickets.get_mut(&ticket).filter(|w| w.watches.len() == 1);
            let Some(Waiting { target, watches }) = waiting else { continue };
            let (own_key, from) = (KeyRange::of_key(&target.own_key), target.from);
            let (id, more) = self.pool.add(Purpose::OwnKey(ticket), own_key, from);
            watches.push(id);
            requests.extend(more);
            if self.pool.has_heard(id, from) {
                self.end(ticket);
            }
        }
        requests
    }

    /// Gives the hints that a response leads to.
    fn hear(&mut self, response: &WatchResponse) {
        if response.watch_id == INBOX {
            let notices = response.events.iter().filter_map(|event| event.kv.as_ref());
            return notices.for_each(|notice| self.read_notice(notice));
        }
        let Some((purpose, last)) = self.pool.hear(response) else { return };
        let ticket = purpose.ticket();
        let Some(from) = self.tickets.get(&ticket).map(|waiting| waiting.target.from) else {
            return;
        };
        if response.canceled {
            // The server has refused the watch. The next poll says what to watch then.
            self.stop(ticket);
            self.pool.remove(response.watch_id);
            return self.hints.recheck(Some(ticket));
        }
        // A watch that begins in the past may take a tenth of a second to reach the present, so the ticket
        // is polled for what has happened meanwhile.
        let in_the_past = response.created && response.revision() >= from;
        if in_the_past && !matches!(purpose, Purpose::OwnKey(_)) {
            self.recheck(ticket);
        }
        // A watch that was idle may still tell of the ticket that stood at the key before.
        if last < from {
            return;
        }
        match purpose {
            Purpose::Blocker(_) => self.unblocked.push(ticket),
            Purpose::OwnKey(_) => self.end(ticket),
            Purpose::Line(_) => match self.line_moved(ticket, response) {
                AfterMove::Gone => self.end(ticket),
                AfterMove::Fits => self.wake(ticket),
                AfterMove::Waits => {}
            },
        }
    }

    /// Takes the tickets that have left off the line of a waiter for permits.
    fn line_moved(&mut self, ticket: TicketId, response: &WatchResponse) -> AfterMove {
        let Some(Waiting { target, .. }) = self.tickets.get_mut(&ticket) else {
            return AfterMove::Waits;
        };
        for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            if kv.key == target.own_key {
                return AfterMove::Gone;
            }
            let weight = target.ahead.remove(&kv.key).unwrap_or(0);
            target.excess = target.excess.saturating_sub(weight.into());
        }
        if target.excess == 0 { AfterMove::Fits } else { AfterMove::Waits }
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

    fn end(&mut self, ticket: TicketId) {
        self.hints.ended(ticket);
        self.stop(ticket);
    }

    /// Wakes the tickets whose blocker has left, unless a hand-off notice has told them more.
    fn wake_unblocked(&mut self) {
        for ticket in take(&mut self.unblocked) {
            if self.tickets.contains_key(&ticket) {
                self.wake(ticket);
            }
        }
    }

    fn wake(&mut self, ticket: TicketId) {
        self.stop(ticket);
        self.recheck(ticket);
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
        let ended = ended.err();
        ended.unwrap_or_else(|| {
            StoreError::not_applied(KIND, ErrorKind::Unavailable, "the watches ended")
        })
    }

    async fn serve_watches(
        &self,
        session: SessionId,
        mut commands: mpsc::UnboundedReceiver<Command>,
        hints: &dyn Hints,
    ) -> StoreResult<()> {
        let (requests, sent) = mpsc::unbounded_channel();
        let _ = requests.send(create(INBOX, self.keys.inbox(public_id(session)), 0, Vec::new()));
        let logins = self.client.logins();
        let (epoch, mut stream) = self.client.watch(UnboundedReceiverStream::new(sent)).await?;
        let mut watches = Watches {
            pool: WatchPool::after(INBOX),
            tickets: HashMap::new(),
            unblocked: Vec::new(),
            own_key_unwatched: Vec::new(),
            etcd: self,
            session,
            hints,
        };
        let mut deferred_until = Moment::NEVER;
        loop {
            if deferred_until == Moment::NEVER && watches.has_deferred_work() {
                deferred_until = self.clock.now() + DEFERRED;
            }
            let more = tokio::select! {
                // The client has left this endpoint, so something is wrong with it.
                () = self.client.endpoint_changed(epoch) => return Ok(()),
                command = commands.recv() => match command {
                    Some(Command::Watch(target)) => watches.watch(*target),
                    Some(Command::Stop(ticket)) => {
                        watches.stop(ticket);
                        Vec::new()
                    }
                    None => return Ok(()),
                },
                () = self.clock.sleep_until(deferred_until) => {
                    deferred_until = Moment::NEVER;
                    watches.deferred_work()
                }
                response = stream.next() => {
                    let mut arrived = Poll::Ready(response);
                    let mut left = AT_ONCE;
                    while let Poll::Ready(response) = arrived {
                        if !self.take_in(response, logins, &mut watches).await? {
                            return Ok(());
                        }
                        left -= 1;
                        arrived = if left > 0 { arrived_now(&mut stream).await } else { Poll::Pending };
                    }
                    Vec::new()
                }
            };
            watches.wake_unblocked();
            for request in more {
                let _ = requests.send(request);
            }
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
