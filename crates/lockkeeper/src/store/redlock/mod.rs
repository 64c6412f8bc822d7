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
//! spoken: it gets what was decided in the background. A node that has started empty may have
//! forgotten a holder, so it has no vote until the longest TTL has passed; a renewal that a majority
//! has carried puts its ticket back on nodes that lack it, which is no vote either.
//!
//! With `?compat=string` the tickets are the plain locks that many libraries make, `SET NX PX` on the
//! name itself and a delete that compares (redis-py, redsync, rslock, bsm/redislock, node-redlock): one
//! server of `redis://`, or the majority of `redlock://`. Theirs and ours exclude each other. They know
//! neither fences nor quarantine, so there is neither.

mod answers;
mod book;
mod decide;
#[cfg(test)]
mod lua;
#[cfg(test)]
mod model;
mod nodes;
mod ops;
mod scripts;

use super::{
    Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, LOOK_MAX, Leave, Left, Look,
    Manner, Open, Renewal, Stand, Store, StoreId, StoreResult, Terms, Which,
    redis::{Link, connect},
    together,
    url::StoreUrl,
};
use crate::{
    clock::Moment,
    error::{Error, Result, StoreError, Trouble},
    line::Line,
    name::Name,
    ticket::{Mode, Place, SessionId, TicketId},
};
use book::{Book, Held, Progress};
use decide::Verdict;
use nodes::{Nodes, shortage};
use ops::{Carried, patience};
use scripts::{Flavour, Scripts};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

const KIND: &str = "redlock";

/// The longest TTL with its lock-delay, unless the URL says otherwise. All clients must say the same.
const MAX_TTL: Duration = Duration::from_secs(60);
/// For how long a node keeps the counter of an idle name.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// Where a node keeps since when it has its data. Whoever sets up a new node that has certainly
/// forgotten nothing can set it to 0, and need not wait.
const BOOT: &str = "lockkeeper:redlock:boot";
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

fn refused(trouble: Trouble, what: impl Into<String>) -> StoreError {
    StoreError::not_applied(KIND, trouble, what)
}

impl Redlock {
    /// `redlock://[USER[:PASSWORD]@]HOST[:PORT],HOST,HOST…`, an odd number of servers.
    pub(super) async fn connect(mut url: StoreUrl) -> Result<Self> {
        let max_ttl = url.take_duration("max_ttl")?.unwrap_or(MAX_TTL);
        let flavour = flavour(&mut url)?;
        let alone = url.scheme() != "redlock";
        let (clients, prefix) = connect::independent(&mut url, &["max_ttl", "compat"])?;
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
        let deaf = Arc::new(|_| ());
        let links = clients.into_iter().map(|c| Link::single(c, deaf.clone())).collect();
        let nodes = Nodes::new(links);
        if flavour == Flavour::Fenced {
            nodes.welcome(max_ttl).await?;
        }
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

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
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
                Verdict::Open => return Err(shortage(ballot.errors)),
            }
            Ok(())
        };
        together::all(behind.into_iter().map(prolong)).await.into_iter().collect()
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
    fn kind(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fenced: self.flavour == Flavour::Fenced,
            durable: true,
            survives_failover: self.nodes.links.len() > 1,
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
            return Err(refused(Trouble::Misconfigured, what));
        }
        self.book().open(ask, self.nodes.clock.now())
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
        let left = together::all(life.tickets.into_iter().map(leave)).await;
        // The program may end now: slow nodes shall hear of the last leaves as well.
        self.nodes.finished(patience).await;
        left.into_iter().collect()
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        if ask.manner == Manner::Queue || ask.mode != Mode::Exclusive {
            let what = "waiting in line, readers and semaphores";
            return Err(refused(Trouble::Unsupported(what), what));
        }
        let Place { session, name, ticket } = ask.place.clone();
        let life = self.book().life(session, self.nodes.clock.now()).cloned();
        let life = life.ok_or_else(|| StoreError::session_over(KIND))?;
        if let Some(held) = life.tickets.get(&ticket).filter(|held| held.name == name)
            && let Stand::Granted { fence } = self.verify(session, ticket, held).await?
        {
            return Ok(Entered::Granted { fence });
        }
        match self.carry(&ask, &life).await? {
            Carried::Yes(held) => self.admit(&ask.place, &life.ask, held).await,
            Carried::No(wait) => Ok(Entered::Busy(wait)),
        }
    }

    async fn poll(
        &self,
        session: SessionId,
        which: Which,
    ) -> StoreResult<Vec<(Name, TicketId, Stand)>> {
        let known = self.tickets(session);
        let asked = match which {
            Which::These(tickets) => tickets,
            Which::All => known.iter().map(|(t, held)| (held.name.clone(), *t)).collect(),
        };
        let known = &known;
        let stand = |(name, ticket): (Name, TicketId)| async move {
            let stand = match known.get(&ticket).filter(|held| held.name == name) {
                Some(held) => self.verify(session, ticket, held).await?,
                None => Stand::Gone,
            };
            Ok((name, ticket, stand))
        };
        together::all(asked.into_iter().map(stand)).await.into_iter().collect()
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

    async fn annotate(&self, edit: Edit) -> StoreResult<Edited> {
        let now = self.nodes.clock.now();
        let ttl = self.book().life(edit.place.session, now).map(|life| life.ask.ttl);
        let Some(ttl) = ttl else { return Ok(Edited::NotHeld) };
        let ballot = self.edit(&edit, ttl).await?;
        match ballot.verdict() {
            Verdict::Carried => Ok(Edited::Done),
            Verdict::Failed => Ok(Edited::NotHeld),
            Verdict::Open => Err(shortage(ballot.errors)),
        }
    }

    async fn look(&self, which: Look) -> StoreResult<Vec<Line>> {
        let names = match which {
            Look::Exact(name) => BTreeSet::from([name]),
            Look::Prefix { prefix, after } => self.names(&prefix, after.as_ref()).await?,
        };
        let (mut lines, mut names) = (Vec::new(), names.into_iter().peekable());
        while names.peek().is_some() && lines.len() < LOOK_MAX {
            let some = names.by_ref().take(AT_ONCE).map(|name| self.line(name));
            for line in together::all(some.collect::<Vec<_>>()).await {
                lines.extend(line?);
            }
        }
        lines.truncate(LOOK_MAX);
        Ok(lines)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let Claim { name, ticket, mode, fence } = claim;
        Ok(mode == Mode::Exclusive && self.confirm(&name, ticket, fence).await?)
    }

    async fn read(&self, _: Name) -> StoreResult<Option<Cell>> {
        Err(refused(Trouble::Unsupported("cells"), "no such thing"))
    }

    async fn write(&self, _: Edit) -> StoreResult<Edited> {
        Err(refused(Trouble::Unsupported("cells"), "no such thing"))
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.take_from(&name, ticket).await
    }

    fn forget(&self, session: SessionId) {
        self.book().forget(session);
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        vec![("key", self.key(&claim.name)), ("field", "k".into())]
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} of {})", self.id, self.nodes.links.len())
    }
}
