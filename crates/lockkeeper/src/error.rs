//! What can go wrong, said so that a program can act on it.

use crate::{
    model::{
        name::{Name, NameError},
        ticket::{Mode, TicketIdError},
    },
    store::StoreId,
};
use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

/// The result of everything in this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong for a user of locks.
///
/// [`try_now`](crate::Acquire::try_now) answers `None` for a lock that is taken: that is no error.
/// Awaiting a lock in vain is one: [`Error::NotAcquired`].
///
/// ```
/// # use lockkeeper::{Error, Keeper}; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-error").await?;
/// match keeper.lock("report").wait(Duration::from_millis(5)).ttl(Duration::ZERO).await {
///     Ok(guard) => drop(guard),
///     Err(Error::NotAcquired { name, waited }) => println!("{name} was busy for {waited:?}"),
///     Err(Error::Unavailable { outage, .. }) => println!("no answer for {outage:?}"),
///     Err(Error::Option(e)) => assert_eq!(e.option, "ttl"),
///     Err(e) => return Err(e),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait ended, by its time limit or its retry policy, before the lock was granted. Its
    /// ticket is withdrawn in the background.
    #[error("lock {name:?} was not acquired within {waited:.1?}")]
    NotAcquired {
        /// The lock.
        name: Name,
        /// How long it was tried.
        waited: Duration,
    },
    /// The lock was held, and is no more.
    #[error("lock {name:?} was lost: {why}")]
    Lost {
        /// The lock.
        name: Name,
        /// How it was lost.
        why: Loss,
    },
    /// The text cannot be the name of a lock.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A time, a number of permits or another option makes no sense; nothing was sent.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The store's URL is not understood; nothing was opened.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The line has another capacity than was asked for.
    #[error(
        "lock {name:?} is in use {} and cannot be taken {} at the same time",
        capacity(*.line), capacity(*.asked)
    )]
    Capacity {
        /// The lock.
        name: Name,
        /// The capacity asked for.
        asked: u32,
        /// The capacity the line has until it is empty.
        line: u32,
    },
    /// This [owner](crate::Acquire::reentrant_as) holds the lock in a mode that does not cover what it
    /// asks for now.
    #[error(
        "this owner holds lock {name:?} ({held}) and cannot get more of it ({asked}) before \
         releasing it: it would wait for itself"
    )]
    Upgrade {
        /// The lock.
        name: Name,
        /// What the owner holds.
        held: Mode,
        /// What it asks for.
        asked: Mode,
    },
    /// The store cannot do this.
    #[error("the {store} store does not support {what}")]
    Unsupported {
        /// The kind of store.
        store: &'static str,
        /// What was asked for.
        what: &'static str,
    },
    /// The text is no sequencer.
    #[error("not a sequencer: {0}")]
    Sequencer(&'static str),
    /// The text is no [detached lock](crate::Detached). It is not repeated here, because it may be a secret.
    #[error("not a detached lock: {0}")]
    Detached(&'static str),
    /// The lock was detached from another store, or this one has lost its data since.
    #[error("the lock is in the store {wanted}, and this is the store {found}")]
    OtherStore {
        /// Where the lock was detached from.
        wanted: StoreId,
        /// Where it was to be attached.
        found: StoreId,
    },
    /// The text is no ticket id.
    #[error(transparent)]
    TicketId(#[from] TicketIdError),
    /// The wait ended, or the time given for [connecting](crate::Builder::connect_wait), while the store
    /// could not be reached. Whether the lock was taken is not known.
    #[error("the store has been unreachable for {outage:.0?}")]
    Unavailable {
        /// For how long.
        outage: Duration,
        /// What it said last.
        source: StoreError,
    },
    /// The keeper has been closed.
    #[error("the keeper has been closed")]
    Closed,
    /// The store refused or failed.
    #[error(transparent)]
    Store(StoreError),
}

/// An option of a lock, a keeper or a call that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct OptionError {
    /// The option: the name of the method that sets it, as `ttl`.
    pub option: &'static str,
    /// What is wrong with it, in words.
    pub what: String,
}

impl OptionError {
    /// What is wrong with an option.
    pub fn new(option: &'static str, what: impl Into<String>) -> Self {
        Self { option, what: what.into() }
    }
}

/// A store's URL that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct UrlError {
    /// The option of the URL that is wrong, as `ttl` of `?ttl=`; `None` if it is another part.
    pub option: Option<String>,
    /// What is wrong with it, in words (never with a password in them).
    pub what: String,
}

impl UrlError {
    /// What is wrong with a URL.
    pub fn new(what: impl Into<String>) -> Self {
        Self { option: None, what: what.into() }
    }

    /// What is wrong with this option of a URL.
    pub fn option(option: impl Into<String>, what: impl Into<String>) -> Self {
        Self { option: Some(option.into()), what: what.into() }
    }
}

fn capacity(of: u32) -> Cow<'static, str> {
    match of {
        crate::model::ticket::PLAIN_CAPACITY => "as a plain lock".into(),
        n => format!("as a semaphore of {n}").into(),
    }
}

