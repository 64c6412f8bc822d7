//! Wake-ups: one stream of watches for each session.
//!
//! A waiter watches the key that it waits for and its own; who waits for permits watches its line.
//! A watch begins where the read ended that found the ticket waiting, so nothing falls between the
//! two. What is not urgent waits for a moment: a watch of one's own key, and the end of a watch that has
//! served, since keys are used again. A lock that goes round quickly goes round without either. The
//! session's mailbox, where it is told of evictions and of turns that have come, is watched all the
//! time. When the stream breaks nothing is resumed: the core polls, and every poll watches anew.

use super::{
    Etcd, KIND, error,
    keys::Span,
    proto::{
        Headed as _, KeyValue, NO_PUT, WatchAsk, WatchCancelRequest, WatchCreateRequest,
        WatchRequest, WatchResponse,
    },
    sessions::tag,
    standing::Blocker,
    turn::Letter,
};
use crate::{
    clock::Moment,
    error::{ErrorKind, StoreError},
    model::ticket::{SessionId, TicketId},
    store::{Hints, StoreResult},
};
use std::{collections::HashMap, pin::Pin, sync::Arc, task::Poll, time::Duration};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnboundedReceiverStream};
use tonic::Status;

/// The id of the watch on the session's mailbox.
const MAILBOX: i64 = 1;
/// How long what is not urgent may wait.
const LATER: Duration = Duration::from_millis(100);
/// So much is heard, if it has arrived, before anybody is called and before wishes are asked for again.
const AT_ONCE: usize = 32;

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

impl Meaning {
    fn ticket(self) -> TicketId {
        let (Self::MayGo(ticket) | Self::Ended(ticket) | Self::Moved(ticket)) = self;
        ticket
    }
}

#[derive(Default)]
struct Watches {
    last: i64,
    all: HashMap<i64, Watched>,
    tickets: HashMap<TicketId, Waiting>,
    /// Whose turn seems to have come. They are called when all that has arrived was heard: a letter may
    /// be among it.
    called: Vec<TicketId>,
    /// Who does not watch its own key yet.
    bare: Vec<TicketId>,
    /// Watches that have served, by their keys: the next one may want the same.
    spare: HashMap<Vec<u8>, i64>,
    /// Watches that nobody needs any more.
    spent: Vec<i64>,
}

struct Watched {
    /// `None` for a whole line.
    key: Option<Vec<u8>>,
    /// `None` if it is spare.
    meaning: Option<Meaning>,
    /// It was spare already when the last watches were cancelled.
    aged: bool,
    /// From which revision on it tells.
    since: i64,
    /// The revision of the last event.
    heard: i64,
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
    /// A watch of a key, or of a whole line: a spare one, or a new one with what to ask for it.
    fn add(&mut self, meaning: Meaning, span: Span, from: i64) -> (i64, Option<WatchRequest>) {
        let key = span.to.is_empty().then(|| span.from.clone());
        if let Some(key) = &key
            && let Some(watched) = self.spare.get(key).and_then(|id| self.all.get_mut(id))
            && watched.since <= from
            && let Some(id) = self.spare.remove(key)
        {
            (watched.meaning, watched.aged) = (Some(meaning), false);
            return (id, None);
        }
        self.last += 1;
        let id = MAILBOX + self.last;
        let watched = Watched { key, meaning: Some(meaning), aged: false, since: from, heard: 0 };
        self.all.insert(id, watched);
        (id, Some(create(id, span, from, true)))
    }

    /// Watches what a ticket waits for; it is to be called if that has happened already.
    fn watch(&mut self, target: Target) -> Vec<WatchRequest> {
        let Target { ticket, own, blocker, line, excess, ahead, from } = target;
        if self.tickets.get(&ticket).is_some_and(|present| present.blocker == blocker) {
            return Vec::new();
        }
        self.forget(ticket);
        let (id, ask) = match &blocker {
            Blocker::Key(key) => {
                self.bare.push(ticket);
                self.add(Meaning::MayGo(ticket), alone(key), from)
            }
            Blocker::Anyone => self.add(Meaning::Moved(ticket), line, from),
        };
        self.tickets.insert(ticket, Waiting { blocker, own, excess, ahead, from, ids: vec![id] });
        if self.has_heard(id, from) {
            self.called.push(ticket);
        }
        let Some(ask) = ask else { return Vec::new() };
        let mut asks = self.cancel_spent();
        asks.push(ask);
        asks
    }

    /// Has a watch that was spare told of something already?
    fn has_heard(&self, id: i64, from: i64) -> bool {
        self.all.get(&id).is_some_and(|watched| watched.heard >= from)
    }

