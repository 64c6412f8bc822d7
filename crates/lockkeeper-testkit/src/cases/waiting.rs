//! Waiters are served, whatever happens to hints, polls, sessions and the store.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, FaultStore, Op},
    hint_filter::HintFate,
    raw_session::RawSession,
    register::{Register, Room},
    world::{World, eventually, length, soon, until_length, waiters},
};
use lockkeeper::{Error, Guard, Keeper, Store as _};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::{JoinHandle, JoinSet};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!("waiting":
        [Fair] without_any_hint_they_are_served, noisy_hints_do_no_harm,
            a_late_hint_grants_nothing, a_waiter_outlives_its_session, a_waiter_outlives_an_outage,
            a_wait_ends_in_time_though_the_store_is_silent, one_keeper_has_one_waiting_ticket,
            a_try_is_busy_while_a_local_task_waits, an_evicted_waiter_enters_at_the_end,
            waiters_hear_how_they_stand, an_expired_holder_gives_way_without_hints;
        [Fair, Wakes] a_hand_over_wakes_the_waiter;
        [] a_try_does_not_wait_for_a_broken_store;
    );
    // On one thread the order in which things happen is the same every time.
    let race = cases!("waiting": [Fair] a_grant_found_while_comparing_tickets_is_kept);
    cases.extend(race.into_iter().map(Case::on_one_thread));
    cases
}

/// Begins to wait for the lock, and returns when the ticket stands in line.
async fn waiter(keeper: &Keeper, name: &str) -> JoinHandle<lockkeeper::Result<Guard>> {
    let told = Arc::new(AtomicBool::new(false));
    let ear = Arc::clone(&told);
    let lock = keeper.lock(name).on_wait(move |_| ear.store(true, Ordering::Relaxed));
    let task = tokio::spawn(async move { lock.await });
    // The store shows a ticket before its owner has heard of it.
    eventually("the ticket stands in line", async || told.load(Ordering::Relaxed)).await;
    task
}

/// I7: hints may be lost, all of them: a re-check stands behind them.
async fn without_any_hint_they_are_served(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    faults.hint_fate(HintFate::Drop);
    let deaf = Keeper::over(faults.store());
    for _ in 0..3 {
        let held = other.lock("a").await?;
        let waiter = waiter(&deaf, "a").await;
        held.release().await?;
        soon("the deaf waiter's turn", waiter).await??.release().await?;
    }
    Ok(())
}

/// I7: no release and no hint comes: the waiter looks again when the lease can have run out.
async fn an_expired_holder_gives_way_without_hints(w: World) -> Verdict {
    let faults = w.fault_store().await;
    faults.hint_fate(HintFate::Drop);
    let (deaf, silent) = (
        Keeper::over(faults.store()),
        RawSession::open_for(faults.inner(), w.short(), Duration::ZERO).await,
    );
    let held = silent.take("a").await;
    let guard = soon("the deaf waiter's turn", deaf.lock("a").into_future()).await?;
    assert!(guard.fence() > held.fence);
    Ok(())
}

/// I3: hints that come twice or mean nothing grant nothing.
async fn noisy_hints_do_no_harm(w: World) -> Verdict {
    let (register, room) = (Arc::new(Register::default()), Arc::new(Room::outage(1)));
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let faults = w.fault_store().await;
        faults.hint_fate(HintFate::Noise);
        let (keeper, register, room) =
            (Keeper::over(faults.store()), register.clone(), room.clone());
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = keeper.lock("a").await?;
                room.visit(1).await;
                assert!(register.increment(guard.fence()).await);
                guard.release().await?;
            }
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    register.assert_no_update_was_lost();
    assert_eq!(register.value(), 60);
    Ok(())
}

/// I3: a waiter was granted, did not hear of it, was evicted, and waits again. The hint of that
/// first grant comes now: it must not make the waiter believe.
async fn a_late_hint_grants_nothing(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    let late = Keeper::over(faults.store());
    let held = other.lock("a").await?;
    // A first wait, so that the hints of the session are in place.
    assert!(late.lock("a").wait(Duration::from_millis(300)).await.is_err());
    until_length(faults.inner(), "a", 1).await;
    faults.hint_fate(HintFate::Hold);
    faults.only(&[Op::PollThese, Op::PollAll], Fate::Refuse);
    let waiter = waiter(&late, "a").await;
    let line = other.get("a").await?.expect("a line");
    let ticket = line.waiters().next().expect("the waiter").id;
    held.release().await?;
    assert!(other.evict("a", ticket).await?);
    let holder = RawSession::open(faults.inner()).await;
    let held = holder.take("a").await;
    faults.pass_all();
    until_length(faults.inner(), "a", 2).await;
    faults.hint_filter().deliver();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiter.is_finished(), "the lock is held by another");
    faults.hint_fate(HintFate::Pass);
    holder.leave("a", held.ticket).await;
    soon("the waiter's turn", waiter).await??.release().await?;
    Ok(())
}

