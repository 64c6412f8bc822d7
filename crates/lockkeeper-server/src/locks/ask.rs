//! What a request to take a lock asks for, checked.

use crate::{checks, problem::Problem, service::Service, session_id::Secret};
use lockkeeper::{
    ErrorKind, Mode, Name, Owner, Store as _, StoreError, TicketId,
    store::{
        Manner,
        http::wire::{self, TakeLock},
    },
};
use std::time::Duration;

pub(super) struct Ask {
    pub(super) name: Name,
    pub(super) ticket: TicketId,
    pub(super) mode: Mode,
    pub(super) manner: Manner,
    pub(super) wait: Duration,
    pub(super) label: Vec<u8>,
    /// Does the ticket go with the client's connection?
    pub(super) withdraws: bool,
    /// Has the client made all ids, so that it can send the same request again?
    pub(super) is_repeatable: bool,
    /// Has the service made the session's secret, so that the client knows the session only from the answer?
    pub(super) is_private: bool,
    /// The session to open; nothing if the ticket joins one.
    pub(super) opening: Option<Opening>,
}

/// The session to open.
pub(super) struct Opening {
    pub(super) secret: Secret,
    pub(super) ttl: Duration,
    pub(super) lock_delay: Duration,
    pub(super) owner: Owner,
}

impl Ask {
    pub(super) fn read(
        service: &Service,
        name: Name,
        ask: TakeLock,
        joins: bool,
    ) -> Result<Self, Problem> {
        let wait = checks::wait(ask.wait_ms)?;
        let mode = checks::mode(ask.mode.unwrap_or(Mode::Exclusive))?;
        let manner = manner(service, mode, ask.manner, wait)?;
        let label = checks::label(ask.label, ask.label_base64.as_deref())?;
        let (ticket, secret) = (ask.ticket, ask.secret.as_deref());
        let is_repeatable = ticket.is_some() && (joins || secret.is_some());
        let is_private = !joins && secret.is_none();
        let opening = match joins {
            true if secret.is_some()
                || ask.ttl_ms.is_some()
                || ask.lock_delay_ms.is_some()
                || ask.owner.is_some() =>
            {
                let what = "secret, ttl_ms, lock_delay_ms and owner are for a session to be opened, and the \
                            headers name an open one";
                return Err(Problem::option(what));
            }
            true => None,
            false => Some(Opening {
                secret: secret.map_or_else(|| Ok(Secret::random()), Secret::read)?,
                ttl: checks::ttl(ask.ttl_ms, service.options.ttl)?,
                lock_delay: checks::lock_delay(ask.lock_delay_ms, service.options.lock_delay)?,
                owner: checks::owner(ask.owner),
            }),
        };
        Ok(Self {
            name,
            ticket: ticket.unwrap_or_else(TicketId::random),
            mode,
            manner,
            wait,
            label,
            // Another copy of a request that can be repeated may wait at another instance, or be granted there.
            withdraws: ask.withdraw_on_disconnect.unwrap_or(!joins && !is_repeatable),
            is_repeatable,
            is_private,
            opening,
        })
    }
}

/// How the ticket comes to its grant, if the store can do all that is asked.
fn manner(
    service: &Service,
    mode: Mode,
    asked: Option<wire::Manner>,
    wait: Duration,
) -> Result<Manner, Problem> {
    let (store, can) = (&service.store, service.store.capabilities());
    let manner = match asked {
        Some(wire::Manner::Queue) => Manner::Queue,
        Some(wire::Manner::Contend) => Manner::Contend,
        None if can.fair && !wait.is_zero() => Manner::Queue,
        None => Manner::Contend,
    };
    let shared = matches!(mode, Mode::Shared);
    let permits = matches!(mode, Mode::Permits { .. });
    let words = store.unsupported(mode);
    let missing = [
        (manner == Manner::Queue && !can.fair, "waiting in line; send \"manner\":\"contend\""),
        (shared && !can.shared, words.unwrap_or("read locks")),
        (permits && !can.permits, words.unwrap_or("semaphores")),
    ];
    match missing.into_iter().find(|(is_missing, _)| *is_missing) {
        Some((_, what)) => Err(unsupported(service, what)),
        None => Ok(manner),
    }
}

/// The store cannot do this.
pub(crate) fn unsupported(service: &Service, what: &'static str) -> Problem {
    StoreError::not_applied(service.store.scheme(), ErrorKind::Unsupported(what), what).into()
}
