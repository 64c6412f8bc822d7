//! Events, histories, and the wait for a change: over TCP, from a service in this process.

mod openapi;
mod support;

use serde_json::{Value, json};
use support::{Running, Viewer};

/// Each test runs on both: their stores are other code.
const STORES: [&str; 2] = ["memory", "sqlite"];

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_clients_do_is_seen_once_and_in_order() {
    for store in STORES {
        let service = Running::on(store).await;
        let other = service.other_client().await;
        let mut viewer = Viewer::open(&service, "/v1/events?prefix=jobs/", None).await;
        assert_eq!(viewer.event().await["type"], "reset", "the stream has begun");

        let held = other.lock("jobs/nightly").label("backup").await.unwrap();
        let granted = viewer.event().await;
        assert_eq!(
            (&granted["type"], &granted["lock"]),
            (&json!("granted"), &json!("jobs/nightly"))
        );
        assert_eq!(granted["fence"].as_u64(), Some(held.fence()));
        assert_eq!(granted["fence_text"], held.fence().to_string());
        assert_eq!((&granted["label"], &granted["mode"]), (&json!("backup"), &json!("exclusive")));
        assert_eq!(granted["exact"], false);
        assert!(granted["owner"]["pid"].is_u64() && granted["waited_ms"].is_u64(), "{granted}");

        let second = service.other_client().await;
        let waiter = tokio::spawn(async move { (second.lock("jobs/nightly").await, second) });
        let queued = viewer.event().await;
        assert_eq!(queued["type"], "queued");
        other.lock("elsewhere").await.unwrap().release().await.unwrap();
        held.set_label("half way").await.unwrap();
        let label = viewer.event().await;
        assert_eq!((&label["type"], &label["label"]), (&json!("label"), &json!("half way")));

        held.release().await.unwrap();
        let released = viewer.event().await;
        assert_eq!(
            (&released["type"], &released["ticket"]),
            (&json!("released"), &granted["ticket"])
        );
        assert!(released["held_ms"].is_u64(), "{released}");
        let next = viewer.event().await;
        assert_eq!((&next["type"], &next["ticket"]), (&json!("granted"), &queued["ticket"]));

        let (guard, second) = waiter.await.unwrap();
        let line = second.get("jobs/nightly").await.unwrap().unwrap();
        assert!(second.evict("jobs/nightly", line.tickets[0].id).await.unwrap());
        assert_eq!(viewer.event().await["ticket"], queued["ticket"]);
        drop(guard);
        second.close().await;
        other.close().await;
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_through_the_service_is_told_exactly_and_once() {
    for store in STORES {
        let service = Running::on(store).await;
        let mut viewer = Viewer::open(&service, "/v1/events", None).await;
        assert_eq!(viewer.event().await["type"], "reset");
        let ask =
            json!({"label": "backup", "owner": {"host": "ci-7", "pid": 7, "program": "deploy"}});
        let taken = service.post("/v1/locks/nightly", &[], &ask).await.expect(200);
        let (ticket, secret) =
            (taken["ticket"].as_str().unwrap(), taken["secret"].as_str().unwrap());
        let granted = viewer.event().await;
        assert_eq!((&granted["type"], &granted["exact"]), (&json!("granted"), &json!(true)));
        assert_eq!((&granted["fence"], &granted["label"]), (&taken["fence"], &json!("backup")));
        assert_eq!(granted["owner"]["host"], "ci-7");

        let secrets = [("lockkeeper-secret", secret)];
        let path = format!("/v1/locks/nightly/tickets/{ticket}");
        let patch = service.send("PATCH", &path, &secrets, &json!({"label": "x"})).await;
        patch.expect(200);
        assert_eq!(viewer.event().await["type"], "label");
        service.send("DELETE", &path, &secrets, &Value::Null).await.expect(200);
        let released = viewer.event().await;
        assert_eq!((&released["type"], &released["exact"]), (&json!("released"), &json!(true)));
        assert_eq!((&released["fence"], &released["label"]), (&taken["fence"], &json!("x")));

        let taken = service.post("/v1/locks/nightly", &[], &json!({})).await.expect(200);
        assert_eq!(viewer.event().await["type"], "granted");
        let ask = json!({"ticket": taken["ticket"], "fence": taken["fence"]});
        service.post("/v1/locks/nightly/evict", &[], &ask).await.expect(200);
        let evicted = viewer.event().await;
        assert_eq!((&evicted["type"], &evicted["exact"]), (&json!("evicted"), &json!(true)));
        // The looks have seen all of that too, and tell none of it again.
        let looks = service.figure("lockkeeper_look_seconds_count").await;
        service
            .until("two more looks", async |service| {
                service.figure("lockkeeper_look_seconds_count").await >= looks + 2.0
            })
            .await;
        service.post("/v1/locks/last", &[], &json!({})).await.expect(200);
        let last = viewer.event().await;
        assert_eq!((&last["type"], &last["lock"]), (&json!("granted"), &json!("last")));

        let history = service.get("/v1/locks/nightly/history").await.expect(200);
        let events = history["events"].as_array().unwrap();
        assert_eq!(kinds(events), ["granted", "label", "released", "granted", "evicted"]);
        assert!(history["since"].is_string() && history["watched_since"].is_string());
        let some = service.get("/v1/locks/nightly/history?limit=2").await.expect(200);
        assert_eq!(kinds(some["events"].as_array().unwrap()), ["granted", "evicted"]);
        let metrics = service.get("/metrics").await.text;
        for text in [&viewer.seen, &history.to_string(), &metrics] {
            assert!(!text.contains(secret), "a secret is in {text}");
        }
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_connects_again_misses_nothing_or_is_told_so() {
    let service = Running::on("sqlite").await;
    let other = service.other_client().await;
    let mut viewer = Viewer::open(&service, "/v1/events?prefix=a", None).await;
    assert_eq!(viewer.event().await["type"], "reset");
    let held = other.lock("a").await.unwrap();
    assert_eq!(viewer.event().await["type"], "granted");
    let last = viewer.last_id.clone();
    drop(viewer);
    held.release().await.unwrap();
    let mut viewer = Viewer::open(&service, "/v1/events?prefix=a", Some(&last)).await;
    assert_eq!(viewer.event().await["type"], "released");

    // A part that no viewer has watched has gaps.
    let mut wider = Viewer::open(&service, "/v1/events", Some(&last)).await;
    assert_eq!(wider.event().await["type"], "reset");
    for strange in ["x", "0000000000000000-1", "9999999999"] {
        let mut viewer = Viewer::open(&service, "/v1/events?prefix=a", Some(strange)).await;
        let reset = viewer.event().await;
        assert_eq!(reset["type"], "reset", "{strange}");
        assert!(reset["why"].as_str().is_some_and(|why| why.contains("id")), "{reset}");
    }
    other.close().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_reset_when_the_service_stops() {
    let service = Running::on("memory").await;
    let mut viewer = Viewer::open(&service, "/v1/events", None).await;
    assert_eq!(viewer.event().await["type"], "reset");
    assert!(viewer.head.contains("x-accel-buffering: no"), "{}", viewer.head);
    assert!(viewer.head.contains("content-type: text/event-stream"), "{}", viewer.head);
    service.stop().await;
    let reset = viewer.event().await;
    assert_eq!(reset["type"], "reset");
    assert!(reset["why"].as_str().unwrap().contains("stopping"));
    assert!(viewer.is_over().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_not_looked_at_without_viewers() {
    let service = Running::on("memory").await;
    let store = service.get("/v1/store").await.expect(200);
    assert_eq!(store["events"]["looking"], false);
    assert_eq!(service.figure("lockkeeper_look_seconds_count").await, 0.0);
    let mut viewers = Vec::new();
    for _ in 0..20 {
        let mut viewer = Viewer::open(&service, "/v1/events", None).await;
        assert_eq!(viewer.event().await["type"], "reset");
        viewers.push(viewer);
    }
    assert_eq!(service.figure("lockkeeper_streams").await, 20.0);
    let store = service.get("/v1/store").await.expect(200);
    assert_eq!(store["events"]["looking"], true);
    assert!(store["events"]["within_ms"].as_u64().is_some_and(|ms| ms <= 10_000), "{store}");
    let looks = service.figure("lockkeeper_look_seconds_count").await;
    assert!(looks < 20.0, "{looks} looks for viewers of the same names");
    drop(viewers);
    service
        .until("all streams are closed", async |service| {
            service.figure("lockkeeper_streams").await == 0.0
        })
        .await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_a_change_of_one_line() {
    for store in STORES {
        let service = Running::on(store).await;
        let other = service.other_client().await;
        let held = other.lock("a").await.unwrap();
        let line = service.get("/v1/locks/a").await.expect(200);
        let token = line["change"].as_str().unwrap().to_owned();
        let path = |wait_ms: u64| format!("/v1/locks/a?wait_change={token}&wait_ms={wait_ms}");

        let same = service.get(&path(1)).await.expect(200);
        assert_eq!(same["change"], token, "nothing has changed, and the time is over");
        let waiting = tokio::spawn(service.clone().get_owned(path(30_000)));
        service
            .until("the request waits", async |service| {
                service.get("/v1/store").await.expect(200)["events"]["looking"] == true
            })
            .await;
        held.release().await.unwrap();
        let changed = waiting.await.unwrap().expect(200);
        assert_ne!(changed["change"], token);
        assert_eq!(changed["tickets"], json!([]));

        // A change that goes through the service, and one that has happened before the request.
        let token = changed["change"].as_str().unwrap();
        let path = format!("/v1/locks/a?wait_change={token}&wait_ms=30000");
        let waiting = tokio::spawn(service.clone().get_owned(path.clone()));
        let taken = service.post("/v1/locks/a", &[], &json!({})).await.expect(200);
        let changed = waiting.await.unwrap().expect(200);
        assert_eq!(changed["tickets"][0]["ticket"], taken["ticket"]);
        assert_eq!(service.get(&path).await.expect(200)["change"], changed["change"]);
        service.get(&format!("{path}0")).await.expect(422);
        other.close().await;
        service.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_whose_session_dies_is_seen_to_expire() {
    let service = Running::on("memory").await;
    let mut viewer = Viewer::open(&service, "/v1/events", None).await;
    assert_eq!(viewer.event().await["type"], "reset");
    let ask = json!({"ttl_ms": 1000});
    let taken = service.post("/v1/locks/a", &[], &ask).await.expect(200);
    assert_eq!(viewer.event().await["type"], "granted");
    let expired = viewer.event().await;
    assert_eq!((&expired["type"], &expired["ticket"]), (&json!("expired"), &taken["ticket"]));
    assert!(expired["held_ms"].as_u64().is_some_and(|ms| ms >= 900), "{expired}");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_and_have_ids() {
    let service = Running::on("memory").await;
    service.post("/v1/locks/secret-name", &[], &json!({})).await.expect(200);
    service.post("/v1/locks/secret-name", &[], &json!({})).await.expect(409);
    let nowhere =
        service.send("GET", "/nowhere", &[("x-request-id", "mine-1")], &Value::Null).await;
    assert!(nowhere.head.contains("x-request-id: mine-1"), "{}", nowhere.head);
    nowhere.expect(404);
    // The session that was opened for the refused ticket is closed behind the answer.
    service
        .until("one session is left", async |service| {
            service.figure("lockkeeper_sessions").await == 1.0
        })
        .await;
    let text = service.get("/metrics").await.text;
    for line in [
        "lockkeeper_requests_total{method=\"POST\",route=\"/v1/locks/{name}\",status=\"200\"} 1",
        "lockkeeper_requests_total{method=\"POST\",route=\"/v1/locks/{name}\",status=\"409\"} 1",
        "lockkeeper_requests_total{method=\"GET\",route=\"none\",status=\"404\"} 1",
        "lockkeeper_problems_total{kind=\"busy\"} 1",
        "lockkeeper_wait_seconds_count{outcome=\"granted\"} 1",
        "lockkeeper_store_up 1",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    assert!(!text.contains("secret-name"), "{text}");
    service.stop().await;
}
