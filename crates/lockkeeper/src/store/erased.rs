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

/// A future that owns all it needs, so that it can change its owner half-way.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

macro_rules! twin {
    ($( $op:ident ( $($arg:ident : $ty:ty),* ) -> $out:ty; )*) => {
        trait Erased: Send + Sync + 'static {
            fn scheme(&self) -> &'static str;
            fn capabilities(&self) -> Capabilities;
            fn id(&self) -> StoreId;
            fn blind_spots(&self) -> Option<&'static str>;
            fn unsupported(&self, mode: Mode) -> Option<&'static str>;
            fn leave_now(&self, ask: &Leave) -> bool;
            fn forget(&self, session: SessionId);
            fn advice(self: Arc<Self>) -> Boxed<StoreResult<Vec<Advice>>>;
            fn native(&self, claim: &Claim) -> Vec<(&'static str, String)>;
            $( fn $op(self: Arc<Self>, $($arg: $ty),*) -> Boxed<$out>; )*
        }

        impl<S: Store> Erased for S {
            fn scheme(&self) -> &'static str { Store::scheme(self) }
            fn capabilities(&self) -> Capabilities { Store::capabilities(self) }
            fn id(&self) -> StoreId { Store::id(self) }
            fn blind_spots(&self) -> Option<&'static str> { Store::blind_spots(self) }
            fn unsupported(&self, mode: Mode) -> Option<&'static str> {
                Store::unsupported(self, mode)
            }
            fn leave_now(&self, ask: &Leave) -> bool { Store::leave_now(self, ask) }
            fn forget(&self, session: SessionId) { Store::forget(self, session) }
            fn advice(self: Arc<Self>) -> Boxed<StoreResult<Vec<Advice>>> {
                Box::pin(async move { Store::advice(&*self).await })
            }
            fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
                Store::native(self, claim)
            }
            $( fn $op(self: Arc<Self>, $($arg: $ty),*) -> Boxed<$out> {
                Box::pin(async move { Store::$op(&*self, $($arg),*).await })
            } )*
        }

        impl AnyStore {
            $( pub(crate) fn $op(&self, $($arg: $ty),*) -> Boxed<$out> {
                Arc::clone(&self.0).$op($($arg),*)
            } )*
        }

        impl Store for AnyStore {
            fn scheme(&self) -> &'static str { self.0.scheme() }
            fn capabilities(&self) -> Capabilities { self.0.capabilities() }
            fn id(&self) -> StoreId { self.0.id() }
            fn blind_spots(&self) -> Option<&'static str> { self.0.blind_spots() }
            fn unsupported(&self, mode: Mode) -> Option<&'static str> { self.0.unsupported(mode) }
            fn leave_now(&self, ask: &Leave) -> bool { self.0.leave_now(ask) }
            fn forget(&self, session: SessionId) { self.0.forget(session) }
            async fn advice(&self) -> StoreResult<Vec<Advice>> {
                Arc::clone(&self.0).advice().await
            }
            fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> { self.0.native(claim) }
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
    open(ask: Open) -> StoreResult<Terms>;
    renew(session: SessionId) -> StoreResult<Renewal>;
    close(session: SessionId) -> StoreResult<()>;
    enter(ask: Enter) -> StoreResult<Entered>;
    poll(session: SessionId, which: PollScope) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>>;
    hints(session: SessionId, to: Arc<dyn Hints>) -> StoreError;
    leave(ask: Leave) -> StoreResult<Left>;
    set_label(edit: Edit) -> StoreResult<Edited>;
    list(which: ListScope) -> StoreResult<Vec<Line>>;
    check(claim: Claim) -> StoreResult<bool>;
    read(name: Name) -> StoreResult<Option<Cell>>;
    write(edit: Edit) -> StoreResult<Edited>;
    evict(name: Name, ticket: TicketId) -> StoreResult<bool>;
}

impl AnyStore {
    /// Takes a store as it is.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }

    /// Takes a store that others hold as well.
    pub fn shared<S: Store>(store: Arc<S>) -> Self {
        Self(store)
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({} {})", self.0.scheme(), self.0.id())
    }
}
