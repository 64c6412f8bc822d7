//! Makes the document of the table of routes and of what is written by hand.

use crate::{
    console,
    principal::Scope,
    problem::KINDS,
    routes::{Route, table},
};
use lockkeeper::{ErrorKind, store::http::wire};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Problems that any route can answer.
const ALWAYS: &[&str] = &["request", "limit", "host", "origin", "fault"];
/// Of routes that need a scope.
const GUARDED: &[&str] = &["unauthenticated", "denied"];
const OF_A_NAME: &[&str] = &["name"];
const OF_A_QUERY: &[&str] = &["option"];
const OF_A_BODY: &[&str] = &["option", "media_type", "too_large", "slow"];
const OF_A_SESSION: &[&str] = &["secret", "session_over", "other_instance"];
const OF_THE_STORE: &[&str] = &[
    "unavailable",
    "stopping",
    "full",
    "capacity",
    "store_denied",
    "store_misconfigured",
    "store_corrupt",
    "store_failed",
    "unsupported",
];

pub(super) fn document() -> Value {
    let schemas: Value = serde_json::from_str(include_str!("schemas.json")).expect("JSON");
    let operations = include_str!("operations.json");
    let mut operations: BTreeMap<String, Value> = serde_json::from_str(operations).expect("JSON");
    let pages: BTreeSet<&str> = console::routes().iter().map(|route| route.path).collect();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in table().iter().filter(|route| !pages.contains(route.path)) {
        let key = format!("{} {}", route.method, route.path);
        let written = operations.remove(&key);
        let written = written.unwrap_or_else(|| panic!("operations.json does not have {key}"));
        let method = route.method.as_str().to_lowercase();
        paths.entry(route.path).or_default().insert(method, operation(route, &written));
    }
    assert!(operations.is_empty(), "no such routes: {:?}", operations.keys());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "lockkeeper",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Distributed locks over HTTP",
            "description": "Times are whole milliseconds, fences are numbers and text, and errors are problem documents \
                            (RFC 9457). A name is one percent-encoded segment of the path. Requests refuse fields \
                            that they do not know; answers may gain fields.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    })
}

fn operation(route: &Route, written: &Value) -> Value {
    let mut operation = json!({
        "operationId": written["id"],
        "tags": [written["tag"]],
        "summary": written["summary"],
        "x-scope": format!("{:?}", route.scope).to_lowercase(),
        "parameters": parameters(route.path, written),
        "responses": responses(route, written),
    });
    if route.scope == Scope::Open {
        operation["security"] = json!([]);
    }
    if let Some(body) = written["body"].as_str() {
        let required = written["needed"] == true;
        operation["requestBody"] = json!({"required": required, "content": content(body)});
    }
    operation
}

/// A schema's name, or a media type.
fn content(of: &str) -> Value {
    match of.contains('/') {
        true => json!({of: {"schema": {"type": "string"}}}),
        false => json!({"application/json": {"schema": schema(of)}}),
    }
}

fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn parameters(path: &str, written: &Value) -> Vec<Value> {
    let hex = || json!({"type": "string", "pattern": "^[0-9a-fA-F]{32}$"});
    let in_path = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = in_path
        .map(|name| {
            let (schema, what) = match name {
                "name" => (schema("Name"), "The lock"),
                "ticket" => (schema("TicketId"), "The ticket"),
                _ => (hex(), "The public half of the session"),
            };
            json!({"name": name, "in": "path", "required": true, "description": what, "schema": schema})
        })
        .collect();
    for (name, of) in written["query"].as_object().into_iter().flatten() {
        let (what, schema) = (&of["description"], &of["schema"]);
        all.push(json!({"name": name, "in": "query", "description": what, "schema": schema}));
    }
    let text = || json!({"type": "string"});
    let secret = (wire::SECRET, hex(), "The session's secret");
    let headers = match (&written["secret"], &written["writer"]) {
        (Value::Bool(true), _) => vec![(secret, true)],
        (Value::String(_), _) => {
            let session = (wire::SESSION, hex(), "The public half of the session to join");
            vec![(session, false), (secret, false)]
        }
        (_, Value::Bool(true)) => [
            (wire::SEQUENCER, text(), "The grant, as a sequencer"),
            (
                wire::TICKET,
                schema("TicketId"),
                "The grant, as the ticket of the holder's own session",
            ),
            secret,
            (wire::EDIT, json!({"type": "integer", "minimum": 0}), "The number of this write"),
            ("if-match", text(), "Only if the value has this ETag"),
            ("if-none-match", text(), "Only if the value does not have this ETag"),
        ]
        .map(|header| (header, false))
        .to_vec(),
        _ => Vec::new(),
    };
    let header = |((name, schema, what), required): ((&str, Value, &str), bool)| json!({"name": name, "in": "header", "required": required, "description": what, "schema": schema});
    all.extend(headers.into_iter().map(header));
    all
}

fn responses(route: &Route, written: &Value) -> BTreeMap<String, Value> {
    let mut kinds: BTreeSet<&str> = ALWAYS.iter().copied().collect();
    let mut add = |more: &[&'static str], if_so: bool| {
        kinds.extend(more.iter().filter(|_| if_so));
    };
    let has_session = !written["secret"].is_null() || !written["writer"].is_null();
    add(GUARDED, route.scope != Scope::Open);
    add(OF_A_NAME, route.path.contains("{name}"));
    add(OF_A_QUERY, !written["query"].is_null());
    add(OF_A_BODY, !written["body"].is_null());
    add(OF_A_SESSION, has_session);
    add(OF_THE_STORE, written["store"] == true);
    add(&["stopping"], written["answers"]["200"] == "text/event-stream");
    kinds.extend(written["problems"].as_array().into_iter().flatten().filter_map(Value::as_str));
    let mut statuses: BTreeMap<u16, Vec<(&str, String)>> = BTreeMap::new();
    for kind in kinds {
        let (status, title) = of_kind(kind);
        statuses.entry(status).or_default().push((kind, title));
    }
    let problems = statuses.into_iter().map(|(status, kinds)| {
        let title = |(kind, title): &(&str, String)| match title.is_empty() {
            true => format!("`{kind}`"),
            false => format!("`{kind}`: {title}"),
        };
        let titles: Vec<String> = kinds.iter().map(title).collect();
        let content = json!({"application/problem+json": {"schema": schema("Problem")}});
        (status.to_string(), json!({"description": titles.join("; "), "content": content}))
    });
    let answers = written["answers"].as_object().expect("answers").iter().map(|(status, of)| {
        let of = of.as_str().expect("a schema's name or a media type");
        let what = if status == "202" { "The ticket waits" } else { "Done" };
        (status.clone(), json!({"description": what, "content": content(of)}))
    });
    problems.chain(answers).collect()
}

/// The status and the title of a kind of problem.
fn of_kind(kind: &str) -> (u16, String) {
    if let Some((_, status, title)) = KINDS.iter().find(|(known, ..)| *known == kind) {
        return (*status, (*title).to_owned());
    }
    let stores = [
        ErrorKind::Unavailable,
        ErrorKind::SessionOver,
        ErrorKind::TicketClosed,
        ErrorKind::Capacity(0),
        ErrorKind::Name,
        ErrorKind::Full,
        ErrorKind::Denied,
        ErrorKind::Misconfigured,
        ErrorKind::Corrupt,
        ErrorKind::Unsupported(""),
        ErrorKind::Other,
    ];
    let known = stores.into_iter().find(|store| wire::kind(*store).0 == kind);
    let known = known.unwrap_or_else(|| panic!("no kind of problem is called {kind}"));
    (wire::kind(known).1, crate::problem::title(known).to_owned())
}
