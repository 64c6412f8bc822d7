//! What makes no sense is refused with a problem, and changes nothing.

use crate::support::on_both;
use lockkeeper_server::table;
use serde_json::json;

#[tokio::test]
async fn a_body_that_makes_no_sense_is_refused() {
    on_both(|api, _| async move {
        let json = [("content-type", "application/json")];
        for body in
            ["{", "[]", "{\"wiat_ms\":1}", "{\"wait_ms\":-1}", "{\"mode\":\"shraed\"}", "null"]
        {
            let refused = api.send("POST", "/v1/locks/a", &json, body).await;
            let problem = refused.is_problem(400, "request");
            assert_eq!(problem["outcome"], "not_applied", "{body}");
        }
        let typo = api.send("POST", "/v1/locks/a", &json, "{\"wiat_ms\":1}").await.json();
        assert!(typo["detail"].as_str().unwrap().contains("wiat_ms"), "{typo}");
        let form = api.send("POST", "/v1/locks/a", &[], "{}").await;
        form.is_problem(415, "media_type");
        let large = api.send("POST", "/v1/locks/a", &json, " ".repeat(200 * 1024)).await;
        large.is_problem(413, "too_large");
        let long = api.json("POST", "/v1/locks/a", &[], json!({"wait_ms": 60_001})).await;
        long.is_problem(422, "option");
        assert!(api.tickets("a").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn terms_of_a_session_to_open_are_refused_beside_an_open_one() {
    on_both(|api, _| async move {
        let client = api.open().await;
        for ask in [
            json!({"ttl_ms": 1_000}),
            json!({"secret": "0".repeat(32)}),
            json!({"lock_delay_ms": 1}),
        ] {
            client.take("a", ask).await.is_problem(422, "option");
        }
        assert!(api.tickets("a").await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_are_problems_too() {
    on_both(|api, _| async move {
        api.get("/v2/locks").await.is_problem(404, "no_route");
        api.get("/v1/locks/a/b").await.is_problem(404, "no_route");
        let wrong = api.send("PUT", "/v1/locks/a", &[], "").await;
        wrong.is_problem(405, "method");
        assert!(wrong.header("allow").contains("POST"), "{:?}", wrong.headers);
        let ticket = api.send("DELETE", "/v1/locks/a/tickets/xyz", &[], "").await;
        ticket.is_problem(400, "request");
    })
    .await;
}

#[tokio::test]
async fn every_row_of_the_table_is_a_route() {
    on_both(|api, _| async move {
        let routes = table();
        assert!(routes.len() >= 20, "{}", routes.len());
        for route in routes {
            let path = route.path.replace("{session}", "0").replace("{name}", "a");
            let path = path.replace("{ticket}", &"0".repeat(32));
            if path.contains('{') || route.path.ends_with("/events") {
                continue;
            }
            let reply = api.send(route.method.as_str(), &path, &[], "").await;
            let kind = reply.headers.get("content-type").map_or("", |kind| kind.to_str().unwrap());
            let is_missing = kind.contains("problem")
                && ["no_route", "method"].contains(&reply.json()["kind"].as_str().unwrap());
            assert!(!is_missing && reply.status < 500, "{} {path}: {}", route.method, reply.status);
        }
    })
    .await;
}
