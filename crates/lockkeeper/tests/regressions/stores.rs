//! What a store answers, asked directly and through a keeper.

use crate::support::{HOUR, MINUTE, run};
use lockkeeper::{
    Keeper, Mode, Name, Owner, Sequencer, Store, TicketId,
    store::{
        AnyStore, Enter, Entered, Leave, Left, ListScope, Manner, Open, Place, SessionId,
        clock::Clock, memory::Memory,
    },
};
use std::time::Duration;

async fn open(store: &impl Store, ttl: Duration, lock_delay: Duration) -> SessionId {
    let session = SessionId::random();
    let owner = Owner::default();
    store.open(Open { session, ttl, lock_delay, owner }).await.unwrap();
    session
}

fn place(session: SessionId, name: &str) -> Place {
    Place { session, name: Name::new(name).unwrap(), ticket: TicketId::random() }
}

async fn enter(store: &impl Store, place: &Place) -> Entered {
    let (mode, manner) = (Mode::Exclusive, Manner::Queue);
    let ask = Enter { place: place.clone(), mode, manner, label: Vec::new() };
    store.enter(ask).await.unwrap()
}

fn is_granted(entered: &Entered) -> bool {
    matches!(entered, Entered::Granted { .. })
}

/// A dead waiter was granted the lock, which then stayed closed for the waiter's lock-delay although
/// it had never been held.
#[test]
fn a_dead_waiter_does_not_keep_the_lock_closed_in_memory() {
    run(async || {
        let clock = Clock::movable();
        a_dead_waiter_is_passed_over(&Memory::with_clock(clock.clone()), &clock).await;
    });
}

/// The same fault in the query that reads a line from the file.
#[cfg(feature = "sqlite")]
#[test]
fn a_dead_waiter_does_not_keep_the_lock_closed_in_a_file() {
    run(async || {
        let (folder, clock) = (crate::files::Folder::new(), Clock::movable());
        a_dead_waiter_is_passed_over(&folder.open_with(&clock), &clock).await;
    });
}

async fn a_dead_waiter_is_passed_over(store: &impl Store, clock: &Clock) {
    let holder = open(store, HOUR, Duration::ZERO).await;
    let mortal = open(store, MINUTE, HOUR).await;
    let (held, waits) = (place(holder, "x"), place(mortal, "x"));
    assert!(is_granted(&enter(store, &held).await));
    assert!(!is_granted(&enter(store, &waits).await));
    clock.advance(2 * MINUTE);
    let leave = Leave { place: held, keep: None, stray: false };
    assert_eq!(store.leave(leave).await.unwrap(), Left::Released);
    assert_eq!(store.list(ListScope::Exact(waits.name)).await.unwrap(), []);
    assert!(is_granted(&enter(store, &place(holder, "x")).await));
}

/// Only the ticket of a sequencer was checked, so a reader could say that it was a writer.
#[test]
fn a_reader_cannot_pass_for_a_writer_in_memory() {
    run(async || a_forged_mode_is_refused(AnyStore::new(Memory::new())).await);
}

/// The same fault in the query that checks a claim.
#[cfg(feature = "sqlite")]
#[test]
fn a_reader_cannot_pass_for_a_writer_in_a_file() {
    run(async || {
        let folder = crate::files::Folder::new();
        a_forged_mode_is_refused(folder.open()).await;
    });
}

async fn a_forged_mode_is_refused(store: AnyStore) {
    let keeper = Keeper::over(store);
    let guard = keeper.rwlock("x").read().await.unwrap();
    let honest = guard.sequencer();
    let forged: Sequencer = honest.to_string().replace(":s:", ":x:").parse().unwrap();
    assert_eq!((honest.mode(), forged.mode()), (Mode::Shared, Mode::Exclusive));
    assert!(keeper.check(&honest).await.unwrap());
    assert!(!keeper.check(&forged).await.unwrap(), "a forged mode is confirmed");
}

/// The end of a session that frees a line in which the next dead session waits, and so on, was a
/// recursion that overflowed the stack.
#[test]
fn a_long_chain_of_dead_sessions_ends_in_one_go() {
    run(async || {
        let clock = Clock::movable();
        let store = Memory::with_clock(clock.clone());
        let name = |i: usize| format!("line {i}");
        for i in 0..3_000 {
            let session = open(&store, MINUTE, Duration::ZERO).await;
            enter(&store, &place(session, &name(i))).await;
            enter(&store, &place(session, &name(i + 1))).await;
        }
        clock.advance(HOUR);
        let session = open(&store, MINUTE, Duration::ZERO).await;
        assert!(is_granted(&enter(&store, &place(session, &name(0))).await));
    });
}
