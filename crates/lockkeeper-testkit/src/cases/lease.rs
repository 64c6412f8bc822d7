//! How long a lock is held: fixed leases, a longest hold, a shortest one.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    raw_session::RawSession,
    world::{World, eventually, length, line, soon, until_length},
};
use lockkeeper::{Error, Health, Keeper, Loss, store::Entered};
use std::time::{Duration, Instant};

pub(crate) fn cases() -> Vec<Case> {
    cases!("lease":
        [] a_lease_ends_and_is_not_renewed, a_lease_can_be_extended, an_extension_has_a_bound,
            a_ttl_can_be_extended_now, a_lease_and_a_ttl_exclude_each_other,
            a_longest_hold_lets_go, a_longest_hold_lets_go_while_a_poll_hangs,
            a_longest_hold_is_no_loss_for_others;
        [Fair] a_lease_counts_from_its_grant;
        [AtLeast] a_shortest_hold_keeps_it_closed_after_the_release,
            a_shortest_hold_survives_a_drop_and_a_close, a_shortest_hold_that_has_passed_frees_at_once,
            a_lock_kept_closed_has_no_holder, a_shortest_hold_outlives_the_longest;
    )
}

/// The lock ends so long after its grant, and no renewal is sent for it.
async fn a_lease_ends_and_is_not_renewed(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let guard = keeper.lock("a").unfair().lease(w.short()).await?;
    // There may be one with the grant, if that took its time.
    let renewals = faults.count(Op::Renew);
    assert!(guard.remaining() <= w.short() && renewals <= 1);
    assert_eq!(soon("the end of the lease", guard.lost()).await, Loss::Expired);
    assert_eq!(faults.count(Op::Renew), renewals);
    until_length(faults.inner(), "a", 0).await;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    Ok(())
}

/// It waited longer than the lease is long, and has all of it then.
async fn a_lease_counts_from_its_grant(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    let keeper = Keeper::over(faults.store());
    let lease = w.steady();
    let held = other.lock("a").await?;
    let lock = keeper.lock("a").lease(lease);
    let waiter = tokio::spawn(async move { lock.await });
    // It is renewed while it waits.
    eventually("two renewals", async || faults.count(Op::Renew) >= 2).await;
    held.release().await?;
    let guard = soon("its turn", waiter).await??;
    let renewals = faults.count(Op::Renew);
    let left = guard.remaining();
    assert!(left > lease / 2, "{left:?} of {lease:?} left right after the grant");
    assert_eq!(soon("the end of the lease", guard.lost()).await, Loss::Expired);
    assert_eq!(faults.count(Op::Renew), renewals, "not renewed once granted");
    Ok(())
}

/// Extending begins the lease anew.
async fn a_lease_can_be_extended(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let guard = keeper.lock("a").unfair().lease(w.steady()).await?;
    eventually("a third has passed", async || guard.remaining() < w.steady() * 2 / 3).await;
    let renewals = faults.count(Op::Renew);
    let left = guard.extend(w.steady() / 2).await?;
    assert!(left >= w.steady() / 2, "{left:?} left after the extension");
    assert_eq!(faults.count(Op::Renew), renewals + 1);
    guard.release().await?;
    Ok(())
}

/// Nothing can be extended beyond what one renewal is good for: an error, without asking the store.
async fn an_extension_has_a_bound(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let guards = [
        keeper.lock("a").unfair().lease(w.steady()).await?,
        keeper.lock("b").unfair().ttl(w.steady()).await?,
    ];
    faults.only(&[Op::Renew], Fate::Vanish);
    for guard in guards {
        let refused = soon("the refusal", guard.extend(w.steady() * 2)).await;
        assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
        assert!(guard.is_held());
    }
    Ok(())
}

/// Also a lock that is renewed in the background can be renewed now; when that fails it is told.
async fn a_ttl_can_be_extended_now(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let guard = keeper.lock("a").try_now().await?.expect("free");
    let left = guard.extend(Duration::from_secs(10)).await?;
    assert!(left >= Duration::from_secs(10) && faults.count(Op::Renew) == 1);
    faults.only(&[Op::Renew], Fate::Refuse);
    let refused = guard.extend(Duration::from_secs(10)).await;
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    assert!(guard.is_held(), "one failed renewal is no loss");
    assert_eq!(guard.health(), Health::Jeopardy);
    Ok(())
}

/// One is renewed in the background and the other is not.
async fn a_lease_and_a_ttl_exclude_each_other(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let both = keeper.lock("a").ttl(w.steady()).lease(w.steady()).try_now().await;
    assert!(matches!(both, Err(Error::Option(_))), "{both:?}");
    Ok(())
}

/// The client lets go by itself: the guard is lost, and the line moves on.
async fn a_longest_hold_lets_go(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let began = Instant::now();
    let most = Duration::from_millis(300);
    let guard = keeper.lock("a").max_hold(most).try_now().await?.expect("free");
    assert!(guard.remaining() <= most);
    assert_eq!(soon("the loss", guard.lost()).await, Loss::MaxHold);
    assert!(began.elapsed() >= most && !guard.is_held());
    until_length(other.store(), "a", 0).await;
    let next = other.lock("a").try_now().await?.expect("free");
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { why: Loss::MaxHold, .. })), "{released:?}");
    assert!(other.check(&next.sequencer()).await?, "the late release ends no other grant");
    Ok(())
}

