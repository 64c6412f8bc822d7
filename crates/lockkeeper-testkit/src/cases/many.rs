//! Several locks, all or none.

use crate::{
    case::{Case, Verdict, cases},
    register::Room,
    world::{World, length, soon, tickets, until_empty},
};
use lockkeeper::{Error, Guard, Loss};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::task::JoinSet;

pub(crate) fn cases() -> Vec<Case> {
    cases!("many":
        [] a_try_takes_all_or_none, names_are_taken_once_and_in_order, a_bad_name_takes_nothing,
            losing_one_is_told;
        [Fair] all_are_taken, a_timeout_releases_what_was_taken,
            opposite_orders_never_deadlock;
    )
}

/// All are held, each with a guard of its own, and a release frees all.
async fn all_are_taken(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let guards = one.lock_all(["b", "a", "c"]).await?;
    assert!(guards.is_held());
    for name in ["a", "b", "c"] {
        assert!(guards.get(name).is_some_and(Guard::is_held));
        assert!(two.lock(name).try_now().await?.is_none());
    }
    guards.release().await?;
    assert_eq!(tickets(two.store()).await, 0);
    Ok(())
}

/// One is taken: `None`, and the others are free as before.
async fn a_try_takes_all_or_none(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = two.lock("b").try_now().await?.expect("free");
    assert!(one.lock_all(["a", "b", "c"]).try_now().await?.is_none());
    assert_eq!(tickets(two.store()).await, 1);
    held.release().await?;
    let guards = one.lock_all(["a", "b", "c"]).try_now().await?.expect("all are free");
    assert_eq!(guards.iter().count(), 3);
    drop(guards);
    until_empty(two.store()).await;
    Ok(())
}

/// I10: not all in time: those taken before are released.
async fn a_timeout_releases_what_was_taken(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = two.lock("c").await?;
    let late = one.lock_all(["a", "b", "c"]).wait(Duration::from_millis(80)).await;
    assert!(matches!(late, Err(Error::NotAcquired { .. })), "{late:?}");
    assert_eq!((length(two.store(), "a").await, length(two.store(), "b").await), (0, 0));
    held.release().await?;
    until_empty(two.store()).await;
    Ok(())
}

/// A name given twice is one lock.
async fn names_are_taken_once_and_in_order(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guards = keeper.lock_all(["b", "a", "b", "a"]).try_now().await?.expect("free");
    let names: Vec<_> = guards.iter().map(|guard| guard.name().as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let fences: Vec<_> = guards.iter().map(Guard::fence).collect();
    assert!(fences.is_sorted(), "taken in the order of their names: {fences:?}");
    guards.release().await?;
    Ok(())
}

/// Said before anything is taken.
async fn a_bad_name_takes_nothing(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let refused = keeper.lock_all(["a", ""]).try_now().await;
    assert!(matches!(refused, Err(Error::Name(_))), "{refused:?}");
    assert_eq!(tickets(keeper.store()).await, 0);
    Ok(())
}

/// I7: overlapping sets, named in opposite orders by tasks of two processes.
async fn opposite_orders_never_deadlock(w: World) -> Verdict {
    let keepers = [w.keeper().await, w.keeper().await];
    let rooms: HashMap<&str, Room> = ["a", "b", "c"].map(|name| (name, Room::outage(1))).into();
    let rooms = Arc::new(rooms);
    let sets = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "b"], ["a", "c"], ["c", "a"]];
    let mut tasks = JoinSet::new();
    for (i, set) in sets.into_iter().enumerate() {
        let (keeper, rooms) = (keepers[i % 2].clone(), rooms.clone());
        tasks.spawn(async move {
            for _ in 0..10 {
                let guards = keeper.lock_all(set).await?;
                for name in set {
                    rooms[name].visit(1).await;
                }
                guards.release().await?;
            }
            anyhow::Ok(())
        });
    }
    for done in soon("all of them", tasks.join_all()).await {
        done?;
    }
    assert_eq!(tickets(keepers[0].store()).await, 0);
    Ok(())
}

/// Losing one of them is losing the set: it is told which and why, and the release says so.
async fn losing_one_is_told(w: World) -> Verdict {
    let (one, two) = (w.keeper_for(w.steady()).await, w.keeper().await);
    let guards = one.lock_all(["a", "b"]).try_now().await?.expect("free");
    let b = guards.get("b").expect("taken").ticket();
    assert!(two.evict("b", b).await?);
    let (name, why) = soon("the loss", guards.lost()).await;
    assert_eq!((name.as_str(), why), ("b", Loss::Evicted));
    assert!(!guards.is_held());
    assert!(matches!(guards.release().await, Err(Error::Lost { .. })));
    until_empty(two.store()).await;
    Ok(())
}
