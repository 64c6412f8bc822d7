//! One viewer's stream of server-sent events.
//!
//! A viewer has no queue: it has a place in the ring of the last events. A viewer that falls behind the ring is cut
//! off, and one that stops reading costs nothing but its connection.

use super::{
    hub::{Hub, Interest, now},
    log::Entry,
    root::Root,
};
use crate::{
    metrics::Gauge,
    principal::{Principal, Scope},
    service::Service,
};
use bytes::Bytes;
use futures_core::Stream;
use lockkeeper::store::{
    clock::Moment,
    http::wire::{Event, EventKind},
};
use std::{
    convert::Infallible,
    fmt::Write as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::watch;

/// A proxy must not take a quiet stream for a dead one.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// How many events are sent at once at most.
const BATCH: usize = 256;
/// Between two batches of events, so that a busy service sends each viewer fifty of them in a second, not thousands.
const BATCH_PAUSE: Duration = Duration::from_millis(20);

/// Why a stream begins with `reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// It goes on where the viewer stopped.
    Resumed,
    /// When the part has been looked at, this is said.
    Reset(&'static str),
}

struct Viewer {
    service: Service,
    hub: Hub,
    interest: Interest,
    principal: Principal,
    head: watch::Receiver<u64>,
    /// The number of the last event that was sent, or left out.
    cursor: u64,
    start: Start,
    is_new: bool,
    is_over: bool,
    /// Not before this moment the next batch.
    rest_until: Moment,
    _open: Gauge,
}

/// The stream of a viewer.
pub(super) fn open(
    service: &Service,
    principal: Principal,
    roots: Vec<Root>,
    last_id: Option<&str>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let hub = service.hub.clone();
    let interest = hub.watch(roots);
    let head = hub.head();
    let (cursor, start) = begin(&hub, &interest, *head.borrow(), last_id);
    let open = service.metrics.stream();
    let rest_until = now(&hub);
    Frames::Rest(Box::new(Viewer {
        service: service.clone(),
        hub,
        interest,
        principal,
        head,
        cursor,
        start,
        is_new: true,
        is_over: false,
        rest_until,
        _open: open,
    }))
}

fn begin(hub: &Hub, interest: &Interest, head: u64, last_id: Option<&str>) -> (u64, Start) {
    let Some(id) = last_id else {
        return (head, Start::Reset("the stream begins here: ask for the present state"));
    };
    let Some((instance, seq)) = parse_id(id) else {
        return (head, Start::Reset("the id is none of this service"));
    };
    if instance != hub.shared().instance {
        return (head, Start::Reset("the id is of another instance, or of one that has ended"));
    }
    let is_complete = interest.since().is_some_and(|since| since.seq <= seq);
    if !is_complete || hub.after(seq, 0).is_none() {
        return (head, Start::Reset("the id is too old: events are missing"));
    }
    (seq, Start::Resumed)
}

fn parse_id(id: &str) -> Option<(u64, u64)> {
    let (instance, seq) = id.split_once('-')?;
    Some((u64::from_str_radix(instance, 16).ok()?, seq.parse().ok()?))
}

impl Viewer {
    /// What to send next; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        if std::mem::take(&mut self.is_new) {
            return Some(self.first());
        }
        let comment_at = now(&self.hub) + COMMENT_EVERY;
        loop {
            self.head.borrow_and_update();
            if let Start::Reset(why) = self.start
                && self.interest.since().is_some()
            {
                self.start = Start::Resumed;
                return Some(self.reset(why));
            }
            match self.hub.after(self.cursor, BATCH) {
                None => return Some(self.end("this viewer is too slow: events are missing")),
                Some(entries) => {
                    if let Some(frames) = self.frames(&entries) {
                        return Some(frames);
                    }
                    if !entries.is_empty() {
                        continue;
                    }
                }
            }
            let is_waiting_for_look = self.start != Start::Resumed;
            let clock = &self.hub.shared().clock;
            tokio::select! {
                () = self.service.stopped() => {
                    return Some(self.end("this instance is stopping: connect again"));
                }
                changed = self.head.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                    clock.sleep_until(self.rest_until).await;
                }
                () = self.interest.next_look(), if is_waiting_for_look => {}
                () = clock.sleep_until(comment_at) => return Some(self.comment()),
            }
        }
    }

    /// So that client and proxies see at once that the stream is open.
    fn first(&self) -> Bytes {
        let mut text = String::from(": lockkeeper\nretry: 1000\n\n");
        if !self.hub.store_is_up() {
            let why = Some("the store does not answer".to_owned());
            let event = self.hub.general(EventKind::StoreDown, why);
            text.push_str(&self.frame(&event));
        }
        text.into()
    }

    /// A comment, and the id up to which nothing is missing, although no event was for this viewer.
    fn comment(&self) -> Bytes {
        format!(": \nid: {}\n\n", self.id(self.cursor)).into()
    }

    fn end(&mut self, why: &'static str) -> Bytes {
        self.is_over = true;
        self.reset(why)
    }

    fn reset(&self, why: &'static str) -> Bytes {
        self.frame(&self.hub.general(EventKind::Reset, Some(why.to_owned()))).into()
    }

    /// The events that this viewer may see.
    fn frames(&mut self, entries: &[std::sync::Arc<Entry>]) -> Option<Bytes> {
        self.cursor = entries.last()?.seq;
        let mut text = Vec::new();
        for entry in entries.iter().filter(|entry| self.sees(entry)) {
            let frame = entry.frame(|entry| self.written(&entry.event, entry.seq).into());
            text.extend_from_slice(&frame);
        }
        if text.is_empty() {
            return None;
        }
        self.rest_until = now(&self.hub) + BATCH_PAUSE;
        Some(text.into())
    }

    fn sees(&self, entry: &Entry) -> bool {
        entry
            .name
            .as_ref()
            .is_none_or(|name| self.interest.has(name) && self.principal.may(Scope::Read, name))
    }

    fn id(&self, seq: u64) -> String {
        format!("{:016x}-{seq}", self.hub.shared().instance)
    }

    fn frame(&self, event: &Event) -> String {
        self.written(event, self.cursor)
    }

    fn written(&self, event: &Event, seq: u64) -> String {
        // An event of texts and numbers always becomes JSON.
        let data = serde_json::to_string(event).unwrap_or_default();
        let mut text = String::with_capacity(data.len() + 64);
        let id = self.id(seq);
        let _ = write!(text, "id: {id}\nevent: {}\ndata: {data}\n\n", event.kind.word());
        text
    }
}

