//! What is made of the service's answers, and of URLs. That it works against the service is the suite's to show.

use super::{
    client::Reply,
    config::Config,
    enter, error,
    session::{millis, segment},
    wire::{self, Problem, TicketState},
};
use crate::{
    error::{ErrorKind, Outcome},
    store::url::StoreUrl,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;

fn reply(status: u16, body: &Value) -> Reply {
    let (status, headers) = (StatusCode::from_u16(status).unwrap(), HeaderMap::new());
    Reply { status, headers, body: Bytes::from(body.to_string()), was_sent_before: false }
}

fn problem(status: u16, kind: &str, more: &Value) -> Reply {
    let mut body = json!({
        "type": format!("urn:lockkeeper:{kind}"), "kind": kind, "title": "t", "status": status, "detail": "d",
    });
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    reply(status, &body)
}

#[test]
fn a_refusal_is_the_error_that_the_services_store_gave() {
    for kind in [
        ErrorKind::Unavailable,
        ErrorKind::SessionOver,
        ErrorKind::TicketClosed,
        ErrorKind::Capacity(7),
        ErrorKind::Name,
        ErrorKind::Full,
        ErrorKind::Denied,
        ErrorKind::Misconfigured,
        ErrorKind::Corrupt,
        ErrorKind::Other,
    ] {
        let (word, status) = wire::kind(kind);
        for (text, outcome) in [("unknown", Outcome::Unknown), ("not_applied", Outcome::NotApplied)]
        {
            let refused = problem(status, word, &json!({"outcome": text, "capacity": 7}));
            let e = error::refusal(&refused);
            assert_eq!((e.kind, e.outcome), (kind, outcome), "{word}");
        }
    }
    let what = json!({"detail": "the redlock store does not support cells"});
    let e = error::refusal(&problem(501, "unsupported", &what));
    assert_eq!(e.kind, ErrorKind::Unsupported("cells"));
}

#[test]
fn an_answer_of_a_proxy_is_no_proof_that_nothing_was_done() {
    for (status, kind, outcome) in [
        (401, ErrorKind::Denied, Outcome::NotApplied),
        (403, ErrorKind::Denied, Outcome::NotApplied),
        (404, ErrorKind::Misconfigured, Outcome::NotApplied),
        (429, ErrorKind::Unavailable, Outcome::NotApplied),
        (500, ErrorKind::Other, Outcome::Unknown),
        (502, ErrorKind::Unavailable, Outcome::Unknown),
        (504, ErrorKind::Unavailable, Outcome::Unknown),
    ] {
        let e = error::refusal(&reply(status, &json!("<html>")));
        assert_eq!((e.kind, e.outcome), (kind, outcome), "{status}");
    }
}

#[test]
fn once_a_copy_may_have_been_carried_out_no_refusal_says_that_none_was() {
    let refused = problem(409, "ticket_closed", &json!({"outcome": "not_applied"}));
    let refused = Reply { was_sent_before: true, ..refused };
    assert_eq!(error::refusal(&refused).outcome, Outcome::Unknown);
}

#[test]
fn only_what_another_attempt_can_mend_is_tried_again() {
    for status in [421, 429, 502, 503, 504] {
        assert!(error::not_now(&reply(status, &json!({}))).is_some(), "{status}");
    }
    for status in [200, 202, 401, 403, 404, 409, 410, 412, 422, 500, 501, 507] {
        assert!(error::not_now(&reply(status, &json!({}))).is_none(), "{status}");
    }
}

#[test]
fn what_a_waiter_is_told_arrives_byte_for_byte() {
    let label = wire::Label::of(b"\xff\0night");
    let owner = crate::Owner::new("ci-7", 4121, "billing");
    let holder = wire::HeldBy { owner: owner.clone(), label, held_for_ms: Some(1500) };
    let waiting = wire::Waiting { ahead: 3, holder: Some(holder), recheck_ms: 250 };
    let text = serde_json::to_string(&waiting).unwrap();
    let wait = enter::wait(serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!((wait.ahead, wait.recheck), (3, Duration::from_millis(251)));
    let holder = wait.holder.unwrap();
    assert_eq!(holder.label, b"\xff\0night");
    assert_eq!((holder.owner, holder.held_for), (owner, Some(Duration::from_millis(1500))));
}

#[test]
fn a_busy_lock_is_a_problem_that_says_who_holds_it() {
    let waiting = json!({"ahead": 1, "recheck_ms": 5, "holder": null});
    let busy: Problem = serde_json::from_slice(&problem(409, "busy", &waiting).body).unwrap();
    assert_eq!(busy.waiting.unwrap().ahead, 1);
}

#[test]
fn tickets_are_read_however_they_stand() {
    let id = "0".repeat(32);
    for (state, more) in [
        ("granted", json!({"fence": u64::MAX, "fence_text": u64::MAX.to_string()})),
        ("waiting", json!({"ahead": 1, "recheck_ms": 5})),
        ("gone", json!({"from": "a later version"})),
    ] {
        let mut text = json!({"lock": "a/b", "ticket": id, "state": state});
        text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let read: TicketState = serde_json::from_value(text).expect(state);
        assert_eq!(read.lock.as_str(), "a/b");
    }
}

#[test]
fn a_name_is_one_segment_of_a_path_whatever_is_in_it() {
    assert_eq!(segment("a/b?c#d%e").to_string(), "a%2Fb%3Fc%23d%25e");
    assert_eq!(segment("..").to_string(), "%2E%2E");
    assert_eq!(segment("nächt").to_string(), "n%C3%A4cht");
}

#[test]
fn a_time_is_never_cut_short() {
    assert_eq!(millis(Duration::from_micros(1)), 1);
    assert_eq!(millis(Duration::from_millis(1)), 1);
    assert_eq!(millis(Duration::MAX), u64::MAX);
}

fn config(url: &str) -> Result<Config, String> {
    let url = StoreUrl::parse(url).unwrap();
    let scheme = url.scheme().to_owned();
    let config = match scheme.as_str() {
        "lockkeeper+unix" => Config::unix(url),
        scheme => Config::tcp(url, scheme == "lockkeeper+https"),
    };
    config.map_err(|e| e.to_string())
}

fn addresses(url: &str) -> Vec<String> {
    config(url).unwrap().addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn a_url_names_one_or_several_instances() {
    assert_eq!(addresses("lockkeeper+http://a:7000,[::1]:7001"), ["a:7000", "[::1]:7001"]);
    assert_eq!(addresses("lockkeeper+unix:/run/lk.sock"), ["/run/lk.sock"]);
    assert_eq!(addresses("lockkeeper+unix:///run/lk.sock"), ["/run/lk.sock"]);
    assert_eq!(config("lockkeeper+http://a/locks/").unwrap().base, "/locks");
    assert_eq!(config("lockkeeper+http://a").unwrap().base, "");
}

#[test]
fn what_a_url_must_not_say_is_refused_with_a_remedy() {
    for (url, remedy) in [
        ("lockkeeper+http://canary@a", "token_file="),
        ("lockkeeper+http://user:canary@a", "token_file="),
        ("lockkeeper+http://a?token=canary", "token_file"),
        ("lockkeeper+http://a?tls=true", "lockkeeper+https://"),
        ("lockkeeper+unix:", "needs a path"),
        ("lockkeeper+unix:/a?tls_ca=b", "token_file"),
    ] {
        let e = config(url).err().expect(url);
        assert!(e.contains(remedy) && !e.contains("canary"), "{url}: {e}");
    }
}
