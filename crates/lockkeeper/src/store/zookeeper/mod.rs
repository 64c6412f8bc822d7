//! ZooKeeper 3.6 or newer: one server or an ensemble.
//!
//! | idea | here |
//! |---|---|
//! | line | the ephemeral sequential children of a container node, named as Curator names them |
//! | session | a ZooKeeper session of its own, on a connection of its own; more of them for thousands of tickets |
//! | renewal | a write that a majority agrees upon: a server that is cut off answers reads and pings; and a list of the session's nodes behind it |
//! | hint | a watch on the one node that stands in the way (of permits: on as many as it takes), and one on the ticket itself |
//! | fence | czxid, the number of the write that made the ticket's node |
//! | round trips | enter 1 (create and list together), one more to wait; leave 1; renew 1; a turn 1 read |
//!
//! A try on a taken lock is one read and leaves nothing; on a free one it is that read and an enter.
//! Who is admitted follows from one list of the line's names. The list may be old: those who stood
//! before a ticket and have gone do not come back, so a ticket that was once admitted is admitted as
//! long as its node is there.
//!
//! **What breaks a promise:** data that was restored from an older copy takes fences back; and where
//! `forceSync` is off, so does a power cut of a majority. A paused server or a new leader only make
//! dead sessions last longer.
//!
//! The client is our own: what a lock needs of the protocol is little, and there is no other way to
//! have sessions that live by renewals alone and requests that are sent together.

mod advice;
mod attend;
mod cells;
mod conn;
mod data;
mod leave;
mod line;
mod link;
mod lives;
mod names;
mod plan;
#[cfg(test)]
mod scripted;
mod show;
#[cfg(test)]
mod tests;
mod times;
mod wire;

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketDigest, TicketStatus,
    common::join, url::StoreUrl,
};
use crate::{
    clock::{Clock, Moment},
    error::{ErrorKind, Result, StoreError},
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, SessionId, TicketId},
    },
};
use conn::{Answer, Ear, Fault, Reply};
use link::{Lasting, Link, failure, over};
use lives::{Life, Lives, Session};
use plan::Plan;
use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};
use times::Servers;
use wire::{Code, Kind, Request};

const KIND: &str = "zookeeper";

/// The timeout of the session for what belongs to no session of ours. Nothing is lost with it.
const IDLE: Duration = Duration::from_secs(10);
/// For how long an answer may take.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// How often something is tried again that others can spoil by chance.
const ATTEMPTS: usize = 16;

/// Lines in ZooKeeper.
pub struct Zookeeper {
    id: StoreId,
    clock: Clock,
    plan: Arc<Plan>,
    servers: Servers,
    /// For what belongs to no session.
    common: Link,
    lives: Lives,
}

