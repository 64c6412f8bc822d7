//! Redis and Valkey: a single server, a primary behind Sentinel, or a cluster.
//!
//! | idea | here |
//! |---|---|
//! | line | a sorted set of tickets and a hash of what they carry, both under the name |
//! | session | one entry with its end in a sorted set, in every bucket where it is used |
//! | hint | one channel for each process; the message carries ticket and fence |
//! | fence | max(the bucket's last + 1, the server's clock in µs), drawn inside the script |
//! | round trips | enter, leave, renew (for each bucket), poll (for each bucket): one script each; close and the poll of all tickets: two |
//!
//! The operations are Lua scripts beside this file, atomic on the server. Time is the server's alone.
//! A release hands the lock to the next ticket inside its own script and tells the waiter by a message;
//! the waiter holds the lock when the message arrives.
//!
//! On a cluster names are spread over buckets, whose keys share a slot. A session lives in each bucket
//! that it uses, and losing it in one of them ends all of it. An empty line leaves nothing behind.

mod advice;
pub(super) mod connect;
mod error;
mod foreign;
mod keys;
mod link;
mod look;
mod meta;
mod poll;
mod renew;
mod reply;
mod scripts;
mod sessions;
#[cfg(test)]
mod tests;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Manner, Open, PollScope, Renewal, STRAY_MAX, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    model::{
        line::{LINE_MAX, Line},
        name::Name,
        ticket::{Place, SessionId, TicketId},
    },
};
use keys::{CLUSTER_BUCKETS, Keys, bucket};
use link::Source;
pub(super) use link::{Ear, Greeting, Link, Wire};
use redis::{Cmd, Value};
pub(super) use reply::{Parts, nonsense, pack, unpack};
use scripts::{Scripts, evalsha};
use sessions::{Life, Sessions, hex, micros};
use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) const KIND: &str = "redis";

/// No request takes effect later than this after it was sent.
const PATIENCE: Duration = STRAY_MAX.checked_div(2).expect("two is not zero");

/// The bucket in which every session is open, and where it is noted where else it is.
const HOME: u32 = 0;

/// Lines in Redis.
pub struct Redis {
    /// The identity of the data, see [`StoreId`]; another one when the server has lost its data since and a
    /// client has come before this one.
    id: AtomicU64,
    prefix: String,
    clock: Clock,
    link: Link,
    scripts: Scripts,
    buckets: Vec<Keys>,
    channel: String,
    /// The server's clock less ours, in microseconds, as last seen.
    offset: AtomicI64,
    sessions: Arc<Sessions>,
}

impl Redis {
    async fn over(source: Source, to: String, prefix: &str, clock: Clock) -> StoreResult<Self> {
        let sessions = Arc::<Sessions>::default();
        let link = Link::new(source, to, sessions.ear());
        let wanted = if link.is_cluster() { CLUSTER_BUCKETS } else { 1 };
        for advice in advice::of(&link, &clock).await? {
            tracing::warn!(%advice, "the Redis server's set-up");
        }
        let scripts = Scripts::new();
        let id = meta::meta(&link, &scripts, prefix, wanted, rand::random()).await?;
        let tag: u64 = rand::random();
        Ok(Self {
            id: id.into(),
            prefix: prefix.to_owned(),
            clock,
            link,
            scripts,
            buckets: (0..wanted).map(|b| Keys::new(prefix, b)).collect(),
            channel: format!("{prefix}:n:{tag:016x}"),
            offset: AtomicI64::new(0),
            sessions,
        })
    }

    fn keys(&self, name: &Name) -> &Keys {
        &self.buckets[self.bucket(name) as usize]
    }

    fn bucket(&self, name: &Name) -> u32 {
        let buckets = u32::try_from(self.buckets.len()).unwrap_or(1);
        bucket(name, buckets)
    }

    fn local_micros(&self) -> i64 {
        i64::try_from(self.clock.now().as_micros()).unwrap_or(0)
    }

    /// Remembers what the server's clock says.
    fn set_clock(&self, server: i64) {
        self.offset.store(server - self.local_micros(), Ordering::Relaxed);
    }

