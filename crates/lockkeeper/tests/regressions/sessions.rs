//! Sessions: their options, their number and their end.

use crate::{
    meddled::{Meddled, Post, Rig},
    support::{HOUR, MINUTE, in_background, is_free, keeper, limited, run, turns, until, waiters},
};
use lockkeeper::{
    Error, ErrorKind, Keeper, Loss, Renew,
    store::{AnyStore, clock::Clock, memory::Memory},
};
use std::time::Duration;

/// Every TTL that a lock had of its own left a session behind that was renewed for ever.
#[test]
fn locks_with_a_ttl_of_their_own_leave_no_session_behind() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        for i in 0..200 {
            let lock = keeper.lock("x").ttl(MINUTE + Duration::from_millis(i));
            lock.await.unwrap().release().await.unwrap();
        }
        assert_eq!(rig.with.open.calls(), 200);
        until("all of them are closed", async || rig.with.close.calls() == 200).await;
    });
}

fn refused(renew: Renew) {
    limited(move || {
        let refused = Keeper::builder().renew(renew).over(Memory::new());
        assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    });
}

/// The check of a huge renewal interval overflowed.
#[test]
fn a_huge_renewal_interval_is_refused_without_a_panic() {
    refused(Renew { interval: Some(Duration::MAX), ..Renew::DEFAULT });
}

/// During an outage renewals without a pause kept the thread busy, and nothing else ran on it.
#[test]
fn renewals_without_a_pause_are_refused() {
    refused(Renew { retry_pause: Some(Duration::ZERO), ..Renew::DEFAULT });
}

/// A renewal that may take no time never succeeded, and every lock was lost.
#[test]
fn renewals_that_may_take_no_time_are_refused() {
    refused(Renew { attempt_timeout: Some(Duration::ZERO), ..Renew::DEFAULT });
}

/// A session whose opening was under way while its keeper was closed went on to take the lock,
/// and was never closed.
#[test]
fn nothing_is_locked_after_close_has_returned() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        rig.with.open.shut();
        let lock = in_background(keeper.lock("x"));
        until("a session is being opened", async || rig.with.open.held_up() == 1).await;
        keeper.close().await;
        rig.with.open.open();
        let got = lock.await.unwrap();
        assert!(matches!(got, Err(Error::Closed)), "{got:?}");
        assert!(is_free(&rig.keeper(), "x").await);
        until("the session is closed", async || rig.with.close.calls() == 1).await;
    });
}

/// A guard that was dropped after the end of its runtime left its ticket in the line.
#[test]
fn a_guard_that_outlives_its_runtime_frees_the_lock_when_dropped() {
    limited(|| {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (store, clock) = (AnyStore::new(Memory::new()), Clock::system());
        let keeper = || crate::support::keeper(&store, &clock, HOUR);
        let (first, mortal) = (keeper(), runtime());
        let guard = mortal.block_on(async { first.lock("x").await.unwrap() });
        drop(mortal);
        assert!(!guard.is_held());
        drop(guard);
        runtime().block_on(async {
            let line = keeper().get("x").await.unwrap();
            assert_eq!(line, None);
            assert!(keeper().lock("x").try_now().await.unwrap().is_some());
        });
    });
}

/// With a store that could not be reached, closing waited for the end of the session, however far
/// away that was.
#[test]
fn close_returns_although_the_store_is_away() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        let guard = keeper.lock("x").await.unwrap();
        rig.with.go_away();
        drop(guard);
        let closing = tokio::spawn(async move { keeper.close().await });
        for _ in 0..60 {
            turns().await;
            rig.clock.advance(Duration::from_secs(1));
        }
        turns().await;
        assert!(closing.is_finished(), "after a minute it still waits");
        assert!(rig.with.leave.calls() > 1);
    });
}

