//! Wake-ups: one stream of watches for each session.
//!
//! A waiter watches the key that it waits for and its own; the holder of permits watches its line.
//! A watch begins where the read ended that found the ticket waiting, so nothing falls between the
//! two. The session's mailbox, where evictions are told, is watched all the time. When the stream
//! breaks nothing is resumed: the core polls, and every poll watches anew.

use super::{
    Etcd, KIND, error,
    keys::Span,
    proto::{
        Event, Headed as _, NO_PUT, WatchAsk, WatchCancelRequest, WatchCreateRequest, WatchRequest,
        WatchResponse,
    },
    sessions::tag,
    standing::Blocker,
};
use crate::{
    error::{StoreError, Trouble},
    store::{Hints, StoreResult},
    ticket::{SessionId, TicketId},
};
use std::{collections::HashMap, sync::Arc};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::UnboundedReceiverStream};

/// The id of the watch on the session's mailbox.
const MAILBOX: i64 = 1;

/// Tells a session's stream what to watch.
pub(super) struct Ear(mpsc::UnboundedSender<Wish>);

enum Wish {
    Watch(Box<Target>),
    Forget(TicketId),
}

/// What a waiting ticket has to hear of.
pub(super) struct Target {
    pub(super) ticket: TicketId,
    pub(super) own: Vec<u8>,
    pub(super) blocker: Blocker,
    pub(super) line: Span,
    /// What has to leave the line before the ticket fits, and who stands there with which weight; told
    /// only if anybody's leaving matters.
    pub(super) excess: u64,
    pub(super) ahead: HashMap<Vec<u8>, u32>,
    /// From which revision on.
    pub(super) from: i64,
}

impl Ear {
    /// Never blocks; if nobody listens, a poll stands behind.
    pub(super) fn watch(&self, target: Target) {
        let _ = self.0.send(Wish::Watch(Box::new(target)));
    }

    pub(super) fn forget(&self, ticket: TicketId) {
        let _ = self.0.send(Wish::Forget(ticket));
    }
}

/// What an event of a watch means.
#[derive(Clone, Copy)]
enum Meaning {
    /// Who stood in the way has left.
    MayGo(TicketId),
    /// The ticket itself is gone.
    Ended(TicketId),
    /// Somebody in the line has left; it may be the ticket itself.
    Moved(TicketId),
}

#[derive(Default)]
struct Watches {
    last: i64,
    meanings: HashMap<i64, Meaning>,
    tickets: HashMap<TicketId, Waiting>,
}

/// What a ticket waits for, and its watches.
struct Waiting {
    blocker: Blocker,
    own: Vec<u8>,
    excess: u64,
    ahead: HashMap<Vec<u8>, u32>,
    from: i64,
    ids: Vec<i64>,
}

impl Watches {
    fn add(&mut self, meaning: Meaning, span: Span, from: i64) -> (i64, WatchRequest) {
        self.last += 1;
        let id = MAILBOX + self.last;
        self.meanings.insert(id, meaning);
        (id, create(id, span, from, true))
    }

    fn watch(&mut self, target: Target) -> Vec<WatchRequest> {
        let Target { ticket, own, blocker, line, excess, ahead, from } = target;
        if self.tickets.get(&ticket).is_some_and(|present| present.blocker == blocker) {
            return Vec::new();
        }
        let mut asks = self.forget(ticket);
        let alone = |key: &[u8]| Span { from: key.to_vec(), to: Vec::new() };
        let added = match &blocker {
            Blocker::Key(key) => vec![
                self.add(Meaning::MayGo(ticket), alone(key), from),
                self.add(Meaning::Ended(ticket), alone(&own), from),
            ],
            Blocker::Anyone => vec![self.add(Meaning::Moved(ticket), line, from)],
        };
        let (ids, more): (Vec<i64>, Vec<WatchRequest>) = added.into_iter().unzip();
        self.tickets.insert(ticket, Waiting { blocker, own, excess, ahead, from, ids });
        asks.extend(more);
        asks
    }