    fn cancel_spent(&mut self) -> Vec<WatchRequest> {
        let cancel = |watch_id| WatchRequest {
            ask: Some(WatchAsk::Cancel(WatchCancelRequest { watch_id })),
        };
        for id in &self.spent {
            self.all.remove(id);
        }
        self.spent.drain(..).map(cancel).collect()
    }

    fn forget(&mut self, ticket: TicketId) {
        let ids = self.tickets.remove(&ticket).map(|waiting| waiting.ids).unwrap_or_default();
        for id in ids {
            let Some(watched) = self.all.get_mut(&id) else { continue };
            watched.meaning = None;
            match watched.key.clone() {
                Some(key) => self.spent.extend(self.spare.insert(key, id)),
                None => self.spent.push(id),
            }
        }
    }

    /// Is anything left for later?
    fn is_behind(&self) -> bool {
        !(self.bare.is_empty() && self.spare.is_empty() && self.spent.is_empty())
    }

    /// What was left for later, and is still of use.
    fn catch_up(&mut self, to: &Calls<'_>) -> Vec<WatchRequest> {
        let all = &mut self.all;
        let old = self.spare.extract_if(|_, id| {
            all.get_mut(id).is_none_or(|watched| std::mem::replace(&mut watched.aged, true))
        });
        self.spent.extend(old.map(|(_, id)| id));
        let mut asks = self.cancel_spent();
        for ticket in std::mem::take(&mut self.bare) {
            let found = self.tickets.get(&ticket).filter(|waiting| waiting.ids.len() == 1);
            let Some((own, from)) = found.map(|w| (alone(&w.own), w.from)) else { continue };
            let (id, ask) = self.add(Meaning::Ended(ticket), own, from);
            self.tickets.entry(ticket).and_modify(|waiting| waiting.ids.push(id));
            asks.extend(ask);
            if self.has_heard(id, from) {
                to.hints.ended(ticket);
                self.forget(ticket);
            }
        }
        asks
    }

    /// Drops the hints that a response gives rise to.
    fn hear(&mut self, response: &WatchResponse, to: &Calls<'_>) {
        if response.watch_id == MAILBOX {
            let letters = response.events.iter().filter_map(|event| event.kv.as_ref());
            letters.for_each(|letter| self.open(letter, to));
            return;
        }
        let Some(watched) = self.all.get_mut(&response.watch_id) else { return };
        let revisions = response.events.iter().filter_map(|event| event.kv.as_ref());
        let last = revisions.map(|kv| kv.mod_revision).max().unwrap_or(0);
        watched.heard = watched.heard.max(last);
        let Some(meaning) = watched.meaning else {
            if response.canceled {
                self.drop_spare(response.watch_id);
            }
            return;
        };
        let Some(from) = self.tickets.get(&meaning.ticket()).map(|waiting| waiting.from) else {
            return;
        };
        if response.created && !response.canceled {
            Self::begun(meaning, from, response, to);
        }
        // A watch that was spare may still tell of who stood at the key before.
        if last < from && !response.canceled {
            return;
        }
        match meaning {
            Meaning::Ended(ticket) if !response.canceled => {
                to.hints.ended(ticket);
                self.forget(ticket);
            }
            Meaning::Moved(ticket) if !response.canceled => match self.moved(ticket, response) {
                Moved::Gone => {
                    to.hints.ended(ticket);
                    self.forget(ticket);
                }
                Moved::Fits => {
                    to.call(ticket);
                    self.forget(ticket);
                }
                Moved::NotYet => {}
            },
            Meaning::MayGo(ticket) if !response.canceled => self.called.push(ticket),
            // A watch that was refused is made anew, when the next poll says what to watch then.
            Meaning::MayGo(ticket) | Meaning::Ended(ticket) | Meaning::Moved(ticket) => {
                self.forget(ticket);
                self.drop_spare(response.watch_id);
                to.hints.recheck(Some(ticket));
            }
        }
    }

    /// Reads what came into the mailbox.
    fn open(&mut self, letter: &KeyValue, to: &Calls<'_>) {
        let session = tag(to.session);
        if letter.key == to.etcd.keys.evicted(session) {
            evicted(letter).into_iter().for_each(|ticket| to.hints.ended(ticket));
        } else if letter.key == to.etcd.keys.turn(session)
            && let Some(turn) = Letter::read(&letter.value)
            && let Some(ticket) = to.grant(&turn)
        {
            self.forget(ticket);
        }
    }

    /// Calls those whose turn seems to have come, and who have not heard more. The next poll says what to
    /// watch then.
    fn call(&mut self, to: &Calls<'_>) {
        for ticket in std::mem::take(&mut self.called) {
            if self.tickets.contains_key(&ticket) {
                self.forget(ticket);
                to.call(ticket);
            }
        }
    }

    /// The server has ended a watch.
    fn drop_spare(&mut self, id: i64) {
        self.spare.retain(|_, spare| *spare != id);
        self.all.remove(&id);
    }