/// Why a lock that was held is held no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Loss {
    /// The session could not be renewed in time.
    #[error("the session could not be renewed in time")]
    Expired,
    /// The store does not know the session any more: it has ended it, or has lost its data (a flush, a
    /// restart without what was written last).
    #[error("the store has ended the session, or has forgotten it")]
    SessionGone,
    /// The ticket is gone from the line while its session lives: an operator evicted it, or the store has
    /// lost it (a failover onto a server that never had it). Both look the same to a client.
    #[error("the ticket was evicted, or the store has forgotten it")]
    Evicted,
    /// The time set by [`max_hold`](crate::Acquire::max_hold) has passed.
    #[error("the longest time it may be held has passed")]
    MaxHold,
    /// The keeper was closed, or the runtime that renewed the session has ended.
    #[error("the keeper was closed")]
    Closed,
    /// Its guard was [detached](crate::Guard::detach), for another process to take over. Only a
    /// [`LossToken`](crate::LossToken) says this.
    #[error("the lock was detached from this process")]
    Detached,
    /// Its guard was released or dropped. Only a [`LossToken`](crate::LossToken) says this.
    #[error("the lock was released")]
    Released,
}

impl Loss {
    /// One word for it, for labels and machine-readable output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::SessionGone => "session_gone",
            Self::Evicted => "evicted",
            Self::MaxHold => "max_hold",
            Self::Closed => "closed",
            Self::Detached => "detached",
            Self::Released => "released",
        }
    }
}

/// Did a failed request change anything in the store?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It did not.
    NotApplied,
    /// It may have.
    Unknown,
}

/// The kinds of failure a store can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Not reachable or too busy now; trying again can help.
    Unavailable,
    /// The session named in the request is over. Whatever the request was, its keeper gives the session
    /// up at once.
    SessionOver,
    /// The ticket was closed by its owner: this is a late copy of an earlier request.
    TicketClosed,
    /// The line has this other capacity.
    Capacity(u32),
    /// The store cannot have a lock of this name; the error says by which rule.
    Name,
    /// A limit of the store or the contract is reached.
    Full,
    /// The credentials or rights do not suffice.
    Denied,
    /// The store is not what the URL says, or is set up so that locks on it cannot be trusted.
    Misconfigured,
    /// The data in the store makes no sense.
    Corrupt,
    /// The store cannot do this.
    Unsupported(&'static str),
    /// A fault of ours or of the store's that fits nowhere else.
    Other,
}

/// What a store says when a request fails: what kind of failure it was, whether anything was written,
/// and the reason in words (never with a password in it).
#[derive(Debug, thiserror::Error)]
#[error("{store}: {what}")]
#[non_exhaustive]
pub struct StoreError {
    /// The kind of store.
    pub store: &'static str,
    /// What kind of failure it is.
    pub kind: ErrorKind,
    /// Did the request change anything?
    pub outcome: Outcome,
    /// What happened, and what to do about it.
    pub what: String,
    /// The error below.
    #[source]
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// A request that certainly changed nothing.
    pub fn not_applied(store: &'static str, kind: ErrorKind, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { store, kind, outcome: Outcome::NotApplied, what, source: None }
    }

    /// A request that may or may not have been carried out.
    pub fn unknown(store: &'static str, kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { outcome: Outcome::Unknown, ..Self::not_applied(store, kind, what) }
    }

    /// The session named in a request is over.
    #[must_use]
    pub fn session_over(store: &'static str) -> Self {
        Self::not_applied(store, ErrorKind::SessionOver, "the session is over")
    }

    /// Adds the error below.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// The same error for one more caller.
    pub(crate) fn shared(this: &Arc<Self>) -> Self {
        let Self { store, kind, outcome, ref what, ref source } = **this;
        let below = || Box::new(Below(Arc::clone(this))) as _;
        let source = source.is_some().then(below);
        Self { store, kind, outcome, what: what.clone(), source }
    }

    /// Can the same request succeed when it is sent again?
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind == ErrorKind::Unavailable
    }

    /// The error as users see it, for a request about `name` that asked for `mode`.
    pub(crate) fn about(self, name: &Name, mode: Mode) -> Error {
        match self.kind {
            ErrorKind::Capacity(line) => {
                Error::Capacity { name: name.clone(), asked: mode.capacity(), line }
            }
            _ => self.into(),
        }
    }
}

/// The error below one that several callers are told.
#[derive(Debug)]
struct Below(Arc<StoreError>);

impl Below {
    fn error(&self) -> Option<&(dyn StdError + Send + Sync)> {
        self.0.source.as_deref()
    }
}

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().map_or(Ok(()), |error| fmt::Display::fmt(error, f))
    }
}

impl StdError for Below {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error()?.source()
    }
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        match e.kind {
            ErrorKind::Unsupported(what) => Self::Unsupported { store: e.store, what },
            _ => Self::Store(e),
        }
    }
}

impl Error {
    pub(crate) fn option(option: &'static str, what: impl Into<String>) -> Self {
        OptionError::new(option, what).into()
    }

    pub(crate) fn url(what: impl Into<String>) -> Self {
        UrlError::new(what).into()
    }

    pub(crate) fn url_option(option: &str, what: impl Into<String>) -> Self {
        UrlError::option(option, what).into()
    }

    /// Is this the answer to a wait that ended without the lock?
    #[must_use]
    pub fn is_not_acquired(&self) -> bool {
        matches!(self, Self::NotAcquired { .. })
    }
}
