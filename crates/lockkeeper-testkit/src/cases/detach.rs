//! A lock that one process detaches and another one attaches.

use crate::{
    case::{Case, Verdict, cases},
    world::{World, eventually, soon, until_length},
};
use lockkeeper::{Acquire, Detached, Error, Keeper, Loss};
use std::time::{Duration, Instant};

pub(crate) fn cases() -> Vec<Case> {
    cases!("detach":
        [] a_detached_lock_is_held_until_the_attached_one_is_released,
            an_attached_lock_is_renewed, a_lock_goes_through_many_processes,
            a_detached_lock_ends_with_its_ttl, a_released_lock_cannot_be_attached,
            an_evicted_lock_cannot_be_attached, a_lock_that_others_hold_now_cannot_be_attached,
            a_release_ends_the_lock_of_all_that_attached_it, a_handle_attaches_what_it_has_detached,
            a_lock_without_a_session_of_its_own_is_not_detached;
        [Fair] a_waiter_waits_for_a_detached_lock;
        [Shared] readers_and_writers_are_detached_as_they_are;
        [Cells] an_attached_lock_writes_after_what_was_written_before;
    )
}

/// A lock that can be detached, on a store with or without lines.
fn detachable(keeper: &Keeper, name: &str, ttl: Duration) -> Acquire {
    keeper.lock(name).unfair().lease(ttl)
}

/// Takes the lock in a process of its own, which ends.
async fn detached(w: &World, name: &str, ttl: Duration) -> anyhow::Result<Detached> {
    let keeper = w.keeper().await;
    let detached = detachable(&keeper, name, ttl).await?.detach().await?;
    keeper.close().await;
    // What another process reads.
    Ok(detached.secret_text().parse()?)
}

/// Neither the detaching nor the end of that process releases it; the release by the next one does.
async fn a_detached_lock_is_held_until_the_attached_one_is_released(w: World) -> Verdict {
    let (one, two, other) = (w.keeper().await, w.keeper().await, w.keeper().await);
    let guard = detachable(&one, "a", w.steady()).label("import").await?;
    let (fence, sequencer, loss) = (guard.fence(), guard.sequencer(), guard.loss());
    let detached = guard.detach().await?;
    assert_eq!(loss.why(), Some(Loss::Detached));
    one.close().await;
    assert!(other.check(&sequencer).await? && other.lock("a").try_now().await?.is_none());
    let guard = two.attach(&detached).await?;
    assert_eq!((guard.fence(), guard.sequencer()), (fence, sequencer.clone()));
    assert!(guard.is_held() && guard.remaining() > w.steady() / 2, "{guard:?}");
    assert!(other.check(&sequencer).await?);
    guard.release().await?;
    assert!(!other.check(&sequencer).await?);
    let next = other.lock("a").try_now().await?.expect("free at once");
    assert!(!w.can().fenced || next.fence() > fence);
    next.release().await?;
    Ok(())
}

