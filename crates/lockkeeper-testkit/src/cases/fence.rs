//! The number of a grant only grows, whatever happens between two grants.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, Op},
    raw_session::{LONG, RawSession},
    register::Register,
    world::{World, eventually, soon, until_length},
};
use lockkeeper::{
    Keeper, Mode, Store as _, TicketId,
    store::{Claim, Entered, Manner, TicketStatus},
};
use std::{collections::HashSet, time::Duration};

pub(crate) fn cases() -> Vec<Case> {
    cases!("fence":
        [Fenced] it_grows_across_releases, it_grows_across_expiry, it_grows_across_a_closed_session,
            it_grows_across_an_eviction, it_grows_across_an_empty_line,
            it_is_the_same_however_often_it_is_asked, it_is_kept_by_re_entry,
            a_paused_holder_is_refused_by_the_resource;
        [Fenced, Durable] it_grows_across_a_reopened_store;
        [Fenced, Fair] it_grows_along_the_line;
    )
}

/// Asserts that a session opened now gets a higher fence than `before`.
async fn assert_grows(w: &World, before: &Claim) -> Claim {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let claim = raw.take(before.name.as_str()).await;
    assert!(claim.fence > before.fence, "{} after {}", claim.fence, before.fence);
    assert!(!raw.check(before).await, "the grant before is over");
    claim
}

/// I1: over many grants by different keepers, each is higher than all before, and none is 0.
async fn it_grows_across_releases(w: World) -> Verdict {
    let keepers = [w.keeper().await, w.keeper().await, w.keeper().await];
    let mut last = 0;
    for i in 0..30 {
        let guard = keepers[i % 3].lock("a").try_now().await?.expect("free");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        guard.release().await?;
    }
    Ok(())
}

/// I1: a holder that fell silent has a lower fence than its successor.
async fn it_grows_across_expiry(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let before = silent.take("a").await;
    until_free(&w, "a").await;
    assert_grows(&w, &before).await;
    Ok(())
}

async fn until_free(w: &World, name: &str) {
    let store = w.store().await;
    until_length(&store, name, 0).await;
}

/// I1: the same for a session that was closed.
async fn it_grows_across_a_closed_session(w: World) -> Verdict {
    let raw = RawSession::open(&w.store().await).await;
    let before = raw.take("a").await;
    raw.close().await;
    assert_grows(&w, &before).await;
    Ok(())
}

/// I1, I14: an eviction raises the floor, so the evicted holder is fenced off.
async fn it_grows_across_an_eviction(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let before = raw.take("a").await;
    assert!(store.evict(before.name.clone(), before.ticket).await?);
    assert_grows(&w, &before).await;
    Ok(())
}

/// I1: an empty line is not forgotten so soon that its fences begin anew.
async fn it_grows_across_an_empty_line(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let mut before = raw.take("a").await;
    for _ in 0..5 {
        raw.leave("a", before.ticket).await;
        until_free(&w, "a").await;
        raw.renew().await;
        let other = raw.take("b").await;
        raw.leave("b", other.ticket).await;
        let next = raw.take("a").await;
        assert!(next.fence > before.fence, "{} after {}", next.fence, before.fence);
        before = next;
    }
    Ok(())
}

/// I1: all handles are closed and the data is opened anew.
async fn it_grows_across_a_reopened_store(w: World) -> Verdict {
    let mut before = None;
    for _ in 0..4 {
        let keeper = w.keeper().await;
        let guard = keeper.lock("a").try_now().await?.expect("free");
        assert!(Some(guard.fence()) > before, "{} after {before:?}", guard.fence());
        before = Some(guard.fence());
        guard.release().await?;
        keeper.close().await;
    }
    // Held while the store is closed, and still held afterwards.
    let claim = RawSession::open(&w.store().await).await.take("a").await;
    assert!(w.store().await.check(claim.clone()).await?);
    assert!(Some(claim.fence) > before);
    Ok(())
}

/// I1: in the order of the line, without gaps in time between grants.
async fn it_grows_along_the_line(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let (mut held, mut last) = (raw.take("a").await.ticket, 0);
    let mut line = Vec::new();
    for _ in 0..10 {
        line.push(raw.queue("a").await.0);
    }
    let mut seen = HashSet::new();
    for next in line {
        raw.leave("a", held).await;
        let TicketStatus::Granted { fence } = raw.stand("a", next).await else {
            panic!("not granted")
        };
        assert!(fence > last && seen.insert(fence), "{fence} after {last}");
        (held, last) = (next, fence);
    }
    Ok(())
}

/// I1: enter again, poll and look all say the same number.
async fn it_is_the_same_however_often_it_is_asked(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let held = raw.take("a").await;
    for manner in [Manner::Contend, Manner::Queue] {
        if manner == Manner::Queue && !w.can().fair {
            continue;
        }
        let again = raw.enter("a", held.ticket, Mode::Exclusive, manner).await?;
        assert_eq!(again, Entered::Granted { fence: held.fence });
    }
    assert_eq!(raw.stand("a", held.ticket).await, TicketStatus::Granted { fence: held.fence });
    let line = crate::world::line(&store, "a").await.expect("a line");
    assert_eq!(line.tickets[0].fence, Some(held.fence));
    let other = Claim { ticket: TicketId::random(), ..held.clone() };
    assert!(raw.check(&held).await && !raw.check(&other).await);
    let other = Claim { fence: held.fence + 1, ..held.clone() };
    assert!(!raw.check(&other).await, "another number");
    assert!(!raw.check(&Claim { mode: Mode::Shared, ..held }).await, "another mode");
    Ok(())
}

/// I1, I9: an owner that enters again has the same grant.
async fn it_is_kept_by_re_entry(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let lock = || keeper.lock("tree").reentrant_as("me").try_now();
    let (one, two) = (lock().await?.expect("free"), lock().await?.expect("mine"));
    assert_eq!((one.fence(), one.ticket()), (two.fence(), two.ticket()));
    Ok(())
}

/// I2: the holder is paused past its lease, and writes when it wakes up. The resource has seen its
/// successor and refuses.
async fn a_paused_holder_is_refused_by_the_resource(w: World) -> Verdict {
    let (faults, register) = (w.fault_store().await, Register::default());
    let paused = Keeper::builder().ttl(w.short()).over(faults.store())?;
    let stale = paused.lock("a").try_now().await?.expect("free");
    let read = register.read(stale.fence()).expect("the first to come");
    faults.only(&[Op::Renew], Fate::Vanish);
    let other = w.keeper_for(LONG).await;
    eventually("the paused holder's lease has run out", async || {
        other
            .lock("a")
            .try_now()
            .await
            .is_ok_and(|guard| guard.is_some_and(|guard| register.write(guard.fence(), read + 10)))
    })
    .await;
    assert!(!register.write(stale.fence(), read + 1), "a stale write was accepted");
    assert_eq!((register.value(), register.refused()), (read + 10, 1));
    soon("the loss", stale.lost()).await;
    Ok(())
}
