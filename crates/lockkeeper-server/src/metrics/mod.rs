//! What the service counts: `GET /metrics`, as Prometheus reads it.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `lockkeeper_requests_total` | counter | requests by `method`, `route`, `status` |
//! | `lockkeeper_request_seconds` | histogram | the time to the answer by `method`, `route`, `outcome` |
//! | `lockkeeper_problems_total` | counter | errors by `kind` |
//! | `lockkeeper_wait_seconds` | histogram | from a ticket's arrival to its grant or its end, by `outcome` |
//! | `lockkeeper_hold_seconds` | histogram | from the grant to its end, by `outcome` |
//! | `lockkeeper_events_total` | counter | events by `type` |
//! | `lockkeeper_look_seconds` | histogram | looks at the store for the events |
//! | `lockkeeper_lock_grants_total` | counter | grants by `lock`, of the locks that `--metrics-prefix` names |
//! | `lockkeeper_sessions`, `…_waiters` | gauge | sessions opened here that live; tickets that wait |
//! | `lockkeeper_streams`, `…_requests_open` | gauge | streams of events; requests under way |
//! | `lockkeeper_store_up` | gauge | 1 if the store has answered last |
//! | `lockkeeper_info` | gauge | 1; version and store as labels |
//!
//! Lock names are no labels: their number has no bound.

mod figures;
mod requests;

pub use requests::RequestId;

pub(crate) use requests::observe;

use crate::{
    principal::Scope,
    routes::{Route, route},
    service::Service,
};
use axum::{extract::State, response::IntoResponse};
use figures::{Counters, Histograms, gauge, info};
use http::{HeaderValue, Method, header};
use lockkeeper::{Name, Store as _, store::http::wire::EventKind};
use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The routes of this group.
pub(crate) fn routes() -> Vec<Route> {
    vec![route(Method::GET, "/metrics", Scope::Admin, show)]
}

/// Of answers and of waits, in seconds.
const SHORT: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 60.0];
/// Of locks in hand.
const LONG: &[f64] = &[0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0];
/// How many names `--metrics-prefix` may bring in.
const NAMES_MAX: usize = 1_000;

/// What one instance counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Counters,
    times: Histograms,
    problems: Counters,
    waits: Histograms,
    holds: Histograms,
    events: Counters,
    looks: Histograms,
    grants: Counters,
    prefix: Option<String>,
    streams: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Metrics {
    /// Locks whose names begin with the prefix are counted by name.
    pub(crate) fn new(prefix: Option<String>) -> Self {
        Self {
            requests: Counters::new(
                "lockkeeper_requests_total",
                "Requests answered.",
                &["method", "route", "status"],
            ),
            times: Histograms::new(
                "lockkeeper_request_seconds",
                "Time from a request to the beginning of its answer, waits included.",
                &["method", "route", "outcome"],
                SHORT,
            ),
            problems: Counters::new("lockkeeper_problems_total", "Errors answered.", &["kind"]),
            waits: Histograms::new(
                "lockkeeper_wait_seconds",
                "Time that tickets waited, by how the wait has ended.",
                &["outcome"],
                SHORT,
            ),
            holds: Histograms::new(
                "lockkeeper_hold_seconds",
                "Time that locks were held, by how that has ended.",
                &["outcome"],
                LONG,
            ),
            events: Counters::new("lockkeeper_events_total", "Events told.", &["type"]),
            looks: Histograms::new(
                "lockkeeper_look_seconds",
                "Time of a look at the store for the events.",
                &[],
                SHORT,
            ),
            grants: Counters::new(
                "lockkeeper_lock_grants_total",
                "Grants of the locks that --metrics-prefix names.",
                &["lock"],
            ),
            prefix,
            streams: Arc::default(),
            open: Arc::default(),
        }
    }

    /// A request was answered; `problem` is empty if well.
    pub(crate) fn answered(
        &self,
        method: &str,
        route: &str,
        status: u16,
        problem: &str,
        took: Duration,
    ) {
        self.requests.add(&[method, route, &status.to_string()]);
        let outcome = match status {
            ..400 => "done",
            400..500 => "refused",
            _ => "failed",
        };
        self.times.note(&[method, route, outcome], took);
        if !problem.is_empty() {
            self.problems.add(&[problem]);
        }
    }

    /// Something happened to a ticket that came through here.
    pub(crate) fn ticket(
        &self,
        name: &Name,
        kind: EventKind,
        waited: Option<Duration>,
        held: Option<Duration>,
    ) {
        let is_grant = kind == EventKind::Granted;
        if let Some(waited) = waited.filter(|_| is_grant || held.is_none()) {
            self.waits.note(&[kind.word()], waited);
        }
        if let Some(held) = held {
            self.holds.note(&[kind.word()], held);
        }
        let is_named = |prefix: &String| name.as_str().starts_with(prefix.as_str());
        if is_grant && self.prefix.as_ref().is_some_and(is_named) {
            self.grants.add_bounded(name.as_str(), NAMES_MAX);
        }
    }

    pub(crate) fn event(&self, kind: EventKind) {
        self.events.add(&[kind.word()]);
    }

    pub(crate) fn looked(&self, took: Duration) {
        self.looks.note(&[], took);
    }

    /// Counts a stream of events until the answer is dropped.
    pub(crate) fn stream(&self) -> Gauge {
        Gauge::up(&self.streams)
    }

    /// Counts a request under way.
    pub(crate) fn request(&self) -> Gauge {
        Gauge::up(&self.open)
    }

    fn render(&self, service: &Service) -> String {
        let mut text = String::new();
        for family in [&self.requests, &self.problems, &self.events, &self.grants] {
            let _ = write!(text, "{family}");
        }
        for family in [&self.times, &self.waits, &self.holds, &self.looks] {
            let _ = write!(text, "{family}");
        }
        let (sessions, waiters) = service.hub.sessions_and_waiters();
        let (streams, open) =
            (self.streams.load(Ordering::Relaxed), self.open.load(Ordering::Relaxed));
        let up = u8::from(service.hub.store_is_up());
        let mut one = |name: &str, help: &str, value: usize| gauge(&mut text, name, help, value);
        one("lockkeeper_sessions", "Sessions opened by this instance that live.", sessions);
        one("lockkeeper_waiters", "Tickets of this instance that wait.", waiters);
        one("lockkeeper_streams", "Streams of events that are open.", streams);
        one("lockkeeper_requests_open", "Requests under way.", open);
        one("lockkeeper_store_up", "Whether the store has answered last.", up.into());
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("store", service.store.scheme())];
        info(&mut text, "lockkeeper_info", "This instance.", &labels);
        text
    }
}

/// Counts one thing as long as it is there.
#[derive(Debug)]
pub(crate) struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    fn up(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `GET /metrics`.
async fn show(State(service): State<Service>) -> impl IntoResponse {
    let media = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, service.metrics.render(&service))
}