impl Zookeeper {
    pub(super) async fn connect(url: StoreUrl) -> Result<Self> {
        let plan = Arc::new(Plan::read(url)?);
        let common = Link::new(&plan, Lasting::ForEver, IDLE, PATIENCE.1, Arc::new(|_| {}));
        let facts = advice::facts(&plan).await;
        for advice in advice::of(&facts, &plan) {
            tracing::warn!(%advice, "the ZooKeeper server's set-up");
        }
        let alone = facts.iter().any(|fact| fact.mode == "standalone");
        if alone && plan.hosts.len() > 1 {
            let what = "a server of the URL stands alone and knows nothing of the others: \
                        two could hold the same lock";
            return Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what).into());
        }
        let new = StoreId(rand::random());
        let id = make_root(&common, &plan, new).await.map_err(not_the_callers)?;
        let shortest = shortest(&plan).await.map_err(not_the_callers)?;
        let servers = Servers { alone, shortest };
        let lives = Lives::default();
        Ok(Self { id, clock: Clock::system(), plan, servers, common, lives })
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The node of a line.
    fn line(&self, name: &Name) -> StoreResult<String> {
        self.plan.paths.line(name).map_err(|rule| {
            let what = format!("{name:?} is no path for a lock with raw names: {rule}");
            StoreError::not_applied(KIND, ErrorKind::Name, what)
        })
    }

    /// Reads what belongs to no session. Reading can be repeated, so it is.
    async fn read_all(&self, requests: &[Request]) -> StoreResult<Vec<Answer>> {
        let mut last = over();
        for _ in 0..3 {
            match self.common.ask(requests).await {
                Ok(answers) if answers.iter().any(|a| matches!(a, Err(Fault::Broken))) => {
                    last = failure(Fault::Broken);
                }
                Err(e) if e.kind == ErrorKind::SessionOver => last = e,
                answers => return answers,
            }
        }
        Err(not_the_callers(last))
    }

    /// Makes our folders again where somebody has removed them. Data that was made by others meanwhile
    /// has another identity, and what this handle knows does not hold there.
    async fn restore_root(&self) -> StoreResult<()> {
        let found = make_root(&self.common, &self.plan, self.id).await.map_err(not_the_callers)?;
        if found == self.id { Ok(()) } else { Err(other_data(self.plan.paths.root())) }
    }

    /// Whether the data is still that to which this handle was connected.
    async fn same_data(&self, link: &Link) -> StoreResult<()> {
        let root = self.plan.paths.root();
        let mut answers = link.ask(&[Request::data(root, false)]).await?;
        let reply = optional(answers.pop().unwrap_or(Err(Fault::Broken)))?;
        let Some(reply) = reply else { return Ok(()) };
        let found = identity(&reply.data().map_err(failure)?.0);
        if found == Some(self.id) { Ok(()) } else { Err(other_data(root)) }
    }

    /// Begins a ZooKeeper session.
    async fn new_life(&self, ask: Open) -> StoreResult<Arc<Life>> {
        let opened = self.now();
        let timeout = self.servers.timeout(ask.ttl, ask.lock_delay);
        let patience = (ask.ttl / 3).clamp(PATIENCE.0, PATIENCE.1);
        let target = Arc::new(OnceLock::<Weak<Life>>::new());
        let ear: Ear = {
            let target = Arc::clone(&target);
            Arc::new(move |path| {
                if let Some(life) = target.get().and_then(Weak::upgrade) {
                    life.hear(path);
                }
            })
        };
        let link = Link::new(&self.plan, Lasting::WithItsSession, timeout, patience, ear);
        self.same_data(&link).await.map_err(not_the_callers)?;
        let terms = self.servers.terms(ask.ttl, ask.lock_delay, link.granted())?;
        let life = Arc::new(Life::new(ask, terms, link, opened + terms.ttl));
        let _ = target.set(Arc::downgrade(&life));
        Ok(life)
    }

    /// One more ZooKeeper session for a session whose others have no room for a ticket in this line.
    async fn another_life(&self, session: &Session, line: &str) -> StoreResult<Arc<Life>> {
        let _one_at_a_time = session.growing.lock().await;
        if let Some(life) = session.roomy(line) {
            return Ok(life);
        }
        let begun = self.now();
        let life = self.new_life(session.ask.clone()).await?;
        if life.terms != session.terms {
            // It says nothing, and ends by itself.
            return Err(link::unavailable("a server grants other times than another one"));
        }
        if session.add(&life, begun)
            && let Err(e) = self.renew_life(&life).await
        {
            session.remove(&life);
            return Err(e);
        }
        Ok(life)
    }

    /// All lives of a session at once; says how often tickets were ended by others, and which there are.
    async fn renew_all(&self, session: &Session) -> StoreResult<(u64, TicketDigest)> {
        let lives = session.renewing(self.now());
        let renewed = join::all(lives.iter().map(|life| self.renew_life(life))).await;
        let (mut version, mut all) = (0, TicketDigest::default());
        let mut failed = None;
        for life in renewed {
            match life {
                Ok((evictions, tickets)) => {
                    version += evictions;
                    all.count += tickets.count;
                    all.sum = all.sum.wrapping_add(tickets.sum);
                }
                Err(e) if e.kind == ErrorKind::SessionOver => return Err(e),
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok((version, all)), Err)
    }

    /// The server reads the session's nodes behind the write, so its answer is not older than that.
    async fn renew_life(&self, life: &Arc<Life>) -> StoreResult<(u64, TicketDigest)> {
        let began = self.now();
        let paths = &self.plan.paths;
        let known = self.standing(life);
        let requests = [
            Request::all_or_nothing(&[Request::check(paths.root())]),
            Request::ephemerals(&paths.base()),
        ];
        let answers = life.link.ask(&requests).await?;
        let [write, own] = two(answers);
        // What the check finds is told inside of a good answer. An answer that is not good comes from a
        // server that has asked nobody.
        write.map_err(failure)?;
        let tickets = self.compare(life, &known, &leave::names(own)?).await;
        let mut state = life.state();
        if self.now() >= state.expires {
            return Err(over());
        }
        state.expires = state.expires.max(began + life.terms.ttl);
        state.closed.retain(|_, until| *until > began);
        Ok((state.version, tickets))
    }

    /// Listens on all connections of a session, those that come to be meanwhile too, until one breaks.
    async fn listen(&self, session: &Session, to: &Arc<dyn Hints>) -> StoreError {
        loop {
            let mut broken = Vec::new();
            for life in session.all() {
                life.state().sink = Some(Arc::clone(to));
                match life.link.connect().await {
                    Ok(number) => {
                        broken.push(Box::pin(async move { life.link.broken(number).await }));
                    }
                    Err(e) => return e,
                }
            }
            // What was watched on other connections is not watched any more.
            to.recheck(None);
            let any = |broken: &[Option<()>]| broken.iter().any(Option::is_some);
            tokio::select! {
                _ = join::until(broken, any, std::future::pending()) => {
                    return failure(Fault::Broken);
                }
                () = session.grown.notified() => {}
            }
        }
    }
}

