//! A dropped future or guard leaves no ticket, wherever it was dropped.

use crate::{
    case::{Case, Need, Verdict, cases, runtime},
    fault_store::{Fate, FaultStore, Op},
    raw_session::RawSession,
    subject::{Boxed, Subject},
    world::{World, soon, tickets, until_empty, until_length, waiters},
};
use anyhow::Context as _;
use lockkeeper::{Guard, Keeper, Loss};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!("cancel":
        [] a_lock_of_its_own_ttl_dropped_at_every_poll_leaves_nothing,
            a_try_dropped_at_every_poll_leaves_nothing, a_lease_dropped_at_every_poll_leaves_nothing,
            a_contender_dropped_at_every_poll_leaves_nothing,
            a_release_dropped_at_every_poll_is_done, a_dropped_guard_leaves,
            a_dropped_guard_leaves_after_an_outage, closing_leaves_nothing_and_ends_belief,
            closing_ends_even_without_a_store;
        [Fair] a_free_lock_dropped_at_every_poll_leaves_nothing,
            a_taken_lock_dropped_at_every_poll_leaves_nothing,
            a_future_dropped_at_any_time_leaves_nothing, a_dropped_waiter_is_no_obstacle,
            a_dropped_local_waiter_lets_the_next_one_go,
            several_locks_dropped_at_every_poll_leave_nothing;
    );
    // On one thread each number of turns is another point in the waiter's way to its grant.
    let turn = cases!("cancel": [Fair] a_waiter_dropped_around_its_turn_leaves_nothing);
    cases.extend(turn.into_iter().map(Case::on_one_thread));
    let mut bare = |name, body| {
        cases.push(Case::on_a_thread("cancel", name, &[Need::LeaveNow], body));
    };
    bare("a_guard_dropped_as_the_runtime_ends_leaves", a_guard_dropped_as_the_runtime_ends_leaves);
    bare("a_guard_that_outlives_its_runtime_leaves", a_guard_that_outlives_its_runtime_leaves);
    bare(
        "a_future_dropped_as_the_runtime_ends_leaves",
        a_future_dropped_as_the_runtime_ends_leaves,
    );
    cases
}

/// Polls a future at most so many times, and drops it if it is not ready by then.
async fn polled<T>(mut future: Pin<Box<dyn Future<Output = T> + Send>>, times: usize) -> Option<T> {
    let mut left = times;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Every request takes some polls on its way and back, so that each await point is met.
fn sluggish(faults: &FaultStore) {
    faults.plan(|_| Fate::Pend { before: 2, after: 2 });
}

/// Drops what `begin` makes after 0, 1, 2, … polls until it is ready by itself, each time with a
/// fresh keeper, and looks what is left: `left` tickets.
async fn sweep<T: Send + 'static>(
    w: &World,
    left: usize,
    begin: impl Fn(&Keeper) -> Boxed<T>,
) -> Verdict {
    let store = w.store().await;
    for times in 0..200 {
        let faults = w.fault_store().await;
        sluggish(&faults);
        let keeper = Keeper::over(faults.store());
        let ready = polled(begin(&keeper), times).await.map(drop).is_some();
        if times % 2 == 0 {
            // Every other time nothing but the background does the work.
            let what = || async { tickets(&store).await == left };
            crate::world::eventually("the ticket is left", what).await;
        }
        soon("the close", keeper.close()).await;
        assert_eq!(tickets(&store).await, left, "dropped after {times} polls");
        if ready {
            assert!(times > 4, "ready after {times} polls: the sweep met no await point");
            return Ok(());
        }
    }
    panic!("never ready")
}

/// I10: granted at once, or not at all.
async fn a_free_lock_dropped_at_every_poll_leaves_nothing(w: World) -> Verdict {
    sweep(&w, 0, |keeper| keeper.lock("a").into_future()).await
}

/// I10: told to wait, dropped while waiting, or timed out.
async fn a_taken_lock_dropped_at_every_poll_leaves_nothing(w: World) -> Verdict {
    let raw = RawSession::open(&w.store().await).await;
    let held = raw.take("a").await;
    // Longer than a slow machine takes for a few polls: they are what is looked for.
    let wait = Duration::from_millis(300);
    sweep(&w, 1, |keeper| keeper.lock("a").wait(wait).into_future()).await?;
    assert!(raw.check(&held).await);
    Ok(())
}

/// I10: the same for a try.
async fn a_try_dropped_at_every_poll_leaves_nothing(w: World) -> Verdict {
    sweep(&w, 0, |keeper| Box::pin(keeper.lock("a").try_now())).await
}

