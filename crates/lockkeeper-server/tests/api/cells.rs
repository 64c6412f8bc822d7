//! Values that are written only under a grant.

use crate::support::{fresh, on_both};
use serde_json::json;

#[tokio::test]
async fn a_value_is_written_under_a_sequencer_and_refused_when_the_grant_is_over() {
    on_both(|api, other| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let sequencer = taken["sequencer"].as_str().unwrap();
        let under = [("lockkeeper-sequencer", sequencer)];
        api.get("/v1/cells/a").await.is_problem(404, "no_cell");
        for _ in 0..2 {
            api.send("PUT", "/v1/cells/a", &under, vec![0, 0xff]).await.is(200);
        }
        let cell = other.get("/v1/cells/a").await;
        assert_eq!((cell.status, cell.bytes.as_slice()), (200, &[0, 0xff][..]));
        assert_eq!(cell.header("lockkeeper-fence"), taken["fence_text"]);
        client.leave(&taken).await.is(200);
        let next = client.hold("a").await;
        let stale = api.send("PUT", "/v1/cells/a", &under, "late").await;
        assert_eq!(stale.is_problem(412, "stale")["fence"], next["fence"]);
        assert_eq!(api.get("/v1/cells/a").await.bytes, [0, 0xff]);
        let other_name = api.send("PUT", "/v1/cells/b", &under, "x").await;
        other_name.is_problem(422, "sequencer");
    })
    .await;
}

#[tokio::test]
async fn the_holder_writes_and_takes_away_by_numbered_edits() {
    on_both(|api, _| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let ticket = taken["ticket"].as_str().unwrap();
        let edit = async |method: &str, edit: &str, body: &'static str| {
            let mut headers =
                vec![("lockkeeper-secret", client.secret.as_str()), ("lockkeeper-ticket", ticket)];
            if !edit.is_empty() {
                headers.push(("lockkeeper-edit", edit));
            }
            api.send(method, "/v1/cells/a", &headers, body).await
        };
        edit("PUT", "2", "two").await.is(200);
        // A late copy of an older edit changes nothing.
        edit("PUT", "1", "one").await.is(200);
        assert_eq!(api.get("/v1/cells/a").await.bytes, b"two");
        edit("DELETE", "3", "").await.is(200);
        api.get("/v1/cells/a").await.is_problem(404, "no_cell");
        edit("PUT", "", "by the clock").await.is(200);
        assert_eq!(api.get("/v1/cells/a").await.bytes, b"by the clock");
        client.leave(&taken).await.is(200);
        edit("DELETE", "", "").await.is_problem(412, "stale");
        edit("PUT", "x", "").await.is_problem(400, "request");
    })
    .await;
}

#[tokio::test]
async fn a_write_with_a_precondition_is_refused_when_the_value_is_another_one() {
    on_both(|api, _| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let sequencer = ("lockkeeper-sequencer", taken["sequencer"].as_str().unwrap());
        let put = async |header: (&'static str, &str), body: &'static str| {
            api.send("PUT", "/v1/cells/a", &[sequencer, header], body).await
        };
        put(("if-match", "*"), "x").await.is_problem(412, "precondition");
        put(("if-none-match", "*"), "one").await.is(200);
        put(("if-none-match", "*"), "two").await.is_problem(412, "precondition");
        let tag = api.get("/v1/cells/a").await.header("etag").to_owned();
        put(("if-match", &tag), "two").await.is(200);
        let refused = put(("if-match", &tag), "three").await;
        assert_eq!(refused.is_problem(412, "precondition")["fence"], taken["fence"]);
        assert_eq!(api.get("/v1/cells/a").await.bytes, b"two");
    })
    .await;
}

#[tokio::test]
async fn a_value_needs_a_grant_that_is_exclusive_and_has_64_kib_at_most() {
    on_both(|api, _| async move {
        let client = api.open().await;
        let taken = client.hold("a").await;
        let under = [("lockkeeper-sequencer", taken["sequencer"].as_str().unwrap())];
        api.send("PUT", "/v1/cells/a", &under, vec![b'x'; 65_536]).await.is(200);
        let large = api.send("PUT", "/v1/cells/a", &under, vec![b'x'; 65_537]).await;
        assert_eq!(large.is_problem(413, "too_large")["outcome"], "not_applied");
        api.send("DELETE", "/v1/cells/a", &under, "").await.is_problem(422, "option");
        api.send("PUT", "/v1/cells/a", &[], "x").await.is_problem(400, "request");
        let reader = client.take("r", json!({"mode": "shared"})).await.is(200);
        let under = [("lockkeeper-sequencer", reader["sequencer"].as_str().unwrap())];
        api.send("PUT", "/v1/cells/r", &under, "x").await.is_problem(422, "sequencer");
        let foreign = format!("lk1:{}:x:1:{}:a", "0".repeat(16), fresh());
        let under = [("lockkeeper-sequencer", foreign.as_str())];
        api.send("PUT", "/v1/cells/a", &under, "x").await.is_problem(422, "sequencer");
    })
    .await;
}
