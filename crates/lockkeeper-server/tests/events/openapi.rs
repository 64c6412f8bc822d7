//! What `/openapi.json` says, compared with real answers of every route.

#[path = "../../../lockkeeper-cli/tests/support/json_schema.rs"]
mod json_schema;

use super::support::{Answered, Running};
use json_schema::Schema;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The document, and what was asked of it.
struct Document {
    paths: Value,
    schemas: Value,
    asked: BTreeSet<(String, String)>,
}

impl Document {
    fn new(document: &Value) -> Self {
        // The checker finds definitions under `$defs`.
        let schemas = document["components"]["schemas"].to_string();
        let schemas = schemas.replace("#/components/schemas/", "#/$defs/");
        Self {
            paths: document["paths"].clone(),
            schemas: serde_json::from_str(&schemas).unwrap(),
            asked: BTreeSet::new(),
        }
    }

    /// The answer must be one that the document describes for this route.
    fn check(&mut self, method: &str, path: &str, answer: &Answered) {
        let method = method.to_lowercase();
        let status = answer.head.split(' ').nth(1).unwrap();
        let described = &self.paths[path][&method]["responses"][status]["content"];
        assert!(described.is_object(), "{method} {path}: {status} is not described");
        let head = answer.head.to_lowercase();
        let media = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
        let media = media.split(';').next().unwrap();
        let schema = &described[media]["schema"];
        assert!(schema.is_object(), "{method} {path}: {status} with {media} is not described");
        // The document describes itself by its keys alone.
        if media.ends_with("json") && path != "/openapi.json" {
            let name = schema["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
            let root = json!({"$ref": format!("#/$defs/{name}"), "$defs": self.schemas});
            let value: Value = serde_json::from_str(&answer.text).unwrap();
            let checked = Schema::new(root).check(&value);
            assert!(checked.is_ok(), "{method} {path} {status}: {checked:?}\n{value}");
        }
        if status.starts_with('2') {
            self.asked.insert((method, path.to_owned()));
        }
    }

    fn not_asked(&self) -> Vec<(String, String)> {
        let all = self.paths.as_object().unwrap().iter().flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
        });
        all.filter(|one| !self.asked.contains(one)).collect()
    }
}

const LOCK: &str = "/v1/locks/{name}";
const TICKET: &str = "/v1/locks/{name}/tickets/{ticket}";

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_the_document_says() {
    for store in ["memory", "sqlite"] {
        let service = Running::on(store).await;
        let mut document = Document::new(&service.get("/openapi.json").await.expect(200));
        for path in ["/livez", "/readyz", "/metrics", "/openapi.json", "/v1/store", "/v1/locks"] {
            document.check("GET", path, &service.get(path).await);
        }
        sessions(&service, &mut document).await;
        let secret = locks(&service, &mut document).await;
        refusals(&service, &mut document, &secret).await;
        let mut streams = document.not_asked();
        streams.retain(|(_, path)| !path.ends_with("/hints") && path != "/v1/events");
        assert!(streams.is_empty(), "no answer of {streams:?} was seen");
        service.stop().await;
    }
}

async fn sessions(service: &Running, document: &mut Document) {
    let opened = service.post("/v1/sessions", &[], &Value::Null).await;
    document.check("POST", "/v1/sessions", &opened);
    let opened = opened.expect(200);
    let (session, secret) =
        (opened["session"].as_str().unwrap(), opened["secret"].as_str().unwrap());
    let headers = [("lockkeeper-secret", secret)];
    for name in ["one", "two"] {
        let ask = json!({"mode": {"permits": {"weight": 1, "of": 2}}});
        let taken = service.post(&format!("/v1/locks/{name}"), &headers, &ask).await;
        document.check("POST", LOCK, &taken);
    }
    let path = format!("/v1/sessions/{session}");
    document.check(
        "GET",
        "/v1/sessions/{session}",
        &service.send("GET", &path, &headers, &Value::Null).await,
    );
    for action in ["renew", "poll"] {
        let answer = service.post(&format!("{path}/{action}"), &headers, &json!({})).await;
        document.check("POST", &format!("/v1/sessions/{{session}}/{action}"), &answer);
    }
    let closed = service.send("DELETE", &path, &headers, &Value::Null).await;
    document.check("DELETE", "/v1/sessions/{session}", &closed);
    let late = service.post(&format!("{path}/renew"), &headers, &json!({})).await;
    document.check("POST", "/v1/sessions/{session}/renew", &late);
    late.expect(410);
}

