//! Every event and metric of the library, by name, in one place.
//!
//! Lock names are fields of events but never labels of metrics: their number has no bound.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `lockkeeper.acquire.duration` | histogram, s | from the call to the grant; label `outcome`: granted, not_acquired, error |
//! | `lockkeeper.hold.duration` | histogram, s | from the grant to the release |
//! | `lockkeeper.locks.held` | gauge | guards in hand |
//! | `lockkeeper.locks.lost` | counter | label `why` |
//! | `lockkeeper.session.renewals` | counter | label `outcome`: renewed, failed |
//! | `lockkeeper.sessions.lost` | counter | label `why` |

use crate::{
    error::{Loss, StoreError},
    model::{
        name::Name,
        ticket::{Mode, TicketId},
    },
};
use std::time::Duration;

/// An outage that lasts this long is logged as a warning: a wait without limit goes on through it.
const OUTAGE_LONG: Duration = Duration::from_secs(30);

#[cfg(feature = "metrics")]
mod names {
    pub(super) const ACQUIRE: &str = "lockkeeper.acquire.duration";
    pub(super) const HOLD: &str = "lockkeeper.hold.duration";
    pub(super) const HELD: &str = "lockkeeper.locks.held";
    pub(super) const LOST: &str = "lockkeeper.locks.lost";
    pub(super) const RENEWALS: &str = "lockkeeper.session.renewals";
    pub(super) const SESSIONS_LOST: &str = "lockkeeper.sessions.lost";
}

/// The span around an acquire.
pub(crate) fn acquire(name: &Name, mode: Mode, store: &'static str) -> tracing::Span {
    tracing::debug_span!("lockkeeper.acquire", name = name.as_str(), %mode, store)
}

pub(crate) fn queued(name: &Name, ticket: TicketId, ahead: usize) {
    tracing::debug!(name = name.as_str(), %ticket, ahead, "waiting in line");
}

pub(crate) fn granted(name: &Name, ticket: TicketId, fence: u64, waited: Duration) {
    tracing::debug!(name = name.as_str(), %ticket, fence, ?waited, "granted");
    #[cfg(feature = "metrics")]
    {
        metrics::histogram!(names::ACQUIRE, "outcome" => "granted").record(waited.as_secs_f64());
        metrics::gauge!(names::HELD).increment(1);
    }
}

pub(crate) fn not_acquired(name: &Name, waited: Duration) {
    tracing::debug!(name = name.as_str(), ?waited, "not acquired");
    #[cfg(feature = "metrics")]
    metrics::histogram!(names::ACQUIRE, "outcome" => "not_acquired").record(waited.as_secs_f64());
}

pub(crate) fn acquire_failed(name: &Name, error: &crate::Error, waited: Duration) {
    tracing::debug!(name = name.as_str(), %error, ?waited, "acquire failed");
    #[cfg(feature = "metrics")]
    metrics::histogram!(names::ACQUIRE, "outcome" => "error").record(waited.as_secs_f64());
}

/// A guard's ticket has left our hands, by release or loss.
pub(crate) fn let_go(name: &Name, ticket: TicketId, held: Duration) {
    tracing::debug!(name = name.as_str(), %ticket, ?held, "let go");
    #[cfg(feature = "metrics")]
    {
        metrics::histogram!(names::HOLD).record(held.as_secs_f64());
        metrics::gauge!(names::HELD).decrement(1);
    }
}

pub(crate) fn lost(name: &Name, why: Loss) {
    tracing::warn!(name = name.as_str(), %why, "lock lost");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::LOST, "why" => why.word()).increment(1);
}

/// A session was lost, and with it so many locks.
pub(crate) fn session_lost(why: Loss, held: usize) {
    tracing::warn!(%why, held, "session lost");
    #[cfg(feature = "metrics")]
    {
        metrics::counter!(names::SESSIONS_LOST, "why" => why.word()).increment(1);
        metrics::counter!(names::LOST, "why" => why.word()).increment(held as u64);
    }
}

pub(crate) fn reentering(name: &Name, why: Loss) {
    tracing::info!(name = name.as_str(), %why, "session lost while waiting; entering at the end");
}

pub(crate) fn entering_again(name: &Name) {
    tracing::info!(name = name.as_str(), "ticket gone while waiting; entering at the end");
}

/// An attempt to connect, to open a session or to enter a line has failed and is repeated.
pub(crate) fn store_unavailable(error: &StoreError, away_for: Duration) {
    if away_for < OUTAGE_LONG {
        tracing::debug!(%error, "store unavailable; trying again");
    } else {
        tracing::warn!(%error, ?away_for, "store still unavailable; trying again");
    }
}

pub(crate) fn renewed() {
    tracing::trace!("session renewed");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::RENEWALS, "outcome" => "renewed").increment(1);
}

pub(crate) fn renewal_failed(error: &StoreError) {
    tracing::warn!(%error, "renewal failed; the session is in jeopardy");
    #[cfg(feature = "metrics")]
    metrics::counter!(names::RENEWALS, "outcome" => "failed").increment(1);
}

pub(crate) fn hints_broke(error: &StoreError) {
    tracing::debug!(%error, "no hints from the store; polling");
}

pub(crate) fn release_failed(error: &crate::Error) {
    tracing::warn!(%error, "a lock could not be released; it ends with its session");
}

pub(crate) fn leave_failed(error: &StoreError) {
    tracing::warn!(%error, "a ticket could not be left; it ends with its session at the latest");
}

pub(crate) fn close_failed(error: &StoreError) {
    tracing::debug!(%error, "a session could not be closed; it will expire");
}
