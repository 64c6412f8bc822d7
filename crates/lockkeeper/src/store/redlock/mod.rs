//! Redlock: a lock on the majority of several Redis servers that know nothing of each other.
//!
//! | idea | here |
//! |---|---|
//! | line | none: whoever has a majority of the nodes holds the name. Mutex only, contend only |
//! | session | known to its client alone (`book.rs`); each ticket is renewed on a majority by itself |
//! | hint | none |
//! | fence | proposed by the client, accepted by a node only above its counter (`decide.rs`) |
//! | round trips | enter, leave, renew: one to all nodes at once |
//!
//! A ticket is valid while a majority of all nodes still holds *that* ticket. A node that answers late
//! or not at all counts as a node that does not have it, and nobody waits for it once a majority has
//! spoken: it gets what was decided in the background. A node that has started anew may have
//! forgotten a holder, so it has no vote until the longest TTL has passed; a renewal that a majority
//! has carried puts its ticket back on nodes that lack it, which is no vote either.
//!
//! With `?compat=string` the tickets are the plain locks that many libraries make, `SET NX PX` on the
//! name itself and a delete that compares (redis-py, redsync, rslock, bsm/redislock, node-redlock): one
//! server of `redis://`, or the majority of `redlock://`. Theirs and ours exclude each other. They know
//! neither fences nor quarantine, so there is neither: the fence is 0, and a resource cannot tell an old
//! holder from a new one. A key of another type under the name, such as Redisson's hash, keeps us out.

mod answers;
mod book;
mod decide;
mod greet;
#[cfg(test)]
mod lua;
#[cfg(test)]
mod model;
mod nodes;
mod ops;
mod scripts;

use super::{
    Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, LIST_MAX, Leave, Left,
    ListScope, Manner, Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
    common::join,
    redis::{Connection, config, micros},
    url::StoreUrl,
};
use crate::{
    clock::Moment,
    error::{Error, ErrorKind, Result, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, Place, SessionId, TicketId},
    },
    sync::Mutex,
};
use book::{Book, Held, Progress};
use decide::Verdict;
use greet::Agreement;
use nodes::Nodes;
use ops::{Carried, patience};
use scripts::{Flavour, Scripts};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, MutexGuard, atomic::AtomicU64},
    time::Duration,
};

/// The longest TTL with its lock-delay, unless the URL says otherwise. All clients must say the same.
const MAX_TTL: Duration = Duration::from_secs(60);
/// For how long a node keeps the counter of an idle name.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// When a handle is closed, for how long it waits for slow nodes to get the last leaves.
const LAST_WORDS: Duration = Duration::from_millis(50);
/// How many names a look asks for at once.
const AT_ONCE: usize = 64;

/// A lock on the majority of several servers.
pub struct Redlock {
    id: StoreId,
    nodes: Nodes,
    prefix: String,
    flavour: Flavour,
    max_ttl: Duration,
    scripts: &'static Scripts,
    book: Mutex<Book>,
    /// The highest fence seen or proposed.
    seen: AtomicU64,
}

impl Redlock {
    /// `redlock://[USER[:PASSWORD]@]HOST[:PORT],HOST,HOST…`, an odd number of servers.
    pub(super) async fn connect(mut url: StoreUrl) -> Result<Self> {
        let max_ttl = url.take_duration("max_ttl")?.unwrap_or(MAX_TTL);
        let flavour = flavour(&mut url)?;
        let alone = url.scheme() != "redlock";
        let (clients, prefix) = config::independent(&mut url, &["max_ttl", "compat"])?;
        match clients.len() {
            1 if alone => {}
            _ if alone => return Err(Error::Url("redis:// takes one server".into())),
            n if n < 3 || n % 2 == 0 => {
                let what = "redlock:// needs an odd number of servers, at least 3";
                return Err(Error::Url(what.into()));
            }
            _ => {}
        }
        let id = StoreId(identity(&prefix, clients.len()));
        let kind = if alone { "redis" } else { "redlock" };
        if flavour == Flavour::Plain {
            let links = clients.into_iter().map(|c| Connection::to_node(c, None)).collect();
            return Ok(Self::over(id, Nodes::new(kind, links, None), prefix, flavour, max_ttl));
        }
        let key = format!("{prefix}:rl-max-ttl");
        let agreement = Agreement::new(key, micros(max_ttl), clients.len());
        let greeted = (0..)
            .zip(clients)
            .map(|(node, client)| Connection::to_node(client, Some(agreement.greeting(node))));
        let nodes = Nodes::new(kind, greeted.collect(), Some(Arc::clone(&agreement)));
        nodes.meet(&agreement, max_ttl).await;
        Ok(Self::over(id, nodes, prefix, flavour, max_ttl))
    }

