//! Waiting: nobody is forgotten, nobody is starved, and the end of a wait is told as it was.

use crate::{
    meddled::{Post, Rig},
    support::{HOUR, in_background, is_free, run, turns, until, waiters, without_pause},
};
use lockkeeper::{Error, Keeper, Loss, Name, Retry, store::memory::Memory};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

/// The user's callback ran under a lock of ours, and came to a deadlock when it touched a guard.
#[test]
fn what_is_told_to_a_waiter_may_drop_a_guard() {
    run(async || {
        let keeper = Keeper::over(Memory::new());
        let one = Mutex::new(Some(keeper.lock("one").await.unwrap()));
        let two = keeper.lock("two").await.unwrap();
        let drop_it = move |_: &_| drop(one.lock().unwrap().take());
        let waiter = in_background(keeper.lock("two").on_wait(drop_it));
        until("the callback has run", async || is_free(&keeper, "one").await).await;
        two.release().await.unwrap();
        assert!(waiter.await.unwrap().unwrap().is_held());
    });
}

/// A hint that came while a poll was under way was undone by the poll's older answer, and the waiter
/// slept until its next regular look.
#[test]
fn a_hint_that_comes_during_a_poll_is_heeded() {
    run(async || {
        let rig = Rig::new();
        rig.with.post(Post::Vague);
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let held = first.lock("x").await.unwrap();
        let waiter = in_background(second.lock("x"));
        until("the second waits", async || waiters(&first, "x").await == 1).await;
        let sink = rig.with.sink().await;
        rig.with.poll.shut();
        sink.look(None);
        until("the answer \"wait\" is under way", async || rig.with.poll.held_up() == 1).await;
        held.release().await.unwrap();
        rig.with.poll.open();
        without_pause("the waiter gets its lock", || waiter.is_finished()).await;
        assert!(waiter.await.unwrap().unwrap().is_held());
    });
}

/// A contender whose policy has no pauses never gave its thread away, so that the holder could not
/// let go.
#[test]
fn a_contender_without_pauses_lets_the_holder_run() {
    run(async || {
        let keeper = Rig::new().keeper();
        let held = keeper.lock("x").await.unwrap();
        let holder = tokio::spawn(async move {
            turns().await;
            drop(held);
        });
        let at_once = Retry::custom(|_| Some(Duration::ZERO));
        let guard = keeper.lock("x").unfair().retry(at_once).await.unwrap();
        assert!(guard.is_held());
        holder.await.unwrap();
    });
}

/// A wait that ended while the store could not be reached was told as if somebody else had the lock.
#[test]
fn a_wait_that_ends_in_an_outage_says_so() {
    run(async || {
        let rig = Rig::new();
        let (no_session, with_session) = (rig.meddled_keeper(), rig.meddled_keeper());
        with_session.lock("warm").await.unwrap().release().await.unwrap();
        rig.with.go_away();
        for keeper in [no_session, with_session] {
            let e = keeper.lock("x").wait(Duration::from_millis(100)).await.unwrap_err();
            assert!(matches!(e, Error::Unavailable { .. }), "{e}");
        }
    });
}

/// A wait without a limit gave up after 30 s of outage, so that `wait(1h)` outlasted it.
#[test]
fn a_wait_without_a_limit_outlasts_every_outage() {
    run(async || {
        let rig = Rig::new();
        let (no_session, with_session) = (rig.meddled_keeper(), rig.meddled_keeper());
        with_session.lock("warm").await.unwrap().release().await.unwrap();
        rig.with.go_away();
        let waiters = [("x", no_session), ("y", with_session)];
        let waiters = waiters.map(|(name, keeper)| in_background(keeper.lock(name)));
        for _ in 0..40 {
            turns().await;
            rig.clock.advance(Duration::from_secs(60));
        }
        turns().await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "{waiters:?}");
        rig.with.come_back();
        for waiter in waiters {
            assert!(waiter.await.unwrap().unwrap().is_held());
        }
    });
}

/// One attempt beside a contender took the contender's bell away, so it slept through the release.
#[test]
fn a_single_attempt_does_not_take_away_a_contenders_bell() {
    run(async || {
        let rig = Rig::new();
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        second.lock("warm").await.unwrap().release().await.unwrap();
        let held = first.lock("x").await.unwrap();
        rig.with.enter.shut();
        let told = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&told);
        let lock = second.lock("x").unfair().retry(Retry::limited(9, HOUR / 2));
        let contender = in_background(lock.on_wait(move |_| tell.store(true, SeqCst)));
        until("its request is under way", async || rig.with.enter.held_up() == 1).await;
        rig.with.enter.let_others_pass();
        assert!(second.lock("x").try_now().await.unwrap().is_none());
        rig.with.enter.open();
        until("it is told to wait", async || told.load(SeqCst)).await;
        rig.with.sink().await;
        held.release().await.unwrap();
        without_pause("the contender gets the freed lock", || contender.is_finished()).await;
        assert!(contender.await.unwrap().unwrap().is_held());
    });
}

/// Every hint used up one of a contender's retries, so on a busy lock it gave up far too early.
#[test]
fn hints_do_not_use_up_a_contenders_retries() {
    run(async || {
        let rig = Rig::new();
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let held = first.lock("x").await.unwrap();
        let contender = in_background(second.lock("x").unfair().retry(Retry::limited(3, HOUR / 2)));
        let sink = rig.with.sink().await;
        let name = Name::new("x").unwrap();
        for _ in 0..20 {
            let before = rig.with.enter.calls();
            sink.freed(&name); // by the time it looks, somebody else has taken it
            let looked = || rig.with.enter.calls() > before || contender.is_finished();
            without_pause("the contender looks", looked).await;
        }
        turns().await;
        assert!(!contender.is_finished(), "it gave up: {:?}", contender.await);
        held.release().await.unwrap();
        assert!(contender.await.unwrap().unwrap().is_held());
    });
}

/// The longest hold was watched by the loop that also polls, so a poll without an answer kept the
/// lock closed.
#[test]
fn the_longest_hold_ends_although_a_poll_is_not_answered() {
    run(async || {
        let rig = Rig::new();
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let _held = first.lock("y").await.unwrap();
        rig.with.poll.shut();
        let _waiter = in_background(second.lock("y"));
        until("a poll is under way", async || rig.with.poll.held_up() == 1).await;
        let guard = second.lock("x").max_hold(Duration::from_millis(20)).await.unwrap();
        assert_eq!(guard.lost().await, Loss::MaxHold);
        assert!(first.lock("x").await.unwrap().is_held());
        assert_eq!(rig.with.poll.held_up(), 1);
    });
}

/// A store that ended every session at once was asked for the next one without a pause.
#[test]
fn sessions_that_end_at_once_are_opened_with_pauses() {
    run(async || {
        let rig = Rig::new();
        rig.with.all_over.store(true, SeqCst);
        let late = rig.meddled_keeper().lock("x").wait(Duration::from_millis(300)).await;
        assert!(late.is_err());
        // The pauses double from 20 ms on; without them there are thousands.
        let sessions = rig.with.open.calls();
        assert!(sessions < 50, "{sessions} sessions in 300 ms");
    });
}