/// Exactly two answers, as there were two requests.
fn two(answers: Vec<Answer>) -> [Answer; 2] {
    answers.try_into().unwrap_or([Err(Fault::Broken), Err(Fault::Broken)])
}

/// A missing node is no trouble.
fn optional(answer: Answer) -> StoreResult<Option<Reply>> {
    match answer {
        Ok(reply) => Ok(Some(reply)),
        Err(Fault::Refused(Code::NO_NODE)) => Ok(None),
        Err(fault) => Err(failure(fault)),
    }
}

/// That the session of what belongs to no session is over is nothing to those who asked.
fn not_the_callers(e: StoreError) -> StoreError {
    match e.kind {
        ErrorKind::SessionOver => StoreError { kind: ErrorKind::Unavailable, ..e },
        _ => e,
    }
}

fn other_data(root: &str) -> StoreError {
    let what = format!("{root} was removed and made anew by others; connect again");
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
}

/// What the root's data says.
fn identity(data: &[u8]) -> Option<StoreId> {
    let id = u64::from_str_radix(std::str::from_utf8(data).ok()?, 16).ok()?;
    Some(StoreId(id.to_be_bytes()))
}

/// Makes the folders and the identity of the store, if they are not there yet; says which it has.
async fn make_root(common: &Link, plan: &Plan, new: StoreId) -> StoreResult<StoreId> {
    let (paths, rights) = (&plan.paths, plan.rights);
    let id = new.to_string();
    let folder = |path: &str| Request::create(path, b"", Kind::Persistent, rights);
    let root = paths.root();
    let mut requests: Vec<Request> = names::Paths::above(root).map(folder).collect();
    requests.push(Request::create(root, id.as_bytes(), Kind::Persistent, rights));
    requests.extend(["lines", "cells"].map(|part| folder(&format!("{root}/{part}"))));
    let look = [
        Request::data(root, false),
        Request::exists(&format!("{root}/cells")),
        // A server that is too old for this could not say which tickets there are.
        Request::ephemerals(root),
    ];
    let mut denied = Ok(());
    for attempt in 0..3 {
        let mut answers = common.ask(&look).await?.into_iter();
        let (data, last, own) = (answers.next(), answers.next(), answers.next());
        if let Some(Err(fault @ Fault::Refused(Code::UNIMPLEMENTED))) = own {
            return Err(failure(fault));
        }
        if let (Some(Ok(data)), Some(Ok(_))) = (data, last) {
            let (data, _) = data.data().map_err(failure)?;
            return identity(&data).ok_or_else(|| {
                let what = format!("{root} is in use for something else; choose another prefix=");
                StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
            });
        }
        if attempt < 2 {
            for answer in common.ask(&requests).await? {
                if let Err(fault @ Fault::Refused(Code::NO_AUTH | Code::INVALID_ACL)) = answer {
                    denied = Err(failure(fault));
                }
            }
        }
    }
    denied?;
    Err(link::unavailable(format!("{root} cannot be made")))
}

