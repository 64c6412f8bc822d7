//! The value that belongs to a name, written only under the name's lock.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    raw_session::RawSession,
    world::{World, soon, until_length},
};
use lockkeeper::{
    Error, Keeper, Loss, Store as _,
    store::{CELL_MAX, Edited, clock::Clock},
};
use std::time::Duration;

pub(crate) fn cases() -> Vec<Case> {
    cases!("cells":
        [Cells] a_read_sees_the_last_write, a_value_outlives_its_lock, a_value_can_be_taken_away,
            names_do_not_share_values, an_evicted_holder_cannot_write,
            an_expired_holder_cannot_write, a_holder_past_its_deadline_writes_no_cell,
            the_largest_value_fits, a_failed_write_is_told, a_helper_writes_under_the_grant_of_its_holder,
            a_helper_cannot_write_under_a_grant_that_is_over, a_helpers_write_is_not_the_holders_last_edit,
            a_helper_cannot_write_under_a_forged_grant;
        [Cells, Shared] a_helper_cannot_write_under_a_readers_grant;
        [Cells, Fair] a_waiter_cannot_write;
        [Cells, Durable] a_value_outlives_the_process;
    )
}

/// What was written last is read, by every client, with the fence of the grant.
async fn a_read_sees_the_last_write(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    assert_eq!(two.read("a").await?, None);
    let guard = one.lock("a").try_now().await?.expect("free");
    for value in [&b"one"[..], b"two", b"", &[0, 255, 10]] {
        guard.write(value.to_vec()).await?;
        let cell = two.read("a").await?.expect("a value");
        assert_eq!((cell.bytes.as_slice(), cell.fence), (value, guard.fence()));
    }
    Ok(())
}

/// It stays when the lock is released, for the next holder to read and replace.
async fn a_value_outlives_its_lock(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let first = one.lock("a").try_now().await?.expect("free");
    first.write(b"one".to_vec()).await?;
    let fence = first.fence();
    first.release().await?;
    one.close().await;
    let second = two.lock("a").try_now().await?.expect("free");
    assert_eq!(two.read("a").await?.expect("a value").fence, fence);
    second.write(b"two".to_vec()).await?;
    assert_eq!(two.read("a").await?.expect("a value").fence, second.fence());
    Ok(())
}

/// All handles are gone, and the value is there again.
async fn a_value_outlives_the_process(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    guard.write(b"kept".to_vec()).await?;
    guard.release().await?;
    keeper.close().await;
    drop(keeper);
    assert_eq!(w.keeper().await.read("a").await?.expect("a value").bytes, b"kept");
    Ok(())
}

/// `None` takes the value away.
async fn a_value_can_be_taken_away(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    guard.write(b"one".to_vec()).await?;
    guard.write(None).await?;
    assert_eq!(keeper.read("a").await?, None);
    guard.write(b"two".to_vec()).await?;
    assert_eq!(keeper.read("a").await?.expect("a value").bytes, b"two");
    Ok(())
}

/// A value belongs to exactly one name.
async fn names_do_not_share_values(w: World) -> Verdict {
    let keeper = w.keeper().await;
    for name in ["a", "A", "a ", "a/b"] {
        let guard = keeper.lock(name).try_now().await?.expect("free");
        guard.write(name.as_bytes().to_vec()).await?;
    }
    for name in ["a", "A", "a ", "a/b"] {
        assert_eq!(keeper.read(name).await?.expect("a value").bytes, name.as_bytes());
    }
    assert_eq!(keeper.read("b").await?, None);
    Ok(())
}

/// I13, I14: from the moment of its eviction, although it has not heard of it.
async fn an_evicted_holder_cannot_write(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let guard = one.lock("a").try_now().await?.expect("free");
    guard.write(b"mine".to_vec()).await?;
    assert!(two.evict("a", guard.ticket()).await?);
    let refused = guard.write(b"late".to_vec()).await;
    assert!(matches!(refused, Err(Error::Lost { why: Loss::Evicted, .. })), "{refused:?}");
    assert_eq!(two.read("a").await?.expect("a value").bytes, b"mine");
    assert!(!guard.is_held(), "now it knows");
    Ok(())
}

/// I2: its session has run out, whether or not another session has come after it.
async fn an_expired_holder_cannot_write(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let held = silent.take("a").await;
    assert_eq!(silent.write(&held, 1, b"mine").await, Edited::Done);
    until_length(&store, "a", 0).await;
    assert_eq!(silent.write(&held, 2, b"late").await, Edited::NotHeld);
    let other = RawSession::open(&store).await;
    other.take("a").await;
    assert_eq!(silent.write(&held, 3, b"later").await, Edited::NotHeld);
    assert_eq!(store.read(held.name).await?.expect("a value").bytes, b"mine");
    Ok(())
}

/// I5: the holder's own deadline has passed. Whatever the store would say, a write that returns `Ok`
/// now would contradict the loss that the holder was told.
async fn a_holder_past_its_deadline_writes_no_cell(w: World) -> Verdict {
    let (clock, faults) = (Clock::movable(), w.fault_store().await);
    let keeper = Keeper::builder().clock(clock.clone()).over(faults.store())?;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    guard.write(b"mine".to_vec()).await?;
    clock.advance(Duration::from_secs(16));
    assert!(!guard.is_held());
    let refused = guard.write(b"late".to_vec()).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    let refused = guard.set_label("late").await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    assert_eq!(faults.inner().read("a".parse()?).await?.expect("a value").bytes, b"mine");
    Ok(())
}

