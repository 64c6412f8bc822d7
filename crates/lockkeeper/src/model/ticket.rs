//! Ids, weights and the words a ticket carries.

use crate::model::name::Name;
use rand::TryRng as _;
use std::{fmt, str::FromStr};

/// The capacity of every plain line. An exclusive ticket weighs all of it, a reader weighs 1, so a
/// mutex and a read-write lock on one name are the same line.
pub const PLAIN_CAPACITY: u32 = 1 << 30;

/// The most permits a semaphore can have.
pub const PERMITS_MAX: u32 = 1_000_000;

/// The longest label that a ticket can carry, in bytes.
pub const LABEL_MAX: usize = 4096;

/// The id of a ticket: made by the client, public, and unique for ever. Listings show it, and
/// [`Keeper::evict`](crate::Keeper::evict) takes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TicketId(u128);

/// The id of a session, which is also its secret: a client that knows it can act for the session.
///
/// It has no `Display`, its `Debug` hides the value, and no listing shows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(u128);

/// A map by such ids. They are drawn at random, so a light hash will do; maps by names, which users
/// choose, have the standard one.
pub(crate) type ById<Id, T> = foldhash::HashMap<Id, T>;

impl TicketId {
    /// A fresh id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// A fresh id that ends with this number.
    pub(crate) fn random_in(lane: u8) -> Self {
        Self(rand::random::<u128>() << 8 | u128::from(lane))
    }

    /// The number that it ends with. Few tickets of a session have the same at the same time, so a store
    /// can name keys after it and use them again.
    pub(crate) fn lane(self) -> u8 {
        self.to_bytes()[15]
    }
}

impl SessionId {
    /// A fresh id from the operating system's randomness. Not from this process's own generator: a
    /// forked process has a copy of that one, and two processes must never be one session.
    ///
    /// # Panics
    /// If the operating system has no randomness to give.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        rand::rngs::SysRng.try_fill_bytes(&mut bytes).expect("the system has randomness");
        Self::from_bytes(bytes)
    }
}

macro_rules! id {
    ($name:ident) => {
        impl $name {
            /// The id as bytes, for a store to write down.
            #[must_use]
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// The id that was written down as `bytes`.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }
    };
}
id!(TicketId);
id!(SessionId);

impl fmt::Display for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(secret)")
    }
}

/// A text that is no ticket id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ticket id has 32 hexadecimal digits")]
pub struct TicketIdError;

impl FromStr for TicketId {
    type Err = TicketIdError;
    fn from_str(s: &str) -> Result<Self, TicketIdError> {
        let digits = s.len() == 32 && s.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits {
            return Err(TicketIdError);
        }
        u128::from_str_radix(s, 16).map(Self).map_err(|_| TicketIdError)
    }
}

/// How much of a line's capacity a ticket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Mode {
    /// One ticket at a time: `lock` and `rwlock().write()`.
    Exclusive,
    /// Together with other readers: `rwlock().read()`.
    Shared,
    /// Some permits of a semaphore.
    Permits {
        /// What this ticket takes.
        weight: u32,
        /// What the semaphore has.
        of: u32,
    },
}

impl Mode {
    /// What the ticket takes of its line.
    #[must_use]
    pub fn weight(self) -> u32 {
        match self {
            Self::Exclusive => PLAIN_CAPACITY,
            Self::Shared => 1,
            Self::Permits { weight, .. } => weight,
        }
    }

    /// What its line has to give.
    #[must_use]
    pub fn capacity(self) -> u32 {
        match self {
            Self::Exclusive | Self::Shared => PLAIN_CAPACITY,
            Self::Permits { of, .. } => of,
        }
    }

    /// The mode behind the two numbers that a store keeps.
    #[must_use]
    pub fn of(weight: u32, capacity: u32) -> Self {
        match (weight, capacity) {
            (PLAIN_CAPACITY, PLAIN_CAPACITY) => Self::Exclusive,
            (_, PLAIN_CAPACITY) => Self::Shared,
            (weight, of) => Self::Permits { weight, of },
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { weight, of } => write!(f, "{weight} of {of}"),
        }
    }
}

/// The process that opened a session, by its own account: to show, not to trust.
///
/// The default is the owner of a ticket that another library has made, of which the store knows nothing
/// ([`is_unknown`](Self::is_unknown)).
///
/// ```
/// # use lockkeeper::Owner;
/// let mut owner = Owner::this_process();
/// owner.program = "billing".into();
/// println!("{owner}");                                   // ci-7 (pid 4121)
/// assert!(Owner::default().is_unknown());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Owner {
    /// The machine.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// What the process is called.
    pub program: String,
}

impl Owner {
    /// A process by its machine, its number and its name.
    pub fn new(host: impl Into<String>, pid: u32, program: impl Into<String>) -> Self {
        Self { host: host.into(), pid, program: program.into() }
    }

    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = std::path::Path::new(&program).file_name().unwrap_or_default();
        Self {
            host: host(),
            pid: std::process::id(),
            program: bounded(&program.to_string_lossy(), 64),
        }
    }

    /// Is this a client of another library, which left nothing about itself? It is shown as "another
    /// client".
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.host.is_empty() && self.pid == 0
    }

    /// The same, cut to lengths that a store can keep and a line can show.
    pub(crate) fn bounded(self) -> Self {
        Self { host: bounded(&self.host, 64), program: bounded(&self.program, 64), ..self }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_unknown() {
            true => f.write_str("another client"),
            false => write!(f, "{} (pid {})", self.host, self.pid),
        }
    }
}

fn host() -> String {
    let name = rustix::system::uname();
    bounded(&name.nodename().to_string_lossy(), 64)
}

/// Cuts `text` to at most `max` bytes without splitting a character.
fn bounded(text: &str, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text[..end].to_owned()
}

/// A ticket as requests name it: its session, its line and its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The session that the ticket belongs to.
    pub session: SessionId,
    /// The line in which it stands.
    pub name: Name,
    /// The ticket.
    pub ticket: TicketId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_id_reads_back_as_it_was_written() {
        let id = TicketId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(TicketId::from_bytes(id.to_bytes()), id);
        assert_eq!("+1".repeat(16).parse::<TicketId>(), Err(TicketIdError));
    }

    #[test]
    fn a_session_id_never_shows_itself() {
        let id = SessionId::from_bytes([0xab; 16]);
        assert_eq!(format!("{id:?}"), "SessionId(secret)");
    }

    #[test]
    fn an_owner_of_whom_nothing_is_known_is_another_client() {
        assert_eq!(Owner::default().to_string(), "another client");
        let known = Owner::new("ci-7", 4121, "");
        assert_eq!(known.to_string(), "ci-7 (pid 4121)");
    }

    #[test]
    fn the_mode_follows_from_weight_and_capacity() {
        let permits = Mode::Permits { weight: 2, of: 4 };
        for mode in [Mode::Exclusive, Mode::Shared, permits] {
            assert_eq!(Mode::of(mode.weight(), mode.capacity()), mode);
        }
    }
}
