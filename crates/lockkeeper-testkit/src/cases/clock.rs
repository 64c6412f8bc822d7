//! The client's clock jumps, as it does for a process that was stopped or a machine that slept.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, FaultStore, Op},
    world::{World, eventually, length, soon},
};
use lockkeeper::{Error, Guard, Health, Keeper, Loss, store::clock::Clock};
use std::{sync::Arc, time::Duration};

const TTL: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!("clock":
        [] a_jump_past_the_ttl_ends_belief_at_once, a_jump_below_the_ttl_loses_nothing,
            nothing_is_sent_after_the_jump, a_jump_past_the_longest_hold_ends_it_at_once,
            a_lease_ends_by_the_jump, after_the_jump_the_keeper_goes_on;
        [Fair] a_waiter_goes_on_after_the_jump;
    );
    // On one thread the order in which things happen is the same every time.
    let order = cases!("clock":
        [] an_answer_that_comes_too_late_revives_nothing, a_jump_right_after_the_grant_loses_nothing;
    );
    cases.extend(order.into_iter().map(Case::on_one_thread));
    cases
}

/// A lock that was renewed once, so that everything behind it is running.
async fn taken(w: &World) -> anyhow::Result<(Clock, Arc<FaultStore>, Keeper, Guard)> {
    let (clock, faults) = (Clock::movable(), w.fault_store().await);
    let keeper = Keeper::builder().ttl(TTL).clock(clock.clone()).over(faults.store())?;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    guard.extend(Duration::ZERO).await?;
    assert_eq!(faults.count(Op::Renew), 1);
    Ok((clock, faults, keeper, guard))
}

/// I12: exact at the moment of the call, before any task has had a chance to run.
async fn a_jump_past_the_ttl_ends_belief_at_once(w: World) -> Verdict {
    let (clock, _tap, _keeper, guard) = taken(&w).await?;
    assert!(guard.is_held());
    clock.advance(TTL);
    assert!(!guard.is_held());
    assert_eq!(guard.health(), Health::Lost(Loss::Expired));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    let extended = guard.extend(Duration::ZERO).await;
    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    Ok(())
}

/// A nap that the lease outlives is made good by the next renewal.
async fn a_jump_below_the_ttl_loses_nothing(w: World) -> Verdict {
    let (clock, faults, _keeper, guard) = taken(&w).await?;
    for naps in 1..=3 {
        clock.advance(TTL * 9 / 10);
        assert!(guard.is_held());
        eventually("a renewal", async || faults.count(Op::Renew) > naps).await;
        eventually("a new deadline", async || guard.remaining() > TTL * 8 / 10).await;
    }
    assert_eq!(guard.health(), Health::Held);
    guard.release().await?;
    Ok(())
}

/// The same when the nap comes before anything behind the lock has begun to run: the time of the
/// first renewal counts from the opening of the session.
async fn a_jump_right_after_the_grant_loses_nothing(w: World) -> Verdict {
    let (clock, faults) = (Clock::movable(), w.fault_store().await);
    let keeper = Keeper::builder().ttl(TTL).clock(clock.clone()).over(faults.store())?;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    clock.advance(TTL / 2);
    eventually("a renewal", async || faults.count(Op::Renew) == 1).await;
    eventually("a new deadline", async || guard.remaining() > TTL * 8 / 10).await;
    guard.release().await?;
    Ok(())
}

/// I5: no renew, no leave, no close: the session only expires.
async fn nothing_is_sent_after_the_jump(w: World) -> Verdict {
    let (clock, faults, keeper, guard) = taken(&w).await?;
    let sent = faults.log().len();
    let writes = [Op::Renew, Op::Leave, Op::LeaveNow, Op::Close, Op::Enter, Op::Open];
    clock.advance(TTL);
    soon("the loss", guard.lost()).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { why: Loss::Expired, .. })), "{released:?}");
    clock.advance(TTL);
    tokio::time::sleep(Duration::from_millis(50)).await;
    keeper.close().await;
    let more = faults.log().split_off(sent);
    assert!(!more.iter().any(|call| writes.contains(&call.op)), "{more:?}");
    assert_eq!(length(faults.inner(), "a").await, 1, "it expires on the store's clock");
    Ok(())
}

/// I5: the answer to a renewal arrives after the deadline, before any timer has fired. Belief has
/// ended for every caller that asked meanwhile, and does not come back.
async fn an_answer_that_comes_too_late_revives_nothing(w: World) -> Verdict {
    let (clock, faults, _keeper, guard) = taken(&w).await?;
    faults.only(&[Op::Renew], Fate::Hold);
    clock.advance(TTL / 2);
    eventually("a renewal under way", async || faults.count(Op::Renew) == 2).await;
    tokio::task::yield_now().await;
    // Past the deadline, but within a TTL of when the renewal was sent.
    clock.advance(TTL * 6 / 10);
    assert!(!guard.is_held());
    faults.release_held();
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(!guard.is_held(), "lost, and held again");
    }
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    Ok(())
}

/// `max_hold` is a promise of the client alone, so it too is exact.
async fn a_jump_past_the_longest_hold_ends_it_at_once(w: World) -> Verdict {
    let (clock, faults, keeper, _other) = taken(&w).await?;
    let most = Duration::from_secs(20);
    let guard = keeper.lock("b").max_hold(most).try_now().await?.expect("free");
    clock.advance(most);
    assert!(!guard.is_held(), "held for longer than it may be");
    assert_eq!(soon("the loss", guard.lost()).await, Loss::MaxHold);
    eventually("the line moves on", async || length(faults.inner(), "b").await == 0).await;
    Ok(())
}

/// A fixed lease ends by the same clock.
async fn a_lease_ends_by_the_jump(w: World) -> Verdict {
    let (clock, faults, keeper, _other) = taken(&w).await?;
    let lease = Duration::from_secs(30);
    let guard = keeper.lock("b").unfair().lease(lease).await?;
    clock.advance(lease / 2);
    assert!(guard.is_held());
    clock.advance(lease / 2);
    assert!(!guard.is_held());
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Expired);
    assert_eq!(length(faults.inner(), "b").await, 1, "nothing was sent");
    Ok(())
}

/// A new session, and whatever is free can be taken.
async fn after_the_jump_the_keeper_goes_on(w: World) -> Verdict {
    let (clock, faults, keeper, lost) = taken(&w).await?;
    clock.advance(TTL);
    let next = keeper.lock("b").try_now().await?.expect("free");
    assert_eq!(faults.sessions().len(), 2);
    assert!(next.is_held() && !lost.is_held());
    next.release().await?;
    Ok(())
}

/// I7: a waiter that slept waits on, under a new session.
async fn a_waiter_goes_on_after_the_jump(w: World) -> Verdict {
    let (clock, faults, keeper, _lost) = taken(&w).await?;
    let other = w.keeper().await;
    let held = other.lock("b").await?;
    let lock = keeper.lock("b");
    let waiter = tokio::spawn(async move { lock.await });
    eventually("in line", async || length(other.store(), "b").await == 2).await;
    clock.advance(TTL);
    eventually("a new session", async || faults.sessions().len() == 2).await;
    // The old ticket stands until it expires on the store's clock, so it is taken away by hand.
    eventually("in line again", async || length(other.store(), "b").await == 3).await;
    let old = other.get("b").await?.expect("a line").tickets[1].id;
    assert!(other.evict("b", old).await?);
    held.release().await?;
    soon("the waiter's turn", waiter).await??.release().await?;
    Ok(())
}