/// In the background, as any lock, although it was taken with a fixed lease.
async fn an_attached_lock_is_renewed(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let guard = keeper.attach(&detached(&w, "a", w.steady()).await?).await?;
    let began = Instant::now();
    while began.elapsed() < w.steady() * 3 / 2 {
        assert!(guard.is_held(), "lost after {:?}: {:?}", began.elapsed(), guard.health());
        assert!(other.check(&guard.sequencer()).await?);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(guard.extend(w.steady() / 2).await? >= w.steady() / 2);
    guard.release().await?;
    Ok(())
}

/// Each of them attaches it, and detaches it or just ends; together they hold it for longer than its TTL.
async fn a_lock_goes_through_many_processes(w: World) -> Verdict {
    let (other, mut detached) = (w.keeper().await, detached(&w, "a", w.steady()).await?);
    let (began, sequencer) = (Instant::now(), detached.sequencer().clone());
    while began.elapsed() < w.steady() * 3 / 2 {
        let keeper = w.keeper().await;
        let guard = keeper.attach(&detached).await?;
        assert!(guard.remaining() > w.steady() / 2, "{guard:?}");
        detached = guard.detach().await?;
        assert_eq!(detached.sequencer(), &sequencer);
        assert!(other.check(&sequencer).await? && other.lock("a").try_now().await?.is_none());
    }
    w.keeper().await.attach(&detached).await?.release().await?;
    other.lock("a").try_now().await?.expect("free at once").release().await?;
    Ok(())
}

/// No process renews it.
async fn a_detached_lock_ends_with_its_ttl(w: World) -> Verdict {
    let (keeper, detached) = (w.keeper().await, detached(&w, "a", w.short()).await?);
    until_length(keeper.store(), "a", 0).await;
    let attached = keeper.attach(&detached).await;
    assert!(matches!(attached, Err(Error::Lost { .. })), "{attached:?}");
    keeper.lock("a").try_now().await?.expect("free").release().await?;
    Ok(())
}

/// The text is worth nothing any more, however often it is tried.
async fn a_released_lock_cannot_be_attached(w: World) -> Verdict {
    let detached = detached(&w, "a", w.steady()).await?;
    w.keeper().await.attach(&detached).await?.release().await?;
    for keeper in [w.keeper().await, w.keeper().await] {
        let attached = keeper.attach(&detached).await;
        assert!(matches!(attached, Err(Error::Lost { .. })), "{attached:?}");
        keeper.lock("a").try_now().await?.expect("still free").release().await?;
    }
    Ok(())
}

/// Its session is still there, and its ticket is not.
async fn an_evicted_lock_cannot_be_attached(w: World) -> Verdict {
    let (keeper, detached) = (w.keeper().await, detached(&w, "a", w.steady()).await?);
    let line = keeper.get("a").await?.expect("held");
    assert!(keeper.evict("a", line.tickets[0].id).await?);
    let attached = keeper.attach(&detached).await;
    assert!(matches!(attached, Err(Error::Lost { .. })), "{attached:?}");
    keeper.lock("a").try_now().await?.expect("free").release().await?;
    Ok(())
}

/// And the attempt does not disturb them.
async fn a_lock_that_others_hold_now_cannot_be_attached(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let detached = detached(&w, "a", w.short()).await?;
    until_length(other.store(), "a", 0).await;
    let held = other.lock("a").try_now().await?.expect("free");
    let attached = keeper.attach(&detached).await;
    assert!(matches!(attached, Err(Error::Lost { .. })), "{attached:?}");
    assert!(other.check(&held.sequencer()).await? && held.is_held());
    held.release().await?;
    Ok(())
}

/// Two processes may have it; both renew it, and the release of one is told to the other by a renewal.
async fn a_release_ends_the_lock_of_all_that_attached_it(w: World) -> Verdict {
    let (one, two, detached) =
        (w.keeper().await, w.keeper().await, detached(&w, "a", w.steady()).await?);
    let guards = [one.attach(&detached).await?, two.attach(&detached).await?];
    for guard in &guards {
        // A session of ZooKeeper has one connection: each of the two takes it from the other.
        eventually("a renewal", async || guard.extend(w.steady() / 2).await.is_ok()).await;
    }
    let [first, second] = guards;
    first.release().await?;
    soon("the loss", second.lost()).await;
    assert!(matches!(second.release().await, Err(Error::Lost { .. })));
    Ok(())
}

/// The handle of the process that has detached it may attach it again itself.
async fn a_handle_attaches_what_it_has_detached(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let mut guard = detachable(&keeper, "a", w.steady()).await?;
    for _ in 0..3 {
        let detached = guard.detach().await?;
        guard = keeper.attach(&detached).await?;
        assert!(other.check(&guard.sequencer()).await?);
    }
    drop(guard);
    until_length(other.store(), "a", 0).await;
    Ok(())
}

/// Its session has other locks, or may get some. The lock is released.
async fn a_lock_without_a_session_of_its_own_is_not_detached(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let kept = keeper.lock("kept").try_now().await?.expect("free");
    let guard = keeper.lock("a").try_now().await?.expect("free");
    let refused = guard.detach().await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    until_length(other.store(), "a", 0).await;
    let bounded = detachable(&keeper, "b", w.steady()).max_hold(w.steady()).await?;
    assert!(matches!(bounded.detach().await, Err(Error::Option(_))));
    assert!(kept.is_held());
    kept.release().await?;
    Ok(())
}

/// It stands in line behind it, and gets the lock with the release by the process that attached it.
async fn a_waiter_waits_for_a_detached_lock(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let detached = detached(&w, "a", crate::LONG).await?;
    let lock = other.lock("a");
    let waiter = tokio::spawn(async move { lock.await });
    until_length(keeper.store(), "a", 2).await;
    let guard = keeper.attach(&detached).await?;
    assert!(!waiter.is_finished());
    guard.release().await?;
    let next = soon("its turn", waiter).await??;
    assert!(!w.can().fenced || next.fence() > detached.fence());
    next.release().await?;
    Ok(())
}

/// A reader stays beside other readers and before a writer.
async fn readers_and_writers_are_detached_as_they_are(w: World) -> Verdict {
    let (keeper, other) = (w.keeper().await, w.keeper().await);
    let reader = keeper.rwlock("a").read().unfair().lease(w.steady()).await?.detach().await?;
    let second = other.rwlock("a").read().try_now().await?.expect("beside the first");
    let attached = other.attach(&reader).await?;
    assert_eq!(attached.mode(), lockkeeper::Mode::Shared);
    assert!(other.lock("a").try_now().await?.is_none());
    second.release().await?;
    assert!(other.lock("a").try_now().await?.is_none());
    attached.release().await?;
    let free = async || Ok::<_, Error>(other.lock("a").try_now().await?.is_some());
    eventually("free", async || free().await.is_ok_and(|free| free)).await;
    Ok(())
}

/// Edits are numbered by their process; those of a later one count although it begins anew.
async fn an_attached_lock_writes_after_what_was_written_before(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = detachable(&keeper, "a", w.steady()).await?;
    for text in ["one", "two"] {
        guard.write(text.as_bytes().to_vec()).await?;
        guard.set_label(text).await?;
    }
    let detached = guard.detach().await?;
    for text in ["three", "four"] {
        // The process ends without detaching it.
        let keeper = w.keeper().await;
        let guard = keeper.attach(&detached).await?;
        guard.write(text.as_bytes().to_vec()).await?;
        guard.set_label(text).await?;
        let cell = keeper.read("a").await?.expect("written");
        assert_eq!((cell.bytes.as_slice(), cell.fence), (text.as_bytes(), detached.fence()));
        let line = keeper.get("a").await?.expect("held");
        assert_eq!(line.tickets[0].label, text.as_bytes());
        drop(guard.detach().await?);
    }
    keeper.attach(&detached).await?.release().await?;
    Ok(())
}
