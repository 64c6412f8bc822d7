//! A client stops believing before the store can grant to another, and says so.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    world::{World, eventually, soon, until_length},
};
use lockkeeper::{Error, Guard, Health, Keeper, Loss};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) fn cases() -> Vec<Case> {
    cases!("loss":
        [Fair] silence_loses_it_before_a_successor_is_granted,
            refusal_loses_it_before_a_successor_is_granted;
        [] it_is_told_by_the_deadline, a_lost_answer_loses_nothing, one_missed_beat_loses_nothing,
            jeopardy_is_signalled_and_passes, nothing_is_sent_after_a_loss,
            after_a_loss_the_keeper_goes_on, a_release_after_a_loss_says_so,
            work_is_dropped_the_moment_the_lock_is_lost, a_release_outlives_a_short_outage,
            a_release_in_silence_ends_with_the_session;
    )
}

async fn take(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).try_now().await.expect("an answer").expect("free")
}

/// I12: renewals get no answer. When the next in line is granted, the holder knows already.
async fn silence_loses_it_before_a_successor_is_granted(w: World) -> Verdict {
    loses_it_before_a_successor_is_granted(w, Fate::Vanish).await
}

/// I12: the same when the store refuses.
async fn refusal_loses_it_before_a_successor_is_granted(w: World) -> Verdict {
    loses_it_before_a_successor_is_granted(w, Fate::Refuse).await
}

async fn loses_it_before_a_successor_is_granted(w: World, fate: Fate) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let next = w.keeper().await;
    for _ in 0..2 {
        faults.pass_all();
        let guard = soon("a session that lives", keeper.lock("a").into_future()).await?;
        faults.only(&[Op::Renew], fate);
        let granted = soon("the successor's grant", next.lock("a").into_future()).await?;
        assert!(!guard.is_held(), "two believe at the same time");
        assert!(granted.fence() > guard.fence());
        assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
        assert_eq!(guard.remaining(), Duration::ZERO);
        granted.release().await?;
    }
    Ok(())
}

/// I12: `is_held` never says yes after the time that `remaining` promised.
async fn it_is_told_by_the_deadline(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    faults.only(&[Op::Renew], Fate::Vanish);
    let (mut asked, mut left) = (std::time::Instant::now(), guard.remaining());
    while guard.is_held() {
        assert!(asked.elapsed() <= w.short(), "still held, {left:?} were left");
        (asked, left) = (std::time::Instant::now(), guard.remaining());
        assert!(left <= w.short());
        tokio::task::yield_now().await;
    }
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert!(matches!(guard.health(), Health::Lost(Loss::Expired)));
    Ok(())
}

/// Fails the first so many renewals in this way.
fn first(count: usize, fate: Fate) -> impl Fn(&crate::fault_store::Call) -> Fate + Send + Sync {
    let failed = AtomicUsize::new(0);
    move |call| {
        let fails = call.op == Op::Renew && failed.fetch_add(1, Ordering::SeqCst) < count;
        if fails { fate } else { Fate::Pass }
    }
}

/// A renewal was carried out but its answer did not come: unknown is not lost.
async fn a_lost_answer_loses_nothing(w: World) -> Verdict {
    let faults = w.fault_store().await;
    faults.plan(first(3, Fate::Lose));
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    assert_eq!(soon("a failed renewal", guard.jeopardy()).await, Health::Jeopardy);
    eventually("held again", async || guard.health() == Health::Held).await;
    assert!(faults.count(Op::Renew) > 3);
    guard.release().await?;
    Ok(())
}

/// One renewal that gets no answer at all is repeated in time.
async fn one_missed_beat_loses_nothing(w: World) -> Verdict {
    let faults = w.fault_store().await;
    faults.plan(first(1, Fate::Vanish));
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    eventually("two renewals", async || faults.count(Op::Renew) >= 3).await;
    assert!(guard.is_held(), "{:?}", guard.health());
    guard.release().await?;
    Ok(())
}

