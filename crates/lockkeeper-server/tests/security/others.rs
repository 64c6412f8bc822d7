//! What one principal can learn of another one's locks, or say about them.

use crate::support::{Folder, Server, principals, token};
use http::Method;
use lockkeeper::{
    Mode, Name, Owner, TicketId,
    store::{AnyStore, Enter, Manner, Open, Place, SessionId, Store as _, memory::Memory},
};
use std::time::Duration;

/// More lines than one request looks through.
const MANY: usize = 10_050;

#[tokio::test]
async fn a_page_ends_at_no_name_that_its_reader_may_not_see() {
    let store = AnyStore::new(Memory::new());
    let (session, owner) = (SessionId::random(), Owner::new("there", 7, "test"));
    let (ttl, lock_delay) = (Duration::from_secs(600), Duration::ZERO);
    store.open(Open { session, ttl, lock_delay, owner }).await.unwrap();
    let names = (0..MANY).map(|n| format!("web-{n:05}")).chain(["web".into(), "web/a".into()]);
    for name in names {
        let name = Name::new(&name).unwrap();
        let place = Place { session, name, ticket: TicketId::random() };
        let (mode, manner, label) = (Mode::Exclusive, Manner::Queue, Vec::new());
        store.enter(Enter { place, mode, manner, label }).await.unwrap();
    }
    let folder = Folder::new();
    let ci = token("ci", &["read:web", "read:web/*"]);
    let server = Server::on(store, principals(folder.write("tokens", &ci.line))).await;
    let list = async |query: &str| {
        let path = format!("/v1/locks{query}");
        let page = server.ask(Method::GET, &path, Some(&ci.token), "").await.json().await;
        let locks = page["locks"].as_array().unwrap_or_else(|| panic!("{page}")).iter();
        let names: Vec<_> = locks.map(|line| line["lock"].as_str().unwrap().to_owned()).collect();
        (names, page["next"].as_str().map(str::to_owned))
    };
    assert_eq!(list("").await, (vec!["web".to_owned(), "web/a".to_owned()], None));
    assert_eq!(list("?limit=1").await, (vec!["web".to_owned()], Some("web".to_owned())));
    assert_eq!(list("?limit=1&after=web").await.0, ["web/a"]);
    assert_eq!(list("?after=web-1").await.0, ["web/a"]);
    assert_eq!(list("?after=web/a").await, (vec![], None));
}

#[tokio::test]
async fn a_poll_for_a_ticket_of_another_principal_tells_no_event() {
    let folder = Folder::new();
    let [ci, web] = [token("ci", &["lock:jobs/*"]), token("web", &["lock:web/*"])];
    let lines = format!("{}\n{}", ci.line, web.line);
    let server = Server::start(principals(folder.write("tokens", &lines))).await;
    let label = r#"{"label":"of web alone"}"#;
    let taken = server.ask(Method::POST, "/v1/locks/web%2Fa", Some(&web.token), label).await;
    let ticket = taken.json().await["ticket"].as_str().unwrap().to_owned();

    let opened = server.ask(Method::POST, "/v1/sessions", Some(&ci.token), "{}").await.json().await;
    let path = format!("/v1/sessions/{}/poll", opened["session"].as_str().unwrap());
    let bearer = format!("Bearer {}", ci.token);
    let secret = opened["secret"].as_str().unwrap();
    let headers = [("authorization", bearer.as_str()), ("lockkeeper-secret", secret)];
    for lock in ["jobs/a", "web/a"] {
        let body = format!(r#"{{"tickets":[{{"lock":"{lock}","ticket":"{ticket}"}}]}}"#);
        let polled = server.send(Method::POST, &path, &headers, &body).await.json().await;
        assert_eq!(polled["tickets"][0]["state"], "gone", "{polled}");
    }
    // A ticket of the same id in the line of a lock of its own.
    let body = format!(r#"{{"ticket":"{ticket}"}}"#);
    server.send(Method::POST, "/v1/locks/jobs%2Fa", &headers, &body).await;

    let history = async |lock: &str, token: &str| {
        let path = format!("/v1/locks/{lock}/history");
        let history = server.ask(Method::GET, &path, Some(token), "").await.json().await;
        history["events"].as_array().unwrap_or_else(|| panic!("{history}")).clone()
    };
    let told = history("web%2Fa", &web.token).await;
    assert!(told.len() == 1 && told[0]["type"] == "granted", "{told:?}");
    let own = format!("{:?}", history("jobs%2Fa", &ci.token).await);
    assert!(!own.contains("of web alone"), "{own}");
}

#[tokio::test]
async fn a_prefix_with_which_no_name_begins_is_refused() {
    let folder = Folder::new();
    let ci = token("ci", &["read"]);
    let server = Server::start(principals(folder.write("tokens", &ci.line))).await;
    let long = "a".repeat(513);
    for path in ["/v1/locks", "/v1/events"] {
        for prefix in ["%00", "a%0A", long.as_str()] {
            let path = format!("{path}?prefix={prefix}");
            let refused = server.ask(Method::GET, &path, Some(&ci.token), "").await;
            assert_eq!((refused.status, refused.kind().await.as_deref()), (422, Some("option")));
        }
    }
}
