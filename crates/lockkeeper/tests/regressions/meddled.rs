//! A store between the core and another store: it fails, holds up and counts as it is told.

use crate::support::{HOUR, keeper, turns, until};
use lockkeeper::{
    Capabilities, Cell, ErrorKind, Keeper, Line, Name, Store, StoreError, TicketId,
    store::{
        AnyStore, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope, Open,
        PollScope, Renewal, SessionId, StoreId, StoreResult, Terms, TicketStatus, clock::Clock,
        memory::Memory,
    },
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};
use tokio::sync::Notify;

const KIND: &str = "meddled";

/// The door that all requests of one kind go through.
#[derive(Default)]
pub(crate) struct Door {
    calls: AtomicUsize,
    kind: Mutex<Option<ErrorKind>>,
    shut: AtomicBool,
    held_up: AtomicUsize,
    opened: Notify,
}

impl Door {
    /// How many have come so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }

    /// How many stand here now.
    pub(crate) fn held_up(&self) -> usize {
        self.held_up.load(SeqCst)
    }

    /// Calls that come now fail, and nothing is carried out.
    pub(crate) fn fail(&self, fails: bool) {
        self.fail_with(fails.then_some(ErrorKind::Unavailable));
    }

    /// The same, with this trouble.
    pub(crate) fn fail_with(&self, kind: Option<ErrorKind>) {
        *self.kind.lock().unwrap() = kind;
    }

    /// Calls that come now are held up.
    pub(crate) fn shut(&self) {
        self.shut.store(true, SeqCst);
    }

    /// Calls that come now pass; those held up stay.
    pub(crate) fn let_others_pass(&self) {
        self.shut.store(false, SeqCst);
    }

    pub(crate) fn open(&self) {
        self.let_others_pass();
        self.opened.notify_waiters();
    }

    fn knock(&self) -> StoreResult<()> {
        self.calls.fetch_add(1, SeqCst);
        self.refuse()
    }

    fn refuse(&self) -> StoreResult<()> {
        let trouble = *self.kind.lock().unwrap();
        trouble.map_or(Ok(()), |trouble| Err(StoreError::not_applied(KIND, trouble, "away")))
    }

    async fn pass(&self) {
        let opened = self.opened.notified();
        if self.shut.load(SeqCst) {
            self.held_up.fetch_add(1, SeqCst);
            opened.await;
            self.held_up.fetch_sub(1, SeqCst);
        }
    }
}

fn away() -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, "away")
}

/// What becomes of the store's hints.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Post {
    #[default]
    Delivered,
    /// Grants are kept back, evictions are lost.
    Withheld,
    /// A grant says only: look. As from a store whose hints carry no fence.
    Vague,
}

/// What is done to the requests.
#[derive(Default)]
pub(crate) struct Meddling {
    /// Held up before it is carried out, or fails then.
    pub(crate) open: Door,
    /// Held up before it is carried out.
    pub(crate) enter: Door,
    /// Held up when it is carried out and the answer is under way.
    pub(crate) renew: Door,
    /// Held up when it is carried out and the answer is under way.
    pub(crate) poll: Door,
    /// Held up when it is carried out and the answer is under way.
    pub(crate) leave: Door,
    /// Held up before it is carried out.
    pub(crate) list: Door,
    pub(crate) close: Door,
    /// Polls fail unless they are for all tickets.
    pub(crate) only_all: AtomicBool,
    /// Every enter finds its session over.
    pub(crate) all_over: AtomicBool,
    post: Mutex<Post>,
    withheld: Mutex<Vec<(TicketId, u64)>>,
    sink: Mutex<Option<Arc<dyn Hints>>>,
}

impl Meddling {
    /// From now on nothing can be written.
    pub(crate) fn go_away(&self) {
        [&self.open, &self.enter, &self.renew, &self.leave].iter().for_each(|door| door.fail(true));
    }

    /// From now on everything can be written again.
    pub(crate) fn come_back(&self) {
        [&self.open, &self.enter, &self.renew, &self.leave]
            .iter()
            .for_each(|door| door.fail(false));
    }

    pub(crate) fn post(&self, post: Post) {
        *self.post.lock().unwrap() = post;
    }

    /// The grants whose hints were kept back.
    pub(crate) fn withheld(&self) -> Vec<(TicketId, u64)> {
        self.withheld.lock().unwrap().clone()
    }

