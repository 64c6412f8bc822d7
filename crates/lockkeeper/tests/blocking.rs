//! Locks without async code, and renewals beside a busy program.

use lockkeeper::{
    Keeper, Loss,
    blocking::{self, Guard},
    store::memory::Memory,
};
use std::{
    sync::Arc,
    thread::{self, sleep},
    time::Duration,
};

/// Short, so that a renewal that does not happen is noticed soon.
const TTL: Duration = Duration::from_millis(300);

fn keeper(name: &str) -> blocking::Keeper {
    blocking::Keeper::connect_with(Keeper::builder().ttl(TTL), &format!("memory://{name}")).unwrap()
}

fn handle<T: Send + Sync + 'static>() {}

#[test]
fn handles_can_be_shared_by_threads() {
    handle::<blocking::Keeper>();
    handle::<Guard>();
    handle::<blocking::Lock>();
    handle::<blocking::Changes<lockkeeper::Watch>>();
}

#[test]
fn a_lock_is_renewed_while_the_callers_thread_is_busy() {
    let (one, two) = (keeper("busy"), keeper("busy"));
    let guard = one.lock("a").take().unwrap();
    sleep(4 * TTL);
    assert!(guard.is_held());
    assert!(two.lock("a").try_now().unwrap().is_none());
    assert!(one.check(&guard.sequencer()).unwrap());
    guard.release().unwrap();
}

#[test]
fn dropping_a_guard_releases_its_lock() {
    let (one, two) = (keeper("drop"), keeper("drop"));
    let hour = Duration::from_secs(3600);
    let guard = one.lock("a").ttl(hour).take().unwrap();
    drop(guard);
    two.lock("a").wait(Duration::from_secs(60)).take().unwrap().release().unwrap();
}

#[test]
fn a_guard_that_outlives_its_keeper_holds_its_lock_until_it_is_dropped() {
    let (one, two) = (keeper("outlive"), keeper("outlive"));
    let guard = one.lock("a").take().unwrap();
    drop(one);
    sleep(2 * TTL);
    assert!(guard.is_held());
    drop(guard);
    // The last handle has waited for the store: nothing is left to be finished in the background.
    assert!(two.lock("a").try_now().unwrap().is_some());
}

