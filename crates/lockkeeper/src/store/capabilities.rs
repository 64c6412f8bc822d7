//! What a store can do.

/// What a store can do. Plain facts: the conformance suite holds a store to each one it claims.
///
/// ```
/// # use lockkeeper::Capabilities;
/// let mine = Capabilities { durable: true, ..Capabilities::LINES };
/// assert!(mine.fair && !mine.survives_failover);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Capabilities {
    /// Waiting in order ([`Manner::Queue`](super::Manner::Queue)). Without it only contending is possible.
    pub fair: bool,
    /// Every exclusive grant has a number that grows. Without it the number of every grant is 0.
    pub fenced: bool,
    /// Readers beside each other.
    pub shared: bool,
    /// Semaphores with weights.
    pub permits: bool,
    /// Values that can be written only under the lock.
    pub cells: bool,
    /// A release can keep the lock closed for a while ([`Leave::keep`](super::Leave::keep)).
    pub at_least: bool,
    /// Waiters are woken; without it the core polls.
    pub wakes: bool,
    /// Locks and fences outlive the process that serves the store.
    pub durable: bool,
    /// Locks and fences survive the loss of a machine.
    pub survives_failover: bool,
    /// Sessions belong to the data: any handle that knows the secret can act for them, and all
    /// their tickets end in one moment. Without it a session belongs to the handle that opened it.
    pub sessions_shared: bool,
    /// A renewal's answer shows which tickets the store has ([`TicketDigest`](super::TicketDigest)), so that one which is
    /// missing, or has come back, is noticed within two renewals whatever hid the change.
    pub renewal_shows_tickets: bool,
    /// A ticket that was never granted ends with its session's TTL; only granted tickets stay for the
    /// lock-delay. Without it a killed waiter stays in the line for both.
    pub waiters_end_at_ttl: bool,
}

impl Capabilities {
    /// Nothing but contending for exclusive locks: what a new store starts from.
    pub const NONE: Self = Self {
        fair: false,
        fenced: false,
        shared: false,
        permits: false,
        cells: false,
        at_least: false,
        wakes: false,
        durable: false,
        survives_failover: false,
        sessions_shared: false,
        renewal_shows_tickets: false,
        waiters_end_at_ttl: false,
    };

    /// All that lines, fences and hints can do; nothing about what outlives what.
    pub const LINES: Self = Self {
        fair: true,
        fenced: true,
        shared: true,
        permits: true,
        cells: true,
        at_least: true,
        wakes: true,
        sessions_shared: true,
        ..Self::NONE
    };
}
