//! Sessions, and who may speak for one.

use crate::support::{fresh, on_both};
use serde_json::json;

#[tokio::test]
async fn a_session_opened_at_one_instance_is_renewed_at_another() {
    on_both(|api, other| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let there = client.at(&other);
        let renewed = there.send("POST", &client.path("/renew"), json!({})).await.is(200);
        assert_eq!(renewed["session"], client.session);
        assert_eq!(renewed["tickets"][0]["fence"], taken["fence"]);
        assert_eq!(renewed["digest"]["count"], 1);
        let short = there.send("POST", &client.path("/renew"), json!({"tickets": false})).await;
        let short = short.is(200);
        assert_eq!((&short["version"], short.get("tickets")), (&renewed["version"], None));
        let look = there.send("GET", &client.path(""), json!({})).await.is(200);
        assert_eq!(look["tickets"], renewed["tickets"]);
        assert_eq!(there.leave(&taken).await.is(200)["result"], "released");
        assert_eq!(
            there.send("DELETE", &client.path(""), json!({})).await.is(200)["result"],
            "closed"
        );
    })
    .await;
}

#[tokio::test]
async fn only_the_secret_speaks_for_a_session() {
    on_both(|api, _| async move {
        let (client, other) = (api.open().await, api.open().await);
        let taken = client.hold("a").await;
        let ticket = crate::support::ticket_path(&taken);
        let wrong = other.secret.as_str();
        let routes = [
            ("POST", client.path("/renew")),
            ("POST", client.path("/poll")),
            ("GET", client.path("")),
            ("GET", client.path("/hints")),
            ("DELETE", client.path("")),
        ];
        for (method, path) in &routes {
            let without = api.send(method, path, &[], "").await;
            without.is_problem(403, "secret");
            let with = api.send(method, path, &[("lockkeeper-secret", wrong)], "").await;
            with.is_problem(403, "secret");
        }
        api.send("DELETE", &ticket, &[], "").await.is_problem(403, "secret");
        let both = [("lockkeeper-secret", wrong), ("lockkeeper-session", &client.session)];
        api.send("DELETE", &ticket, &both, "").await.is_problem(403, "secret");
        // Another session has no such ticket.
        let gone = other.send("DELETE", &ticket, json!({})).await.is(200);
        assert_eq!(gone["result"], "gone");
        assert_eq!(api.tickets("a").await.len(), 1);
        let no_secret = api.send("POST", "/v1/locks/b", &[("lockkeeper-secret", "abc")], "").await;
        no_secret.is_problem(400, "request");
    })
    .await;
}

#[tokio::test]
async fn the_secret_stands_in_no_answer_but_the_one_that_opens() {
    on_both(|api, _| async move {
        let secret = fresh();
        let ask = json!({"secret": secret, "ticket": fresh()});
        let taken = api.json("POST", "/v1/locks/a", &[], ask).await.is(200);
        assert_eq!(taken["secret"], secret);
        let headers = [("lockkeeper-secret", secret.as_str())];
        let renew = format!("/v1/sessions/{}/renew", taken["session"].as_str().unwrap());
        for (method, path) in [
            ("POST", renew.as_str()),
            ("GET", "/v1/locks"),
            ("GET", "/v1/locks/a"),
            ("GET", "/v1/locks/a/history"),
            ("GET", "/v1/store"),
            ("GET", "/metrics"),
            ("POST", "/v1/sessions/00/renew"),
        ] {
            let said = api.send(method, path, &headers, "").await;
            let text = String::from_utf8(said.bytes).unwrap();
            assert!(!text.is_empty() && !text.contains(&secret), "{path}: {text}");
        }
    })
    .await;
}

#[tokio::test]
async fn terms_out_of_bounds_are_refused_and_defaults_are_told() {
    on_both(|api, _| async move {
        let opened = api.send("POST", "/v1/sessions", &[], "").await.is(200);
        assert_eq!((&opened["ttl_ms"], &opened["lock_delay_ms"]), (&json!(15_000), &json!(0)));
        assert!(opened["margin_ms"].as_u64() > Some(0));
        for ask in [
            json!({"ttl_ms": 99}),
            json!({"ttl_ms": 86_400_001}),
            json!({"lock_delay_ms": 86_400_001}),
        ] {
            api.json("POST", "/v1/sessions", &[], ask).await.is_problem(422, "option");
        }
    })
    .await;
}