    fn over(
        id: StoreId,
        nodes: Nodes,
        prefix: String,
        flavour: Flavour,
        max_ttl: Duration,
    ) -> Self {
        let (scripts, seen) = (Scripts::of(flavour), AtomicU64::new(0));
        Self { id, nodes, prefix, flavour, max_ttl, scripts, book: Mutex::default(), seen }
    }

    fn refused(&self, kind: ErrorKind, what: impl Into<String>) -> StoreError {
        StoreError::not_applied(self.nodes.kind, kind, what)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }

    /// The tickets in the book of a session that is not over.
    fn tickets(&self, session: SessionId) -> HashMap<TicketId, Held> {
        let now = self.nodes.clock.now();
        self.book().life(session, now).map(|life| life.tickets.clone()).unwrap_or_default()
    }

    /// Prolongs those tickets; those that are gone leave the book.
    async fn prolong_all(
        &self,
        ask: &Open,
        behind: Vec<(TicketId, Held)>,
        target: Moment,
    ) -> StoreResult<()> {
        let session = ask.session;
        let prolong = |(ticket, held): (TicketId, Held)| async move {
            let place = Place { session, name: held.name.clone(), ticket };
            let ballot = self.prolong(&place, ask, target).await;
            match ballot.verdict() {
                Verdict::Carried => {
                    self.book().prolonged(session, ticket, target);
                    self.mend(place, ask, &held, &ballot, target).await;
                }
                Verdict::Failed => self.book().lost(session, ticket, held.fence),
                Verdict::Open => return Err(self.nodes.shortage(ballot.errors)),
            }
            Ok(())
        };
        join::all(behind.into_iter().map(prolong)).await.into_iter().collect()
    }
}

/// All clients of the same servers and prefix must get the same identity, without a place to keep it.
fn identity(prefix: &str, nodes: usize) -> [u8; 8] {
    let text = format!("redlock {nodes} {prefix}");
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, fold).to_be_bytes()
}

fn flavour(url: &mut StoreUrl) -> Result<Flavour> {
    match url.take("compat").as_deref() {
        None => Ok(Flavour::Fenced),
        Some("string") => Ok(Flavour::Plain),
        Some(other) => Err(Error::Url(format!("unknown compat={other}; known: string"))),
    }
}

