//! Tokens, session secrets and passwords are nowhere but where they were sent.

use crate::support::{Folder, Server, principals, token};
use http::Method;
use lockkeeper_server::{Scope, table};
use serde_json::json;
use std::{
    io,
    sync::{Arc, Mutex},
};

/// A session's secret.
const SECRET: &str = "c0ffee00c0ffee00c0ffee00c0ffee00";
const KEY: &str = "canarycanarycanarycanarycanarycanary";
const PASSWORD: &str = "hunter2-canary";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_is_in_any_log_answer_event_metric_or_page() {
    let log = Log::default();
    let writer = {
        let log = log.clone();
        move || log.clone()
    };
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    // For the whole process: a logger of this thread alone misses what other threads have met first.
    tracing::subscriber::set_global_default(subscriber.with_writer(writer).finish()).unwrap();

    let folder = Folder::new();
    let [admin, reader] = [token("admin", &["lock", "admin"]), token("reader", &["read:none/*"])];
    let lines = format!("{}\n{}", admin.line, reader.line);
    let mut options = principals(folder.write("tokens", &lines));
    options.audit_log = Some(folder.path("audit"));
    options.signing_keys = Some(folder.write("keys", &format!("k1 {KEY}")));
    let server = Server::start(options).await;
    let bearer = format!("Bearer {}", admin.token);
    let headers = [("authorization", bearer.as_str()), ("lockkeeper-secret", SECRET)];
    let opens = json!({ "secret": SECRET, "ttl_ms": 10_000 }).to_string();
    let opened = server.send(Method::POST, "/v1/sessions", &headers, &opens).await.json().await;
    let session = opened["session"].as_str().unwrap().to_owned();
    assert_eq!(opened["secret"], SECRET, "the answer that opens it is the only one");
    let taken = server.send(Method::POST, "/v1/locks/a", &headers, "{}").await.json().await;
    let ticket = taken["ticket"].as_str().unwrap().to_owned();

    let mut seen = vec![taken.to_string()];
    let basic = ("authorization", format!("Basic {PASSWORD}"));
    let wrong = ("authorization", format!("Bearer {}x", admin.token));
    let other = ("authorization", format!("Bearer {}", reader.token));
    for route in table() {
        let path = route.path.replace("{name}", "a").replace("{session}", &session);
        let path = path.replace("{ticket}", &ticket).replace(['{', '}', '*'], "");
        if route.path.contains('{') && route.scope == Scope::Open {
            continue;
        }
        // What ends the session and the ticket comes last by itself: it needs them for its own path.
        let bodies = ["", "{}", r#"{"unknown":1}"#, "nonsense"];
        let is_end = route.method == Method::DELETE || path.ends_with("/evict");
        for body in bodies.into_iter().filter(|_| !is_end) {
            let answer = server.send(route.method.clone(), &path, &headers, body).await;
            if !answer.is_stream() {
                seen.push(answer.text().await);
            }
        }
        for credential in [&basic, &wrong, &other] {
            let headers = [(credential.0, credential.1.as_str()), headers[1]];
            let answer = server.send(route.method.clone(), &path, &headers, "{}").await;
            if !answer.is_stream() {
                seen.push(answer.text().await);
            }
        }
    }
    let evict = json!({ "ticket": ticket }).to_string();
    let answer = server.send(Method::POST, "/v1/locks/a/evict", &headers, &evict).await;
    assert_eq!(answer.status, 200);
    seen.push(answer.text().await);
    let close = format!("/v1/sessions/{session}");
    seen.push(server.send(Method::DELETE, &close, &headers, "").await.text().await);
    folder.write("tokens", &format!("broken {lines}"));
    server.security.refresh(true);

    let audit = folder.read("audit");
    assert!(audit.contains(r#""event":"evicted""#) && audit.contains(&ticket), "{audit}");
    assert!(audit.contains(r#""principal":"admin""#) && audit.contains("reload_failed"), "{audit}");
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("evicted"), "the log was seen: {log}");
    for (place, text) in
        [("the log", log), ("the audit log", audit), ("an answer", seen.join("\n"))]
    {
        for secret in [&admin.token, &reader.token, SECRET, KEY, PASSWORD] {
            // A token is found by its beginning too.
            let start = &secret[..secret.len().min(20)];
            if let Some(at) = text.find(start) {
                panic!("a secret is in {place}: {}", &text[at.saturating_sub(200)..at]);
            }
        }
    }
}
