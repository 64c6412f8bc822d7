//! Every route of the table, with every kind of credential.

use crate::support::{Folder, Server, principals, token};
use http::Method;
use lockkeeper_server::{NewToken, Route, Scope, table};
use std::time::{Duration, SystemTime};

/// What a caller has to show.
struct Caller {
    what: &'static str,
    token: Option<String>,
    /// May it use a route of this scope that names the lock `jobs/a`, or one that names none?
    may: fn(Scope, bool) -> bool,
    is_known: bool,
}

/// The path with something in each of its places.
fn path(route: &Route) -> String {
    let places = [
        ("{name}", "jobs%2Fa"),
        ("{session}", "0123456789abcdef0123456789abcdef"),
        ("{ticket}", "0123456789abcdef0123456789abcdef"),
    ];
    let path =
        places.iter().fold(route.path.to_owned(), |path, (place, text)| path.replace(place, text));
    match path.contains('{') && route.scope != Scope::Open {
        true => panic!("say in this test what stands for the parameter in {path}"),
        false => path.replace(['{', '}', '*'], ""),
    }
}

fn known(what: &'static str, token: &NewToken, may: fn(Scope, bool) -> bool) -> Caller {
    Caller { what, token: Some(token.token.clone()), may, is_known: true }
}

fn unknown(what: &'static str, token: Option<String>) -> Caller {
    Caller { what, token, may: |_, _| false, is_known: false }
}

#[tokio::test]
async fn every_route_asks_for_its_scope_and_for_the_name_in_its_path() {
    let folder = Folder::new();
    let read = token("reader", &["read:jobs/*"]);
    let lock = token("locker", &["lock:jobs/*"]);
    let admin = token("admin", &["admin"]);
    let some = token("some", &["admin:jobs/*"]);
    let wrong = token("wrong", &["read:web/*", "lock:web/*", "admin:web/*"]);
    let removed = token("removed", &["read", "lock", "admin"]);
    let long_ago = SystemTime::now() - Duration::from_secs(5);
    let all = ["read", "lock", "admin"].map(str::to_owned);
    let expired = NewToken::draw("expired", &all, Some(long_ago)).unwrap();
    let good = [&read, &lock, &admin, &some, &wrong, &expired].map(|token| token.line.clone());
    let before = format!("{}\n{}\n", good.join("\n"), removed.line);
    let server = Server::start(principals(folder.write("tokens", &before))).await;
    let probe = server.ask(Method::GET, "/v1/store", Some(&removed.token), "").await;
    assert_eq!(probe.status, 200, "it is good until it is removed");
    folder.write("tokens", &good.join("\n"));
    server.security.refresh(true);

    let callers = [
        unknown("no token", None),
        unknown("a wrong token", Some(token("wrong", &["admin"]).token)),
        unknown("the hash of a token", Some(read.line.split(' ').nth(1).unwrap().to_owned())),
        unknown("a removed token", Some(removed.token)),
        unknown("an expired token", Some(expired.token)),
        known("read", &read, |scope, _| scope == Scope::Read),
        known("lock", &lock, |scope, _| scope != Scope::Admin),
        known("admin", &admin, |scope, _| scope != Scope::Lock),
        known("admin of some", &some, |scope, named| match scope {
            Scope::Lock => false,
            Scope::Admin => named,
            _ => true,
        }),
        known("wrong names", &wrong, |scope, named| !named && scope != Scope::Admin),
    ];
    for route in table() {
        let (path, named) = (path(&route), route.path.contains("{name}"));
        for caller in &callers {
            let row =
                format!("{} {} ({:?}) with {}", route.method, route.path, route.scope, caller.what);
            let answer = server.ask(route.method.clone(), &path, caller.token.as_deref(), "").await;
            assert!(answer.headers.contains_key("content-security-policy"), "{row}");
            assert!(answer.status < 500 || answer.status == 501, "{row}: {}", answer.status);
            let refusal = match answer.status {
                401 | 403 => answer.kind().await.filter(|kind| kind != "secret"),
                _ => None,
            };
            let expected = match () {
                () if route.scope == Scope::Open => None,
                () if !caller.is_known => Some("unauthenticated"),
                () if !(caller.may)(route.scope, named) => Some("denied"),
                () => None,
            };
            assert_eq!(refusal.as_deref(), expected, "{row}");
        }
    }
}