    /// Until when, on the server's clock, a request sent now may take effect.
    fn deadline(&self) -> i64 {
        let now = self.local_micros() + self.offset.load(Ordering::Relaxed);
        now.saturating_add_unsigned(micros(PATIENCE))
    }

    /// Writes down the identity of the data again if the server has lost it, as with all else; takes over the one
    /// that a client has written meanwhile.
    async fn identify(&self) -> StoreResult<()> {
        let ours = self.id.load(Ordering::Acquire);
        let buckets = u32::try_from(self.buckets.len()).unwrap_or(1);
        let id = meta::meta(&self.link, &self.scripts, &self.prefix, buckets, ours).await?;
        self.id.store(id, Ordering::Release);
        Ok(())
    }

    /// Opens a session in a bucket; returns the history that the server has shown.
    async fn open_in(&self, bucket: u32, ask: &Open) -> StoreResult<String> {
        let keys = &self.buckets[bucket as usize];
        let mut script = self.scripts.open.prepare_invoke();
        script.key(keys.ends()).key(keys.sessions()).key(keys.numbers()).key(keys.own());
        script.key(keys.closed());
        script.arg(hex(ask.session)).arg(micros(ask.ttl)).arg(micros(ask.lock_delay));
        script.arg(&self.channel).arg(pack(&ask.owner));
        let mut parts = match self.run(keys, None, &script).await? {
            Value::Int(_) => return Err(StoreError::session_over(KIND)),
            answer => Parts::of(answer)?,
        };
        self.set_clock(parts.int()?);
        self.sessions.sweep_later(bucket, parts.dust()?);
        let history = parts.text()?;
        if bucket != HOME {
            self.join(bucket, ask).await?;
        }
        Ok(history)
    }

    /// Lets all who renew the session know of this bucket. A renewal that came home before the note did
    /// not reach it, and whoever believes in that renewal believes for longer than the opening is good
    /// for: so it is renewed here once.
    async fn join(&self, bucket: u32, ask: &Open) -> StoreResult<()> {
        let home = &self.buckets[HOME as usize];
        let mut script = self.scripts.join.prepare_invoke();
        script.key(home.ends()).key(home.own()).arg(hex(ask.session)).arg(bucket);
        let is_open = self.run::<i64>(home, None, &script).await? == 1;
        if !is_open || self.renew_in(bucket, ask).await?.is_none() {
            return Err(StoreError::session_over(KIND));
        }
        Ok(())
    }

    /// The session's lock-delay, if we know that it is open in the bucket.
    fn delay(&self, session: SessionId, bucket: u32) -> Option<Duration> {
        let lives = self.sessions.lives();
        let life = lives.get(&session).filter(|life| life.buckets.contains(&bucket))?;
        Some(life.ask.lock_delay)
    }

    /// Makes sure that the session is known in the bucket; says what its lock-delay is.
    async fn settle_in(&self, session: SessionId, bucket: u32) -> StoreResult<Duration> {
        let (ask, buckets) =
            self.life(session).await?.ok_or_else(|| StoreError::session_over(KIND))?;
        if !buckets.contains(&bucket) {
            let history = self.open_in(bucket, &ask).await?;
            if let Some(life) = self.sessions.lives().get_mut(&session) {
                life.opened(bucket, history);
            }
        }
        Ok(ask.lock_delay)
    }

    /// What is known of a session; asked from the server if another handle has opened it.
    async fn life(&self, session: SessionId) -> StoreResult<Option<(Open, BTreeSet<u32>)>> {
        let known = self.sessions.lives().get(&session).map(|l| (l.ask.clone(), l.buckets.clone()));
        if known.is_some() {
            return Ok(known);
        }
        let of = |keys: &Keys| {
            let mut get = redis::cmd("HGET");
            get.arg(keys.sessions()).arg(hex(session));
            get
        };
        let asks = self.buckets.iter().map(|keys| {
            let get = of(keys);
            async move { self.link.query::<Option<String>>(&get).await }
        });
        let (mut found, mut buckets) = (None, BTreeSet::new());
        for (bucket, about) in (0..).zip(super::common::join::all(asks).await) {
            if let Some(ask) = about?.and_then(|about| reply::session(session, &about)) {
                buckets.insert(bucket);
                found = Some(ask);
            }
        }
        let Some(ask) = found else { return Ok(None) };
        let life = Life::new(ask.clone(), buckets.clone());
        self.sessions.lives().entry(session).or_insert(life);
        Ok(Some((ask, buckets)))
    }

