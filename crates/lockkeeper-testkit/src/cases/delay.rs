//! Lock-delay: a session that expires keeps the lock closed a while longer; one that is closed does not.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    raw_session::RawSession,
    world::{World, eventually, length, soon},
};
use lockkeeper::{
    Keeper, Mode, Store as _, TicketId,
    store::{AnyStore, Edited, Entered, Left, Renewal, TicketStatus, clock::Clock},
};
use std::time::{Duration, Instant};

const DELAY: Duration = Duration::from_millis(600);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!("delay":
        [] an_abnormal_end_keeps_it_closed, a_clean_release_frees_at_once, a_clean_close_frees_at_once,
            the_holder_gives_up_at_the_ttl, an_expired_session_cannot_renew_during_the_delay,
            a_check_agrees_with_the_line;
        [SessionsShared] closing_a_dead_session_frees_its_locks;
        [Fair] the_next_in_line_waits_it_out;
        [Fair, SessionsShared] a_dead_sessions_waiting_ticket_can_be_withdrawn;
        [Fair, WaitersEndAtTtl] a_dead_waiter_is_passed_over_without_the_delay;
        [Fair, Shared, WaitersEndAtTtl] a_dead_waiter_frees_the_tickets_behind_it_without_the_delay;
    );
    // On one thread both the deadline and the close are there when the session's task looks.
    let late = cases!("delay": [] a_loss_noticed_late_still_keeps_it_closed);
    cases.extend(late.into_iter().map(Case::on_one_thread));
    cases
}

/// I8: no other session is granted for TTL + D after the last renewal, on the store's clock.
async fn an_abnormal_end_keeps_it_closed(w: World) -> Verdict {
    let store = w.store().await;
    let began = Instant::now();
    let silent = RawSession::open_for(&store, w.short(), DELAY).await;
    assert!(silent.terms.lock_delay >= DELAY, "granted terms: {:?}", silent.terms);
    let held = silent.take("a").await;
    let other = RawSession::open(&store).await;
    eventually("free after the delay", async || {
        matches!(other.contend("a").await.1, Entered::Granted { .. })
    })
    .await;
    assert!(began.elapsed() >= w.short() + DELAY, "granted after {:?}", began.elapsed());
    assert!(!other.check(&held).await);
    Ok(())
}

/// I8, I15: the same for one who waits in line: granted, and not before.
async fn the_next_in_line_waits_it_out(w: World) -> Verdict {
    let store = w.store().await;
    let began = Instant::now();
    let silent = RawSession::open_for(&store, w.short(), DELAY).await;
    silent.take("a").await;
    let next = w.keeper().await;
    let guard = soon("the next one's turn", next.lock("a").into_future()).await?;
    assert!(began.elapsed() >= w.short() + DELAY, "granted after {:?}", began.elapsed());
    guard.release().await?;
    Ok(())
}

/// I8: a release is no abnormal end.
async fn a_clean_release_frees_at_once(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    for _ in 0..3 {
        let guard = one.lock("a").lock_delay(crate::LONG).try_now().await?.expect("free");
        guard.release().await?;
        two.lock("a").try_now().await?.expect("free at once").release().await?;
    }
    Ok(())
}

/// I8: nor is closing the keeper.
async fn a_clean_close_frees_at_once(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let _guard = one.lock("a").lock_delay(crate::LONG).try_now().await?.expect("free");
    one.close().await;
    two.lock("a").try_now().await?.expect("free at once").release().await?;
    Ok(())
}

/// A client whose session was lost before it handed out a lock closes it, or the client would wait behind
/// its own ticket.
async fn closing_a_dead_session_frees_its_locks(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), crate::LONG).await;
    silent.take("a").await;
    tokio::time::sleep(silent.terms.ttl + Duration::from_millis(50)).await;
    assert_eq!(silent.renew().await, Renewal::Lost);
    let next = RawSession::open(&store).await;
    assert!(matches!(next.contend("a").await.1, Entered::Busy(_)), "closed for the delay");
    silent.close().await;
    eventually("free without the delay", async || {
        matches!(next.contend("a").await.1, Entered::Granted { .. })
    })
    .await;
    Ok(())
}

/// I12: the delay is for the others. The holder itself stops believing at the TTL.
async fn the_holder_gives_up_at_the_ttl(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.short()).lock_delay(crate::LONG).over(faults.store())?;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    assert!(guard.remaining() <= w.short());
    faults.only(&[Op::Renew], Fate::Vanish);
    soon("the loss", guard.lost()).await;
    assert_eq!(length(faults.inner(), "a").await, 1, "the store still keeps the lock closed");
    Ok(())
}

/// I5: the store still has the tickets, but the session is over for its owner.
async fn an_expired_session_cannot_renew_during_the_delay(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), crate::LONG).await;
    silent.take("a").await;
    let began = Instant::now();
    tokio::time::sleep(w.short()).await;
    while began.elapsed() < silent.terms.ttl + Duration::from_millis(50) {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        assert_eq!(silent.renew().await, Renewal::Lost);
    }
    assert_eq!(length(&store, "a").await, 1, "closed for the delay");
    Ok(())
}

