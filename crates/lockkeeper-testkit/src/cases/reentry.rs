//! The same owner may come again: one ticket, one fence, as many releases as acquires.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    world::{World, eventually, length, soon, until_length},
};
use lockkeeper::{Guard, Keeper};
use std::time::Duration;

pub(crate) fn cases() -> Vec<Case> {
    cases!("reentry":
        [] n_acquires_need_n_releases, other_owners_are_kept_out, names_are_counted_apart,
            another_keeper_is_another_owner, coming_again_sends_nothing, a_loss_ends_the_sharing,
            a_dropped_guard_counts_as_a_release;
        [Fair] it_passes_by_the_local_gate, tasks_of_one_owner_that_wait_share_the_grant;
    )
}

async fn own(keeper: &Keeper, owner: &str) -> Option<Guard> {
    keeper.lock("tree").reentrant_as(owner).try_now().await.expect("an answer")
}

/// I9: held until the last release, with the same ticket and fence all the time.
async fn n_acquires_need_n_releases(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let mut guards = Vec::new();
    for n in 1..=5 {
        let guard = own(&keeper, "me").await.expect("mine");
        assert_eq!(guard.holds(), n);
        guards.push(guard);
    }
    assert!(guards.iter().all(|g| g.fence() == guards[0].fence()));
    assert_eq!(length(other.store(), "tree").await, 1);
    while let Some(guard) = guards.pop() {
        assert!(other.lock("tree").try_now().await?.is_none(), "{} to go", guards.len() + 1);
        guard.release().await?;
    }
    assert!(other.lock("tree").try_now().await?.is_some());
    Ok(())
}

/// I3, I9: another owner, or none, does not re-enter.
async fn other_owners_are_kept_out(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = own(&keeper, "me").await.expect("free");
    assert!(own(&keeper, "you").await.is_none());
    assert!(keeper.lock("tree").try_now().await?.is_none());
    guard.release().await?;
    assert!(own(&keeper, "you").await.is_some());
    Ok(())
}

/// I9: an owner of one name owns no other.
async fn names_are_counted_apart(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let tree = own(&keeper, "me").await.expect("free");
    let bush = keeper.lock("bush").reentrant_as("me").try_now().await?.expect("free");
    assert_ne!(tree.ticket(), bush.ticket());
    assert_eq!((tree.holds(), bush.holds()), (1, 1));
    Ok(())
}

/// I9: the scope is one keeper; the same word elsewhere means nothing.
async fn another_keeper_is_another_owner(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let first = own(&one, "me").await.expect("free");
    assert!(own(&two, "me").await.is_none());
    let clone = one.clone();
    assert_eq!(
        own(&clone, "me").await.expect("mine").fence(),
        first.fence(),
        "a clone is the same"
    );
    first.release().await?;
    eventually("free", async || own(&two, "me").await.is_some()).await;
    Ok(())
}

/// It is counted here, without the store.
async fn coming_again_sends_nothing(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let first = own(&keeper, "me").await.expect("free");
    let sent = faults.log().len();
    let more: Vec<_> =
        [own(&keeper, "me").await, own(&keeper, "me").await].into_iter().flatten().collect();
    assert_eq!(more.len(), 2);
    for guard in more {
        guard.release().await?;
    }
    assert_eq!(faults.log().len(), sent);
    first.release().await?;
    assert_eq!(length(faults.inner(), "tree").await, 0);
    Ok(())
}

/// I9, I12: an owner that enters again after a loss gets a new grant, and the old guards stay lost.
async fn a_loss_ends_the_sharing(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let lost = own(&keeper, "me").await.expect("free");
    faults.only(&[Op::Renew], Fate::Vanish);
    soon("the loss", lost.lost()).await;
    faults.pass_all();
    let mut new = None;
    eventually("a new grant", async || {
        new = own(&keeper, "me").await;
        new.is_some()
    })
    .await;
    let new = new.expect("granted");
    assert!(new.fence() > lost.fence() && new.is_held() && !lost.is_held());
    // What becomes of the old one does not touch the new one.
    drop(lost);
    assert_eq!(own(&keeper, "me").await.expect("mine").fence(), new.fence());
    assert!(keeper.check(&new.sequencer()).await?);
    Ok(())
}

/// I9: dropping one of several keeps the lock.
async fn a_dropped_guard_counts_as_a_release(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let (one, two) = (own(&keeper, "me").await, own(&keeper, "me").await);
    drop(one);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let two = two.expect("mine");
    assert!(keeper.check(&two.sequencer()).await? && two.holds() == 1);
    drop(two);
    until_length(keeper.store(), "tree", 0).await;
    Ok(())
}

/// I9: others of this process wait at the gate; the owner need not go there.
async fn it_passes_by_the_local_gate(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let first = own(&keeper, "me").await.expect("free");
    let waiting = keeper.lock("tree");
    let waiting = tokio::spawn(async move { waiting.await });
    until_length(keeper.store(), "tree", 2).await;
    let again = keeper.lock("tree").reentrant_as("me").into_future();
    let again = soon("the owner's second guard", again).await?;
    assert_eq!(again.fence(), first.fence());
    first.release().await?;
    again.release().await?;
    soon("the other's turn", waiting).await??.release().await?;
    Ok(())
}

/// I9: two tasks of one owner wait for the same lock. One of them is granted, and so is the other.
async fn tasks_of_one_owner_that_wait_share_the_grant(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let held = other.lock("tree").await?;
    let spawn = || {
        let lock = keeper.lock("tree").reentrant_as("me");
        tokio::spawn(async move { lock.await })
    };
    let (one, two) = (spawn(), spawn());
    until_length(other.store(), "tree", 2).await;
    held.release().await?;
    let (one, two) = (soon("one", one).await??, soon("two", two).await??);
    assert_eq!((one.ticket(), one.holds()), (two.ticket(), 2));
    one.release().await?;
    two.release().await?;
    until_length(other.store(), "tree", 0).await;
    Ok(())
}
