//! Long polls and streams of hints.

use crate::support::{Api, PATIENCE, fresh, on_both, until};
use http_body_util::BodyExt as _;
use lockkeeper_server::{Options, router};
use serde_json::{Value, json};
use std::{future::Future, time::Duration};
use tokio::time::timeout;
use tower_service::Service as _;

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("an answer in time")
}

#[tokio::test]
async fn a_long_poll_is_granted_by_the_release_of_another_client() {
    on_both(|api, other| async move {
        let holder = api.open().await;
        let taken = holder.hold("a").await;
        let waiting = {
            let other = other.clone();
            let ask = json!({"wait_ms": 60_000});
            tokio::spawn(async move { other.json("POST", "/v1/locks/a", &[], ask).await })
        };
        api.stands("a", 2).await;
        holder.leave(&taken).await.is(200);
        let granted = in_time(waiting).await.unwrap().is(200);
        assert!(granted["fence"].as_u64() > taken["fence"].as_u64());
    })
    .await;
}

#[tokio::test]
async fn a_wait_that_ends_without_the_lock_keeps_its_place_and_can_go_on() {
    on_both(|api, other| async move {
        let holder = api.open().await;
        let (taken, waiter) = (holder.hold("a").await, api.open().await);
        let ask = json!({"ticket": fresh(), "manner": "queue"});
        let queued = waiter.take("a", ask.clone()).await.is(202);
        assert_eq!((&queued["held"], &queued["ahead"]), (&json!(false), &json!(1)));
        assert!(queued["recheck_ms"].as_u64().is_some() && queued.get("fence").is_none());
        let later = json!({"ticket": queued["ticket"], "manner": "queue", "wait_ms": 30});
        assert_eq!(waiter.take("a", later.clone()).await.is(202)["ahead"], 1);
        // At another instance, in the same place.
        let going_on = {
            let (waiter, mut later) = (waiter.at(&other), later);
            later["wait_ms"] = 60_000.into();
            tokio::spawn(async move { waiter.take("a", later).await })
        };
        holder.leave(&taken).await.is(200);
        let granted = in_time(going_on).await.unwrap().is(200);
        assert_eq!(granted["ticket"], queued["ticket"]);
        assert_eq!(waiter.take("a", ask).await.is(200)["fence"], granted["fence"]);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_in_mid_wait_leaves_the_line() {
    on_both(|api, _| async move {
        let holder = api.open().await;
        holder.hold("a").await;
        let (one, joined) = (api.clone(), api.open().await);
        let ask = json!({"wait_ms": 60_000});
        let alone = tokio::spawn(async move { one.json("POST", "/v1/locks/a", &[], ask).await });
        let ask = json!({"wait_ms": 60_000, "withdraw_on_disconnect": true});
        let joins = tokio::spawn(async move { joined.take("a", ask).await });
        api.stands("a", 3).await;
        alone.abort();
        joins.abort();
        api.stands("a", 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_ticket_of_an_open_session_waits_on_when_its_client_goes_away() {
    on_both(|api, _| async move {
        let holder = api.open().await;
        let (taken, waiter) = (holder.hold("a").await, api.open().await);
        let (client, ask) = (waiter.clone(), json!({"wait_ms": 60_000, "ticket": fresh()}));
        let again = ask.clone();
        let waiting = tokio::spawn(async move { client.take("a", ask).await });
        api.stands("a", 2).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        holder.leave(&taken).await.is(200);
        in_time(waiter.take("a", again)).await.is(200);
    })
    .await;
}

#[tokio::test]
async fn a_ticket_stays_as_long_as_one_of_two_equal_requests_waits() {
    on_both(|api, _| async move {
        let holder = api.open().await;
        let taken = holder.hold("a").await;
        let mut ask = json!({"wait_ms": 60_000, "ticket": fresh(), "secret": fresh()});
        ask["withdraw_on_disconnect"] = true.into();
        let wait = || {
            let (api, ask) = (api.clone(), ask.clone());
            tokio::spawn(async move { api.json("POST", "/v1/locks/a", &[], ask).await })
        };
        let first = wait();
        api.stands("a", 2).await;
        let second = wait();
        until("both requests wait", async || api.service.waiting() == 2).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        holder.leave(&taken).await.is(200);
        in_time(second).await.unwrap().is(200);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_repeated_at_another_instance_keeps_its_ticket() {
    on_both(|api, other| async move {
        let holder = api.open().await;
        let taken = holder.hold("a").await;
        let ask = json!({"wait_ms": 60_000, "ticket": fresh(), "secret": fresh()});
        let wait = |api: &Api| {
            let (api, ask) = (api.clone(), ask.clone());
            tokio::spawn(async move { api.json("POST", "/v1/locks/a", &[], ask).await })
        };
        let first = wait(&api);
        api.stands("a", 2).await;
        let waiting = async || api.service.waiting() + other.service.waiting();
        until("the first waits", async || waiting().await == 1).await;
        let second = wait(&other);
        until("both wait", async || waiting().await == 2).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        until("one waits", async || waiting().await == 1).await;
        holder.leave(&taken).await.is(200);
        let granted = in_time(second).await.unwrap().is(200);
        assert_eq!(granted["ticket"], ask["ticket"]);
        assert_eq!(api.tickets("a").await[0]["ticket"], ask["ticket"]);
    })
    .await;
}

#[tokio::test]
async fn a_ticket_of_the_same_id_in_another_line_is_not_granted_with_it() {
    on_both(|api, _| async move {
        let (holder, waiter) = (api.open().await, api.open().await);
        let [a, _b] = [holder.hold("a").await, holder.hold("b").await];
        let ask = json!({"wait_ms": 60_000, "ticket": fresh()});
        let (client, same) = (waiter.clone(), ask.clone());
        let waiting = tokio::spawn(async move { client.take("a", same).await });
        until("it waits for the first", async || api.service.waiting() == 1).await;
        let second = in_time(waiter.take("b", ask)).await.is(202);
        assert_eq!((&second["held"], &second["lock"]), (&json!(false), &json!("b")));
        holder.leave(&a).await.is(200);
        assert_eq!(in_time(waiting).await.unwrap().is(200)["lock"], "a");
        let look = waiter.send("GET", &waiter.path(""), json!({})).await.is(200);
        let states: Vec<_> = look["tickets"].as_array().unwrap().iter().collect();
        assert!(states.iter().any(|of| of["lock"] == "b" && of["state"] == "waiting"), "{look}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_contends_gets_the_lock_when_it_comes_free() {
    on_both(|api, _| async move {
        let holder = api.open().await;
        let taken = holder.hold("a").await;
        let (one, ask) = (api.clone(), json!({"wait_ms": 60_000, "manner": "contend"}));
        let contends = tokio::spawn(async move { one.json("POST", "/v1/locks/a", &[], ask).await });
        let busy =
            api.json("POST", "/v1/locks/a", &[], json!({"manner": "contend", "wait_ms": 20}));
        busy.await.is_problem(409, "busy");
        holder.leave(&taken).await.is(200);
        in_time(contends).await.unwrap().is(200);
    })
    .await;
}

#[tokio::test]
async fn the_session_of_a_waiting_request_lives_longer_than_its_ttl() {
    on_both(|api, _| async move {
        let holder = api.open().await;
        let taken = holder.hold("a").await;
        let (one, ask) = (api.clone(), json!({"wait_ms": 60_000, "ttl_ms": 300}));
        let waiting = tokio::spawn(async move { one.json("POST", "/v1/locks/a", &[], ask).await });
        api.stands("a", 2).await;
        let ticket = api.tickets("a").await[1]["ticket"].clone();
        let entered = async || api.tickets("a").await[1]["entered_ago_ms"].as_u64().unwrap();
        until("it has waited for three TTLs", async || entered().await > 900).await;
        holder.leave(&taken).await.is(200);
        assert_eq!(in_time(waiting).await.unwrap().is(200)["ticket"], ticket);
    })
    .await;
}

#[tokio::test]
async fn an_evicted_waiter_is_told_that_its_ticket_is_gone() {
    on_both(|api, _| async move {
        let (holder, waiter) = (api.open().await, api.open().await);
        holder.hold("a").await;
        let (client, ticket) = (waiter.clone(), fresh());
        let ask = json!({"wait_ms": 60_000, "ticket": ticket});
        let waiting = tokio::spawn(async move { client.take("a", ask).await });
        api.stands("a", 2).await;
        api.json("POST", "/v1/locks/a/evict", &[], json!({"ticket": ticket})).await.is(200);
        in_time(waiting).await.unwrap().is_problem(410, "gone");
    })
    .await;
}

#[tokio::test]
async fn a_stop_answers_those_who_wait_and_releases_no_lock() {
    on_both(|api, other| async move {
        let holder = api.open().await;
        let (taken, waiter) = (holder.hold("a").await, api.open().await);
        let ask = json!({"wait_ms": 60_000, "ticket": fresh()});
        let (client, again) = (waiter.clone(), ask.clone());
        let waiting = tokio::spawn(async move { client.take("a", ask).await });
        api.stands("a", 2).await;
        api.service.stop();
        let stopped = in_time(waiting).await.unwrap();
        assert_eq!(stopped.is_problem(503, "stopping")["outcome"], "unknown");
        assert_eq!(stopped.header("retry-after"), "0");
        api.get("/readyz").await.is_problem(503, "stopping");
        assert_eq!(other.tickets("a").await.len(), 2);
        holder.at(&other).leave(&taken).await.is(200);
        in_time(waiter.at(&other).take("a", again)).await.is(200);
    })
    .await;
}

#[tokio::test]
async fn hints_come_as_a_stream_that_begins_with_look_again() {
    on_both(|api, _| async move {
        let (holder, waiter) = (api.open().await, api.open().await);
        let taken = holder.hold("a").await;
        let request = axum::http::Request::get(waiter.path("/hints"))
            .header("host", "localhost")
            .header("lockkeeper-secret", &waiter.secret)
            .body(axum::body::Body::empty())
            .unwrap();
        let answer = router(&api.service).call(request).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut stream = answer.into_body();
        let mut next = async || {
            let frame = in_time(stream.frame()).await.expect("the stream goes on").unwrap();
            String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
        };
        assert_eq!(next().await, "event: recheck\ndata: {\"hint\":\"recheck\"}\n\n");
        let ask = json!({"manner": "queue", "ticket": fresh()});
        let queued = waiter.take("a", ask).await.is(202);
        holder.leave(&taken).await.is(200);
        // A hint says where to look, never that the ticket is granted.
        loop {
            let hint = next().await;
            let data = hint.strip_prefix("event: recheck\ndata: ").unwrap_or("{}");
            if serde_json::from_str::<Value>(data.trim()).unwrap()["ticket"] == queued["ticket"] {
                break;
            }
            assert!(!hint.starts_with("event: granted"), "{hint}");
        }
    })
    .await;
}

#[tokio::test]
async fn two_thousand_long_polls_wait_beside_each_other_and_all_get_the_lock() {
    const CLIENTS: usize = 2_000;
    let name = fresh();
    let api = Api::at(&format!("memory://{name}"), Options::default()).await;
    let holder = api.open().await;
    let taken = holder.hold("a").await;
    let clients = (0..CLIENTS).map(|_| {
        let api = api.clone();
        tokio::spawn(async move {
            let ask = json!({"wait_ms": 60_000, "mode": "shared"});
            api.json("POST", "/v1/locks/a", &[], ask).await.is(200)
        })
    });
    let clients: Vec<_> = clients.collect();
    until("all wait", async || api.service.waiting() == CLIENTS).await;
    let idle = Duration::from_millis(100);
    let healthy = tokio::time::Instant::now();
    api.get("/livez").await.is(200);
    assert!(healthy.elapsed() < idle * 20, "a request waits for {:?}", healthy.elapsed());
    holder.leave(&taken).await.is(200);
    for client in clients {
        in_time(client).await.unwrap();
    }
}
