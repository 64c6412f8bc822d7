//! What every test here needs: a hard limit, and ways to wait that do not depend on speed.

use lockkeeper::{
    Acquire, Guard, Keeper, Renew, Result,
    store::{AnyStore, clock::Clock},
};
use std::{
    future::IntoFuture as _,
    panic::resume_unwind,
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};
use tokio::{runtime::Builder, task::JoinHandle};

/// No test takes this long, on whatever machine: one that does hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// A condition that has not come true by now never will.
const NEVER: Duration = Duration::from_secs(30);
/// More turns than anything takes that only others' turns hold up.
const TURNS: usize = 10_000;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Renewals, and what comes with them, every few milliseconds; a slow answer is no failure.
pub(crate) const OFTEN: Renew = Renew {
    interval: Some(Duration::from_millis(5)),
    attempt_timeout: Some(MINUTE),
    retry_pause: Some(Duration::from_millis(5)),
};

/// Runs a test on a thread of its own, so that it fails, and does not hang, even if it blocks.
pub(crate) fn limited(test: impl FnOnce() + Send + 'static) {
    let (done, finished) = channel();
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let body = move || {
        test();
        let _ = done.send(());
    };
    let thread = thread::Builder::new().name(name).spawn(body).unwrap();
    if finished.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        panic!("not done after {LIMIT:?}: it hangs");
    }
    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

/// As [`limited`], on a runtime of one thread.
pub(crate) fn run(test: impl AsyncFnOnce() + Send + 'static) {
    limited(|| Builder::new_current_thread().enable_all().build().unwrap().block_on(test()));
}

/// As [`limited`], on a runtime of several threads.
pub(crate) fn run_on_threads(test: impl AsyncFnOnce() + Send + 'static) {
    let mut runtime = Builder::new_multi_thread();
    limited(move || runtime.worker_threads(3).enable_all().build().unwrap().block_on(test()));
}

/// Waits for a condition, as long as it takes.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < NEVER, "it never comes true that {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lets all tasks of a runtime of one thread go as far as they can without a timer.
pub(crate) async fn turns() {
    for _ in 0..TURNS / 50 {
        tokio::task::yield_now().await;
    }
}

/// Waits for what needs no timer. On a runtime of one thread that takes a number of turns, and no
/// time: a slow machine changes nothing, and what waits for a timer does not come.
pub(crate) async fn without_pause(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..TURNS {
        if holds() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("only a timer can make it true that {what}");
}

pub(crate) fn keeper(store: &AnyStore, clock: &Clock, ttl: Duration) -> Keeper {
    Keeper::builder().ttl(ttl).clock(clock.clone()).over(store.clone()).unwrap()
}

/// Takes a lock in a task of its own.
pub(crate) fn in_background(lock: Acquire) -> JoinHandle<Result<Guard>> {
    tokio::spawn(lock.into_future())
}

/// How many wait for this lock.
pub(crate) async fn waiters(keeper: &Keeper, name: &str) -> usize {
    keeper.get(name).await.unwrap().map_or(0, |line| line.waiters().count())
}

pub(crate) async fn is_free(keeper: &Keeper, name: &str) -> bool {
    keeper.get(name).await.unwrap().is_none()
}

/// Waits until the keeper's session has done what was handed over to it so far: it does that in
/// order, so one thing more is handed over and watched.
pub(crate) async fn settled(keeper: &Keeper) {
    drop(keeper.lock("the last in hand").await.unwrap());
    until("the last is left", async || is_free(keeper, "the last in hand").await).await;
}