impl Store for Redlock {
    fn scheme(&self) -> &'static str {
        self.nodes.kind
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fenced: self.flavour == Flavour::Fenced,
            durable: true,
            survives_failover: self.nodes.links.len() > 1,
            renewal_shows_tickets: true,
            ..Capabilities::NONE
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        if self.flavour == Flavour::Fenced && ask.ttl + ask.lock_delay > self.max_ttl {
            let (asked, most) = (ask.ttl + ask.lock_delay, self.max_ttl);
            let what = format!(
                "ttl and lock_delay are {asked:?} together, and the longest that forgetful nodes \
                 stay out for is max_ttl={most:?}"
            );
            return Err(self.refused(ErrorKind::Misconfigured, what));
        }
        self.agrees().await?;
        if let Some(agreement) = &self.nodes.agreement {
            agreement.speak();
        }
        let opened = self.book().open(ask, self.nodes.clock.now());
        opened.ok_or_else(|| StoreError::session_over(self.nodes.kind))
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        let now = self.nodes.clock.now();
        let ask = self.book().life(session, now).map(|life| life.ask.clone());
        let Some(ask) = ask else {
            self.book().end(session, now);
            return Ok(Renewal::Lost);
        };
        let target = now + ask.ttl;
        loop {
            let progress = self.book().advance(session, target, self.nodes.clock.now());
            match progress {
                Progress::Done(renewal) => return Ok(renewal),
                Progress::Behind(tickets) => self.prolong_all(&ask, tickets, target).await?,
            }
        }
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        let Some(life) = self.book().end(session, self.nodes.clock.now()) else { return Ok(()) };
        let patience = patience(life.ask.ttl);
        let leave = |(ticket, held): (TicketId, Held)| async move {
            let stray = held.is_stray();
            let place = Place { session, name: held.name, ticket };
            self.take_away(&place, stray, patience).await.map(drop)
        };
        let left = join::all(life.tickets.into_iter().map(leave)).await;
        // The program may end now: slow nodes shall hear of the last leaves as well.
        self.nodes.finished(LAST_WORDS).await;
        left.into_iter().collect()
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        let missing = match (ask.manner, ask.mode) {
            (Manner::Contend, Mode::Exclusive) => None,
            (_, Mode::Exclusive) => Some("waiting in line; use unfair()"),
            _ => Some("readers and semaphores"),
        };
        if let Some(what) = missing {
            return Err(self.refused(ErrorKind::Unsupported(what), what));
        }
        self.allows(&ask.place.name)?;
        let Place { session, name, ticket } = ask.place.clone();
        let life = self.book().life(session, self.nodes.clock.now()).cloned();
        let life = life.ok_or_else(|| StoreError::session_over(self.nodes.kind))?;
        if let Some(held) = life.tickets.get(&ticket).filter(|held| held.name == name)
            && let TicketStatus::Granted { fence } = self.verify(session, ticket, held).await?
        {
            return Ok(Entered::Granted { fence });
        }
        self.settles().await?;
        match self.carry(&ask, &life).await? {
            Carried::Yes(held) => self.admit(&ask.place, &life.ask, held).await,
            Carried::No(wait) => Ok(Entered::Busy(wait)),
        }
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let known = self.tickets(session);
        let (asked, all) = match which {
            PollScope::These(tickets) => (tickets, false),
            PollScope::All => {
                (known.iter().map(|(t, held)| (held.name.clone(), *t)).collect::<Vec<_>>(), true)
            }
        };
        let known = &known;
        let stand = |(name, ticket): (Name, TicketId)| async move {
            let stand = match known.get(&ticket).filter(|held| held.name == name) {
                Some(held) => self.verify(session, ticket, held).await?,
                None => TicketStatus::Gone,
            };
            Ok((name, ticket, stand))
        };
        let stands = join::all(asked.into_iter().map(stand)).await;
        let mut stands = stands.into_iter().collect::<StoreResult<Vec<_>>>()?;
        stands.retain(|(_, _, stand)| !all || *stand != TicketStatus::Gone);
        Ok(stands)
    }

    async fn hints(&self, _: SessionId, _: Arc<dyn Hints>) -> StoreError {
        std::future::pending().await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        let left = self.book().leave(&ask.place, self.nodes.clock.now());
        let Some((ttl, held)) = left else { return Ok(Left::Gone) };
        // What is not in the book was left before, unless nobody knows what became of its enter. A slow
        // node may still have it then, and that is no release.
        let may_be_there = ask.stray || held.is_some();
        let stray = ask.stray || held.is_some_and(|held| held.is_stray());
        let there = self.take_away(&ask.place, stray, patience(ttl)).await?;
        Ok(if there && may_be_there { Left::Released } else { Left::Gone })
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        let now = self.nodes.clock.now();
        let ttl = self.book().life(edit.place.session, now).map(|life| life.ask.ttl);
        let Some(ttl) = ttl else { return Ok(Edited::NotHeld) };
        let ballot = self.edit(&edit, ttl).await?;
        match ballot.verdict() {
            Verdict::Carried => Ok(Edited::Done),
            Verdict::Failed => Ok(Edited::NotHeld),
            Verdict::Open => Err(self.nodes.shortage(ballot.errors)),
        }
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let names = match which {
            ListScope::Exact(name) => BTreeSet::from([name]),
            ListScope::Prefix { prefix, after } => self.names(&prefix, after.as_ref()).await?,
        };
        let (mut lines, mut names) = (Vec::new(), names.into_iter().peekable());
        while names.peek().is_some() && lines.len() < LIST_MAX {
            let some = names.by_ref().take(AT_ONCE).map(|name| self.line(name));
            for line in join::all(some.collect::<Vec<_>>()).await {
                lines.extend(line?);
            }
        }
        lines.truncate(LIST_MAX);
        Ok(lines)
    }

    fn blind_spots(&self) -> Option<&'static str> {
        // The list of names is our own.
        (self.flavour == Flavour::Plain).then_some("locks that only other libraries have taken")
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let Claim { name, ticket, mode, fence } = claim;
        Ok(mode == Mode::Exclusive && self.confirm(&name, ticket, fence).await?)
    }

    async fn read(&self, _: Name) -> StoreResult<Option<Cell>> {
        Err(self.refused(ErrorKind::Unsupported("cells"), "no such thing"))
    }

    async fn write(&self, _: Edit) -> StoreResult<Edited> {
        Err(self.refused(ErrorKind::Unsupported("cells"), "no such thing"))
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.allows(&name)?;
        self.take_from(&name, ticket).await
    }

    fn forget(&self, session: SessionId) {
        self.book().forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let mut native = vec![("key", self.key(&claim.name))];
        if self.flavour == Flavour::Fenced {
            native.push(("field", "k".into()));
        }
        native
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} of {})", self.id, self.nodes.links.len())
    }
}