type Asking = Pin<Box<dyn Future<Output = (Box<Viewer>, Option<Bytes>)> + Send>>;

/// A viewer as a stream.
enum Frames {
    Rest(Box<Viewer>),
    Asking(Asking),
    Over,
}

impl Stream for Frames {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut asking = match std::mem::replace(&mut *self, Self::Over) {
            Self::Over => return Poll::Ready(None),
            Self::Asking(asking) => asking,
            Self::Rest(mut viewer) => Box::pin(async move {
                let frames = viewer.next().await;
                (viewer, frames)
            }),
        };
        let Poll::Ready((viewer, frames)) = asking.as_mut().poll(cx) else {
            *self = Self::Asking(asking);
            return Poll::Pending;
        };
        *self = Self::Rest(viewer);
        Poll::Ready(frames.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{hub::Taken, log::RING},
        *,
    };
    use crate::service::Options;
    use lockkeeper::{
        ErrorKind, Mode, Name, StoreError, TicketId,
        store::{AnyStore, memory::Memory},
    };
    use std::future::poll_fn;

    type Boxed = Pin<Box<dyn Stream<Item = Result<Bytes, Infallible>> + Send>>;

    fn service() -> Service {
        Service::new(AnyStore::new(Memory::new()), Options::default())
    }

    fn viewer(service: &Service) -> Boxed {
        let all = vec![Root::Prefix(String::new())];
        Box::pin(open(service, Principal::everything(), all, None))
    }

    async fn next(viewer: &mut Boxed) -> Option<String> {
        let frames = poll_fn(|cx| viewer.as_mut().poll_next(cx)).await;
        frames.map(|Ok(frames)| String::from_utf8(frames.to_vec()).unwrap())
    }

    fn take(service: &Service, name: &Name) {
        let ticket = TicketId::random();
        let (mode, owner) = (Mode::Exclusive, None);
        let taken = Taken { name, ticket, mode, session: "public", owner, label: b"" };
        service.hub.granted(taken, 1);
    }

    #[test]
    fn an_id_says_the_instance_and_the_number() {
        assert_eq!(parse_id("00000000000000ff-12"), Some((255, 12)));
        for text in ["", "12", "x-1", "1-x", "-", "1-99999999999999999999"] {
            assert_eq!(parse_id(text), None, "{text}");
        }
    }

    #[tokio::test]
    async fn a_viewer_that_falls_behind_is_cut_off_with_reset() {
        let (service, name) = (service(), Name::new("a").unwrap());
        let (mut slow, mut quick) = (viewer(&service), viewer(&service));
        for viewer in [&mut slow, &mut quick] {
            assert!(next(viewer).await.unwrap().starts_with(": lockkeeper"));
            assert!(next(viewer).await.unwrap().contains("the stream begins here"));
        }
        take(&service, &name);
        assert!(next(&mut quick).await.unwrap().contains("event: granted"));
        for _ in 0..RING {
            take(&service, &name);
        }
        let cut = next(&mut slow).await.unwrap();
        assert!(cut.contains("event: reset") && cut.contains("too slow"), "{cut}");
        assert_eq!(next(&mut slow).await, None);
        let mut seen = 0;
        while seen < RING {
            seen += next(&mut quick).await.unwrap().matches("event: granted").count();
        }
    }

    #[tokio::test]
    async fn an_outage_is_told_once_and_to_each_new_viewer() {
        let service = service();
        let mut viewer = viewer(&service);
        next(&mut viewer).await.unwrap();
        assert!(next(&mut viewer).await.unwrap().contains("event: reset"));
        let failed = StoreError::not_applied("redis", ErrorKind::Unavailable, "connection refused");
        for _ in 0..3 {
            service.hub.store_failed(&failed);
        }
        let down = next(&mut viewer).await.unwrap();
        assert_eq!(down.matches("event: store_down").count(), 1, "{down}");
        let mut late = self::viewer(&service);
        assert!(next(&mut late).await.unwrap().contains("event: store_down"));
        service.hub.store_answered();
        let mut up = next(&mut viewer).await.unwrap();
        while !up.contains("event: store_up") {
            up = next(&mut viewer).await.unwrap();
        }
    }
}