#[test]
fn waiting_threads_are_served_one_after_the_other() {
    let keeper = keeper("threads");
    let counter = Arc::new(std::sync::Mutex::new(0));
    let work = || {
        let (keeper, counter) = (keeper.clone(), Arc::clone(&counter));
        move || {
            for _ in 0..20 {
                let guard = keeper.lock("a").take().unwrap();
                *counter.try_lock().expect("the lock keeps others out") += 1;
                guard.release().unwrap();
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(work())).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*counter.lock().unwrap(), 80);
}

#[test]
fn every_primitive_can_be_had_without_async_code() {
    let keeper = keeper("all");
    let readers = [(); 2].map(|()| keeper.rwlock("cache").read().take().unwrap());
    assert!(keeper.rwlock("cache").write().try_now().unwrap().is_none());
    drop(readers);
    let three = keeper.semaphore("gpu", 4).acquire(3).label("three").take().unwrap();
    assert!(keeper.semaphore("gpu", 4).acquire(2).try_now().unwrap().is_none());
    assert_eq!(keeper.get("gpu").unwrap().unwrap().tickets[0].label, b"three");
    let both = keeper.lock_all(["b", "a"]).take().unwrap();
    assert_eq!(both.iter().map(|g| g.name().as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(keeper.lock_all(["b", "c"]).try_now().unwrap().is_none());
    both[0].write(b"state".to_vec()).unwrap();
    assert_eq!(keeper.read("a").unwrap().unwrap().bytes, b"state");
    assert_eq!(keeper.list("g").unwrap().len(), 1);
    let term = keeper.election("boss").campaign("me").lead().unwrap();
    term.set_label("still me").unwrap();
    assert_eq!(keeper.election("boss").leader().unwrap().unwrap().label, b"still me");
    assert!(keeper.evict("gpu", three.ticket()).unwrap());
    assert!(three.release().is_err());
    assert!(keeper.lock("d").run(|guard| guard.fence() > 0).unwrap());
}

#[test]
fn the_end_of_a_lock_is_told_to_a_thread() {
    let keeper = keeper("loss");
    let guard = keeper.lock("a").max_hold(TTL / 4).take().unwrap();
    let token = guard.loss();
    let told = thread::spawn(move || guard.lost());
    assert_eq!(told.join().unwrap(), Loss::MaxHold);
    assert!(token.is_lost());
    let mut lines = keeper.watch("b");
    assert!(lines.next().unwrap().unwrap().is_empty());
    let guard = keeper.lock("b").take().unwrap();
    assert_eq!(lines.next().unwrap().unwrap().len(), 1);
    drop(guard);
}

#[tokio::test]
#[should_panic(expected = "Cannot start a runtime from within a runtime")]
async fn a_call_from_async_code_panics_and_says_why() {
    let _ = blocking::Keeper::connect("memory://inside");
}

#[tokio::test]
async fn beside_async_code_the_calls_go_to_a_thread_for_blocking_work() {
    let work = || {
        let keeper = keeper("beside");
        let guard = keeper.lock("a").take().unwrap();
        (keeper, guard)
    };
    let (keeper, guard) = tokio::task::spawn_blocking(work).await.unwrap();
    // Dropping is allowed anywhere.
    drop((guard, keeper));
}

#[tokio::test]
async fn an_async_keeper_with_a_thread_of_its_own_renews_while_its_program_is_busy() {
    let builder = Keeper::builder().ttl(TTL);
    let store = Arc::new(Memory::new());
    let store = || lockkeeper::store::AnyStore::shared(Arc::clone(&store));
    let careful = builder.clone().renew_on_own_thread().over(store()).unwrap();
    let plain = builder.over(store()).unwrap();
    let kept = careful.lock("a").await.unwrap();
    let lost = plain.lock("b").await.unwrap();
    // The one thread of this test's runtime does nothing else meanwhile.
    sleep(4 * TTL);
    assert!(kept.is_held(), "{kept:?}");
    assert!(!lost.is_held(), "without it a busy thread loses the lock: {lost:?}");
    kept.release().await.unwrap();
    careful.close().await;
}

#[tokio::test]
async fn a_guard_keeps_the_thread_of_its_keeper() {
    let keeper = Keeper::builder().ttl(TTL).renew_on_own_thread();
    let keeper = keeper.connect("memory://kept-thread").await.unwrap();
    let guard = keeper.lock("a").await.unwrap();
    drop(keeper);
    sleep(4 * TTL);
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// A store with threads and sockets of its own.
#[cfg(feature = "sqlite")]
#[test]
fn locks_in_a_file_are_handed_over_between_threads() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let keepers = [(); 2].map(|()| blocking::Keeper::connect(&url).unwrap());
    let guard = keepers[0].lock("a").take().unwrap();
    let first = guard.fence();
    let waiter = thread::spawn({
        let keeper = keepers[1].clone();
        move || keeper.lock("a").take().unwrap().fence()
    });
    sleep(Duration::from_millis(50));
    guard.release().unwrap();
    assert!(waiter.join().unwrap() > first);
}

#[test]
fn a_lock_is_detached_and_attached_again() {
    let keeper = keeper("blocking-detach");
    let guard = keeper.lock("a").lease(Duration::from_secs(60)).take().unwrap();
    let fence = guard.fence();
    let detached = guard.detach().unwrap();
    assert!(keeper.lock("a").try_now().unwrap().is_none());
    let guard = keeper.attach(&detached).unwrap();
    assert_eq!(guard.fence(), fence);
    guard.release().unwrap();
    assert!(keeper.lock("a").try_now().unwrap().is_some());
}
