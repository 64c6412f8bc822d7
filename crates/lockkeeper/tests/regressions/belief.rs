//! A client that believes in a lock has it, and a client that has lost it is told.

use crate::{
    meddled::{Meddled, Meddling, Post, Rig},
    support::{
        HOUR, MINUTE, OFTEN, in_background, is_free, keeper, run, run_on_threads, settled, turns,
        until, waiters,
    },
};
use lockkeeper::{
    Error, Keeper, Loss,
    store::{AnyStore, memory::Memory},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// The poll for all tickets that follows a renewal took a grant which it found itself for a ticket
/// that the session did not know, and left it: the next one got the lock beside the guard.
#[test]
fn a_grant_found_while_comparing_all_tickets_is_kept() {
    run(async || {
        let rig = Rig::new();
        rig.with.post(Post::Withheld);
        rig.with.only_all.store(true, SeqCst);
        let (first, second) = (rig.keeper(), rig.meddled_keeper());
        let held = first.lock("x").await.unwrap();
        let waiter = in_background(second.lock("x"));
        until("the second waits", async || waiters(&first, "x").await == 1).await;
        rig.with.sink().await;
        held.release().await.unwrap();
        assert_eq!(rig.with.withheld().len(), 1, "the second is granted and not told");
        rig.clock.advance(HOUR / 2); // a renewal is due, and with it the comparison
        let guard = waiter.await.unwrap().unwrap();
        settled(&second).await;
        assert!(guard.is_held());
        assert!(first.check(&guard.sequencer()).await.unwrap(), "{guard:?} is not in the store");
        assert!(first.lock("x").try_now().await.unwrap().is_none(), "two hold it");
    });
}

/// A lock that was released while all tickets were compared was in the store's answer and no more at the
/// desk, so it was left once more, as one of which a late copy is to be feared. SQL stores go the long way
/// for two minutes after such a leave.
#[test]
fn what_is_released_while_all_tickets_are_compared_is_left_once() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        let guard = keeper.lock("x").await.unwrap();
        rig.with.poll.shut();
        rig.clock.advance(HOUR / 2); // a renewal is due, and with it the comparison
        until("all are compared", async || rig.with.poll.held_up() == 1).await;
        guard.release().await.unwrap();
        let short = keeper.lock("y").await.unwrap();
        short.release().await.unwrap();
        rig.with.poll.open();
        settled(&keeper).await;
        assert_eq!(rig.with.leave.calls(), 3, "x, y and the last in hand");
    });
}

/// Evictions of one lock made the session compare all its tickets again and again; a grant that
/// came meanwhile was left although its guard had just been given out.
#[test]
fn evictions_of_one_lock_do_not_cost_its_session_another_in_memory() {
    run_on_threads(async || {
        let store = AnyStore::new(Memory::new());
        only_evicted_locks_are_lost(|| store.clone()).await;
    });
}

/// The same fault, with a connection of its own for each keeper: as between processes.
#[cfg(feature = "sqlite")]
#[test]
fn evictions_of_one_lock_do_not_cost_its_session_another_in_a_file() {
    run_on_threads(async || {
        let folder = crate::files::Folder::new();
        only_evicted_locks_are_lost(|| folder.open()).await;
    });
}

