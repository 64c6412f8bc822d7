//! Sequencers that the service signs.

use crate::support::{Folder, Server};
use http::Method;
use lockkeeper::SigningKeys;
use lockkeeper_server::SecurityOptions;
use serde_json::{Value, json};

const KEY: &str = "k1 11111111111111111111111111111111";

async fn start(folder: &Folder, accept_plain: bool) -> Server {
    let mut options = SecurityOptions::default();
    options.signing_keys = Some(folder.write("keys", KEY));
    options.accept_plain_sequencers = accept_plain;
    Server::start(options).await
}

async fn take(server: &Server, name: &str) -> Value {
    let path = format!("/v1/locks/{name}");
    server.ask(Method::POST, &path, None, "{}").await.json().await
}

/// What the service says about this sequencer: is it held, or which problem is it?
async fn check(server: &Server, sequencer: &str) -> Value {
    let body = json!({ "sequencer": sequencer }).to_string();
    let said = server.ask(Method::POST, "/v1/check", None, &body).await.json().await;
    if said["kind"].is_null() { said["held"].clone() } else { said["kind"].clone() }
}

#[tokio::test]
async fn the_service_signs_what_it_grants_and_refuses_what_it_has_not_signed() {
    let folder = Folder::new();
    let server = start(&folder, false).await;
    let [a, b] = [take(&server, "a").await, take(&server, "b").await];
    let [a, b] = [a, b].map(|taken| taken["sequencer"].as_str().unwrap().to_owned());
    let keys: SigningKeys = KEY.parse().unwrap();
    let signed = keys.verify(&a).unwrap();
    assert_eq!(signed.sequencer.name().as_str(), "a");
    assert!(signed.until > signed.issued);
    assert_eq!(check(&server, &a).await, json!(true));
    let parts = |text: &str| -> Vec<String> { text.split('.').map(str::to_owned).collect() };
    let mut forged = parts(&a);
    forged[2] = parts(&b).swap_remove(2);
    for text in [forged.join("."), a.replace(".k1.", ".k2."), a[..40].into()] {
        assert_eq!(check(&server, &text).await, "sequencer", "{text}");
    }
    // A kind of its own: the grant may well be held, and a client must not take this for its loss.
    assert_eq!(check(&server, &signed.sequencer.to_string()).await, "unsigned");
    let put = async |sequencer: &str| {
        let headers = [("lockkeeper-sequencer", sequencer)];
        server.send(Method::PUT, "/v1/cells/a", &headers, "{}").await.status
    };
    assert_eq!(put(&forged.join(".")).await, 422);
    assert_eq!(put(&signed.sequencer.to_string()).await, 422);
    assert!((200..300).contains(&put(&a).await));
}

#[tokio::test]
async fn keys_are_rotated_while_the_service_runs_and_plain_sequencers_can_be_accepted() {
    let folder = Folder::new();
    let server = start(&folder, true).await;
    let old = take(&server, "a").await["sequencer"].as_str().unwrap().to_owned();
    let plain = KEY.parse::<SigningKeys>().unwrap().verify(&old).unwrap().sequencer.to_string();
    assert_eq!(check(&server, &plain).await, json!(true));
    folder.write("keys", &format!("k2 22222222222222222222222222222222\n{KEY}\n"));
    server.security.refresh(true);
    let new = take(&server, "b").await["sequencer"].as_str().unwrap().to_owned();
    assert!(new.starts_with("lk1.k2."), "{new}");
    assert_eq!(
        [check(&server, &old).await, check(&server, &new).await],
        [json!(true), json!(true)]
    );
    folder.write("keys", "k2 22222222222222222222222222222222");
    server.security.refresh(true);
    assert_eq!(check(&server, &old).await, "sequencer");
    assert_eq!(check(&server, &new).await, json!(true));
}

#[tokio::test]
async fn no_sequencer_is_signed_for_another_mode_than_the_tickets() {
    let folder = Folder::new();
    let server = start(&folder, false).await;
    let id = || json!(lockkeeper::TicketId::random().to_string());
    let mut body = json!({"secret": id(), "ticket": id(), "mode": "shared"});
    let take = async |body: &Value| {
        let taken = server.ask(Method::POST, "/v1/locks/a", None, &body.to_string()).await;
        taken.json().await
    };
    for _ in 0..2 {
        let taken = take(&body).await;
        assert_eq!(check(&server, taken["sequencer"].as_str().unwrap()).await, json!(true));
    }
    body["mode"] = "exclusive".into();
    let taken = take(&body).await;
    assert_eq!((&taken["held"], &taken["sequencer"]), (&json!(true), &Value::Null));
}
