//! What all requests share.

use crate::{
    auth::Security, connection::Limits, events::Hub, known::Known, locks::InFlight,
    metrics::Metrics, problem::Problem, waiting::Waiting,
};
use lockkeeper::{
    TTL_DEFAULT,
    store::{AnyStore, StoreResult},
};
use std::{fmt, ops::Deref, sync::Arc, time::Duration};
use tokio::sync::watch;

/// What a service is told at its start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The TTL of a session whose opener asks for none.
    pub ttl: Duration,
    /// The lock-delay of a session whose opener asks for none.
    pub lock_delay: Duration,
    /// The limits of connections.
    pub limits: Limits,
    /// Metrics count the grants of locks whose names begin so by name; those of no lock if missing.
    pub metrics_prefix: Option<String>,
    /// Who may come in, and what for. Without it: every caller, for everything.
    pub security: Arc<Security>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: TTL_DEFAULT,
            lock_delay: Duration::ZERO,
            limits: Limits::default(),
            metrics_prefix: None,
            security: Arc::default(),
        }
    }
}

/// One instance of the service. Cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

/// What one instance has.
#[derive(Debug)]
pub struct Shared {
    pub(crate) store: AnyStore,
    pub(crate) options: Options,
    /// Another number after every start.
    pub(crate) instance: u64,
    pub(crate) hub: Hub,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) known: Known,
    pub(crate) waiting: Waiting,
    pub(crate) in_flight: InFlight,
    stop: watch::Sender<bool>,
}

impl Service {
    /// A service in front of this store.
    #[must_use]
    pub fn new(store: AnyStore, options: Options) -> Self {
        let instance = rand::random();
        let metrics = Arc::new(Metrics::new(options.metrics_prefix.clone()));
        Self(Arc::new(Shared {
            hub: Hub::new(store.clone(), instance, Arc::clone(&metrics)),
            known: Known::new(&store),
            waiting: Waiting::default(),
            in_flight: InFlight::default(),
            store,
            options,
            instance,
            metrics,
            stop: watch::Sender::new(false),
        }))
    }

    /// Stops: what waits is answered, streams end, no session and no lock ends.
    pub fn stop(&self) {
        self.0.stop.send_replace(true);
        self.0.hub.stop();
    }

    /// Reads again what was read from files.
    pub fn reload(&self) {
        self.0.options.security.refresh(true);
    }

    /// Resolves when the service stops.
    pub async fn stopped(&self) {
        // The sender lives as long as the service.
        let _ = self.0.stop.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Has it been told to stop?
    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.stop.borrow()
    }

    /// What the store has answered. Events tell when it stops answering.
    pub(crate) fn heard<T>(&self, answer: StoreResult<T>) -> Result<T, Problem> {
        match &answer {
            Ok(_) => self.hub.store_answered(),
            Err(e) => self.hub.store_failed(e),
        }
        answer.map_err(Problem::from)
    }

    /// For how long the body of a request may take to arrive.
    pub(crate) fn body_time(&self) -> Duration {
        self.options.limits.body_time
    }
}

impl Deref for Service {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({:?})", self.store)
    }
}
