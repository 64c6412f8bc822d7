//! Everything is bounded, and what is beyond the bounds is refused before anything is written.

use crate::{
    case::{Case, Verdict, cases},
    world::{World, line, tickets},
};
use lockkeeper::{Error, Keeper, LABEL_MAX, Renew, TIME_MAX, TTL_MIN, store::CELL_MAX};
use std::time::Duration;

pub(crate) fn cases() -> Vec<Case> {
    cases!("limits":
        [] a_note_that_is_too_long_is_refused, the_longest_note_fits, times_out_of_bounds_are_refused,
            a_renewal_that_cannot_fail_once_is_refused, the_bounds_themselves_are_fine;
        [Cells] a_value_that_is_too_long_is_refused;
    )
}

/// The label of a lock, before it is taken; a new note, while it is held.
async fn a_note_that_is_too_long_is_refused(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let long = vec![b'x'; LABEL_MAX + 1];
    let refused = keeper.lock("a").label(long.clone()).try_now().await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    assert_eq!(faults.log(), [], "nothing was sent");
    let guard = keeper.lock("a").label("short").try_now().await?.expect("free");
    let refused = guard.set_label(long).await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    assert_eq!(line(keeper.store(), "a").await.expect("a line").tickets[0].label, b"short");
    Ok(())
}

/// The bound is what it is said to be, whatever the bytes.
async fn the_longest_note_fits(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let note: Vec<u8> = (0..LABEL_MAX).map(|i| (i % 256) as u8).collect();
    let guard = keeper.lock("a").label(note.clone()).try_now().await?.expect("free");
    let shown = async || line(keeper.store(), "a").await.expect("a line").tickets[0].label.clone();
    assert!(shown().await == note);
    guard.set_label("").await?;
    assert!(shown().await.is_empty());
    guard.set_label(note.clone()).await?;
    assert!(shown().await == note);
    Ok(())
}

/// And the value before it stays.
async fn a_value_that_is_too_long_is_refused(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    guard.write(b"short".to_vec()).await?;
    let refused = guard.write(vec![0; CELL_MAX + 1]).await;
    assert!(matches!(refused, Err(Error::Option(_))), "{refused:?}");
    assert_eq!(keeper.read("a").await?.expect("a value").bytes, b"short");
    assert!(guard.is_held());
    Ok(())
}

/// Too short, too long: said with the bound.
async fn times_out_of_bounds_are_refused(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::over(faults.store());
    let (short, long) = (TTL_MIN / 2, TIME_MAX + Duration::from_secs(1));
    let lock = || keeper.lock("a").unfair();
    for bad in [
        lock().ttl(short),
        lock().ttl(long),
        lock().ttl(Duration::ZERO),
        lock().lock_delay(long),
        lock().lease(short),
        lock().lease(long),
        lock().max_hold(long),
        lock().at_least(long),
    ] {
        let refused = bad.try_now().await;
        let understood = matches!(refused, Err(Error::Option(_) | Error::Unsupported { .. }));
        assert!(understood, "{refused:?}");
    }
    assert_eq!(faults.log(), [], "nothing was sent");
    for bad in [Keeper::builder().ttl(short), Keeper::builder().lock_delay(long)] {
        assert!(matches!(bad.over(faults.store()), Err(Error::Option(_))));
    }
    Ok(())
}

/// One lost message must not lose the locks.
async fn a_renewal_that_cannot_fail_once_is_refused(w: World) -> Verdict {
    for interval in [Duration::ZERO, Duration::from_secs(8), Duration::from_secs(15)] {
        let renew = Renew { interval: Some(interval), ..Renew::DEFAULT };
        let builder = Keeper::builder().ttl(Duration::from_secs(15)).renew(renew);
        let refused = builder.over(w.store().await);
        assert!(matches!(refused, Err(Error::Option(_))), "{interval:?}: {refused:?}");
    }
    Ok(())
}

/// The largest times can be asked for, and the store is able to count with them.
async fn the_bounds_themselves_are_fine(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let guard = keeper.lock("a").ttl(TIME_MAX).lock_delay(TIME_MAX).try_now().await?;
    let guard = guard.expect("free");
    assert!(guard.remaining() > TIME_MAX / 2);
    assert!(line(keeper.store(), "a").await.expect("a line").tickets[0].ends_in > TIME_MAX);
    guard.release().await?;
    assert_eq!(tickets(keeper.store()).await, 0);
    Ok(())
}
