//! The model that all stores share: names, tickets, lines, and which tickets are admitted. No I/O.

pub(crate) mod admission;
pub(crate) mod line;
pub(crate) mod name;
pub(crate) mod sequencer;
#[cfg(feature = "serde")]
pub(crate) mod serde;
pub(crate) mod ticket;
