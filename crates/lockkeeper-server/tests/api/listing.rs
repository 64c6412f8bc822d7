//! Listings, the store, probes; names that need care.

use crate::support::{fresh, on_both};
use serde_json::{Value, json};

fn names(page: &Value) -> Vec<&str> {
    page["locks"].as_array().unwrap().iter().map(|line| line["lock"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn locks_are_listed_in_pages_by_prefix_and_by_state() {
    on_both(|api, _| async move {
        let client = api.open().await;
        for name in ["jobs%2F1", "jobs%2F2", "jobs%2F3", "other"] {
            client.hold(name).await;
        }
        client.take("jobs%2F2", json!({"manner": "queue"})).await.is(202);
        let page = api.get("/v1/locks?prefix=jobs/&limit=2").await.is(200);
        assert_eq!(names(&page), ["jobs/1", "jobs/2"]);
        assert_eq!(page["next"], "jobs/2");
        let page = api.get("/v1/locks?prefix=jobs/&limit=2&after=jobs/2").await.is(200);
        assert_eq!((names(&page), &page["next"]), (vec!["jobs/3"], &json!(null)));
        let page = api.get("/v1/locks?state=waiting").await.is(200);
        assert_eq!(names(&page), ["jobs/2"]);
        assert_eq!(page["locks"][0]["tickets"].as_array().unwrap().len(), 2);
        assert_eq!(names(&api.get("/v1/locks?state=held").await.is(200)).len(), 4);
        assert!(names(&api.get("/v1/locks?state=expiring").await.is(200)).is_empty());
        api.json("POST", "/v1/locks/soon", &[], json!({"ttl_ms": 4_000})).await.is(200);
        assert_eq!(names(&api.get("/v1/locks?state=expiring").await.is(200)), ["soon"]);
        for query in ["limit=0", "limit=1001", "state=x"] {
            api.get(&format!("/v1/locks?{query}")).await.is_problem(422, "option");
        }
        api.get("/v1/locks?prefx=a").await.is_problem(400, "request");
    })
    .await;
}

#[tokio::test]
async fn a_name_is_data_whatever_characters_it_has() {
    on_both(|api, _| async move {
        let client = api.open().await;
        for (path, name) in [
            ("a%2Fb", "a/b"),
            ("..", ".."),
            ("%2e%2e", ".."),
            ("a%3Fb%23c", "a?b#c"),
            ("100%25", "100%"),
            ("%E9%94%81", "锁"),
            ("a%20b+c", "a b+c"),
            ("evict", "evict"),
            ("a%2Ftickets%2Fb", "a/tickets/b"),
        ] {
            let taken = client.hold(path).await;
            assert_eq!(taken["lock"], name);
            assert_eq!(api.get(&format!("/v1/locks/{path}")).await.is(200)["lock"], name);
            let under = [("lockkeeper-sequencer", taken["sequencer"].as_str().unwrap())];
            api.send("PUT", &format!("/v1/cells/{path}"), &under, "x").await.is(200);
            let ticket = taken["ticket"].as_str().unwrap();
            let ticket = format!("/v1/locks/{path}/tickets/{ticket}");
            let left = client.send("DELETE", &ticket, json!({})).await;
            assert_eq!(left.is(200)["result"], "released", "{name}");
        }
        for path in ["a%00", "a%0A", &"x".repeat(513)] {
            client.take(path, json!({})).await.is_problem(422, "name");
        }
        client.take("%FF", json!({})).await.is_problem(400, "request");
    })
    .await;
}

#[tokio::test]
async fn labels_travel_as_text_or_as_exact_bytes() {
    on_both(|api, _| async move {
        let client = api.open().await;
        client.take("a", json!({"label": "é\n"})).await.is(200);
        client.take("b", json!({"label_base64": "/wA="})).await.is(200);
        let label = async |name: &str| api.tickets(name).await.remove(0);
        let text = label("a").await;
        assert_eq!((&text["label"], text.get("label_base64")), (&json!("é\n"), None));
        assert_eq!(label("b").await["label_base64"], "/wA=");
        let long = json!({"label": "x".repeat(4097)});
        client.take("c", long).await.is_problem(422, "option");
        client.take("c", json!({"label_base64": "?"})).await.is_problem(422, "option");
    })
    .await;
}

#[tokio::test]
async fn the_service_tells_its_store_and_its_health() {
    on_both(|api, other| async move {
        for path in ["/livez", "/readyz"] {
            assert_eq!(api.get(path).await.is(200)["status"], "ok");
        }
        let (one, two) = (api.get("/v1/store").await.is(200), other.get("/v1/store").await.is(200));
        assert_eq!(one["store"], two["store"]);
        assert_ne!(one["instance"], two["instance"]);
        assert_eq!(one["capabilities"]["sessions_shared"], true);
        assert_eq!(one["version"], env!("CARGO_PKG_VERSION"));
    })
    .await;
}

#[tokio::test]
async fn a_look_at_a_line_waits_for_its_change() {
    on_both(|api, other| async move {
        let client = api.open().await;
        let free = api.get("/v1/locks/a").await.is(200);
        assert!(free["tickets"].as_array().unwrap().is_empty());
        let path =
            format!("/v1/locks/a?wait_change={}&wait_ms=60000", free["change"].as_str().unwrap());
        let looking = tokio::spawn(async move { other.get(&path).await.is(200) });
        let taken = client.take("a", json!({"ticket": fresh()})).await.is(200);
        let line = tokio::time::timeout(crate::support::PATIENCE, looking).await.unwrap().unwrap();
        assert_eq!(line["tickets"][0]["ticket"], taken["ticket"]);
        assert_ne!(line["change"], free["change"]);
    })
    .await;
}
