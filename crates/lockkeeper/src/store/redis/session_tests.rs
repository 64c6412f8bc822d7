//! Tests of what only the inside of the store can see.

use super::{Redis, config::Config};
use crate::{
    model::ticket::{Owner, SessionId},
    store::{Open, Store as _, url::StoreUrl},
};
use servers::{REDIS, Require, Running};
use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

async fn started() -> Option<(Running, Redis)> {
    if let Some(missing) = REDIS.first_missing() {
        assert!(!Require::from_env().wants(REDIS.name), "{missing} is not installed");
        return None;
    }
    let server = REDIS.start().expect("a server");
    let url = StoreUrl::parse(server.url()).expect("a URL");
    let config = Config::single(url).expect("a configuration");
    let store = Redis::connect(config).await.expect("the server answers");
    Some((server, store))
}

fn ask() -> Open {
    let (ttl, lock_delay) = (Duration::from_secs(60), Duration::ZERO);
    Open { session: SessionId::random(), ttl, lock_delay, owner: Owner::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_that_fails_or_is_dropped_leaves_nothing_in_the_handle() {
    let Some((mut server, store)) = started().await else { return };
    let opened = ask();
    store.open(opened.clone()).await.expect("a session");
    server.freeze().expect("frozen");
    {
        let mut dropped = pin!(store.open(ask()));
        let is_pending = poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "a frozen server does not answer");
    }
    server.kill().expect("killed");
    store.open(ask()).await.expect_err("there is no server");
    let known: Vec<SessionId> = store.sessions.local().keys().copied().collect();
    assert_eq!(known, [opened.session]);
    store.forget(opened.session);
    assert!(store.sessions.local().is_empty());
}