/// I3: the session's tickets are compared with the store's just when one that waited has been
/// granted. It is one of ours, and must not be left as a stranger's.
async fn a_grant_found_while_comparing_tickets_is_kept(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    // The grant can only be found by the poll for all tickets, which follows the first renewal.
    faults.hint_fate(HintFate::Drop);
    faults.only(&[Op::PollThese], Fate::Refuse);
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let held = other.lock("a").await?;
    let waiter = waiter(&keeper, "a").await;
    held.release().await?;
    let guard = soon("the waiter's turn", waiter).await??;
    // Long enough for whatever was begun to be done.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(other.check(&guard.sequencer()).await?, "the store must hold what the guard says");
    guard.release().await?;
    Ok(())
}

/// I7: the session is lost while waiting. The waiter enters again under a new one.
async fn a_waiter_outlives_its_session(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let held = other.lock("a").await?;
    let waiter = waiter(&keeper, "a").await;
    for lives in 1..3 {
        faults.only(&[Op::Renew], Fate::Vanish);
        eventually("a new session", async || faults.sessions().len() > lives).await;
        faults.pass_all();
    }
    until_length(other.store(), "a", 2).await;
    held.release().await?;
    soon("the waiter's turn", waiter).await??.release().await?;
    Ok(())
}

/// I7: the store is unavailable for a while, before and while waiting.
async fn a_waiter_outlives_an_outage(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    faults.hint_fate(HintFate::Drop);
    let keeper = Keeper::over(faults.store());
    let held = other.lock("a").await?;
    faults.plan(|_| Fate::Refuse);
    let lock = keeper.lock("a");
    let waiter = tokio::spawn(async move { lock.await });
    eventually("attempts to open", async || faults.count(Op::Open) >= 3).await;
    faults.only(&[Op::Enter], Fate::Lose);
    eventually("attempts to enter", async || faults.count(Op::Enter) >= 3).await;
    faults.pass_all();
    eventually("polls, so it was told to wait", async || faults.count(Op::PollThese) > 0).await;
    faults.plan(|_| Fate::Refuse);
    // Polls go one after the other, so after two more none is under way that was let through.
    let polls = faults.count(Op::PollThese);
    eventually("refused polls", async || faults.count(Op::PollThese) >= polls + 2).await;
    held.release().await?;
    let polls = faults.count(Op::PollThese);
    eventually("attempts to poll", async || faults.count(Op::PollThese) >= polls + 2).await;
    faults.pass_all();
    soon("the waiter's turn", waiter).await??.release().await?;
    until_length(faults.inner(), "a", 0).await;
    Ok(())
}

/// I10: no answer comes at all, yet the wait ends, a second after it was said to at the latest. Of the lock
/// nothing is known then.
async fn a_wait_ends_in_time_though_the_store_is_silent(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    for op in [&[Op::Open] as &'static [Op], &[Op::Enter]] {
        faults.only(op, Fate::Vanish);
        let late = keeper.lock("a").wait(Duration::from_millis(100)).into_future();
        let late = soon("the end of the wait", late).await;
        assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    }
    Ok(())
}

/// A try against a store that refuses is an error, at once.
async fn a_try_does_not_wait_for_a_broken_store(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    for op in [&[Op::Open] as &'static [Op], &[Op::Enter]] {
        faults.only(op, Fate::Refuse);
        let broken = soon("the error", keeper.lock("a").try_now()).await;
        assert!(matches!(broken, Err(Error::Store(_))), "{broken:?}");
    }
    assert_eq!(faults.count(Op::Open), 2);
    Ok(())
}