/// I10: the same for a lock with a session of its own.
async fn a_lease_dropped_at_every_poll_leaves_nothing(w: World) -> Verdict {
    let lease = Duration::from_secs(30);
    sweep(&w, 0, |keeper| keeper.lock("a").unfair().lease(lease).into_future()).await
}

/// I10: the same for one with a TTL of its own.
async fn a_lock_of_its_own_ttl_dropped_at_every_poll_leaves_nothing(w: World) -> Verdict {
    let ttl = Duration::from_secs(30);
    sweep(&w, 0, |keeper| Box::pin(keeper.lock("a").ttl(ttl).try_now())).await
}

/// I10: the same for a contender that finds the lock taken.
async fn a_contender_dropped_at_every_poll_leaves_nothing(w: World) -> Verdict {
    let raw = RawSession::open(&w.store().await).await;
    raw.take("a").await;
    let wait = Duration::from_millis(100);
    sweep(&w, 1, |keeper| keeper.lock("a").unfair().wait(wait).into_future()).await
}

/// I10: the lock is handed over just before, while, or after the waiter is dropped.
async fn a_waiter_dropped_around_its_turn_leaves_nothing(w: World) -> Verdict {
    let (store, faults) = (w.store().await, w.fault_store().await);
    let (raw, keeper) = (RawSession::open(&store).await, Keeper::over(faults.store()));
    let mut granted = 0;
    for turns in 0..20 {
        faults.pass_all();
        let held = raw.take("a").await;
        let lock = keeper.lock("a");
        let waiter = tokio::spawn(async move { lock.await });
        until_length(&store, "a", 2).await;
        sluggish(&faults);
        let drop = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            waiter.abort();
        };
        tokio::join!(raw.leave("a", held.ticket), drop);
        granted += usize::from(waiter.await.is_ok());
        until_empty(&store).await;
    }
    assert!(granted < 20, "none was dropped before its grant");
    Ok(())
}

/// I10: all of them or none, also half-way.
async fn several_locks_dropped_at_every_poll_leave_nothing(w: World) -> Verdict {
    sweep(&w, 0, |keeper| keeper.lock_all(["a", "b", "c"]).into_future()).await
}

/// I10: a release that was begun is finished in the background.
async fn a_release_dropped_at_every_poll_is_done(w: World) -> Verdict {
    let store = w.store().await;
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    for times in 0..100 {
        faults.pass_all();
        let guard = keeper.lock("a").try_now().await?.expect("left by the one before");
        sluggish(&faults);
        let ready = polled(Box::pin(guard.release()), times).await.is_some();
        until_empty(&store).await;
        if ready {
            return Ok(());
        }
    }
    panic!("never ready")
}

/// I10: requests that take milliseconds, dropped at random moments.
async fn a_future_dropped_at_any_time_leaves_nothing(w: World) -> Verdict {
    let (store, faults) = (w.store().await, w.fault_store().await);
    let ms = Duration::from_millis;
    faults.plan(move |_| Fate::Slow { before: ms(2), after: ms(2) });
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..10 {
        let keeper = Keeper::over(faults.store());
        for _ in 0..5 {
            let lock = keeper.lock("a").into_future();
            let _ = tokio::time::timeout(ms(rng.random_range(0..15)), lock).await;
        }
        soon("the close", keeper.close()).await;
        assert_eq!(tickets(&store).await, 0);
    }
    Ok(())
}

/// Dropping the guard is releasing it, in the background.
async fn a_dropped_guard_leaves(w: World) -> Verdict {
    let keeper = w.keeper().await;
    for _ in 0..20 {
        drop(keeper.lock("a").try_now().await?.expect("free"));
        until_length(keeper.store(), "a", 0).await;
    }
    Ok(())
}

/// I10: the store could not be reached when the guard was dropped.
async fn a_dropped_guard_leaves_after_an_outage(w: World) -> Verdict {
    for fate in [Fate::Refuse, Fate::Lose] {
        let faults = w.fault_store().await;
        let keeper = Keeper::over(faults.store());
        let guard = keeper.lock("a").try_now().await?.expect("free");
        faults.only(&[Op::Leave], fate);
        drop(guard);
        crate::world::eventually("attempts", async || faults.count(Op::Leave) >= 2).await;
        faults.pass_all();
        until_length(faults.inner(), "a", 0).await;
    }
    Ok(())
}