/// Holds a lock at the end; the secret of its session.
async fn locks(service: &Running, document: &mut Document) -> String {
    let ask = json!({"label": "backup", "owner": {"host": "a", "pid": 1, "program": "b"}});
    let taken = service.post("/v1/locks/a", &[], &ask).await;
    document.check("POST", LOCK, &taken);
    let taken = taken.expect(200);
    let secret = taken["secret"].as_str().unwrap().to_owned();
    let headers = [("lockkeeper-secret", secret.as_str())];
    let queued = json!({"wait_ms": 1, "withdraw_on_disconnect": false});
    let queued = service.post("/v1/locks/a", &[], &queued).await;
    document.check("POST", LOCK, &queued);
    queued.expect(202);
    let busy = service.post("/v1/locks/a", &[], &json!({})).await;
    document.check("POST", LOCK, &busy);
    busy.expect(409);
    for (path, of) in [
        ("/v1/locks?prefix=a&limit=1", "/v1/locks"),
        ("/v1/locks/a", LOCK),
        ("/v1/locks/free", LOCK),
        ("/v1/locks/a/history", "/v1/locks/{name}/history"),
    ] {
        document.check("GET", of, &service.get(path).await);
    }
    let ticket = taken["ticket"].as_str().unwrap();
    let path = format!("/v1/locks/a/tickets/{ticket}");
    let label = service.send("PATCH", &path, &headers, &json!({"label": "x"})).await;
    document.check("PATCH", TICKET, &label);

    let check = json!({"sequencer": taken["sequencer"]});
    document.check("POST", "/v1/check", &service.post("/v1/check", &[], &check).await);
    let cell = "/v1/cells/{name}";
    document.check("GET", cell, &service.get("/v1/cells/a").await);
    let mut writer = vec![("lockkeeper-sequencer", taken["sequencer"].as_str().unwrap())];
    document.check("PUT", cell, &service.send("PUT", "/v1/cells/a", &writer, &json!("v")).await);
    document.check("GET", cell, &service.get("/v1/cells/a").await);
    writer.push(("if-match", "\"other\""));
    let refused = service.send("PUT", "/v1/cells/a", &writer, &json!("v")).await;
    document.check("PUT", cell, &refused);
    refused.expect(412);
    let holder = [headers[0], ("lockkeeper-ticket", ticket)];
    let cleared = service.send("DELETE", "/v1/cells/a", &holder, &Value::Null).await;
    document.check("DELETE", cell, &cleared);

    let left = service.send("DELETE", &path, &headers, &Value::Null).await;
    document.check("DELETE", TICKET, &left);
    let taken = service.post("/v1/locks/b", &[], &json!({})).await.expect(200);
    let evict = "/v1/locks/{name}/evict";
    let other = json!({"ticket": taken["ticket"], "fence": 1});
    let other = service.post("/v1/locks/b/evict", &[], &other).await;
    document.check("POST", evict, &other);
    other.expect(409);
    let evicted = service.post("/v1/locks/b/evict", &[], &json!({"ticket": taken["ticket"]})).await;
    document.check("POST", evict, &evicted);
    secret
}

async fn refusals(service: &Running, document: &mut Document, secret: &str) {
    let nowhere = format!("/v1/sessions/{}/renew", "0".repeat(32));
    let session = "/v1/sessions/{session}/renew";
    let wrong = service.post(&nowhere, &[("lockkeeper-secret", secret)], &json!({})).await;
    document.check("POST", session, &wrong);
    document.check("POST", session, &service.post(&nowhere, &[], &json!({})).await);
    for (method, path, of, body) in [
        ("GET", "/v1/locks?limit=0", "/v1/locks", Value::Null),
        ("GET", "/v1/locks?typo=1", "/v1/locks", Value::Null),
        ("GET", "/v1/locks/%00", LOCK, Value::Null),
        ("GET", "/v1/locks/a/history?limit=0", "/v1/locks/{name}/history", Value::Null),
        ("GET", "/v1/events?typo=1", "/v1/events", Value::Null),
        ("POST", "/v1/locks/a", LOCK, json!({"typo": 1})),
        ("POST", "/v1/locks/a", LOCK, json!({"wait_ms": 60_001})),
        ("POST", "/v1/locks/a/evict", "/v1/locks/{name}/evict", json!({})),
        ("POST", "/v1/check", "/v1/check", json!({"sequencer": "x"})),
        ("PUT", "/v1/cells/a", "/v1/cells/{name}", json!("v")),
        ("PATCH", "/v1/locks/a/tickets/x", TICKET, json!({})),
    ] {
        let answer = service.send(method, path, &[], &body).await;
        let is_refused = answer.head.starts_with("HTTP/1.1 4");
        assert!(is_refused, "{method} {path}: {}", answer.head);
        document.check(method, of, &answer);
    }
}