/// I12: a failed renewal is told as jeopardy, the lock is still held, and a good renewal ends it.
async fn jeopardy_is_signalled_and_passes(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    assert_eq!(guard.health(), Health::Held);
    faults.only(&[Op::Renew], Fate::Refuse);
    assert_eq!(soon("jeopardy", guard.jeopardy()).await, Health::Jeopardy);
    assert!(guard.is_held());
    faults.pass_all();
    eventually("held again", async || guard.health() == Health::Held).await;
    guard.release().await?;
    Ok(())
}

/// I5: for a session that was declared lost no renew, leave or close is sent, not even when its
/// guards are dropped and the keeper is closed: with a lock-delay they would free it too early.
async fn nothing_is_sent_after_a_loss(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).lock_delay(crate::LONG).over(faults.store())?;
    let guards = [take(&keeper, "a").await, take(&keeper, "b").await];
    faults.only(&[Op::Renew], Fate::Refuse);
    assert_eq!(soon("the loss", guards[0].lost()).await, Loss::Expired);
    faults.pass_all();
    let said = faults.log().len();
    drop(guards);
    // Longer than the renewal's interval and its pauses.
    tokio::time::sleep(w.short()).await;
    keeper.close().await;
    let more: Vec<_> = faults.log().drain(said..).collect();
    assert_eq!(more, []);
    until_length(faults.inner(), "a", 1).await;
    Ok(())
}

/// A new lock gets a new session.
async fn after_a_loss_the_keeper_goes_on(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let lost = take(&keeper, "a").await;
    faults.only(&[Op::Renew], Fate::Vanish);
    soon("the loss", lost.lost()).await;
    faults.pass_all();
    eventually("the lock is free", async || {
        match keeper.lock("a").try_now().await {
            Ok(again) => again.is_some_and(|again| again.fence() > lost.fence()),
            // On a busy machine the new session may expire as well.
            Err(Error::Lost { .. }) => false,
            Err(e) => panic!("no answer: {e}"),
        }
    })
    .await;
    Ok(())
}

/// Work done under a lock that was lost was not protected to its end: its release is an error.
async fn a_release_after_a_loss_says_so(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    faults.only(&[Op::Renew], Fate::Vanish);
    soon("the loss", guard.lost()).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { why: Loss::Expired, .. })), "{released:?}");
    Ok(())
}

/// `run` drops the work when the lock is lost.
async fn work_is_dropped_the_moment_the_lock_is_lost(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let done = keeper.lock("a").unfair().run(|guard| async move { guard.fence() }).await?;
    assert!(done > 0);
    faults.only(&[Op::Renew], Fate::Vanish);
    let dropped = Arc::new(());
    let witness = Arc::clone(&dropped);
    let endless = keeper.lock("a").unfair().run(|_| async move {
        std::future::pending::<()>().await;
        drop(witness);
    });
    let ended = soon("the loss", endless).await;
    assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
    assert_eq!(Arc::strong_count(&dropped), 1, "the work was dropped");
    Ok(())
}

/// While the store cannot be reached a release is repeated, and then it is done.
async fn a_release_outlives_a_short_outage(w: World) -> Verdict {
    for fate in [Fate::Refuse, Fate::Lose] {
        let faults = w.fault_store().await;
        let keeper = Keeper::over(faults.store());
        let guard = take(&keeper, "a").await;
        faults.only(&[Op::Leave], fate);
        let release = tokio::spawn(guard.release());
        eventually("three attempts", async || faults.count(Op::Leave) >= 3).await;
        faults.pass_all();
        soon("the release", release).await??;
        until_length(faults.inner(), "a", 0).await;
    }
    Ok(())
}

/// A release that gets no answer ends with the session, as a loss: no caller waits for ever.
async fn a_release_in_silence_ends_with_the_session(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    faults.plan(|_| Fate::Vanish);
    let released = soon("the end of the release", guard.release()).await;
    assert!(matches!(released, Err(Error::Lost { why: Loss::Expired, .. })), "{released:?}");
    Ok(())
}