    fn enter_call(&self, ask: &Enter, delay: Duration) -> Cmd {
        let Place { session, name, ticket } = &ask.place;
        let keys = self.keys(name);
        let mut call = evalsha(&self.scripts.enter, 6, name, ask.label.len());
        call.arg(keys.ends()).arg(keys.sessions()).arg(keys.numbers()).arg(keys.own());
        call.arg(keys.order(name)).arg(keys.tickets(name));
        call.arg(name.as_str()).arg(ticket.to_string()).arg(hex(*session)).arg(micros(delay));
        call.arg(ask.mode.weight()).arg(ask.mode.capacity());
        call.arg(u8::from(ask.manner == Manner::Queue)).arg(self.deadline());
        call.arg(LINE_MAX).arg(&ask.label[..]);
        call
    }

    fn leave_call(&self, ask: &Leave) -> Cmd {
        let Place { session, name, ticket } = &ask.place;
        let keys = self.keys(name);
        let mut call = evalsha(&self.scripts.leave, 7, name, 0);
        call.arg(keys.ends()).arg(keys.sessions()).arg(keys.numbers()).arg(keys.own());
        call.arg(keys.order(name)).arg(keys.tickets(name)).arg(keys.closed());
        call.arg(name.as_str()).arg(ticket.to_string()).arg(hex(*session));
        call.arg(micros(ask.keep.unwrap_or_default()));
        call.arg(if ask.stray { micros(STRAY_MAX) } else { 0 });
        call
    }

    fn entered(&self, value: Value) -> StoreResult<Option<Entered>> {
        let mut parts = Parts::of(value)?;
        let refuse = |kind, what: String| Err(StoreError::not_applied(KIND, kind, what));
        Ok(Some(match &parts.bytes()?[..] {
            b"granted" => Entered::Granted { fence: parts.fence()? },
            b"queued" => Entered::Queued(parts.wait()?),
            b"busy" => Entered::Busy(parts.wait()?),
            b"over" => return Err(StoreError::session_over(KIND)),
            b"closed" => {
                let what = "the ticket was closed before this request came";
                return refuse(ErrorKind::TicketClosed, what.into());
            }
            b"capacity" => {
                let line = u32::try_from(parts.int()?).unwrap_or(0);
                return refuse(ErrorKind::Capacity(line), format!("the line has capacity {line}"));
            }
            b"full" => {
                let what = format!("{LINE_MAX} tickets stand in the line already");
                return refuse(ErrorKind::Full, what);
            }
            b"late" => {
                self.set_clock(parts.int()?);
                return Ok(None);
            }
            _ => return Err(nonsense(&Value::Nil)),
        }))
    }

    async fn edit(&self, kind: &str, edit: &Edit) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let keys = self.keys(name);
        let mut script = self.scripts.edit.prepare_invoke();
        script.key(keys.ends()).key(keys.sessions()).key(keys.tickets(name)).key(keys.cell(name));
        script.arg(ticket.to_string()).arg(hex(*session)).arg(kind).arg(edit.edit);
        script.arg(u8::from(edit.bytes.is_some()));
        script.arg(edit.bytes.as_deref().unwrap_or_default());
        match self.run::<i64>(keys, Some(name), &script).await? {
            1 => Ok(Edited::Done),
            _ => Ok(Edited::NotHeld),
        }
    }
}

