//! A store between the core and another store: it fails, holds up and counts as it is told.

use crate::support::{HOUR, keeper, turns, until};
use lockkeeper::{
    ErrorKind, Keeper, Name, Store, StoreError, TicketId,
    store::{AnyStore, Hints, SessionId, StoreResult, clock::Clock, memory::Memory},
};
use lockkeeper_testkit::layer::{Call, Layer, Layered, Op};
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

    /// Sends a request on, and holds up its answer.
    async fn hold_up<T, F>(&self, send: impl Fn() -> F) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        self.knock()?;
        let answer = send().await;
        self.pass().await;
        answer
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
        (AnyStore::new(Layered(Self { below, with: Arc::clone(&with) })), with)
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

impl Layer for Meddled {
    fn inner(&self) -> &AnyStore {
        &self.below
    }

    fn scheme(&self) -> &'static str {
        KIND
    }

    async fn around<T: Send, F>(
        &self,
        call: Call,
        send: impl Fn() -> F + Send + Sync,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let with = &self.with;
        match call.op {
            Op::Open => {
                with.open.knock()?;
                with.open.pass().await;
                with.open.refuse()?;
                send().await
            }
            Op::Enter => {
                with.enter.knock()?;
                if with.all_over.load(SeqCst) {
                    return Err(StoreError::session_over(KIND));
                }
                with.enter.pass().await;
                send().await
            }
            Op::PollThese | Op::PollAll => {
                with.poll.knock()?;
                if with.only_all.load(SeqCst) && call.op == Op::PollThese {
                    return Err(away());
                }
                let answer = send().await;
                with.poll.pass().await;
                answer
            }
            Op::Renew => with.renew.hold_up(send).await,
            Op::Leave => with.leave.hold_up(send).await,
            Op::Close => {
                with.close.knock()?;
                send().await
            }
            Op::List => {
                with.list.pass().await;
                send().await
            }
            _ => send().await,
        }
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        *self.with.sink.lock().unwrap() = Some(Arc::clone(&to));
        let postman = Postman { to, with: Arc::clone(&self.with) };
        Store::hints(&self.below, session, Arc::new(postman)).await
    }
}
