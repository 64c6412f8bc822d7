//! Waiting: no waiter is forgotten or starved, and the error at the end of a wait is the true one.

use crate::{
    meddled::{Post, Rig},
    support::{
        HOUR, in_background, is_free, run, run_on_threads, turns, until, waiters, without_pause,
    },
};
use lockkeeper::{Error, Keeper, Loss, Name, Retry, store::memory::Memory};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
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
        sink.recheck(None);
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

/// A wait that ended while the store could not be reached was told as if the lock were held.
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

/// Each of them waited for the attempts of all before it to open a session, and then made one of its own: while
/// the store was silent the tenth heard after ten times as long as the first.
#[test]
fn single_attempts_hear_together_that_no_session_can_be_opened() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        rig.with.open.shut();
        let names = ["a", "b", "c", "d", "e"];
        let tries = names.map(|name| in_background(keeper.lock(name).wait(Duration::ZERO)));
        until("the first attempt is under way", async || rig.with.open.held_up() == 1).await;
        turns().await;
        rig.with.go_away();
        rig.with.open.open();
        turns().await;
        assert!(tries.iter().all(|tried| tried.is_finished()), "{tries:?}");
        for tried in tries {
            let e = tried.await.unwrap().unwrap_err();
            assert!(matches!(e, Error::Store(_)), "{e}");
        }
        assert_eq!(rig.with.open.calls(), 1, "one attempt for all of them");
        rig.with.come_back();
        assert!(keeper.lock("a").await.unwrap().is_held(), "what comes later tries anew");
    });
}

/// Those behind the gate heard "not acquired" when their time ended while the store was away, and without
/// a limit each of them bore an outage of its own, one after another.
#[test]
fn all_waiters_of_a_name_hear_of_an_outage_in_their_own_time() {
    for silent in [false, true] {
        for warm in [false, true] {
            run(async move || {
                let rig = Rig::new();
                let keeper = rig.meddled_keeper();
                if warm {
                    keeper.lock("warm").await.unwrap().release().await.unwrap();
                }
                if silent {
                    rig.with.open.shut();
                    rig.with.enter.shut();
                } else {
                    rig.with.go_away();
                }
                let waits = [20, 20, 40].map(Duration::from_secs);
                let waiters = waits.map(|wait| in_background(keeper.lock("x").wait(wait)));
                turns().await;
                for second in 1..=41 {
                    rig.clock.advance(Duration::from_secs(1));
                    turns().await;
                    let done = waiters.iter().filter(|waiter| waiter.is_finished()).count();
                    let due = waits.iter().filter(|wait| wait.as_secs() < second).count();
                    assert!(done >= due, "{done} of {due} have heard after {second} s");
                }
                for waiter in waiters {
                    let e = waiter.await.unwrap().unwrap_err();
                    assert!(matches!(e, Error::Unavailable { .. }), "{e}");
                }
            });
        }
    }
}

/// A waiter in line whose store went away was told that the lock was taken, and so were those behind it.
#[test]
fn a_wait_in_line_that_ends_in_an_outage_says_so() {
    run(async || {
        let rig = Rig::new();
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let _held = first.lock("x").await.unwrap();
        let wait = HOUR / 2;
        let both = [1, 2].map(|_| in_background(second.lock("x").wait(wait)));
        until("one waits in line", async || waiters(&first, "x").await == 1).await;
        rig.with.go_away();
        rig.with.poll.fail(true);
        rig.clock.advance(HOUR / 2 - Duration::from_secs(60)); // a renewal is due, and fails
        turns().await;
        assert!(both.iter().all(|waiter| !waiter.is_finished()));
        rig.clock.advance(Duration::from_secs(61));
        for waiter in both {
            let e = waiter.await.unwrap().unwrap_err();
            assert!(matches!(e, Error::Unavailable { .. }), "{e}");
        }
    });
}

/// No time at all ended before the answer to the first request could come.
#[test]
fn a_wait_of_no_time_is_one_attempt() {
    run(async || {
        let rig = Rig::new();
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        rig.with.enter.shut();
        let attempt = in_background(second.lock("x").wait(Duration::ZERO));
        until("its request is under way", async || rig.with.enter.held_up() == 1).await;
        turns().await;
        rig.with.enter.open();
        let guard = attempt.await.unwrap().unwrap();
        let late = first.lock("x").wait(Duration::ZERO).await.unwrap_err();
        assert!(late.is_not_acquired(), "{late}");
        guard.release().await.unwrap();
    });
}

/// A wait that was shorter than a round trip never got a lock that was free.
#[test]
fn a_wait_shorter_than_a_round_trip_gets_a_free_lock() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        rig.with.enter.shut();
        let attempt = in_background(keeper.lock("x").wait(Duration::from_millis(1)));
        until("its request is under way", async || rig.with.enter.held_up() == 1).await;
        rig.clock.advance(Duration::from_millis(5));
        turns().await;
        rig.with.enter.open();
        assert!(attempt.await.unwrap().unwrap().is_held());
    });
}

/// The user's callback ran in the task that renews the session: a panic in it lost every lock of the
/// session.
#[test]
fn a_panic_in_a_waiters_callback_hits_that_waiter_alone() {
    run(async || {
        let rig = Rig::new();
        rig.with.post(Post::Vague);
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let _held = first.lock("x").await.unwrap();
        let other = second.lock("other").await.unwrap();
        let told = Mutex::new(0);
        let tell = move |_: &_| {
            let mut told = told.lock().unwrap();
            *told += 1;
            assert!(*told < 2, "the user's own fault");
        };
        let waiter = in_background(second.lock("x").on_wait(tell));
        assert!(waiter.await.unwrap_err().is_panic());
        turns().await;
        assert!(other.is_held(), "{other:?}");
        until("its ticket is left", async || waiters(&first, "x").await == 0).await;
    });
}

/// For the same reason a callback that took its time held up the renewals.
#[test]
fn a_waiters_callback_that_blocks_holds_up_no_renewal() {
    run_on_threads(async || {
        let rig = Rig::new();
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let _held = first.lock("x").await.unwrap();
        let other = second.lock("other").await.unwrap();
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        let (calls, blocked) = (Arc::new(AtomicUsize::new(0)), Mutex::new(blocked));
        let count = Arc::clone(&calls);
        let tell = move |_: &_| {
            if count.fetch_add(1, SeqCst) == 1 {
                let _ = blocked.lock().unwrap().recv();
            }
        };
        let waiter = in_background(second.lock("x").on_wait(tell));
        until("the second waits", async || waiters(&first, "x").await == 1).await;
        let sink = rig.with.sink().await;
        until("it blocks", async || {
            sink.recheck(None);
            calls.load(SeqCst) > 1
        })
        .await;
        other.extend(Duration::ZERO).await.unwrap();
        drop(go_on);
        waiter.abort();
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
            sink.freed(&name); // by the time it looks, another client has taken it
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
