//! The object-safe twin of [`Store`], so that a keeper is not generic over its store.

use super::{
    Advice, Capabilities, Cell, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope,
    Open, PollScope, Renewal, Store, StoreId, StoreResult, Terms, TicketStatus,
};
use crate::{
    error::StoreError,
    model::{
        line::Line,
        name::Name,
        ticket::{Mode, SessionId, TicketId},
    },
};
use std::{fmt, pin::Pin, sync::Arc};

/// A future that owns all it needs, so that another task can take it over half-way.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

macro_rules! twin {
    (
        now { $( fn $now:ident ( $($now_arg:ident : $now_ty:ty),* ) -> $now_out:ty; )* }
        later { $( $(#[$own:meta])* async fn $op:ident ( $($arg:ident : $ty:ty),* ) -> $out:ty; )* }
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
            $( $(#[$own])* pub(crate) fn $op(&self, $($arg: $ty),*) -> Boxed<$out> {
                Arc::clone(&self.0).$op($($arg),*)
            } )*
        }

        impl Store for AnyStore {
            $( fn $now(&self, $($now_arg: $now_ty),*) -> $now_out {
                self.0.$now($($now_arg),*)
            } )*
            $( async fn $op(&self, $($arg: $ty),*) -> $out {
                Arc::clone(&self.0).$op($($arg),*).await
            } )*
        }
    };
}

/// Any store, behind one cheap handle. It is itself a [`Store`], so wrappers can wrap it.
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

twin! {
    now {
        fn scheme() -> &'static str;
        fn capabilities() -> Capabilities;
        fn id() -> StoreId;
        fn blind_spots() -> Option<&'static str>;
        fn unsupported(mode: Mode) -> Option<&'static str>;
        fn leave_now(ask: &Leave) -> bool;
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
        async fn evict(name: Name, ticket: TicketId) -> StoreResult<bool>;
        #[expect(dead_code, reason = "the library does not ask for it; programs do, by the trait")]
        async fn advice() -> StoreResult<Vec<Advice>>;
    }
}

impl AnyStore {
    /// Takes a store as it is.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }

    /// Takes a store that has other owners as well.
    pub fn shared<S: Store>(store: Arc<S>) -> Self {
        Self(store)
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({} {})", self.0.scheme(), self.0.id())
    }
}
