//! A service, and requests to it.

use axum::{Router, body::Body, http::Request};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use lockkeeper::Keeper;
use lockkeeper_server::{Options, Service, router};
use serde_json::{Value, json};
use std::{future::Future, time::Duration};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tower_service::Service as _;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One instance of the service.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) service: Service,
    app: Router,
    _keeper: Keeper,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| {
            panic!("{e}: {} {}", self.status, String::from_utf8_lossy(&self.bytes))
        })
    }

    /// Its JSON, if it has this status.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self.json()
    }

    /// A problem of this status and kind.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, kind: &str) -> Value {
        let body = self.is(status);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(
            (body["kind"].as_str(), body["status"].as_u64()),
            (Some(kind), Some(status.into()))
        );
        assert_eq!(body["type"], format!("urn:lockkeeper:{kind}"));
        assert!(
            !body["title"].as_str().unwrap().is_empty()
                && !body["detail"].as_str().unwrap().is_empty()
        );
        body
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Api {
    pub(crate) async fn at(url: &str, options: Options) -> Self {
        let keeper = Keeper::connect(url).await.unwrap();
        let service = Service::new(keeper.store().clone(), options);
        Self { app: router(&service), service, _keeper: keeper }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let response = self.app.clone().call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes().to_vec();
        Reply { status: parts.status.as_u16(), headers: parts.headers, bytes }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], Body::empty()).await
    }

    pub(crate) async fn json(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> Reply {
        let headers = [headers, &[("content-type", "application/json")]].concat();
        self.send(method, path, &headers, body.to_string()).await
    }

    /// Opens a session.
    pub(crate) async fn open(&self) -> Client {
        let opened =
            self.json("POST", "/v1/sessions", &[], json!({"ttl_ms": 60_000})).await.is(200);
        let text = |field: &str| opened[field].as_str().unwrap().to_owned();
        Client { api: self.clone(), session: text("session"), secret: text("secret") }
    }

    /// The tickets of a line.
    pub(crate) async fn tickets(&self, name: &str) -> Vec<Value> {
        let line = self.get(&format!("/v1/locks/{name}")).await.is(200);
        line["tickets"].as_array().unwrap().clone()
    }

    /// Waits until so many tickets stand in a line.
    pub(crate) async fn stands(&self, name: &str, tickets: usize) {
        until(&format!("{tickets} tickets in {name}"), async || {
            self.tickets(name).await.len() == tickets
        })
        .await;
    }
}

/// A client with a session.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) api: Api,
    pub(crate) session: String,
    pub(crate) secret: String,
}

impl Client {
    pub(crate) async fn send(&self, method: &str, path: &str, body: Value) -> Reply {
        let headers = [
            ("lockkeeper-session", self.session.as_str()),
            ("lockkeeper-secret", self.secret.as_str()),
        ];
        self.api.json(method, path, &headers, body).await
    }

    /// The same client at another instance.
    pub(crate) fn at(&self, api: &Api) -> Self {
        Self { api: api.clone(), ..self.clone() }
    }

    pub(crate) async fn take(&self, name: &str, body: Value) -> Reply {
        self.send("POST", &format!("/v1/locks/{name}"), body).await
    }

    /// Takes a free lock: its ticket.
    pub(crate) async fn hold(&self, name: &str) -> Value {
        self.take(name, json!({})).await.is(200)
    }

    pub(crate) async fn leave(&self, taken: &Value) -> Reply {
        self.send("DELETE", &ticket_path(taken), json!({})).await
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.session)
    }
}

/// The path of the ticket in an answer. For names that need no encoding.
pub(crate) fn ticket_path(taken: &Value) -> String {
    let text = |field: &str| taken[field].as_str().unwrap();
    format!("/v1/locks/{}/tickets/{}", text("lock"), text("ticket"))
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < end, "in vain: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Runs a test on the memory store and on SQLite, each time with two instances on one store.
pub(crate) async fn on_both<F: Future<Output = ()>>(test: impl Fn(Api, Api) -> F) {
    let folder = TempDir::new().unwrap();
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    for url in [format!("memory://{name}"), sqlite] {
        let first = Api::at(&url, Options::default()).await;
        let second = Api::at(&url, Options::default()).await;
        test(first, second).await;
    }
}

/// An id or a secret.
pub(crate) fn fresh() -> String {
    lockkeeper::TicketId::random().to_string()
}