#[test]
fn no_route_that_changes_something_is_open_to_readers() {
    let table = table();
    assert!(table.len() > 10);
    for route in table {
        let only_looks = route.method == Method::GET || route.path == "/v1/check";
        let is_strict = matches!(route.scope, Scope::Lock | Scope::Admin);
        assert!(only_looks || is_strict, "{} {}", route.method, route.path);
        let is_of_the_api = route.path.starts_with("/v1/") || route.path == "/metrics";
        assert!(!is_of_the_api || route.scope != Scope::Open, "{} {}", route.method, route.path);
    }
}

#[tokio::test]
async fn a_refusal_says_what_is_missing() {
    let folder = Folder::new();
    let reader = token("reader", &["read:jobs/*"]);
    let server = Server::start(principals(folder.write("tokens", &reader.line))).await;
    let answer = server.ask(Method::GET, "/v1/store", None, "").await;
    assert_eq!(
        (answer.status, &answer.headers["www-authenticate"]),
        (401, &"Bearer".parse().unwrap())
    );
    let take = server.ask(Method::POST, "/v1/locks/jobs%2Fa", Some(&reader.token), "{}").await;
    assert_eq!(take.status, 403);
    let problem = take.json().await;
    assert!(problem["detail"].as_str().unwrap().contains("scope lock"), "{problem}");
    assert_eq!(problem["outcome"], "not_applied");
    let twice = [
        ("authorization", format!("Bearer {}", reader.token)),
        ("authorization", "Bearer x".into()),
    ];
    let twice = twice.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(server.send(Method::GET, "/v1/store", &twice, "").await.status, 401);
}

#[tokio::test]
async fn a_session_belongs_to_the_principal_that_opened_it() {
    let folder = Folder::new();
    let [ci, web] = [token("ci", &["lock"]), token("web", &["lock", "admin"])];
    let lines = format!("{}\n{}", ci.line, web.line);
    let server = Server::start(principals(folder.write("tokens", &lines))).await;
    let opened = server.ask(Method::POST, "/v1/sessions", Some(&ci.token), "{}").await.json().await;
    let secret = opened["secret"].as_str().unwrap();
    let path = format!("/v1/sessions/{}/renew", opened["session"].as_str().unwrap());
    for (token, expected) in [(&web.token, 410), (&ci.token, 200)] {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("lockkeeper-secret", secret)];
        let renewed = server.send(Method::POST, &path, &headers, "{}").await;
        let status = renewed.status;
        assert_eq!(status, expected, "{}", renewed.text().await);
    }
}

#[tokio::test]
async fn a_listing_has_only_the_names_that_its_reader_may_see() {
    let folder = Folder::new();
    let [ci, all] = [token("ci", &["read:jobs/*", "read:web"]), token("all", &["lock"])];
    let lines = format!("{}\n{}", ci.line, all.line);
    let server = Server::start(principals(folder.write("tokens", &lines))).await;
    for name in ["jobs%2Fa", "jobs%2Fb", "other", "web", "web2"] {
        let path = format!("/v1/locks/{name}");
        assert_eq!(server.ask(Method::POST, &path, Some(&all.token), "{}").await.status, 200);
    }
    let list = async |token: &str, query: &str| -> Vec<String> {
        let path = format!("/v1/locks{query}");
        let listed = server.ask(Method::GET, &path, Some(token), "").await.json().await;
        let lines = listed["locks"].as_array().unwrap_or_else(|| panic!("{listed}")).iter();
        lines.map(|line| line["lock"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list(&all.token, "").await.len(), 5);
    assert_eq!(list(&ci.token, "").await, ["jobs/a", "jobs/b", "web"]);
    assert_eq!(list(&ci.token, "?prefix=w").await, ["web"]);
    assert!(list(&ci.token, "?prefix=other").await.is_empty());
}