/// A leave that failed for another reason than an unreachable store, a full one or missing rights was given
/// up, and the line stayed closed for as long as the session lived.
#[test]
fn a_leave_is_repeated_after_any_error_while_the_session_lives() {
    let troubles =
        [ErrorKind::Misconfigured, ErrorKind::Corrupt, ErrorKind::Full, ErrorKind::Denied];
    for trouble in troubles.into_iter().chain([ErrorKind::Unavailable, ErrorKind::Other]) {
        run(async move || {
            let rig = Rig::new();
            let keeper = rig.meddled_keeper();
            let guard = keeper.lock("x").await.unwrap();
            rig.with.leave.fail_with(Some(trouble));
            drop(guard);
            until("the leave has failed", async || rig.with.leave.calls() > 0).await;
            turns().await;
            rig.with.leave.fail(false);
            until("the ticket is left", async || is_free(&rig.keeper(), "x").await).await;
            assert_eq!(rig.with.close.calls(), 0, "its session lives");
        });
    }
}

/// A leave that is refused for ever must not keep the session alive after its keeper is closed.
#[test]
fn closing_ends_what_cannot_be_left() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        let guard = keeper.lock("x").await.unwrap();
        rig.with.leave.fail_with(Some(ErrorKind::Other));
        drop(guard);
        until("the leave has failed", async || rig.with.leave.calls() > 0).await;
        keeper.close().await;
        assert!(is_free(&rig.keeper(), "x").await);
    });
}

/// A waiter whose session was lost stood behind that session's ticket, which the store had granted to it
/// unheard, for TTL and lock-delay. No lock of that session was ever handed out.
#[test]
fn a_waiter_does_not_wait_behind_its_own_lost_session_in_memory() {
    run(async || {
        let clock = Clock::movable();
        let store = AnyStore::new(Memory::with_clock(clock.clone()));
        no_ghost_in_front(&store, &clock).await;
    });
}

/// The same in a file.
#[cfg(feature = "sqlite")]
#[test]
fn a_waiter_does_not_wait_behind_its_own_lost_session_in_a_file() {
    run(async || {
        let (clock, folder) = (Clock::movable(), crate::files::Folder::new());
        no_ghost_in_front(&folder.open_with(&clock), &clock).await;
    });
}

async fn no_ghost_in_front(store: &AnyStore, clock: &Clock) {
    let (meddled, with) = Meddled::over(store.clone());
    let first = keeper(store, clock, HOUR);
    let builder = Keeper::builder().ttl(MINUTE).lock_delay(HOUR).clock(clock.clone());
    let second = builder.over(meddled).unwrap();
    let held = first.lock("x").await.unwrap();
    let waiter = in_background(second.lock("x"));
    until("the second waits", async || waiters(&first, "x").await == 1).await;
    with.sink().await;
    with.post(Post::Withheld);
    with.poll.fail(true);
    held.release().await.unwrap();
    with.renew.fail(true);
    with.close.fail(true); // the store is away: the first attempts to close fail
    clock.advance(2 * MINUTE);
    until("it tries to close its lost session", async || with.close.calls() > 0).await;
    until("it waits behind its ghost", async || waiters(&first, "x").await == 1).await;
    [&with.renew, &with.poll, &with.close].iter().for_each(|door| door.fail(false));
    with.post(Post::Delivered);
    assert!(waiter.await.unwrap().unwrap().is_held());
}

/// The lock-delay is for work that may go on under a lost lock: a session that handed one out is never
/// closed after its loss.
#[test]
fn a_lost_session_that_handed_out_a_lock_keeps_its_lock_delay() {
    run(async || {
        let rig = Rig::new();
        let builder = Keeper::builder().ttl(MINUTE).lock_delay(HOUR).clock(rig.clock.clone());
        let keeper = builder.over(rig.meddled.clone()).unwrap();
        let guard = keeper.lock("x").await.unwrap();
        let _released = keeper.lock("y").await.unwrap().release().await;
        rig.clock.advance(2 * MINUTE);
        assert_eq!(guard.lost().await, Loss::Expired);
        turns().await;
        drop((guard, keeper));
        turns().await;
        assert_eq!(rig.with.close.calls(), 0);
        assert!(!is_free(&rig.keeper(), "x").await);
    });
}