async fn only_evicted_locks_are_lost(store: impl Fn() -> AnyStore) {
    let counters: [Arc<AtomicUsize>; 3] = Default::default();
    let mut tasks = Vec::new();
    for i in 0..3 {
        let (store, with) = Meddled::over(store());
        let keeper = Keeper::builder().ttl(HOUR).renew(OFTEN).over(store).unwrap();
        let evictor = tokio::spawn(evict_again_and_again(keeper.clone(), format!("own {i}"), with));
        let [inside, meetings, losses] = counters.clone();
        tasks.push(tokio::spawn(async move {
            while !evictor.is_finished() {
                let guard = keeper.lock("x").await.unwrap();
                meetings.fetch_add(inside.fetch_add(1, SeqCst), SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, SeqCst);
                losses.fetch_add(guard.release().await.is_err().into(), SeqCst);
            }
            evictor.await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let [_, meetings, losses] = counters.map(|counter| counter.load(SeqCst));
    assert_eq!((meetings, losses), (0, 0), "meetings, and losses of what was not evicted");
}

/// Evicts a lock of the keeper's, and lets the keeper notice it with its next renewal.
async fn evict_again_and_again(keeper: Keeper, name: String, with: Arc<Meddling>) {
    for _ in 0..50 {
        let guard = keeper.lock(&name).await.unwrap();
        assert!(keeper.evict(&name, guard.ticket()).await.unwrap());
        let before = with.renew.calls();
        while with.renew.calls() < before + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A waiter that was evicted stood in line again with the same ticket, so a hint of its first stay
/// that came late gave it a lock that another client had.
#[test]
fn a_late_hint_of_an_evicted_stay_does_not_grant_the_next_stay() {
    run(async || {
        let rig = Rig::new();
        let (first, second, third) = (rig.keeper(), rig.meddled_keeper(), rig.keeper());
        let held = first.lock("x").await.unwrap();
        let second_waits = in_background(second.lock("x"));
        until("the second waits", async || waiters(&first, "x").await == 1).await;
        let sink = rig.with.sink().await;
        let third_waits = in_background(third.lock("x"));
        until("the third waits", async || waiters(&first, "x").await == 2).await;
        rig.with.post(Post::Withheld);
        held.release().await.unwrap();
        let (ticket, fence) = rig.with.withheld()[0];
        assert!(first.evict("x", ticket).await.unwrap());
        let third_holds = third_waits.await.unwrap().unwrap();
        sink.recheck(None);
        until("the second waits again", async || waiters(&first, "x").await == 1).await;
        sink.granted(ticket, fence); // the hint arrives now
        turns().await;
        assert!(third_holds.is_held());
        assert!(!second_waits.is_finished(), "two believe in it");
        let passed = third_holds.fence();
        rig.with.post(Post::Delivered);
        third_holds.release().await.unwrap();
        let guard = second_waits.await.unwrap().unwrap();
        assert!(guard.fence() > passed && first.check(&guard.sequencer()).await.unwrap());
    });
}

/// Locks taken early could be lost while the later ones were waited for, and were handed out all
/// the same.
#[test]
fn several_locks_are_not_handed_out_when_one_was_lost_while_waiting() {
    run(async || {
        let rig = Rig::new();
        let (taker, other) = (keeper(&rig.plain, &rig.clock, MINUTE), rig.keeper());
        let b = other.lock("b").await.unwrap();
        let all = tokio::spawn(taker.lock_all(["a", "b"]).into_future());
        until("the taker waits for b", async || waiters(&other, "b").await == 1).await;
        rig.clock.advance(2 * MINUTE); // its session is over, and "a" is free for all
        let _a = other.lock("a").await.unwrap();
        until("the taker waits for b again", async || waiters(&other, "b").await == 1).await;
        b.release().await.unwrap();
        match all.await.unwrap() {
            Err(Error::Lost { name, .. }) => assert_eq!(name.as_str(), "a"),
            other => panic!("{other:?}, and \"a\" was lost"),
        }
        until("the taker lets go of b", async || is_free(&other, "b").await).await;
    });
}

/// Only the last release of a re-entrant lock said that the lock had been lost.
#[test]
fn the_release_of_an_inner_guard_reports_the_loss() {
    run(async || {
        let keeper = Keeper::builder().ttl(MINUTE).renew(OFTEN).over(Memory::new()).unwrap();
        let outer = keeper.lock("x").reentrant_as("me").await.unwrap();
        let inner = keeper.lock("x").reentrant_as("me").await.unwrap();
        assert!(keeper.evict("x", outer.ticket()).await.unwrap());
        assert_eq!(inner.lost().await, Loss::Evicted);
        for guard in [inner, outer] {
            let released = guard.release().await;
            assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
        }
    });
}

/// The answer to a renewal that came after the deadline brought a lock back to life which had been
/// declared lost.
#[test]
fn a_lock_that_was_lost_stays_lost() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        let guard = keeper.lock("x").await.unwrap();
        guard.extend(Duration::ZERO).await.unwrap(); // so the renewals have begun
        let before = rig.with.renew.calls();
        rig.with.renew.shut();
        rig.clock.advance(HOUR - 10 * MINUTE);
        until("a renewal is carried out", async || rig.with.renew.held_up() == 1).await;
        assert_eq!(rig.with.renew.calls(), before + 1);
        assert!(guard.is_held());
        rig.clock.advance(10 * MINUTE);
        assert!(!guard.is_held());
        rig.with.renew.open(); // the answer arrives now
        turns().await;
        assert!(!guard.is_held(), "lost, and held again");
        assert_eq!(guard.lost().await, Loss::Expired);
    });
}

/// A release that had failed once, certainly without effect, took the ticket's absence for its own
/// doing and did not report that the lock had been lost.
#[test]
fn a_release_that_finds_nothing_to_release_is_a_loss() {
    run(async || {
        let rig = Rig::new();
        let (keeper, other) = (rig.meddled_keeper(), rig.keeper());
        let guard = keeper.lock("x").await.unwrap();
        let ticket = guard.ticket();
        rig.with.leave.fail(true);
        let release = tokio::spawn(guard.release());
        until("the release has failed", async || rig.with.leave.calls() > 0).await;
        assert!(other.evict("x", ticket).await.unwrap());
        rig.with.leave.fail(false);
        let released = release.await.unwrap();
        assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    });
}

/// During the lock-delay the store still knows the ticket; a guard that had been lost could write
/// then.
#[test]
fn a_lost_guard_writes_nothing() {
    run(async || {
        let rig = Rig::new();
        let builder = Keeper::builder().ttl(MINUTE).lock_delay(HOUR).clock(rig.clock.clone());
        let keeper = builder.over(rig.plain.clone()).unwrap();
        let guard = keeper.lock("x").label("before").await.unwrap();
        rig.clock.advance(2 * MINUTE);
        assert!(!guard.is_held());
        assert!(matches!(guard.write(b"late".to_vec()).await, Err(Error::Lost { .. })));
        assert!(matches!(guard.set_label("late").await, Err(Error::Lost { .. })));
        assert_eq!(keeper.read("x").await.unwrap(), None);
        let line = keeper.get("x").await.unwrap().expect("the lock-delay keeps it closed");
        assert_eq!(line.tickets[0].label, b"before");
    });
}

/// The store had given the lock to the next one, and the token went on to say "held" until the answer came.
#[test]
fn a_token_says_released_before_the_release_is_answered() {
    run(async || {
        let rig = Rig::new();
        let (keeper, other) = (rig.meddled_keeper(), rig.keeper());
        let guard = keeper.lock("a").await.unwrap();
        let token = guard.loss();
        assert_eq!(token.why(), None);
        rig.with.leave.shut();
        let release = tokio::spawn(guard.release());
        until("the answer is under way", async || rig.with.leave.held_up() == 1).await;
        assert!(other.lock("a").try_now().await.unwrap().is_some());
        assert_eq!(token.why(), Some(Loss::Released));
        rig.with.leave.open();
        release.await.unwrap().unwrap();
    });
}

/// A worker that looks rarely was told of a clean release of work that nothing protected.
#[test]
fn a_token_of_a_lost_lock_says_why_after_its_guard_is_dropped() {
    run(async || {
        let rig = Rig::new();
        let guard = rig.keeper().lock("a").await.unwrap();
        let token = guard.loss();
        rig.clock.advance(2 * HOUR);
        drop(guard);
        assert_eq!(token.why(), Some(Loss::Expired));
    });
}

/// The request of a watch that was not polled any more kept its place in the store's queue for good.
#[test]
fn the_request_of_a_watch_that_is_left_alone_is_finished() {
    run(async || {
        let rig = Rig::new();
        let keeper = rig.meddled_keeper();
        rig.with.list.shut();
        let mut watch = keeper.watch("");
        tokio::select! {
            lines = watch.next() => panic!("the store has not answered: {lines:?}"),
            () = until("its request is under way", async || rig.with.list.held_up() == 1) => {}
        }
        rig.with.list.open();
        until("the store has answered", async || rig.with.list.held_up() == 0).await;
        assert!(watch.next().await.unwrap().is_empty());
    });
}