/// The timer is the client's own: a store that does not answer a poll does not stop it.
async fn a_longest_hold_lets_go_while_a_poll_hangs(w: World) -> Verdict {
    let (faults, other) = (w.fault_store().await, w.keeper().await);
    let keeper = Keeper::builder().ttl(Duration::from_secs(60)).over(faults.store())?;
    let taken = RawSession::open(other.store()).await;
    taken.take("taken").await;
    faults.only(&[Op::PollThese, Op::PollAll], Fate::Vanish);
    faults.hint_fate(crate::hint_filter::HintFate::Drop);
    let lock = keeper.lock("taken").unfair();
    let lock = if w.can().fair { keeper.lock("taken") } else { lock };
    let waiter = tokio::spawn(async move { lock.await.map(drop) });
    let hangs = async || !w.can().fair || faults.count(Op::PollThese) > 0;
    eventually("a poll hangs", hangs).await;
    let most = Duration::from_millis(200);
    let guard = keeper.lock("a").max_hold(most).try_now().await?.expect("free");
    assert_eq!(soon("the loss", guard.lost()).await, Loss::MaxHold);
    until_length(other.store(), "a", 0).await;
    waiter.abort();
    Ok(())
}

/// Locks of the same session that have no such bound are not touched.
async fn a_longest_hold_is_no_loss_for_others(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let kept = keeper.lock("kept").try_now().await?.expect("free");
    let most = Duration::from_millis(100);
    let guards = [
        keeper.lock("a").max_hold(most).try_now().await?.expect("free"),
        keeper.lock("b").max_hold(most * 3).try_now().await?.expect("free"),
    ];
    for guard in &guards {
        assert_eq!(soon("the loss", guard.lost()).await, Loss::MaxHold);
    }
    assert!(kept.is_held());
    kept.release().await?;
    Ok(())
}

/// Released early, the lock stays closed until its time has passed since the grant.
async fn a_shortest_hold_keeps_it_closed_after_the_release(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let (began, least) = (Instant::now(), Duration::from_millis(700));
    let guard = keeper.lock("a").at_least(least).try_now().await?.expect("free");
    let sequencer = guard.sequencer();
    guard.release().await?;
    assert!(!other.check(&sequencer).await?, "closed, but without a holder");
    let free = RawSession::open(other.store()).await;
    eventually("free", async || matches!(free.contend("a").await.1, Entered::Granted { .. })).await;
    assert!(began.elapsed() >= least, "free after {:?}", began.elapsed());
    Ok(())
}

/// A guard that is dropped, a keeper that is closed: the lock stays closed for its time all the same.
async fn a_shortest_hold_survives_a_drop_and_a_close(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let least = Duration::from_secs(60);
    drop(keeper.lock("a").at_least(least).try_now().await?.expect("free"));
    keeper.close().await;
    let line = line(other.store(), "a").await.expect("still closed");
    assert_eq!(line.tickets[0].owner, None, "it has outlived its session");
    assert!(line.tickets[0].ends_in > least / 2);
    assert!(other.lock("a").try_now().await?.is_none());
    Ok(())
}

/// Held for longer anyway, a release frees at once.
async fn a_shortest_hold_that_has_passed_frees_at_once(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let least = Duration::from_millis(50);
    let guard = keeper.lock("a").at_least(least).try_now().await?.expect("free");
    tokio::time::sleep(least * 2).await;
    guard.release().await?;
    other.lock("a").try_now().await?.expect("free at once").release().await?;
    Ok(())
}

/// I4: what is kept closed cannot be left, written under, or entered anew by its former owner; it
/// can be evicted.
async fn a_lock_kept_closed_has_no_holder(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    raw.leave_as("a", held.ticket, Some(crate::LONG), false).await;
    assert!(!raw.check(&held).await);
    assert_eq!(raw.annotate(&held, 1, b"x").await, lockkeeper::store::Edited::NotHeld);
    assert!(raw.all().await.is_empty());
    raw.close().await;
    assert_eq!(length(&store, "a").await, 1, "it belongs to no session");
    let other = w.keeper().await;
    assert!(other.lock("a").try_now().await?.is_none());
    assert!(other.evict("a", held.ticket).await?);
    other.lock("a").try_now().await?.expect("free").release().await?;
    Ok(())
}

/// A lock cannot be kept for at least longer than it may be held at most; if both are given and
/// make sense, letting go by the clock is no way around the shortest hold.
async fn a_shortest_hold_outlives_the_longest(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(60));
    match keeper.lock("a").at_least(long).max_hold(short).try_now().await {
        // Refused with a reason: nothing was promised.
        Err(Error::Option(_)) => assert_eq!(length(other.store(), "a").await, 0),
        Ok(guard) => {
            let guard = guard.expect("free");
            soon("the loss", guard.lost()).await;
            tokio::time::sleep(short).await;
            assert!(other.lock("a").try_now().await?.is_none(), "it had to stay closed");
        }
        Err(e) => return Err(e.into()),
    }
    Ok(())
}
