//! Take, leave, label, evict; each request also a second time.

use crate::support::{fresh, on_both, ticket_path};
use serde_json::json;

#[tokio::test]
async fn one_request_takes_a_lock_one_renews_and_one_releases() {
    on_both(|api, _| async move {
        let ask = json!({"wait_ms": 30_000, "ttl_ms": 15_000, "label": "backup"});
        let taken = api.json("POST", "/v1/locks/nightly", &[], ask).await.is(200);
        assert_eq!((&taken["held"], &taken["ttl_ms"]), (&json!(true), &json!(15_000)));
        assert_eq!(taken["renew_after_ms"], 5_000);
        assert_eq!(taken["fence"].to_string(), taken["fence_text"].as_str().unwrap());
        assert!(taken["sequencer"].as_str().unwrap().starts_with("lk1:"));
        let secret = [("lockkeeper-secret", taken["secret"].as_str().unwrap())];
        let renew = format!("/v1/sessions/{}/renew", taken["session"].as_str().unwrap());
        let renewed = api.send("POST", &renew, &secret, "").await.is(200);
        assert_eq!(renewed["tickets"][0]["state"], "granted");
        assert_eq!(renewed["tickets"][0]["fence"], taken["fence"]);
        assert_eq!(renewed["renew_after_ms"], 5_000);
        assert_eq!(api.tickets("nightly").await[0]["label"], "backup");
        let path = ticket_path(&taken);
        assert_eq!(api.send("DELETE", &path, &secret, "").await.is(200)["result"], "released");
        assert_eq!(api.send("DELETE", &path, &secret, "").await.is(200)["result"], "gone");
        assert!(api.tickets("nightly").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn the_same_request_again_has_the_effect_of_one() {
    on_both(|api, other| async move {
        let (secret, ticket) = (fresh(), fresh());
        let ask = json!({"secret": secret, "ticket": ticket, "label": "x"});
        let first = api.json("POST", "/v1/locks/a", &[], ask.clone()).await.is(200);
        for again in [&api, &other] {
            let again = again.json("POST", "/v1/locks/a", &[], ask.clone()).await.is(200);
            for field in ["ticket", "session", "secret", "fence", "sequencer"] {
                assert_eq!(again[field], first[field], "{field}");
            }
        }
        assert_eq!(api.tickets("a").await.len(), 1);

        let open = json!({"secret": fresh(), "ttl_ms": 30_000});
        let first = api.json("POST", "/v1/sessions", &[], open.clone()).await.is(200);
        assert_eq!(other.json("POST", "/v1/sessions", &[], open).await.is(200), first);

        let client = api.open().await;
        let taken = client.hold("b").await;
        let label = json!({"label": "new", "edit": 2});
        let (ticket, late) = (ticket_path(&taken), json!({"label": "old", "edit": 1}));
        for ask in [label.clone(), label, late] {
            client.send("PATCH", &ticket, ask).await.is(200);
            assert_eq!(api.tickets("b").await[0]["label"], "new");
        }
        for result in ["released", "gone"] {
            assert_eq!(client.leave(&taken).await.is(200)["result"], result);
        }
        client.send("PATCH", &ticket, json!({"label": "z"})).await.is_problem(409, "not_held");
        for _ in 0..2 {
            let closed = client.send("DELETE", &client.path(""), json!({})).await;
            assert_eq!(closed.is(200)["result"], "closed");
        }
        client.take("b", json!({})).await.is_problem(410, "session_over");
        client
            .send("POST", &client.path("/renew"), json!({}))
            .await
            .is_problem(410, "session_over");
    })
    .await;
}

#[tokio::test]
async fn a_busy_lock_is_told_with_its_holder_and_leaves_no_ticket() {
    on_both(|api, _| async move {
        let owner = json!({"host": "ci-7", "pid": 7, "program": "make"});
        let ask = json!({"owner": owner, "label": "build"});
        api.json("POST", "/v1/locks/a", &[], ask).await.is(200);
        for ask in [json!({}), json!({"manner": "contend"}), json!({"wait_ms": 0})] {
            let busy = api.json("POST", "/v1/locks/a", &[], ask).await.is_problem(409, "busy");
            assert_eq!(busy["holder"]["owner"], owner);
            assert_eq!((&busy["holder"]["label"], &busy["ahead"]), (&json!("build"), &json!(1)));
            assert_eq!(busy["outcome"], "not_applied");
        }
        assert_eq!(api.tickets("a").await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn readers_and_permits_share_a_line_and_another_capacity_is_refused() {
    on_both(|api, _| async move {
        let client = api.open().await;
        for _ in 0..2 {
            client.take("r", json!({"mode": "shared"})).await.is(200);
            client.take("s", json!({"mode": {"permits": {"weight": 1, "of": 2}}})).await.is(200);
        }
        client.take("r", json!({})).await.is_problem(409, "busy");
        let third = json!({"mode": {"permits": {"weight": 1, "of": 2}}});
        client.take("s", third).await.is_problem(409, "busy");
        let other = client.take("s", json!({"mode": {"permits": {"weight": 1, "of": 3}}})).await;
        assert_eq!(other.is_problem(422, "capacity")["capacity"], 2);
        let line = api.get("/v1/locks/s").await.is(200);
        assert_eq!(line["permits"], 2);
        let wrong = json!({"mode": {"permits": {"weight": 3, "of": 2}}});
        client.take("t", wrong).await.is_problem(422, "option");
    })
    .await;
}

#[tokio::test]
async fn a_ticket_is_evicted_once_and_only_with_the_fence_that_was_seen() {
    on_both(|api, _| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let evict = async |fence: Option<u64>| {
            let ask = json!({"ticket": taken["ticket"], "fence": fence});
            api.json("POST", "/v1/locks/a/evict", &[], ask).await
        };
        let fence = taken["fence"].as_u64().unwrap();
        let changed = evict(Some(fence - 1)).await.is_problem(409, "fence_changed");
        assert_eq!(changed["fence"], fence);
        assert_eq!(evict(Some(fence)).await.is(200)["result"], "evicted");
        assert_eq!(evict(Some(fence)).await.is(200)["result"], "gone");
        let polled = json!({"tickets": [{"lock": "a", "ticket": taken["ticket"]}]});
        let polled = client.send("POST", &client.path("/poll"), polled).await.is(200);
        assert_eq!(polled["tickets"][0]["state"], "gone");
    })
    .await;
}

#[tokio::test]
async fn a_sequencer_is_held_until_the_lock_is_released() {
    on_both(|api, other| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let check = async || {
            let ask = json!({"sequencer": taken["sequencer"]});
            other.json("POST", "/v1/check", &[], ask).await.is(200)["held"].clone()
        };
        assert_eq!(check().await, true);
        client.leave(&taken).await.is(200);
        assert_eq!(check().await, false);
        for text in ["", "lk1:x", "lk1.a.b.c"] {
            let refused = api.json("POST", "/v1/check", &[], json!({"sequencer": text})).await;
            refused.is_problem(422, "sequencer");
        }
        let foreign = format!("lk1:{}:x:1:{}:a", "0".repeat(16), fresh());
        let held = api.json("POST", "/v1/check", &[], json!({"sequencer": foreign})).await;
        assert_eq!(held.is(200)["held"], false);
    })
    .await;
}

#[tokio::test]
async fn a_hold_can_outlive_its_ticket() {
    on_both(|api, _| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let path = format!("{}?keep_ms=60000", ticket_path(&taken));
        assert_eq!(client.send("DELETE", &path, json!({})).await.is(200)["result"], "released");
        client.take("a", json!({})).await.is_problem(409, "busy");
        assert_eq!(api.tickets("a").await[0]["owner"], json!(null));
    })
    .await;
}

#[tokio::test]
async fn a_ticket_that_was_left_as_stray_is_refused_when_it_comes() {
    on_both(|api, _| async move {
        let (client, ticket) = (api.open().await, fresh());
        let path = format!("/v1/locks/a/tickets/{ticket}?stray=true");
        assert_eq!(client.send("DELETE", &path, json!({})).await.is(200)["result"], "gone");
        let late = client.take("a", json!({"ticket": ticket})).await;
        late.is_problem(409, "ticket_closed");
    })
    .await;
}
