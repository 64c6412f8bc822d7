//! The model that all stores share: names, tickets, lines, and which tickets are admitted. No I/O.

pub(crate) mod admission;
pub(crate) mod line;
pub(crate) mod name;
pub(crate) mod sequencer;
#[cfg(feature = "serde")]
pub(crate) mod serde;
#[cfg(feature = "signed")]
pub(crate) mod signed;
pub(crate) mod ticket;
