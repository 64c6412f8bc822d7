//! So many at a time.

use crate::{
    case::{Case, Verdict, cases},
    raw_session::RawSession,
    register::Room,
    world::{World, length, line, tickets},
};
use lockkeeper::{
    Error, ErrorKind, Mode, PERMITS_MAX, Store as _, TicketId,
    store::{Entered, Manner, TicketStatus},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::sync::Arc;
use tokio::task::JoinSet;

pub(crate) fn cases() -> Vec<Case> {
    cases!("semaphore":
        [Permits] so_many_and_no_more, another_capacity_is_a_clear_error,
            an_empty_line_takes_a_new_capacity, impossible_permits_are_refused_before_anything_is_sent,
            permits_are_no_licence_to_write;
        [Permits, Fair] random_weights_never_exceed_the_capacity, the_longest_prefix_that_fits_goes,
            a_light_one_does_not_overtake_a_heavy_one;
    )
}

fn permits(weight: u32, of: u32) -> Mode {
    Mode::Permits { weight, of }
}

/// I3: exactly as many as there are permits.
async fn so_many_and_no_more(w: World) -> Verdict {
    let (one, two) = (w.keeper().await.semaphore("gpu", 3), w.keeper().await.semaphore("gpu", 3));
    let first = one.acquire(2).try_now().await?.expect("3 are free");
    assert!(two.acquire(2).try_now().await?.is_none(), "1 is free");
    let second = two.acquire(1).try_now().await?.expect("1 is free");
    assert!(one.acquire(1).try_now().await?.is_none(), "none is free");
    first.release().await?;
    assert!(one.acquire(2).try_now().await?.is_some(), "2 are free");
    second.release().await?;
    Ok(())
}

/// I3: tasks of two keepers with random weights.
async fn random_weights_never_exceed_the_capacity(w: World) -> Verdict {
    const OF: u32 = 5;
    let keepers = [w.keeper().await, w.keeper().await];
    let room = Arc::new(Room::outage(OF));
    let mut tasks = JoinSet::new();
    for seed in 0..10 {
        let (gpu, room) = (keepers[seed % 2].semaphore("gpu", OF), room.clone());
        let mut rng = StdRng::seed_from_u64(seed as u64);
        tasks.spawn(async move {
            for _ in 0..20 {
                let weight = rng.random_range(1..=OF);
                let guard = gpu.acquire(weight).await?;
                room.visit(weight).await;
                guard.release().await?;
            }
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    assert_eq!(tickets(keepers[0].store()).await, 0);
    Ok(())
}

/// While a ticket stands in the line its capacity is fixed. An enter that disagrees is told both numbers,
/// and no ticket of it is written.
async fn another_capacity_is_a_clear_error(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = one.semaphore("gpu", 4).acquire(1).try_now().await?.expect("free");
    let refused = two.semaphore("gpu", 5).acquire(1).try_now().await;
    assert!(matches!(refused, Err(Error::Capacity { asked: 5, line: 4, .. })), "{refused:?}");
    let refused = two.lock("gpu").try_now().await.expect_err("another capacity");
    assert!(refused.to_string().contains("semaphore of 4"), "{refused}");
    if w.can().fair {
        let refused = two.semaphore("gpu", 5).acquire(1).await;
        assert!(matches!(refused, Err(Error::Capacity { asked: 5, line: 4, .. })), "{refused:?}");
        let raw = RawSession::open(two.store()).await;
        let entered = raw.enter("gpu", TicketId::random(), Mode::Exclusive, Manner::Queue).await;
        let e = entered.expect_err("another capacity");
        assert_eq!((e.kind, e.outcome), (ErrorKind::Capacity(4), lockkeeper::Outcome::NotApplied));
    }
    assert_eq!(length(one.store(), "gpu").await, 1);
    assert!(held.is_held());
    Ok(())
}

/// Capacity belongs to the line while a ticket stands in it, and not to the name for ever.
async fn an_empty_line_takes_a_new_capacity(w: World) -> Verdict {
    let keeper = w.keeper().await;
    for capacity in [4, 2, 7] {
        let guard = keeper.semaphore("gpu", capacity).acquire(1).try_now().await?.expect("free");
        let line = line(keeper.store(), "gpu").await.expect("a line");
        assert_eq!((line.capacity, line.tickets[0].mode), (capacity, permits(1, capacity)));
        guard.release().await?;
    }
    keeper.lock("gpu").try_now().await?.expect("free").release().await?;
    Ok(())
}

/// More than there are, none at all, or a semaphore beyond all bounds: refused with a reason.
async fn impossible_permits_are_refused_before_anything_is_sent(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = lockkeeper::Keeper::over(faults.store());
    for (weight, of) in [(5, 4), (0, 4), (1, 0), (1, PERMITS_MAX + 1)] {
        let refused = keeper.semaphore("gpu", of).acquire(weight).try_now().await;
        assert!(matches!(refused, Err(Error::Option(_))), "{weight} of {of}: {refused:?}");
    }
    assert_eq!(faults.log(), []);
    Ok(())
}

/// Some of the permits are not all of them.
async fn permits_are_no_licence_to_write(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let some = keeper.semaphore("gpu", 2).acquire(1).try_now().await?.expect("free");
    assert!(matches!(some.write(b"x".to_vec()).await, Err(Error::Option(_))));
    let raw = RawSession::open(keeper.store()).await;
    let ticket = TicketId::random();
    let entered = raw.enter("gpu", ticket, permits(1, 2), Manner::Contend).await?;
    let Entered::Granted { fence } = entered else { panic!("{entered:?}") };
    let claim =
        lockkeeper::store::Claim { name: "gpu".parse()?, ticket, mode: permits(1, 2), fence };
    if w.can().cells {
        assert_eq!(raw.write(&claim, 1, b"x").await, lockkeeper::store::Edited::NotHeld);
        assert_eq!(keeper.store().read(claim.name).await?, None);
    }
    Ok(())
}

/// I3, I6: of a line of 2, 1, 3, 1 on 4 the first two go; when the first leaves, still only they.
async fn the_longest_prefix_that_fits_goes(w: World) -> Verdict {
    let raw = RawSession::open(&w.store().await).await;
    let mut line = Vec::new();
    for weight in [2, 1, 3, 1] {
        line.push(raw.queue_for("gpu", permits(weight, 4)).await.0);
    }
    let granted = async |gone: usize| {
        let mut granted = Vec::new();
        for ticket in &line[gone..] {
            granted.push(matches!(raw.stand("gpu", *ticket).await, TicketStatus::Granted { .. }));
        }
        granted
    };
    assert_eq!(granted(0).await, [true, true, false, false]);
    raw.leave("gpu", line[0]).await;
    assert_eq!(granted(1).await, [true, true, false], "1 and 3 are 4: full");
    raw.leave("gpu", line[1]).await;
    assert_eq!(granted(2).await, [true, true], "3 and 1 are 4");
    Ok(())
}

/// I6: one that would fit waits behind one that does not.
async fn a_light_one_does_not_overtake_a_heavy_one(w: World) -> Verdict {
    let raw = RawSession::open(&w.store().await).await;
    let (first, _) = raw.queue_for("gpu", permits(2, 4)).await;
    let (heavy, entered) = raw.queue_for("gpu", permits(3, 4)).await;
    assert!(matches!(entered, Entered::Queued(_)));
    let (light, entered) = raw.queue_for("gpu", permits(1, 4)).await;
    assert!(matches!(entered, Entered::Queued(_)), "the heavy one came first");
    let busy = raw.enter("gpu", TicketId::random(), permits(1, 4), Manner::Contend).await?;
    assert!(matches!(busy, Entered::Busy(_)));
    raw.leave("gpu", first).await;
    assert!(matches!(raw.stand("gpu", heavy).await, TicketStatus::Granted { .. }));
    assert!(matches!(raw.stand("gpu", light).await, TicketStatus::Granted { .. }));
    Ok(())
}