/// I13: while `check` says yes no other session holds the lock; once it has said no it never says yes.
async fn a_check_agrees_with_the_line(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), DELAY).await;
    let held = silent.take("a").await;
    let other = RawSession::open(&store).await;
    let mut was_no = false;
    eventually("a successor", async || {
        let yes = other.check(&held).await;
        assert!(!(was_no && yes), "it said no before");
        was_no = !yes;
        let granted = matches!(other.contend("a").await.1, Entered::Granted { .. });
        assert!(!(granted && other.check(&held).await), "two held it at once");
        granted
    })
    .await;
    assert!(!other.check(&held).await);
    if w.can().cells {
        assert_eq!(silent.write(&held, 1, b"late").await, Edited::NotHeld);
        assert_eq!(store.read(held.name).await?, None);
    }
    Ok(())
}

/// I8: the process slept past its deadline and notices only when it drops its guard and closes. The
/// others must not feel that: a late leave or close would cut the delay short.
async fn a_loss_noticed_late_still_keeps_it_closed(w: World) -> Verdict {
    for round in 0..24 {
        let (clock, faults) = (Clock::movable(), w.fault_store().await);
        let builder = Keeper::builder().clock(clock.clone()).lock_delay(crate::LONG);
        let keeper = builder.over(faults.store())?;
        let name = format!("a {round}");
        let guard = keeper.lock(&name).try_now().await?.expect("free");
        clock.advance(Duration::from_secs(16));
        match round % 3 {
            0 => soon("the close", keeper.close()).await,
            1 => {
                drop(guard);
                soon("the close", keeper.close()).await;
            }
            _ => drop((guard, keeper)),
        }
        // Long enough for whatever was begun to be done.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let late = [Op::Leave, Op::LeaveNow, Op::Close, Op::Renew];
        let sent: Vec<_> =
            faults.log().into_iter().map(|c| c.op).filter(|op| late.contains(op)).collect();
        assert_eq!(sent, [], "sent for a session past its deadline, in round {round}");
        assert_eq!(length(faults.inner(), &name).await, 1);
    }
    Ok(())
}

/// A session with a long lock-delay that waits in a line, and is over.
async fn dead_waiter(w: &World, store: &AnyStore, name: &str) -> (RawSession, TicketId) {
    let silent = RawSession::open_for(store, w.short(), crate::LONG).await;
    let (ticket, entered) = silent.queue(name).await;
    assert!(matches!(entered, Entered::Queued(_)), "{entered:?}");
    // A renewal that comes too early would prolong it, so nothing but time can tell.
    tokio::time::sleep(silent.terms.ttl + Duration::from_millis(50)).await;
    assert_eq!(silent.renew().await, Renewal::Lost);
    (silent, ticket)
}

/// A ticket that was never granted has protected nothing, so a hand-over need not wait out its delay.
async fn a_dead_waiter_is_passed_over_without_the_delay(w: World) -> Verdict {
    let store = w.store().await;
    let holder = RawSession::open(&store).await;
    let held = holder.take("a").await;
    let (silent, dead) = dead_waiter(&w, &store, "a").await;
    let next = RawSession::open(&store).await;
    let (ticket, _) = next.queue("a").await;
    assert_eq!(holder.leave("a", held.ticket).await, Left::Released);
    eventually("the next one's turn", async || {
        matches!(next.stand("a", ticket).await, TicketStatus::Granted { .. })
    })
    .await;
    assert_eq!(silent.stand("a", dead).await, TicketStatus::Gone);
    Ok(())
}

/// The same without a release: a reader behind a dead writer joins the reader that holds the lock.
async fn a_dead_waiter_frees_the_tickets_behind_it_without_the_delay(w: World) -> Verdict {
    let store = w.store().await;
    let holder = RawSession::open(&store).await;
    let (_, entered) = holder.queue_for("a", Mode::Shared).await;
    assert!(matches!(entered, Entered::Granted { .. }), "{entered:?}");
    let silent = RawSession::open_for(&store, w.short(), crate::LONG).await;
    let (_, entered) = silent.queue("a").await;
    assert!(matches!(entered, Entered::Queued(_)), "{entered:?}");
    let next = RawSession::open(&store).await;
    let (ticket, _) = next.queue_for("a", Mode::Shared).await;
    eventually("the reader's turn", async || {
        matches!(next.stand("a", ticket).await, TicketStatus::Granted { .. })
    })
    .await;
    assert_eq!(silent.renew().await, Renewal::Lost);
    Ok(())
}

/// A client that lost its session withdraws what was never granted to it: nothing was protected by that,
/// and it need not stand behind its own ghost.
async fn a_dead_sessions_waiting_ticket_can_be_withdrawn(w: World) -> Verdict {
    let store = w.store().await;
    let holder = RawSession::open(&store).await;
    holder.take("a").await;
    let (silent, ticket) = dead_waiter(&w, &store, "a").await;
    let left = silent.leave("a", ticket).await;
    assert!(matches!(left, Left::Withdrawn | Left::Gone), "{left:?}");
    assert_eq!(length(&store, "a").await, 1, "only the holder is left");
    Ok(())
}