/// Waiting is not holding.
async fn a_waiter_cannot_write(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = one.take("a").await;
    let (ticket, _) = two.queue("a").await;
    let claim = lockkeeper::store::Claim { ticket, ..held.clone() };
    assert_eq!(two.write(&claim, 1, b"x").await, Edited::NotHeld);
    assert_eq!(two.annotate(&claim, 1, b"x").await, Edited::NotHeld);
    assert_eq!(store.read(held.name).await?, None);
    Ok(())
}

/// The bound is what it is said to be.
async fn the_largest_value_fits(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    let value: Vec<u8> = (0..CELL_MAX).map(|i| (i % 251) as u8).collect();
    guard.write(value.clone()).await?;
    assert!(keeper.read("a").await?.expect("a value").bytes == value);
    Ok(())
}

/// The store did not answer: the writer is told so, and the lock is not lost by it.
async fn a_failed_write_is_told(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let guard = keeper.lock("a").try_now().await?.expect("free");
    faults.only(&[Op::Write], Fate::Lose);
    let unknown = soon("the answer", guard.write(b"one".to_vec())).await;
    assert!(matches!(unknown, Err(Error::Store(_))), "{unknown:?}");
    assert!(guard.is_held());
    faults.pass_all();
    guard.write(b"two".to_vec()).await?;
    assert_eq!(keeper.read("a").await?.expect("a value").bytes, b"two");
    Ok(())
}

/// A program that has the sequencer alone writes as the holder does.
async fn a_helper_writes_under_the_grant_of_its_holder(w: World) -> Verdict {
    let (holder, helper) = (w.keeper().await, w.keeper().await);
    let guard = holder.lock("a").try_now().await?.expect("free");
    for value in [&b"one"[..], b"two", b"", &[0, 255, 10]] {
        assert!(helper.write_under(&guard.sequencer(), value).await?);
        let cell = holder.read("a").await?.expect("a value");
        assert_eq!((cell.bytes.as_slice(), cell.fence), (value, guard.fence()));
    }
    let largest = vec![7; CELL_MAX];
    assert!(helper.write_under(&guard.sequencer(), largest.clone()).await?);
    assert!(helper.read("a").await?.expect("a value").bytes == largest);
    let refused = helper.write_under(&guard.sequencer(), vec![7; CELL_MAX + 1]).await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    Ok(())
}

/// I14: neither after a release nor after an eviction, whether or not the lock has a new holder.
async fn a_helper_cannot_write_under_a_grant_that_is_over(w: World) -> Verdict {
    let (holder, helper) = (w.keeper().await, w.keeper().await);
    let guard = holder.lock("a").try_now().await?.expect("free");
    let released = guard.sequencer();
    assert!(helper.write_under(&released, "mine").await?);
    guard.release().await?;
    assert!(!helper.write_under(&released, "late").await?);
    let guard = holder.lock("a").try_now().await?.expect("free");
    assert!(!helper.write_under(&released, "later").await?);
    let evicted = guard.sequencer();
    assert!(helper.evict("a", guard.ticket()).await?);
    assert!(!helper.write_under(&evicted, "too late").await?);
    assert_eq!(helper.read("a").await?.expect("a value").bytes, b"mine");
    Ok(())
}

/// The holder's own writes are numbered. One of a helper, which has no number, neither hides the next of them nor
/// stays hidden itself.
async fn a_helpers_write_is_not_the_holders_last_edit(w: World) -> Verdict {
    let (holder, helper) = (w.keeper().await, w.keeper().await);
    let guard = holder.lock("a").try_now().await?.expect("free");
    for round in ["one", "two", "three"] {
        guard.write(format!("holder {round}").into_bytes()).await?;
        assert!(helper.write_under(&guard.sequencer(), format!("helper {round}")).await?);
        let cell = holder.read("a").await?.expect("a value");
        assert_eq!(cell.bytes, format!("helper {round}").into_bytes());
    }
    guard.write(b"holder".to_vec()).await?;
    assert_eq!(helper.read("a").await?.expect("a value").bytes, b"holder");
    guard.write(None).await?;
    assert_eq!(helper.read("a").await?, None);
    assert!(helper.write_under(&guard.sequencer(), "helper").await?);
    assert_eq!(helper.read("a").await?.expect("a value").bytes, b"helper");
    Ok(())
}

/// Neither another fence nor another ticket.
async fn a_helper_cannot_write_under_a_forged_grant(w: World) -> Verdict {
    let (holder, store) = (w.keeper().await, w.store().await);
    let guard = holder.lock("a").try_now().await?.expect("free");
    let claim = guard.sequencer().claim().clone();
    let fence = claim.fence + 1;
    let forged = lockkeeper::store::Claim { fence, ..claim.clone() };
    assert_eq!(store.write_under(forged, b"x".to_vec()).await?, Edited::NotHeld);
    let ticket = lockkeeper::TicketId::random();
    let forged = lockkeeper::store::Claim { ticket, ..claim };
    assert_eq!(store.write_under(forged, b"x".to_vec()).await?, Edited::NotHeld);
    assert_eq!(holder.read("a").await?, None);
    Ok(())
}

/// A reader's grant is refused, also when its sequencer was changed to look exclusive.
async fn a_helper_cannot_write_under_a_readers_grant(w: World) -> Verdict {
    let (holder, store) = (w.keeper().await, w.store().await);
    let reader = holder.rwlock("a").read().await?;
    let refused = holder.write_under(&reader.sequencer(), "x").await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    let claim = reader.sequencer().claim().clone();
    let forged = lockkeeper::store::Claim { mode: lockkeeper::Mode::Exclusive, ..claim };
    assert_eq!(store.write_under(forged, b"x".to_vec()).await?, Edited::NotHeld);
    assert_eq!(holder.read("a").await?, None);
    Ok(())
}