    /// A watch that begins in the past may take a tenth of a second to come up with the present, so what
    /// happened meanwhile is looked for.
    fn begun(meaning: Meaning, from: i64, response: &WatchResponse, to: &Calls<'_>) {
        let (Meaning::MayGo(ticket) | Meaning::Moved(ticket)) = meaning else { return };
        if response.revision() >= from {
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
        self.hints.recheck(Some(ticket));
    }

    /// A ticket's turn has come. A ticket that is not known to have come
    /// yet finds that out by itself.
    fn grant(&self, turn: &Letter) -> Option<TicketId> {
        if self.etcd.client.is_restored() {
            return None;
        }
        let number = u64::try_from(turn.created).unwrap_or(0);
        let granted = self.etcd.sessions.with(self.session, |life| {
            let ticket = life.born_at(turn.created)?;
            let known = life.tickets.get_mut(&ticket).filter(|known| known.fence.is_none())?;
            known.behind = Arc::clone(&turn.behind);
            Some((ticket, life.granted(ticket, turn.created, number)?))
        });
        let (ticket, fence) = granted.flatten()?;
        self.hints.granted(ticket, fence);
        Some(ticket)
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

fn evicted(letter: &KeyValue) -> Option<TicketId> {
    std::str::from_utf8(&letter.value).ok()?.parse().ok()
}

fn create(watch_id: i64, span: Span, from: i64, deletes_only: bool) -> WatchRequest {
    let Span { from: key, to: range_end } = span;
    let filters = if deletes_only { vec![NO_PUT] } else { Vec::new() };
    let ask = WatchCreateRequest { key, range_end, start_revision: from, filters, watch_id };
    WatchRequest { ask: Some(WatchAsk::Create(ask)) }
}

fn alone(key: &[u8]) -> Span {
    Span { from: key.to_vec(), to: Vec::new() }
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
            Ok(()) => StoreError::not_applied(KIND, ErrorKind::Unavailable, "the watches ended"),
        }
    }

    async fn hear(
        &self,
        session: SessionId,
        mut wishes: mpsc::UnboundedReceiver<Wish>,
        to: &dyn Hints,
    ) -> StoreResult<()> {
        let (asks, sent) = mpsc::unbounded_channel();
        let _ = asks.send(create(MAILBOX, self.keys.mailbox(tag(session)), 0, false));
        let logins = self.client.logins();
        let (turn, mut stream) = self.client.watch(UnboundedReceiverStream::new(sent)).await?;
        let mut watches = Watches::default();
        let calls = Calls { hints: to, etcd: self, session };
        let mut catch_up = Moment::NEVER;
        loop {
            if catch_up == Moment::NEVER && watches.is_behind() {
                catch_up = self.clock.now() + LATER;
            }
            let more = tokio::select! {
                // Another endpoint is used now, so something is wrong with this one.
                () = self.client.turned(turn) => return Ok(()),
                wish = wishes.recv() => match wish {
                    Some(Wish::Watch(target)) => watches.watch(*target),
                    Some(Wish::Forget(ticket)) => {
                        watches.forget(ticket);
                        Vec::new()
                    }
                    None => return Ok(()),
                },
                () = self.clock.sleep_until(catch_up) => {
                    catch_up = Moment::NEVER;
                    watches.catch_up(&calls)
                }
                response = stream.next() => {
                    let mut arrived = Poll::Ready(response);
                    let mut left = AT_ONCE;
                    while let Poll::Ready(response) = arrived {
                        if !self.heed(response, logins, &mut watches, &calls).await? {
                            return Ok(());
                        }
                        left -= 1;
                        arrived = if left > 0 { now(&mut stream).await } else { Poll::Pending };
                    }
                    Vec::new()
                }
            };
            watches.call(&calls);
            for ask in more {
                let _ = asks.send(ask);
            }
        }
    }

    /// Takes in a response; says whether the stream is of use any more.
    async fn heed(
        &self,
        response: Option<Result<WatchResponse, Status>>,
        logins: u64,
        watches: &mut Watches,
        calls: &Calls<'_>,
    ) -> StoreResult<bool> {
        let Some(response) = response else { return Ok(false) };
        let response = response.map_err(|status| error::of(&status).error)?;
        if response.header().is_some_and(|h| h.cluster_id != self.client.cluster()) {
            return Ok(false);
        }
        if is_refusal(&response) {
            // A stream keeps the token that it was opened with.
            self.client.log_in(logins).await?;
            return Ok(false);
        }
        if response.watch_id == MAILBOX && response.created {
            // Now we listen: what happened before, a poll has to find out.
            calls.hints.recheck(None);
        }
        watches.hear(&response, calls);
        Ok(true)
    }
}

/// What has arrived already.
async fn now<S: Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_next(cx))).await
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
