//! Limits of one principal, and credentials that end while a stream is open.

use crate::support::{Folder, Server, eventually, principals, token};
use http::Method;
use lockkeeper_server::Quota;

#[tokio::test]
async fn a_limit_stops_its_own_principal_and_no_other() {
    let folder = Folder::new();
    let [ci, web] = [token("ci", &["lock"]), token("web", &["lock"])];
    let mut options = principals(folder.write("tokens", &format!("{}\n{}", ci.line, web.line)));
    let mut quota = Quota::unlimited();
    quota.sessions_per_minute = Some(2);
    options.quota = Some(quota);
    let server = Server::start(options).await;
    let open =
        async |token: &str| server.ask(Method::POST, "/v1/sessions", Some(token), "{}").await;
    assert_eq!(open(&ci.token).await.status, 200);
    let path = "/v1/locks/a";
    assert_eq!(server.ask(Method::POST, path, Some(&ci.token), "{}").await.status, 200);
    let refused = open(&ci.token).await;
    assert_eq!(refused.status, 429);
    let retry_after: u32 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=30).contains(&retry_after), "{retry_after}");
    let problem = refused.json().await;
    assert!(problem["detail"].as_str().unwrap().contains("sessions_per_minute (2)"), "{problem}");
    assert_eq!(server.ask(Method::POST, path, Some(&ci.token), "{}").await.status, 429);
    assert_eq!(open(&web.token).await.status, 200);
    assert_eq!(server.ask(Method::GET, "/v1/store", Some(&ci.token), "").await.status, 200);
}

#[tokio::test]
async fn requests_come_at_their_rate() {
    let folder = Folder::new();
    let ci = token("ci", &["read"]);
    let mut options = principals(folder.write("tokens", &ci.line));
    let mut quota = Quota::unlimited();
    quota.requests_per_second = Some(1);
    options.quota = Some(quota);
    let server = Server::start(options).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(server.ask(Method::GET, "/v1/store", Some(&ci.token), "").await.status);
    }
    assert!(statuses.starts_with(&[200, 200]) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(
        server.ask(Method::GET, "/livez", None, "").await.status,
        200,
        "probes are not counted"
    );
    eventually("a request is let in again", async || {
        server.ask(Method::GET, "/v1/store", Some(&ci.token), "").await.status == 200
    })
    .await;
}

#[tokio::test]
async fn waiters_and_streams_are_counted_while_they_last() {
    let folder = Folder::new();
    let ci = token("ci", &["lock"]);
    let mut options = principals(folder.write("tokens", &ci.line));
    let mut quota = Quota::unlimited();
    (quota.waiters, quota.streams) = (Some(1), Some(1));
    options.quota = Some(quota);
    let server = Server::start(options).await;
    let ask = async |method, path: &str, body: &str| {
        server.ask(method, path, Some(&ci.token), body).await
    };
    assert_eq!(ask(Method::POST, "/v1/locks/a", "{}").await.status, 200);
    let waiting = ask(Method::POST, "/v1/locks/a", r#"{"wait_ms":60000}"#);
    let probing = eventually("the waiter takes the only place", async || {
        ask(Method::GET, "/v1/store", "").await.status == 429
    });
    tokio::select! {
        answer = waiting => panic!("it does not wait: {}", answer.status),
        () = probing => {}
    }
    eventually("a waiter that goes away gives its place back", async || {
        ask(Method::GET, "/v1/store", "").await.status == 200
    })
    .await;
    let stream = ask(Method::GET, "/v1/events", "").await;
    assert!(stream.is_stream() && stream.status == 200);
    assert_eq!(ask(Method::GET, "/v1/events", "").await.status, 429);
    drop(stream);
    eventually("a stream that ends gives its place back", async || {
        ask(Method::GET, "/v1/events", "").await.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_removed() {
    let folder = Folder::new();
    let [ci, web] = [token("ci", &["read"]), token("web", &["read"])];
    let path = folder.write("tokens", &format!("{}\n{}", ci.line, web.line));
    let server = Server::start(principals(path)).await;
    let stream = server.ask(Method::GET, "/v1/events", Some(&ci.token), "").await;
    assert!(stream.is_stream());
    folder.write("tokens", &web.line);
    stream.ended().await;
    assert_eq!(server.ask(Method::GET, "/v1/store", Some(&ci.token), "").await.status, 401);
    assert_eq!(server.ask(Method::GET, "/v1/store", Some(&web.token), "").await.status, 200);
}

#[tokio::test]
async fn a_broken_file_keeps_the_principals_of_the_last_good_one() {
    let folder = Folder::new();
    let [ci, web] = [token("ci", &["read"]), token("web", &["read"])];
    let mut options = principals(folder.write("tokens", &ci.line));
    options.audit_log = Some(folder.path("audit"));
    let server = Server::start(options).await;
    let status =
        async |token: &str| server.ask(Method::GET, "/v1/store", Some(token), "").await.status;
    folder.write("tokens", "nonsense");
    eventually("the broken file is noted", async || folder.read("audit").contains("reload_failed"))
        .await;
    assert_eq!(status(&ci.token).await, 200);
    folder.write("tokens", &web.line);
    eventually("the new file is taken up", async || status(&web.token).await == 200).await;
    assert_eq!(status(&ci.token).await, 401);
    let audit = folder.read("audit");
    assert!(audit.contains(r#""event":"reloaded""#), "{audit}");
    assert!(audit.contains(r#""event":"refused""#) && audit.contains("/v1/store"), "{audit}");
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_replaced_by_another_one_of_the_same_principal() {
    let folder = Folder::new();
    let [stolen, fresh] = [token("ci", &["lock"]), token("ci", &["lock"])];
    let server = Server::start(principals(folder.write("tokens", &stolen.line))).await;
    let stream = server.ask(Method::GET, "/v1/events", Some(&stolen.token), "").await;
    assert!(stream.is_stream());
    let both = format!("{}\n{}", stolen.line, fresh.line);
    folder.write("tokens", &both);
    server.security.refresh(true);
    let other = server.ask(Method::GET, "/v1/events", Some(&fresh.token), "").await;
    assert!(other.is_stream());
    folder.write("tokens", &fresh.line);
    stream.ended().await;
}
