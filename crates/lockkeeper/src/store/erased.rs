//! The object-safe twin of [`Store`], so that a keeper is not generic over its store.

use super::{
    Advice, Attach, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left,
    ListScope, Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, SessionId, TicketId},
    },
    session::own_thread::Within,
};
use std::{fmt, pin::Pin, sync::Arc};
use tokio::{runtime::Handle, task::JoinHandle};

/// A future that owns all it needs, so that another task can take it over half-way.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

macro_rules! twin {
    (
        now { $( fn $now:ident ( $($now_arg:ident : $now_ty:ty),* ) -> $now_out:ty; )* }
        later { $( async fn $op:ident ( $($arg:ident : $ty:ty),* ) -> $out:ty; )* }
    ) => {
        trait Erased: Send + Sync + 'static {
            $( fn $now(&self, $($now_arg: $now_ty),*) -> $now_out; )*
            $( fn $op(self: Arc<Self>, $($arg: $ty),*) -> Boxed<$out>; )*
        }

        impl<S: Store> Erased for S {
            $( fn $now(&self, $($now_arg: $now_ty),*) -> $now_out {
                Store::$now(self, $($now_arg),*)
            } )*
            $( fn $op(self: Arc<Self>, $($arg: $ty),*) -> Boxed<$out> {
                Box::pin(async move { Store::$op(&*self, $($arg),*).await })
            } )*
        }

        impl AnyStore {
            $( pub(crate) fn $op(&self, $($arg: $ty),*) -> Boxed<$out> {
                self.within(Arc::clone(&self.store).$op($($arg),*))
            } )*
        }

        impl Store for AnyStore {
            $( fn $now(&self, $($now_arg: $now_ty),*) -> $now_out {
                self.store.$now($($now_arg),*)
            } )*
            $( async fn $op(&self, $($arg: $ty),*) -> $out {
                Self::$op(self, $($arg),*).await
            } )*
        }
    };
}

/// Any store, behind one cheap handle. It is itself a [`Store`], so wrappers can wrap it.
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn Erased>,
    /// Where its connections and the sessions' tasks run, if not where it is called.
    runtime: Option<Handle>,
}

twin! {
    now {
        fn scheme() -> &'static str;
        fn capabilities() -> Capabilities;
        fn id() -> StoreId;
        fn blind_spots() -> Option<&'static str>;
        fn unsupported(mode: Mode) -> Option<&'static str>;
        fn leave_now(ask: &Leave) -> bool;
        fn detach(session: SessionId) -> StoreResult<Vec<u8>>;
        fn forget(session: SessionId) -> ();
        fn native(claim: &Claim) -> Vec<(&'static str, String)>;
    }
    later {
        async fn open(ask: Open) -> StoreResult<Terms>;
        async fn renew(session: SessionId) -> StoreResult<Renewal>;
        async fn close(session: SessionId) -> StoreResult<()>;
        async fn enter(ask: Enter) -> StoreResult<Entered>;
        async fn poll(session: SessionId, which: PollScope)
            -> StoreResult<Vec<(Name, TicketId, TicketStatus)>>;
        async fn hints(session: SessionId, to: Arc<dyn Hints>) -> StoreError;
        async fn leave(ask: Leave) -> StoreResult<Left>;
        async fn set_label(edit: Edit) -> StoreResult<Edited>;
        async fn list(which: ListScope) -> StoreResult<Vec<Line>>;
        async fn check(claim: Claim) -> StoreResult<bool>;
        async fn read(name: Name) -> StoreResult<Option<Cell>>;
        async fn write(edit: Edit) -> StoreResult<Edited>;
        async fn write_under(claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited>;
        async fn evict(name: Name, ticket: TicketId) -> StoreResult<bool>;
        async fn attach(ask: Attach) -> StoreResult<()>;
        async fn advice() -> StoreResult<Vec<Advice>>;
    }
}

impl AnyStore {
    /// Takes a store as it is.
    pub fn new(store: impl Store) -> Self {
        Self::shared(Arc::new(store))
    }

    /// Takes a store that has other owners as well.
    pub fn shared<S: Store>(store: Arc<S>) -> Self {
        Self { store, runtime: None }
    }

    /// The same store, at work in this runtime.
    pub(crate) fn on(self, runtime: &Handle) -> Self {
        Self { runtime: Some(runtime.clone()), ..self }
    }

    /// Starts a session's task where the store is at work.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        match &self.runtime {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        }
    }

    fn within<T: 'static>(&self, call: Boxed<T>) -> Boxed<T> {
        match &self.runtime {
            Some(runtime) => Box::pin(Within::new(runtime, call)),
            None => call,
        }
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({} {})", self.store.scheme(), self.store.id())
    }
}