impl Store for Redis {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            durable: true,
            renewal_shows_tickets: true,
            waiters_end_at_ttl: true,
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        StoreId(self.id.load(Ordering::Acquire).to_be_bytes())
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        let terms = Terms::new(ask.ttl, ask.lock_delay);
        // One round trip for both.
        let (identified, history) = tokio::join!(self.identify(), self.open_in(HOME, &ask));
        identified?;
        let history = history?;
        // Only now: of an opening that fails or is given up nothing stays behind.
        let mut lives = self.sessions.lives();
        let fresh = || Life::new(ask.clone(), BTreeSet::new());
        lives.entry(ask.session).or_insert_with(fresh).opened(HOME, history);
        Ok(terms)
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.renew_all(session).await
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        let Some((_, buckets)) = self.life(session).await? else { return Ok(()) };
        let mut lines = self.by_bucket(self.tickets_of(session).await?);
        for bucket in buckets {
            lines.entry(bucket).or_default();
        }
        let stray = micros(STRAY_MAX);
        self.over_lines(&self.scripts.close, session, stray, lines, true).await?;
        self.sessions.lives().remove(&session);
        self.sessions.sinks().remove(&session);
        Ok(())
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        let (place, bucket) = (&ask.place, self.bucket(&ask.place.name));
        let delay = match self.delay(place.session, bucket) {
            Some(delay) => delay,
            None => self.settle_in(place.session, bucket).await?,
        };
        // The server's clock may have jumped since we last heard of it: once more with what it says.
        for _ in 0..2 {
            let call = self.enter_call(&ask, delay);
            let answer = self.call(&self.scripts.enter, &call, &place.name).await?;
            if let Some(entered) = self.entered(answer)? {
                return Ok(entered);
            }
        }
        let what = "the server refuses the request as too late";
        Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.stands(session, which).await
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        self.sessions.sinks().insert(session, Arc::clone(&to));
        let breaks = self.link.breaks();
        if let Err(e) = self.link.subscribe(&self.channel).await {
            return e;
        }
        to.recheck(None);
        self.link.broken(breaks).await;
        StoreError::not_applied(KIND, ErrorKind::Unavailable, "the connection broke")
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        let call = self.leave_call(&ask);
        let left: String = self.call(&self.scripts.leave, &call, &ask.place.name).await?;
        Ok(match left.as_str() {
            "released" => Left::Released,
            "withdrawn" => Left::Withdrawn,
            _ => Left::Gone,
        })
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit("note", &edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        match which {
            ListScope::Exact(name) => self.show(vec![name]).await,
            ListScope::Prefix { prefix, after } => self.lines(&prefix, after).await,
        }
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let keys = self.keys(&claim.name);
        let mut script = self.scripts.check.prepare_invoke();
        script.key(keys.ends()).key(keys.sessions()).key(keys.tickets(&claim.name));
        script.arg(claim.ticket.to_string()).arg(claim.fence);
        script.arg(claim.mode.weight()).arg(claim.mode.capacity());
        Ok(self.run::<i64>(keys, Some(&claim.name), &script).await? == 1)
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        let (mut get, cell) = (redis::cmd("HMGET"), self.keys(&name).cell(&name));
        let answer = self.link.query(get.arg(&cell).arg("v").arg("f")).await;
        let (bytes, fence): (Option<Vec<u8>>, Option<u64>) = match answer {
            Err(e) => return Err(foreign::explained(&self.link, e, [(cell, "hash")]).await),
            Ok(answer) => answer,
        };
        Ok(bytes.zip(fence).map(|(bytes, fence)| Cell { bytes, fence }))
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit("cell", &edit).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        let keys = self.keys(&name);
        let mut script = self.scripts.evict.prepare_invoke();
        script.key(keys.ends()).key(keys.sessions()).key(keys.numbers()).key(keys.own());
        script.key(keys.order(&name)).key(keys.tickets(&name));
        script.arg(name.as_str()).arg(ticket.to_string());
        Ok(self.run::<i64>(keys, Some(&name), &script).await? == 1)
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        advice::of(&self.link, &self.clock).await
    }

    fn forget(&self, session: SessionId) {
        self.sessions.lives().remove(&session);
        self.sessions.sinks().remove(&session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let key = self.keys(&claim.name).tickets(&claim.name);
        vec![("key", key), ("field", claim.ticket.to_string()), ("fence", claim.fence.to_string())]
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.id())
    }
}
