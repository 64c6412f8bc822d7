//! What the conformance suite cannot see of detached locks: other stores, and stores that cannot do it.

use lockkeeper::{Detached, Error, Keeper, store::memory::Memory};
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

#[tokio::test]
async fn a_lock_with_another_guard_is_not_detached() {
    let keeper = Keeper::over(Memory::new());
    let lock = keeper.lock("a").lease(Duration::from_secs(60)).reentrant_as("me");
    let (outer, inner) = (lock.clone().await.unwrap(), lock.await.unwrap());
    assert!(matches!(inner.detach().await, Err(Error::Option(_))));
    assert!(outer.is_held());
    assert!(outer.detach().await.is_ok());
}
