//! What follows a lock without holding it: loss tokens, and watches as streams.

use futures_core::Stream;
use lockkeeper::{Keeper, Loss, store::memory::Memory};
use std::{future::poll_fn, pin::Pin, time::Duration};

async fn item<S: Stream + Unpin>(stream: &mut S) -> S::Item {
    let next = poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await;
    next.expect("the stream never ends")
}

#[tokio::test]
async fn a_loss_token_outlives_its_guard_and_says_why_the_lock_ended() {
    let keeper = Keeper::over(Memory::new());
    let guard = keeper.lock("a").await.unwrap();
    let (one, two) = (guard.loss(), guard.loss());
    assert!(!one.is_lost());
    let waiting = tokio::spawn(async move { one.lost().await });
    tokio::task::yield_now().await;
    drop(guard);
    assert_eq!(waiting.await.unwrap(), Loss::Released);
    assert_eq!((two.why(), two.is_lost()), (Some(Loss::Released), true));

    let guard = keeper.lock("a").await.unwrap();
    let token = guard.loss();
    assert!(keeper.evict("a", guard.ticket()).await.unwrap());
    assert!(guard.release().await.is_err());
    assert!(token.is_lost());
}

#[tokio::test]
async fn a_token_does_not_end_with_the_first_of_two_reentrant_guards() {
    let keeper = Keeper::over(Memory::new());
    let outer = keeper.lock("a").reentrant_as("me").await.unwrap();
    let inner = keeper.lock("a").reentrant_as("me").await.unwrap();
    let token = inner.loss();
    drop(inner);
    assert!(!token.is_lost());
    outer.release().await.unwrap();
    assert_eq!(token.lost().await, Loss::Released);
}

#[tokio::test]
async fn a_lock_that_is_held_too_long_is_lost_to_its_token() {
    let keeper = Keeper::over(Memory::new());
    let guard = keeper.lock("a").max_hold(Duration::from_millis(20)).await.unwrap();
    assert_eq!(guard.loss().lost().await, Loss::MaxHold);
    drop(guard);
}

#[tokio::test]
async fn a_watch_is_a_stream_of_changes() {
    let keeper = Keeper::over(Memory::new());
    let mut lines = keeper.watch("");
    assert_eq!(item(&mut lines).await.unwrap(), []);
    let guard = keeper.lock("a").await.unwrap();
    assert_eq!(item(&mut lines).await.unwrap()[0].holders().count(), 1);
    drop(guard);
}

#[tokio::test]
async fn a_look_that_was_dropped_half_way_is_not_lost() {
    let keeper = Keeper::over(Memory::new());
    let mut lines = keeper.watch("");
    assert!(lines.next().await.unwrap().is_empty());
    let guard = keeper.lock("a").await.unwrap();
    for _ in 0..3 {
        // The pause before a look is longer than this.
        let _ = tokio::time::timeout(Duration::from_millis(1), lines.next()).await;
    }
    assert_eq!(lines.next().await.unwrap().len(), 1);
    drop(guard);
}

#[tokio::test]
async fn an_observer_is_a_stream_of_leaders() {
    let keeper = Keeper::over(Memory::new());
    let election = keeper.election("boss");
    let mut leaders = election.observe();
    assert_eq!(item(&mut leaders).await.unwrap(), None);
    let term = election.campaign("one").await.unwrap();
    assert_eq!(item(&mut leaders).await.unwrap().unwrap().label, b"one");
    term.resign().await.unwrap();
    let mut nameless = keeper.election("").observe();
    assert!(item(&mut nameless).await.is_err());
}

#[tokio::test]
async fn options_of_several_locks_hold_for_each_of_them() {
    let keeper = Keeper::over(Memory::new());
    let outer = keeper.lock("b").reentrant_as("me").await.unwrap();
    let (ttl, lock_delay) = (Duration::from_secs(7), Duration::from_secs(3));
    let all = keeper.lock_all(["c", "a"]).ttl(ttl).lock_delay(lock_delay).label("both");
    let guards = all.await.unwrap();
    for guard in guards.iter() {
        let terms = guard.terms();
        assert_eq!((terms.ttl, terms.lock_delay), (ttl, lock_delay));
        let line = keeper.get(guard.name()).await.unwrap().expect("a line");
        assert_eq!(line.tickets[0].label, b"both");
    }
    let again = keeper.lock_all(["b"]).reentrant_as("me").await.unwrap();
    assert_eq!(again.get("b").expect("taken again").fence(), outer.fence());
}