    /// Where hints for the session go, once it listens and has looked at what came before.
    pub(crate) async fn sink(&self) -> Arc<dyn Hints> {
        until("the session listens", async || self.sink.lock().unwrap().is_some()).await;
        turns().await;
        self.sink.lock().unwrap().clone().unwrap()
    }
}

/// The store in between.
pub(crate) struct Meddled {
    below: AnyStore,
    with: Arc<Meddling>,
}

impl Meddled {
    pub(crate) fn over(below: AnyStore) -> (AnyStore, Arc<Meddling>) {
        let with = Arc::new(Meddling::default());
        (AnyStore::new(Self { below, with: Arc::clone(&with) }), with)
    }
}

/// Two ways to one store in memory, on a clock that can be moved: as it is, and meddled with.
pub(crate) struct Rig {
    pub(crate) clock: Clock,
    pub(crate) plain: AnyStore,
    pub(crate) meddled: AnyStore,
    pub(crate) with: Arc<Meddling>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let clock = Clock::movable();
        let plain = AnyStore::new(Memory::with_clock(clock.clone()));
        let (meddled, with) = Meddled::over(plain.clone());
        Self { clock, plain, meddled, with }
    }

    pub(crate) fn keeper(&self) -> Keeper {
        keeper(&self.plain, &self.clock, HOUR)
    }

    pub(crate) fn meddled_keeper(&self) -> Keeper {
        keeper(&self.meddled, &self.clock, HOUR)
    }
}

struct Postman {
    to: Arc<dyn Hints>,
    with: Arc<Meddling>,
}

impl Hints for Postman {
    fn granted(&self, ticket: TicketId, fence: u64) {
        let post = *self.with.post.lock().unwrap();
        match post {
            Post::Delivered => self.to.granted(ticket, fence),
            Post::Withheld => self.with.withheld.lock().unwrap().push((ticket, fence)),
            Post::Vague => self.to.recheck(Some(ticket)),
        }
    }

    fn ended(&self, ticket: TicketId) {
        let post = *self.with.post.lock().unwrap();
        if post != Post::Withheld {
            self.to.ended(ticket);
        }
    }

    fn freed(&self, name: &Name) {
        self.to.freed(name);
    }

    fn recheck(&self, ticket: Option<TicketId>) {
        self.to.recheck(ticket);
    }
}

impl Store for Meddled {
    fn scheme(&self) -> &'static str {
        KIND
    }

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    fn id(&self) -> StoreId {
        self.below.id()
    }

    async fn open(&self, ask: Open) -> StoreResult<Terms> {
        self.with.open.knock()?;
        self.with.open.pass().await;
        self.with.open.refuse()?;
        Store::open(&self.below, ask).await
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        self.with.renew.knock()?;
        let answer = Store::renew(&self.below, session).await;
        self.with.renew.pass().await;
        answer
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        self.with.close.knock()?;
        Store::close(&self.below, session).await
    }

    async fn enter(&self, ask: Enter) -> StoreResult<Entered> {
        self.with.enter.knock()?;
        if self.with.all_over.load(SeqCst) {
            return Err(StoreError::session_over(KIND));
        }
        self.with.enter.pass().await;
        Store::enter(&self.below, ask).await
    }

    async fn poll(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        self.with.poll.knock()?;
        if self.with.only_all.load(SeqCst) && !matches!(which, PollScope::All) {
            return Err(away());
        }
        let answer = Store::poll(&self.below, session, which).await;
        self.with.poll.pass().await;
        answer
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        *self.with.sink.lock().unwrap() = Some(Arc::clone(&to));
        let postman = Postman { to, with: Arc::clone(&self.with) };
        Store::hints(&self.below, session, Arc::new(postman)).await
    }

    async fn leave(&self, ask: Leave) -> StoreResult<Left> {
        self.with.leave.knock()?;
        let left = Store::leave(&self.below, ask).await;
        self.with.leave.pass().await;
        left
    }

    async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        Store::set_label(&self.below, edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        self.with.list.pass().await;
        Store::list(&self.below, which).await
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        Store::check(&self.below, claim).await
    }

    async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        Store::read(&self.below, name).await
    }

    async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        Store::write(&self.below, edit).await
    }

    async fn evict(&self, name: Name, ticket: TicketId) -> StoreResult<bool> {
        Store::evict(&self.below, name, ticket).await
    }
}
