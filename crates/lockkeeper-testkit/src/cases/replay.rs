//! Everything can be repeated: a request sent twice has the effect of one, and a copy that comes
//! late has none.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    raw_session::{LONG, RawSession},
    register::{Register, Room},
    world::{World, eventually, length, line, tickets, until_length},
};
use lockkeeper::{
    ErrorKind, Keeper, Mode, Retry, Store as _, TicketId,
    store::{Edited, Entered, Left, Manner, Renewal, SessionId, TicketStatus},
};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinSet;

pub(crate) fn cases() -> Vec<Case> {
    cases!("replay":
        [] everything_sent_twice_is_as_once, every_lost_answer_is_made_good,
            an_enter_again_is_told_the_same, a_late_enter_of_a_stray_is_refused,
            a_late_enter_of_an_ended_session_is_refused, a_late_leave_never_ends_a_later_grant,
            a_late_close_ends_no_other_session, a_late_open_revives_nothing, an_open_again_renews_nothing,
            a_late_renew_revives_no_session, a_late_note_never_undoes_a_newer_one,
            a_repeated_eviction_finds_no_ticket;
        [Cells] a_late_write_never_undoes_a_newer_one, a_late_write_of_another_grant_is_refused;
        [AtLeast] a_late_leave_does_not_lengthen_a_hold;
    )
}

/// I3, I4: a whole life of locks in which each request arrives twice.
async fn everything_sent_twice_is_as_once(w: World) -> Verdict {
    contended_life(w, |_| Fate::Twice).await
}

/// I3, I4: a life of locks in which the answers of enter and leave are lost every other time.
async fn every_lost_answer_is_made_good(w: World) -> Verdict {
    let count = std::sync::atomic::AtomicUsize::new(0);
    contended_life(w, move |call| {
        let odd = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 2 == 1;
        let matters = matches!(call.op, Op::Enter | Op::Leave);
        if matters && odd { Fate::Lose } else { Fate::Pass }
    })
    .await
}

