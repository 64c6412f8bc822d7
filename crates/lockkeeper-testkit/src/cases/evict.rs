//! Ending a ticket of another session by force, and checking which ticket holds.

use crate::{
    case::{Case, Verdict, cases},
    raw_session::RawSession,
    world::{World, eventually, length, soon, until_length},
};
use lockkeeper::{Error, Loss, Sequencer, Store as _, TicketId, store::TicketStatus};

pub(crate) fn cases() -> Vec<Case> {
    cases!("evict":
        [] it_frees_the_lock_and_tells_the_holder, it_names_a_ticket_and_touches_no_other,
            a_check_is_false_for_ever_after, a_check_is_exact, a_check_of_another_store_is_false,
            a_release_after_it_says_so;
        [Fair] it_hands_over_along_the_line, it_takes_one_out_of_the_line;
    )
}

/// I14: the holder is told, its successor has a higher fence.
async fn it_frees_the_lock_and_tells_the_holder(w: World) -> Verdict {
    let (one, two) = (w.keeper_for(w.steady()).await, w.keeper().await);
    let evicted = one.lock("a").try_now().await?.expect("free");
    assert!(two.evict("a", evicted.ticket()).await?);
    let next = two.lock("a").try_now().await?.expect("free at once");
    assert!(next.fence() > evicted.fence());
    assert_eq!(soon("the loss", evicted.lost()).await, Loss::Evicted);
    assert!(!evicted.is_held());
    drop(evicted);
    one.close().await;
    assert!(
        two.check(&next.sequencer()).await?,
        "what the evicted session does now ends no ticket"
    );
    Ok(())
}

/// I14: the next in line has it at once, with a higher fence.
async fn it_hands_over_along_the_line(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = one.take("a").await;
    let (next, _) = two.queue("a").await;
    assert!(store.evict(held.name.clone(), held.ticket).await?);
    let TicketStatus::Granted { fence } = two.stand("a", next).await else { panic!("not granted") };
    assert!(fence > held.fence);
    assert!(one.lives().await, "the session goes on");
    assert_eq!(one.stand("a", held.ticket).await, TicketStatus::Gone);
    Ok(())
}

/// I6: a waiter can be evicted too; the others keep their order.
async fn it_takes_one_out_of_the_line(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    let (second, third) = (raw.queue("a").await.0, raw.queue("a").await.0);
    assert!(store.evict(held.name.clone(), second).await?);
    assert!(raw.check(&held).await);
    assert_eq!(raw.stand("a", second).await, TicketStatus::Gone);
    assert!(matches!(raw.stand("a", third).await, TicketStatus::Waiting(wait) if wait.ahead == 1));
    raw.leave("a", held.ticket).await;
    assert!(matches!(raw.stand("a", third).await, TicketStatus::Granted { .. }));
    Ok(())
}

/// I4: a wrong name or ticket evicts no ticket.
async fn it_names_a_ticket_and_touches_no_other(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let (a, b) = (keeper.lock("a").try_now().await?, keeper.lock("b").try_now().await?);
    let (a, b) = (a.expect("free"), b.expect("free"));
    assert!(!keeper.evict("a", TicketId::random()).await?);
    assert!(!keeper.evict("b", a.ticket()).await?);
    assert!(!keeper.evict("c", a.ticket()).await?);
    assert!(keeper.check(&a.sequencer()).await? && keeper.check(&b.sequencer()).await?);
    assert!(keeper.evict("a", a.ticket()).await?);
    assert!(keeper.check(&b.sequencer()).await?);
    assert_eq!(length(keeper.store(), "a").await, 0);
    Ok(())
}

/// I13: whatever comes after: free, taken by another, taken by the same session again.
async fn a_check_is_false_for_ever_after(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = one.take("a").await;
    assert!(two.check(&held).await);
    assert!(store.evict(held.name.clone(), held.ticket).await?);
    assert!(!two.check(&held).await, "free");
    let other = two.take("a").await;
    assert!(!two.check(&held).await, "held by another");
    two.leave("a", other.ticket).await;
    let again = one.take("a").await;
    assert!(two.check(&again).await && !two.check(&held).await, "held by the same session");
    one.close().await;
    assert!(!two.check(&again).await && !two.check(&held).await);
    Ok(())
}

/// I13: true as long as it is held, false from the moment of the release on.
async fn a_check_is_exact(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let guard = one.lock("a").try_now().await?.expect("free");
    let sequencer: Sequencer = guard.sequencer().to_string().parse()?;
    for _ in 0..5 {
        assert!(two.check(&sequencer).await?);
    }
    guard.release().await?;
    assert!(!two.check(&sequencer).await?);
    let next = one.lock("a").try_now().await?.expect("free");
    assert!(!two.check(&sequencer).await? && two.check(&next.sequencer()).await?);
    drop(next);
    until_length(two.store(), "a", 0).await;
    Ok(())
}

/// I13: the same name, ticket and fence in other data is another grant.
async fn a_check_of_another_store_is_false(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let elsewhere = lockkeeper::Keeper::over(lockkeeper::store::memory::Memory::new());
    let guard = keeper.lock("a").try_now().await?.expect("free");
    assert!(!elsewhere.check(&guard.sequencer()).await?);
    let other = elsewhere.lock("a").try_now().await?.expect("free");
    assert!(!keeper.check(&other.sequencer()).await?);
    assert_eq!(w.store().await.id(), keeper.store().id(), "handles agree on what data they share");
    Ok(())
}

/// I14: also when the holder has not heard of it yet.
async fn a_release_after_it_says_so(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let guard = one.lock("a").try_now().await?.expect("free");
    assert!(two.evict("a", guard.ticket()).await?);
    let next = two.lock("a").try_now().await?.expect("free");
    let released = guard.release().await;
    assert!(matches!(released, Err(Error::Lost { why: Loss::Evicted, .. })), "{released:?}");
    eventually("the next one is not touched", async || {
        two.check(&next.sequencer()).await.is_ok_and(|held| held)
    })
    .await;
    Ok(())
}