/// The shortest session that the servers grant.
async fn shortest(plan: &Arc<Plan>) -> StoreResult<Duration> {
    let asking = Duration::from_millis(1);
    let ear: Ear = Arc::new(|_| {});
    let link = Link::new(plan, Lasting::WithItsSession, asking, PATIENCE.1, ear);
    link.connect().await?;
    let shortest = link.granted();
    // A session that is left open ends by itself, after that very time.
    let _ = link.close().await;
    Ok(shortest)
}

impl fmt::Debug for Zookeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zookeeper({})", self.id)
    }
}

impl Store for Zookeeper {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            at_least: false,
            sessions_shared: false,
            durable: true,
            survives_failover: !self.servers.alone,
            renewal_shows_tickets: true,
            shared: self.plan.paths.knows(Mode::Shared),
            permits: self.plan.paths.knows(Mode::Permits { weight: 1, of: 1 }),
            ..Capabilities::LINES
        }
    }

    fn id(&self) -> StoreId {
        self.id
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        match self.lives.opened(ask.session, self.now())? {
            Some(terms) => Ok(terms),
            None => Ok(self.lives.add(self.new_life(ask).await?, self.now())),
        }
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        let renewed = match self.lives.living(session, self.now()) {
            Ok(session) => self.renew_all(&session).await,
            Err(over) => Err(over),
        };
        match renewed {
            Err(e) if e.kind == ErrorKind::SessionOver => {
                // Nothing more is said on its connection either: it only expires.
                self.lives.end(session, self.now());
                Ok(Renewal::Lost)
            }
            renewed => renewed
                .map(|(version, tickets)| Renewal::Renewed { version, tickets: Some(tickets) }),
        }
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        if let Ok(session) = self.lives.living(session, self.now()) {
            // Known until this was answered, so that it can be repeated.
            let lives = session.all();
            let closed = join::all(lives.iter().map(|life| life.link.close())).await;
            closed.into_iter().collect::<StoreResult<()>>()?;
        }
        self.lives.end(session, self.now());
        Ok(())
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.enter_line(ask).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let Ok(session) = self.lives.living(session, self.now()) else {
            return Ok(match which {
                PollScope::These(tickets) => tickets
                    .into_iter()
                    .map(|(name, ticket)| (name, ticket, TicketStatus::Gone))
                    .collect(),
                PollScope::All => Vec::new(),
            });
        };
        let lives = session.all();
        let mut stands = Vec::new();
        match which {
            PollScope::All => {
                for all in join::all(lives.iter().map(|life| self.all_stands(life))).await {
                    stands.extend(all?);
                }
            }
            PollScope::These(tickets) => {
                let mut shares: Vec<Vec<_>> = lives.iter().map(|_| Vec::new()).collect();
                for (name, ticket) in tickets {
                    let its = |life: &Arc<Life>| life.state().tickets.contains_key(&ticket);
                    shares[lives.iter().position(its).unwrap_or(0)].push((name, ticket));
                }
                let looks = lives.iter().zip(shares).map(|(life, its)| self.stands(life, its));
                for some in join::all(looks.collect::<Vec<_>>()).await {
                    stands.extend(some?);
                }
            }
        }
        Ok(stands)
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        match self.lives.living(session, self.now()) {
            Ok(session) => self.listen(&session, &to).await,
            Err(over) => over,
        }
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.leave_line(ask).await
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit_note(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.show(which).await
    }

    fn blind_spots(&self) -> Option<&'static str> {
        self.plan.paths.is_raw().then_some("locks in the folders below (name a folder to list it)")
    }

    fn unsupported(&self, mode: Mode) -> Option<&'static str> {
        self.plan.paths.refusal(mode)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        self.is_held(&claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        self.read_cell(&name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit_cell(edit).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        self.end_ticket(&name, ticket).await
    }

    async fn advice(&self) -> StoreResult<Vec<Advice>> {
        Ok(advice::of(&advice::facts(&self.plan).await, &self.plan))
    }

    fn forget(&self, session: SessionId) {
        self.lives.end(session, self.now());
    }

    fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let path = self.lives.path(claim.ticket);
        path.map(|path| vec![("path", path), ("czxid", claim.fence.to_string())])
            .unwrap_or_default()
    }
}
