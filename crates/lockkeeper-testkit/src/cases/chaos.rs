//! The promises under faults: a store that fails, forgets to answer, repeats and delays, with few
//! hints or none. Each seed is another day.

use crate::{
    case::{Case, Need, Verdict},
    chaos::Chaos,
    hint_filter::HintFate,
    register::{Register, Room},
    world::{World, tickets, until_empty},
};
use lockkeeper::{Error, Keeper, Retry};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinSet;

const SEEDS: [u64; 4] = [1, 2, 3, 4];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in SEEDS {
        let name = format!("no_update_is_lost_on_day_{seed}");
        cases.push(Case::new("chaos", name, &[Need::Fair], move |w| no_update_is_lost(w, seed)));
        let name = format!("no_permit_too_many_on_day_{seed}");
        let needs = [Need::Permits, Need::Fair];
        cases.push(Case::new("chaos", name, &needs, move |w| no_permit_too_many(w, seed)));
        let name = format!("impatience_leaves_nothing_on_day_{seed}");
        cases.push(Case::new("chaos", name, &[], move |w| impatience_leaves_nothing(w, seed)));
    }
    cases
}

/// A keeper over a handle with faults of its own.
async fn troubled(w: &World, seed: u64) -> anyhow::Result<Keeper> {
    let faults = w.fault_store().await;
    faults.plan(Chaos::BAD_DAY.plan(seed));
    let fates = [HintFate::Pass, HintFate::Drop, HintFate::Noise];
    faults.hint_fate(fates[usize::try_from(seed % 3)?]);
    // Long enough for a renewal to get through on any day.
    Ok(Keeper::builder().ttl(Duration::from_secs(6)).over(faults.store())?)
}

/// I1, I2, I3: no two holders meet, fences grow, and the register loses no update.
async fn no_update_is_lost(w: World, seed: u64) -> Verdict {
    let (register, room) = (Arc::new(Register::default()), Arc::new(Room::outage(1)));
    let fences = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..3 {
        let keeper = troubled(&w, seed * 10 + i).await?;
        let (register, room, fences) = (register.clone(), room.clone(), fences.clone());
        tasks.spawn(async move {
            for _ in 0..8 {
                let guard = keeper.lock("a").await?;
                room.visit(1).await;
                fences.lock().unwrap().push(guard.fence());
                assert!(register.increment(guard.fence()).await, "a stale fence without a loss");
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
    assert_eq!(register.value(), 24);
    let fences = fences.lock().unwrap().clone();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    until_empty(&w.store().await).await;
    Ok(())
}

/// I3: the same for a semaphore.
async fn no_permit_too_many(w: World, seed: u64) -> Verdict {
    let room = Arc::new(Room::outage(3));
    let mut tasks = JoinSet::new();
    for i in 0..4 {
        let (keeper, room) = (troubled(&w, seed * 100 + i).await?, room.clone());
        tasks.spawn(async move {
            for turn in 0..6 {
                let weight = 1 + (u32::try_from(i)? + turn) % 3;
                let guard = keeper.semaphore("gpu", 3).acquire(weight).await?;
                room.visit(weight).await;
                guard.release().await?;
            }
            keeper.close().await;
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    until_empty(&w.store().await).await;
    Ok(())
}

/// I10: tries, short waits and dropped guards; whatever came of them, nothing stays.
async fn impatience_leaves_nothing(w: World, seed: u64) -> Verdict {
    let mut tasks = JoinSet::new();
    for i in 0..3 {
        let keeper = troubled(&w, seed * 1000 + i).await?;
        let retry = Retry::exponential(Duration::from_millis(1), Duration::from_millis(5));
        tasks.spawn(async move {
            for turn in 0..12 {
                let lock = keeper.lock("a").unfair().retry(retry.clone());
                let got = match turn % 3 {
                    0 => lock.try_now().await,
                    1 => lock.wait(Duration::from_millis(10)).await.map(Some),
                    _ => {
                        let lock = lock.into_future();
                        let _ = tokio::time::timeout(Duration::from_millis(5), lock).await;
                        Ok(None)
                    }
                };
                match got {
                    Ok(guard) => drop(guard),
                    Err(
                        Error::NotAcquired { .. } | Error::Unavailable { .. } | Error::Store(_),
                    ) => {}
                    Err(e) => return Err(anyhow::Error::from(e)),
                }
            }
            keeper.close().await;
            Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    // A close that failed leaves its session to expire.
    until_empty(&w.store().await).await;
    assert_eq!(tickets(&w.store().await).await, 0);
    Ok(())
}