async fn contended_life(
    w: World,
    plan: impl Fn(&crate::fault_store::Call) -> Fate + Send + Sync + 'static,
) -> Verdict {
    let faults = w.fault_store().await;
    faults.plan(plan);
    let (register, room) = (Arc::new(Register::default()), Arc::new(Room::outage(1)));
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let (keeper, register, room) =
            (Keeper::over(faults.store()), register.clone(), room.clone());
        let retry = Retry::exponential(Duration::from_millis(1), Duration::from_millis(10));
        tasks.spawn(async move {
            for _ in 0..10 {
                let guard = keeper.lock("a").unfair().retry(retry.clone()).wait(LONG).await?;
                room.visit(1).await;
                guard.set_label("working").await?;
                assert!(register.increment(guard.fence()).await);
                guard.release().await?;
            }
            keeper.close().await;
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    register.assert_no_update_was_lost();
    assert_eq!(register.value(), 30);
    assert_eq!(tickets(faults.inner()).await, 0);
    Ok(())
}

/// A copy of an enter adds no second ticket, and is told how the first one stands.
async fn an_enter_again_is_told_the_same(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = one.take("a").await;
    let again = one.enter("a", held.ticket, Mode::Exclusive, Manner::Contend).await?;
    assert_eq!(again, Entered::Granted { fence: held.fence });
    if w.can().fair {
        let (waiting, _) = two.queue("a").await;
        let again = two.enter("a", waiting, Mode::Exclusive, Manner::Queue).await?;
        assert!(matches!(again, Entered::Queued(wait) if wait.ahead == 1));
        assert_eq!(length(&store, "a").await, 2);
    }
    Ok(())
}

/// I10: the ticket was left while a copy of its enter was under way. The copy becomes no ghost.
async fn a_late_enter_of_a_stray_is_refused(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    // Left after it had come, and left before it came.
    let (came, never) = (raw.take("a").await.ticket, TicketId::random());
    assert_eq!(raw.leave_as("a", came, None, true).await, Left::Released);
    assert_eq!(raw.leave_as("a", never, None, true).await, Left::Gone);
    for ticket in [came, never] {
        for manner in [Manner::Contend, Manner::Queue] {
            if manner == Manner::Queue && !w.can().fair {
                continue;
            }
            let late = raw.enter("a", ticket, Mode::Exclusive, manner).await;
            assert_eq!(late.expect_err("a late copy").kind, ErrorKind::TicketClosed);
        }
    }
    assert_eq!(tickets(&store).await, 0);
    raw.take("a").await;
    Ok(())
}

/// I5, I10: the same after its session was closed.
async fn a_late_enter_of_an_ended_session_is_refused(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    raw.close().await;
    let late = raw.enter("a", held.ticket, Mode::Exclusive, Manner::Contend).await;
    assert_eq!(late.expect_err("a late copy").kind, ErrorKind::SessionOver);
    assert_eq!(tickets(&store).await, 0);
    Ok(())
}

/// I4: a release that is repeated, by the same session that holds the lock anew.
async fn a_late_leave_never_ends_a_later_grant(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let first = raw.take("a").await;
    raw.leave("a", first.ticket).await;
    let second = raw.take("a").await;
    for stray in [false, true] {
        assert_eq!(raw.leave_as("a", first.ticket, None, stray).await, Left::Gone);
        let keep = Some(Duration::from_secs(60));
        if w.can().at_least {
            assert_eq!(raw.leave_as("a", first.ticket, keep, stray).await, Left::Gone);
        }
    }
    assert!(raw.check(&second).await);
    assert_eq!(raw.leave("a", second.ticket).await, Left::Released);
    Ok(())
}

/// I4: closing twice is closing once, and others do not feel it.
async fn a_late_close_ends_no_other_session(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    one.take("a").await;
    one.close().await;
    let held = two.take("a").await;
    one.close().await;
    store.close(SessionId::random()).await?;
    assert!(two.check(&held).await && two.lives().await);
    Ok(())
}

/// I5, I11: a late copy of the open, after the session was closed, brings back none of its tickets
/// and keeps no session out. At most it leaves an empty session, which expires.
async fn a_late_open_revives_nothing(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let before = one.take("a").await;
    one.leave_as("b", before.ticket, None, true).await;
    one.close().await;
    let late = store.open(RawSession::ask(one.session, w.short(), Duration::ZERO)).await;
    assert_eq!(tickets(&store).await, 0, "{late:?}");
    assert_eq!(one.all().await, []);
    assert!(!one.check(&before).await);
    let stray = one.enter("b", before.ticket, Mode::Exclusive, Manner::Contend).await;
    assert!(stray.is_err(), "left as a stray: {stray:?}");
    let held = two.take("a").await;
    eventually("whatever it has opened expires", async || {
        let entered = one.enter("a", TicketId::random(), Mode::Exclusive, Manner::Contend).await;
        entered.is_err_and(|e| e.kind == ErrorKind::SessionOver)
    })
    .await;
    assert!(two.check(&held).await);
    Ok(())
}

/// I5: opening again answers with the terms and lengthens nothing.
async fn an_open_again_renews_nothing(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let held = raw.take("a").await;
    let ask = || RawSession::ask(raw.session, w.short(), Duration::ZERO);
    assert_eq!(store.open(ask()).await?, raw.terms);
    assert!(raw.check(&held).await, "the same session, with its tickets");
    eventually("it expires although it is opened again and again", async || {
        let _ = store.open(ask()).await;
        length(&store, "a").await == 0
    })
    .await;
    Ok(())
}

/// I5: a renewal that was under way when the session was closed.
async fn a_late_renew_revives_no_session(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    raw.take("a").await;
    raw.close().await;
    assert_eq!(raw.renew().await, Renewal::Lost);
    assert_eq!(tickets(&store).await, 0);
    assert_eq!(store.renew(SessionId::random()).await?, Renewal::Lost, "never opened");
    Ok(())
}

/// Notes are numbered: what comes late does not count.
async fn a_late_note_never_undoes_a_newer_one(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    let note = async || line(&store, "a").await.expect("a line").tickets[0].label.clone();
    assert_eq!(raw.annotate(&held, 1, b"one").await, Edited::Done);
    assert_eq!(raw.annotate(&held, 2, b"two").await, Edited::Done);
    assert_eq!(raw.annotate(&held, 1, b"one").await, Edited::Done, "done by the earlier copy");
    assert_eq!(note().await, b"two");
    assert_eq!(raw.annotate(&held, 2, b"other").await, Edited::Done);
    assert_eq!(note().await, b"two");
    raw.leave("a", held.ticket).await;
    assert_eq!(raw.annotate(&held, 3, b"three").await, Edited::NotHeld);
    Ok(())
}

/// The same for the name's value.
async fn a_late_write_never_undoes_a_newer_one(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    assert_eq!(raw.write(&held, 1, b"one").await, Edited::Done);
    assert_eq!(raw.write(&held, 2, b"two").await, Edited::Done);
    assert_eq!(raw.write(&held, 1, b"one").await, Edited::Done);
    let cell = store.read(held.name.clone()).await?.expect("a value");
    assert_eq!((cell.bytes.as_slice(), cell.fence), (b"two".as_slice(), held.fence));
    // The next grant numbers its writes from 1 again.
    raw.leave("a", held.ticket).await;
    let next = raw.take("a").await;
    assert_eq!(raw.write(&next, 1, b"three").await, Edited::Done);
    assert_eq!(store.read(held.name).await?.expect("a value").bytes, b"three");
    Ok(())
}

/// I2: a write under a grant that is over, by the session that holds the lock anew.
async fn a_late_write_of_another_grant_is_refused(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let first = raw.take("a").await;
    assert_eq!(raw.write(&first, 1, b"one").await, Edited::Done);
    raw.leave("a", first.ticket).await;
    let second = raw.take("a").await;
    assert_eq!(raw.write(&first, 2, b"late").await, Edited::NotHeld);
    assert_eq!(store.read(first.name).await?.expect("a value").bytes, b"one");
    assert!(raw.check(&second).await);
    Ok(())
}

/// An eviction names its ticket, so a copy of it evicts no other ticket.
async fn a_repeated_eviction_finds_no_ticket(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let first = raw.take("a").await;
    assert!(store.evict(first.name.clone(), first.ticket).await?);
    let second = raw.take("a").await;
    assert!(!store.evict(first.name, first.ticket).await?);
    assert!(raw.check(&second).await);
    assert_eq!(raw.stand("a", first.ticket).await, TicketStatus::Gone);
    Ok(())
}

/// The hold that a release has left behind ends when it was said to, whatever copies come.
async fn a_late_leave_does_not_lengthen_a_hold(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    let left = raw.leave_as("a", held.ticket, Some(w.short()), false).await;
    assert_eq!(left, Left::Released);
    let late = raw.leave_as("a", held.ticket, Some(LONG), false).await;
    assert_eq!(late, Left::Gone);
    assert_eq!(length(&store, "a").await, 1, "still closed");
    until_length(&store, "a", 0).await;
    raw.take("a").await;
    Ok(())
}
