//! Sessions: their options, their number and their end.

use crate::{
    meddled::Rig,
    support::{HOUR, MINUTE, in_background, is_free, limited, run, turns, until},
};
use lockkeeper::{
    Error, Keeper, Renew,
    clock::Clock,
    store::{AnyStore, memory::Memory},
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

/// A session whose opening was under way while its keeper was closed went on to take the lock, and
/// nobody ended it.
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
            let line = keeper().look_at("x").await.unwrap();
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