/// I11: guards that still live are lost, and their tickets are gone when the close has returned.
async fn closing_leaves_nothing_and_ends_belief(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let guards: [Guard; 2] = [
        keeper.lock("a").try_now().await?.expect("free"),
        keeper.lock("b").unfair().lease(Duration::from_secs(30)).await?,
    ];
    drop(keeper.lock("c").try_now().await?.expect("free"));
    keeper.close().await;
    assert_eq!(tickets(other.store()).await, 0);
    for guard in guards {
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, Loss::Closed);
    }
    let refused = keeper.lock("a").try_now().await;
    assert!(matches!(refused, Err(lockkeeper::Error::Closed)), "{refused:?}");
    Ok(())
}

/// A close without an answer from the store ends with the session.
async fn closing_ends_even_without_a_store(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    faults.plan(|_| Fate::Refuse);
    drop(guard);
    soon("the close", keeper.close()).await;
    until_length(faults.inner(), "a", 0).await;
    Ok(())
}

/// I7: the one behind a dropped waiter is served.
async fn a_dropped_waiter_is_no_obstacle(w: World) -> Verdict {
    let (one, two, three) = (w.keeper().await, w.keeper().await, w.keeper().await);
    let held = one.lock("a").await?;
    let (second, third) = (two.lock("a"), three.lock("a"));
    let second = tokio::spawn(async move { second.await });
    until_length(one.store(), "a", 2).await;
    let third = tokio::spawn(async move { third.await });
    until_length(one.store(), "a", 3).await;
    second.abort();
    held.release().await?;
    soon("the third's turn", third).await??.release().await?;
    until_length(one.store(), "a", 0).await;
    Ok(())
}

/// I7: the same at the local gate, also for one dropped at the very moment of its turn.
async fn a_dropped_local_waiter_lets_the_next_one_go(w: World) -> Verdict {
    let keeper = w.keeper().await;
    for _ in 0..10 {
        let held = keeper.lock("a").await?;
        let spawn = || {
            let lock = keeper.lock("a");
            tokio::spawn(async move { lock.await })
        };
        let (second, third, fourth) = (spawn(), spawn(), spawn());
        until_length(keeper.store(), "a", 2).await;
        third.abort();
        held.release().await?;
        second.abort();
        if let Ok(guard) = second.await {
            drop(guard?);
        }
        soon("the last one's turn", fourth).await??.release().await?;
    }
    assert_eq!(waiters(keeper.store(), "a").await, 0);
    Ok(())
}

/// Runs `first` on a runtime that ends right after it, and looks from another what it has left.
fn nothing_left_after<F, V>(subject: &Subject, first: F) -> Verdict
where
    F: Fn(Arc<World>) -> V,
    V: Future<Output = anyhow::Result<Option<Guard>>>,
{
    let outside = runtime(1)?;
    let world = outside.block_on(World::new(subject, None)).context("no fresh store")?;
    let world = Arc::new(world);
    for workers in [1, 2] {
        let inside = runtime(workers)?;
        let guard = inside.block_on(first(Arc::clone(&world)))?;
        drop(inside);
        drop(guard);
        outside.block_on(async {
            assert_eq!(tickets(&world.store().await).await, 0, "with {workers} workers");
        });
    }
    Ok(())
}

/// The runtime ends right after the guard was dropped: nothing can be awaited any more.
fn a_guard_dropped_as_the_runtime_ends_leaves(subject: &Subject) -> Verdict {
    nothing_left_after(subject, async |w: Arc<World>| {
        let keeper = w.keeper().await;
        drop(keeper.lock("a").try_now().await?.expect("free"));
        Ok(None)
    })
}

/// The guard is dropped only after its runtime is gone.
fn a_guard_that_outlives_its_runtime_leaves(subject: &Subject) -> Verdict {
    nothing_left_after(subject, async |w: Arc<World>| {
        let keeper = w.keeper().await;
        Ok(keeper.lock("a").try_now().await?)
    })
}

/// The runtime ends while a task stands in line, and another task's request is under way.
fn a_future_dropped_as_the_runtime_ends_leaves(subject: &Subject) -> Verdict {
    nothing_left_after(subject, async |w: Arc<World>| {
        let faults = w.fault_store().await;
        faults.only(&[Op::Enter], Fate::Silence);
        let keeper = Keeper::over(faults.store());
        let lock = keeper.lock("a");
        drop(tokio::spawn(async move { lock.try_now().await.map(drop) }));
        until_length(faults.inner(), "a", 1).await;
        Ok(None)
    })
}