    fn forget(&mut self, ticket: TicketId) -> Vec<WatchRequest> {
        let ids = self.tickets.remove(&ticket).map(|waiting| waiting.ids).unwrap_or_default();
        for id in &ids {
            self.meanings.remove(id);
        }
        let cancel = |watch_id| WatchRequest {
            ask: Some(WatchAsk::Cancel(WatchCancelRequest { watch_id })),
        };
        ids.into_iter().map(cancel).collect()
    }

    /// Drops the hints that a response gives rise to; says what to ask then.
    fn hear(&mut self, response: &WatchResponse, to: &Calls<'_>) -> Vec<WatchRequest> {
        if response.watch_id == MAILBOX {
            response.events.iter().filter_map(evicted).for_each(|ticket| to.hints.ended(ticket));
            return Vec::new();
        }
        let Some(meaning) = self.meanings.get(&response.watch_id).copied() else {
            return Vec::new();
        };
        if response.created && !response.canceled {
            self.begun(meaning, response, to);
        }
        if response.events.is_empty() && !response.canceled {
            return Vec::new();
        }
        match meaning {
            Meaning::Ended(ticket) if !response.canceled => {
                to.hints.ended(ticket);
                self.forget(ticket)
            }
            Meaning::Moved(ticket) if !response.canceled => match self.moved(ticket, response) {
                Moved::Gone => {
                    to.hints.ended(ticket);
                    self.forget(ticket)
                }
                Moved::Fits => {
                    to.call(ticket);
                    self.forget(ticket)
                }
                Moved::NotYet => Vec::new(),
            },
            // The next poll says what to watch then; a watch that was refused is made anew.
            Meaning::MayGo(ticket) | Meaning::Ended(ticket) | Meaning::Moved(ticket) => {
                let asks = self.forget(ticket);
                match response.canceled {
                    true => to.hints.look(Some(ticket)),
                    false => to.call(ticket),
                }
                asks
            }
        }
    }

    /// A watch that begins in the past may take a tenth of a second to come up with the present, so what
    /// happened meanwhile is looked for.
    fn begun(&self, meaning: Meaning, response: &WatchResponse, to: &Calls<'_>) {
        let (Meaning::MayGo(ticket) | Meaning::Moved(ticket)) = meaning else { return };
        if self.tickets.get(&ticket).is_some_and(|waiting| response.revision() >= waiting.from) {
            to.call(ticket);
        }
    }

    /// What it means for a ticket that these have left its line.
    fn moved(&mut self, ticket: TicketId, response: &WatchResponse) -> Moved {
        let Some(waiting) = self.tickets.get_mut(&ticket) else { return Moved::NotYet };
        let left = response.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| &kv.key);
        for key in left {
            if *key == waiting.own {
                return Moved::Gone;
            }
            let weight = waiting.ahead.remove(key).unwrap_or(0);
            waiting.excess = waiting.excess.saturating_sub(weight.into());
        }
        if waiting.excess == 0 { Moved::Fits } else { Moved::NotYet }
    }
}

/// Where what was heard is told.
struct Calls<'a> {
    hints: &'a dyn Hints,
    etcd: &'a Etcd,
    session: SessionId,
}

impl Calls<'_> {
    /// The ticket's turn seems to have come.
    fn call(&self, ticket: TicketId) {
        self.etcd.sessions.with(self.session, |life| {
            if let Some(known) = life.tickets.get_mut(&ticket) {
                known.called = true;
            }
        });
        self.hints.look(Some(ticket));
    }
}

/// How a ticket stands after others have left its line.
enum Moved {
    Gone,
    Fits,
    NotYet,
}

/// The stream is of no use any more: a watch was refused, or the session's mailbox is not watched.
/// Servers before 3.4.22 and 3.5.6 refuse under the id that was asked for, later ones under none.
fn is_refusal(response: &WatchResponse) -> bool {
    let whole = response.watch_id <= 0 || response.watch_id == MAILBOX;
    response.canceled && (whole || response.created)
}