/// The local gate: of many tasks in one process one stands in the store's line, and all are served.
async fn one_keeper_has_one_waiting_ticket(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let held = other.lock("a").await?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..10 {
        let (lock, order) = (keeper.lock("a"), order.clone());
        tasks.spawn(async move {
            let guard = lock.await?;
            order.lock().unwrap().push((guard.fence(), i));
            guard.release().await
        });
    }
    until_length(other.store(), "a", 2).await;
    let watch = async {
        loop {
            assert!(waiters(other.store(), "a").await <= 1, "a crowd of tickets");
            tokio::task::yield_now().await;
        }
    };
    let rest = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        held.release().await?;
        for done in soon("every task's turn", tasks.join_all()).await {
            done?;
        }
        anyhow::Ok(())
    };
    tokio::select! { () = watch => {} done = rest => done? }
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted() && order.len() == 10, "each grant has its own fence: {order:?}");
    Ok(())
}

/// A try does not overtake the tasks that wait in its own process, and sends nothing.
async fn a_try_is_busy_while_a_local_task_waits(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    let keeper = Keeper::over(faults.store());
    let held = other.lock("a").await?;
    let waiter = waiter(&keeper, "a").await;
    let before = faults.count(Op::Enter);
    assert!(keeper.lock("a").try_now().await?.is_none());
    assert_eq!(faults.count(Op::Enter), before);
    held.release().await?;
    let mine = soon("the waiter's turn", waiter).await??;
    assert!(keeper.lock("a").try_now().await?.is_none(), "held by a task of this process");
    mine.release().await?;
    assert!(keeper.lock("a").try_now().await?.is_some());
    Ok(())
}

/// A waiter that is evicted waits again, at the end.
async fn an_evicted_waiter_enters_at_the_end(w: World) -> Verdict {
    let (one, two, three) = (w.keeper().await, w.keeper().await, w.keeper().await);
    let held = one.lock("a").await?;
    let (second, third) = (waiter(&two, "a").await, waiter(&three, "a").await);
    let line = one.get("a").await?.expect("a line");
    let first_in_line = line.waiters().next().expect("two wait").id;
    assert!(one.evict("a", first_in_line).await?);
    until_length(one.store(), "a", 3).await;
    held.release().await?;
    let third = soon("the third's turn", third).await??;
    assert!(!second.is_finished());
    third.release().await?;
    soon("the second's turn", second).await??.release().await?;
    Ok(())
}

/// `on_wait` says how many stand before, and who holds the lock.
async fn waiters_hear_how_they_stand(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = one.lock("a").label("nightly").await?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let ear = told.clone();
    let lock = two.lock("a").on_wait(move |wait| ear.lock().unwrap().push(wait.clone()));
    let waiter = tokio::spawn(async move { lock.await });
    eventually("told", async || !told.lock().unwrap().is_empty()).await;
    let wait = told.lock().unwrap()[0].clone();
    assert_eq!(wait.ahead, 1);
    if let Some(holder) = wait.holder {
        assert_eq!(holder.label, b"nightly");
        assert_eq!(holder.owner.pid, std::process::id());
    }
    held.release().await?;
    soon("the waiter's turn", waiter).await??.release().await?;
    Ok(())
}

/// The store claims to wake waiters, also through another handle: a hint for the ticket comes
/// between the release and the grant.
async fn a_hand_over_wakes_the_waiter(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    let keeper = Keeper::over(faults.store());
    let mut woken = 0;
    for _ in 0..5 {
        let held = other.lock("a").await?;
        let waiter = waiter(&keeper, "a").await;
        until_listening(&faults).await;
        let heard = faults.hint_filter().seen();
        held.release().await?;
        soon("the waiter's turn", waiter).await??.release().await?;
        woken += usize::from(faults.hint_filter().seen() > heard);
    }
    // A re-check by chance at the same moment may be quicker than a hint, but not as a rule.
    assert!(woken >= 3, "{woken} of 5 hand-overs were hinted at");
    assert_eq!(length(other.store(), "a").await, 0);
    Ok(())
}

/// Waits until the core's own polls have become rare, as they do once hints come.
async fn until_listening(faults: &Arc<FaultStore>) {
    eventually("hints are in place", async || {
        let before = faults.count(Op::PollThese);
        tokio::time::sleep(Duration::from_millis(300)).await;
        faults.count(Op::PollThese) <= before + 1
    })
    .await;
    assert!(faults.inner().capabilities().wakes);
}
