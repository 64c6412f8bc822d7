//! What the conformance suite cannot see of detached locks: other stores, and stores that cannot do it.

use lockkeeper::{Detached, Error, Keeper, store::memory::Memory};
use lockkeeper_testkit::layer::{Layer, Layered, Statuses};
use std::time::Duration;

async fn detached(keeper: &Keeper) -> Detached {
    let guard = keeper.lock("a").lease(Duration::from_secs(60)).await.unwrap();
    guard.detach().await.unwrap()
}

#[tokio::test]
async fn a_lock_of_another_store_is_refused_and_stays_held() {
    let (keeper, other) = (Keeper::over(Memory::new()), Keeper::over(Memory::new()));
    let detached = detached(&keeper).await;
    match other.attach(&detached).await {
        Err(Error::OtherStore { wanted, found }) => {
            assert_eq!((wanted, found), (detached.store(), lockkeeper::Store::id(other.store())));
        }
        attached => panic!("{attached:?}"),
    }
    keeper.attach(&detached).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_closed_keeper_attaches_nothing() {
    let keeper = Keeper::over(Memory::new());
    let detached = detached(&keeper).await;
    keeper.close().await;
    assert!(matches!(keeper.attach(&detached).await, Err(Error::Closed)));
}

#[tokio::test]
async fn closing_the_keeper_ends_what_it_has_attached_and_not_what_it_has_detached() {
    let memory = std::sync::Arc::new(Memory::new());
    let over = || Keeper::over(lockkeeper::store::AnyStore::shared(std::sync::Arc::clone(&memory)));
    let (one, two, other) = (over(), over(), over());
    let detached = detached(&one).await;
    one.close().await;
    assert!(other.check(detached.sequencer()).await.unwrap());
    let guard = two.attach(&detached).await.unwrap();
    two.close().await;
    assert!(!guard.is_held() && !other.check(detached.sequencer()).await.unwrap());
}

/// The answers to an attach come when the session's time is over here, while another process has prolonged it.
#[tokio::test]
async fn an_attach_that_comes_too_late_closes_no_session_of_another() {
    let memory = std::sync::Arc::new(Memory::new());
    let shared = || lockkeeper::store::AnyStore::shared(std::sync::Arc::clone(&memory));
    let (one, other) = (Keeper::over(shared()), Keeper::over(shared()));
    let lock = one.lock("a").lease(Duration::from_secs(2));
    let detached = lock.await.unwrap().detach().await.unwrap();
    let late = Keeper::over(Layered(Slow(shared())));
    let attaching = tokio::spawn({
        let (late, detached) = (late.clone(), detached.clone());
        async move { late.attach(&detached).await }
    });
    let guard = other.attach(&detached).await.unwrap();
    while !attaching.is_finished() {
        guard.extend(Duration::from_secs(1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    match attaching.await.unwrap() {
        Err(Error::Lost { .. }) => {}
        attached => panic!("{attached:?}"),
    }
    late.close().await;
    assert!(other.check(detached.sequencer()).await.unwrap(), "it is held by the other process");
}

/// Answers polls after more than two seconds.
struct Slow(lockkeeper::store::AnyStore);

impl Layer for Slow {
    fn inner(&self) -> &lockkeeper::store::AnyStore {
        &self.0
    }

    async fn poll(
        &self,
        session: lockkeeper::store::SessionId,
        which: lockkeeper::store::PollScope,
    ) -> lockkeeper::store::StoreResult<Statuses> {
        let answer = lockkeeper::Store::poll(&self.0, session, which).await;
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        answer
    }
}

#[tokio::test]
async fn a_lock_with_another_guard_is_not_detached() {
    let keeper = Keeper::over(Memory::new());
    let lock = keeper.lock("a").lease(Duration::from_secs(60)).reentrant_as("me");
    let (outer, inner) = (lock.clone().await.unwrap(), lock.await.unwrap());
    assert!(matches!(inner.detach().await, Err(Error::Option(_))));
    assert!(outer.is_held());
    assert!(outer.detach().await.is_ok());
}