fn evicted(event: &Event) -> Option<TicketId> {
    std::str::from_utf8(&event.kv.as_ref()?.value).ok()?.parse().ok()
}

fn create(watch_id: i64, span: Span, from: i64, deletes_only: bool) -> WatchRequest {
    let Span { from: key, to: range_end } = span;
    let filters = if deletes_only { vec![NO_PUT] } else { Vec::new() };
    let ask = WatchCreateRequest { key, range_end, start_revision: from, filters, watch_id };
    WatchRequest { ask: Some(WatchAsk::Create(ask)) }
}

impl Etcd {
    /// Passes on what a session's watches bring, until the stream breaks.
    pub(super) async fn listen(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        let (ear, wishes) = mpsc::unbounded_channel();
        match self.life(session).await {
            Err(e) => return e,
            Ok(None) => return StoreError::session_over(KIND),
            Ok(Some(_)) => self.sessions.with(session, |life| life.ear = Some(Ear(ear))),
        };
        let answer = self.hear(session, wishes, &*to).await;
        self.sessions.with(session, |life| life.ear = None);
        match answer {
            Err(e) => e,
            Ok(()) => StoreError::not_applied(KIND, Trouble::Unavailable, "the watches ended"),
        }
    }

    async fn hear(
        &self,
        session: SessionId,
        mut wishes: mpsc::UnboundedReceiver<Wish>,
        to: &dyn Hints,
    ) -> StoreResult<()> {
        let (asks, sent) = mpsc::unbounded_channel();
        let mailbox = Span { from: self.keys.mailbox(tag(session)), to: Vec::new() };
        let _ = asks.send(create(MAILBOX, mailbox, 0, false));
        let logins = self.client.logins();
        let (turn, mut stream) = self.client.watch(UnboundedReceiverStream::new(sent)).await?;
        let mut watches = Watches::default();
        let calls = Calls { hints: to, etcd: self, session };
        loop {
            let more = tokio::select! {
                // Another endpoint is used now, so something is wrong with this one.
                () = self.client.turned(turn) => return Ok(()),
                wish = wishes.recv() => match wish {
                    Some(Wish::Watch(target)) => watches.watch(*target),
                    Some(Wish::Forget(ticket)) => watches.forget(ticket),
                    None => return Ok(()),
                },
                response = stream.next() => {
                    let Some(response) = response else { return Ok(()) };
                    let response = response.map_err(|status| error::of(status).error)?;
                    if response.header().is_some_and(|h| h.cluster_id != self.client.cluster()) {
                        return Ok(());
                    }
                    if is_refusal(&response) {
                        // A stream keeps the token that it was opened with.
                        self.client.log_in(logins).await?;
                        return Ok(());
                    }
                    if response.watch_id == MAILBOX && response.created {
                        // Now we listen: what happened before, a poll has to find out.
                        to.look(None);
                    }
                    watches.hear(&response, &calls)
                }
            };
            for ask in more {
                let _ = asks.send(ask);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_refused_or_a_mailbox_that_was_closed_ends_the_stream() {
        let response = |watch_id, created, canceled| WatchResponse {
            watch_id,
            created,
            canceled,
            ..WatchResponse::default()
        };
        for refusal in
            [(-1, true, true), (MAILBOX, true, true), (MAILBOX, false, true), (7, true, true)]
        {
            let (id, created, canceled) = refusal;
            assert!(is_refusal(&response(id, created, canceled)), "{refusal:?}");
        }
        // A watch that we have cancelled, and good ones.
        for good in [(7, false, true), (7, true, false), (MAILBOX, true, false)] {
            let (id, created, canceled) = good;
            assert!(!is_refusal(&response(id, created, canceled)), "{good:?}");
        }
    }
}
