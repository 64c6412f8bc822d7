//! Take, leave, label, evict; each request also a second time.

use crate::support::{Api, fresh, on_both, ticket_path, until};
use serde_json::{Value, json};

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

/// Does this session hold exactly these locks?
async fn holds(api: &Api, secret: &str, session: &Value, locks: &[&str]) {
    let path = format!("/v1/sessions/{}", session.as_str().unwrap());
    let look = api.send("GET", &path, &[("lockkeeper-secret", secret)], "").await.is(200);
    let tickets = look["tickets"].as_array().unwrap();
    let mut held: Vec<_> = tickets.iter().map(|of| of["lock"].as_str().unwrap()).collect();
    held.sort_unstable();
    assert_eq!(held, locks, "{look}");
    assert!(tickets.iter().all(|of| of["state"] == "granted"), "{look}");
}

#[tokio::test]
async fn a_request_that_gets_no_lock_leaves_the_clients_session_open() {
    on_both(|api, _| async move {
        let (holder, secret) = (api.open().await, fresh());
        holder.hold("b").await;
        let ask = json!({"secret": secret});
        let taken = api.json("POST", "/v1/locks/a", &[], ask.clone()).await.is(200);
        api.json("POST", "/v1/locks/b", &[], ask).await.is_problem(409, "busy");
        let waits = |ask: Value| {
            let api = api.clone();
            tokio::spawn(async move { api.json("POST", "/v1/locks/b", &[], ask).await })
        };
        for withdraw in [None, Some(true)] {
            let mut ask = json!({"secret": secret, "wait_ms": 60_000});
            if let Some(withdraw) = withdraw {
                ask["ticket"] = fresh().into();
                ask["withdraw_on_disconnect"] = withdraw.into();
            }
            let waiting = waits(ask);
            api.stands("b", 2).await;
            waiting.abort();
            api.stands("b", 1).await;
            api.stands("a", 1).await;
        }
        holds(&api, &secret, &taken["session"], &["a"]).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_ends_with_its_only_ticket_and_with_no_other() {
    on_both(|api, _| async move {
        let secret = fresh();
        let headers = [("lockkeeper-secret", secret.as_str())];
        let ask = json!({"secret": secret});
        let leave = async |path: &str| {
            api.send("DELETE", path, &headers, "").await.is(200)["result"].clone()
        };
        let a = api.json("POST", "/v1/locks/a", &[], ask.clone()).await.is(200);
        assert_eq!(leave(&format!("/v1/locks/a/tickets/{}", fresh())).await, "gone");
        api.stands("a", 1).await;
        holds(&api, &secret, &a["session"], &["a"]).await;
        let b = api.json("POST", "/v1/locks/b", &[], ask).await.is(200);
        for _ in 0..2 {
            leave(&ticket_path(&b)).await;
            holds(&api, &secret, &a["session"], &["a"]).await;
        }
        // One that ends with its ticket is over when the answer comes.
        let (secret, ticket) = (fresh(), fresh());
        let ask = json!({"secret": secret, "ticket": ticket});
        let taken = api.json("POST", "/v1/locks/c", &[], ask).await.is(200);
        let headers = [("lockkeeper-secret", secret.as_str())];
        let left = api.send("DELETE", &ticket_path(&taken), &headers, "").await.is(200);
        assert_eq!(left["result"], "released");
        let renew = format!("/v1/sessions/{}/renew", taken["session"].as_str().unwrap());
        api.send("POST", &renew, &headers, "").await.is_problem(410, "session_over");
    })
    .await;
}

#[tokio::test]
async fn a_repeated_take_renews_the_session_that_an_earlier_one_has_opened() {
    on_both(|api, _| async move {
        let (secret, ticket) = (fresh(), fresh());
        let ask = json!({"secret": secret, "ticket": ticket, "ttl_ms": 10_000});
        let ends_in = async || api.tickets("a").await[0]["ends_in_ms"].as_u64().unwrap();
        api.json("POST", "/v1/locks/a", &[], ask.clone()).await.is(200);
        until("a part of the TTL is over", async || ends_in().await < 9_000).await;
        let before = ends_in().await;
        api.json("POST", "/v1/locks/a", &[], ask.clone()).await.is(200);
        assert!(ends_in().await > before, "the same lock, {before}");
        until("a part of the TTL is over", async || ends_in().await < 9_000).await;
        let before = ends_in().await;
        api.json("POST", "/v1/locks/b", &[], json!({"secret": secret})).await.is(200);
        assert!(ends_in().await > before, "another lock, {before}");
    })
    .await;
}
