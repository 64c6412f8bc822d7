//! Processes that are killed, stopped and woken up again.

use crate::{
    case::{Case, Verdict, cases},
    ledger,
    taker::Taker,
    world::{World, eventually, soon, tickets, until_length},
};
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP};
use std::time::{Duration, Instant};

const NO_DELAY: Duration = Duration::ZERO;
/// What a hand-over may take on a slow and noisy machine, beyond the times that are promised.
const SLACK: Duration = Duration::from_secs(8);

pub(crate) fn cases() -> Vec<Case> {
    cases!("process":
        [Processes, Fair] processes_exclude_each_other, processes_count_right,
            a_killed_holder_gives_way, a_killed_holder_gives_way_after_its_delay,
            a_stopped_holder_is_lost_and_fenced_off, a_briefly_stopped_holder_loses_nothing,
            a_killed_waiter_does_not_delay_the_others, a_process_sees_its_eviction;
        [Processes, Fair, Shared] a_killed_reader_makes_way_for_the_writer;
        [Processes, Fair, Wakes] a_hand_over_wakes_another_process;
        [Processes, LeaveNow] a_process_that_ends_leaves_nothing;
    )
}

/// A TTL for a process that will be killed or stopped: some renewals must fit into it.
fn ttl(w: &World) -> Duration {
    w.short() * 2
}

/// I3, I6: one at a time, in order, with growing fences.
async fn processes_exclude_each_other(w: World) -> Verdict {
    let store = w.store().await;
    let mut takers = Vec::new();
    for _ in 0..3 {
        takers.push(Taker::start(&w, w.steady(), NO_DELAY).await);
    }
    let mut last = takers[0].take("a").await;
    takers[1].tell("try a").await;
    takers[1].expect("busy").await;
    for (i, taker) in takers.iter_mut().enumerate().skip(1) {
        taker.tell("take a").await;
        until_length(&store, "a", i + 1).await;
    }
    takers[0].release().await;
    for taker in &mut takers[1..] {
        let fence = taker.granted().await;
        assert!(fence > last);
        last = fence;
        taker.release().await;
    }
    until_length(&store, "a", 0).await;
    Ok(())
}

/// I3: a number in a file that checks nothing, only kept right by the lock.
async fn processes_count_right(w: World) -> Verdict {
    const TAKERS: u32 = 6;
    const TIMES: u32 = 20;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("number");
    std::fs::write(&path, "0")?;
    let mut takers = Vec::new();
    for _ in 0..TAKERS {
        takers.push(Taker::start(&w, Duration::from_secs(15), NO_DELAY).await);
    }
    for taker in &mut takers {
        taker.tell(&format!("count a {} {TIMES}", path.display())).await;
    }
    for taker in &mut takers {
        taker.expect("counted").await;
    }
    assert_eq!(std::fs::read_to_string(&path)?, (TAKERS * TIMES).to_string());
    Ok(())
}

/// I15: within the TTL and the time of a hand-over.
async fn a_killed_holder_gives_way(w: World) -> Verdict {
    killed_holder(w, NO_DELAY).await
}

/// I8, I15: the lock-delay on top, and not less than it.
async fn a_killed_holder_gives_way_after_its_delay(w: World) -> Verdict {
    killed_holder(w, Duration::from_millis(700)).await
}

async fn killed_holder(w: World, delay: Duration) -> Verdict {
    let mut holder = Taker::start(&w, ttl(&w), delay).await;
    let fence = holder.take("a").await;
    let lock = w.keeper().await.lock("a");
    let successor = tokio::spawn(async move { lock.await });
    until_length(&w.store().await, "a", 2).await;
    let killed = Instant::now();
    holder.signal(SIGKILL);
    let guard = soon("the successor's turn", successor).await??;
    let took = killed.elapsed();
    assert!(took <= ttl(&w) + delay + SLACK, "granted {took:?} after the kill");
    assert!(took >= delay, "granted {took:?} after the kill, with a delay of {delay:?}");
    assert!(guard.fence() > fence);
    holder.gone().await;
    Ok(())
}

/// I2, I12: stopped past its TTL, the holder hears of its loss when it wakes up; its writes with the
/// old fence are refused by a resource that has seen its successor.
async fn a_stopped_holder_is_lost_and_fenced_off(w: World) -> Verdict {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("ledger");
    let mut holder = Taker::start(&w, ttl(&w), NO_DELAY).await;
    let fence = holder.take("a").await;
    assert!(holder.append(&path, "before").await);
    holder.signal(SIGSTOP);
    let successor = w.keeper().await;
    let guard = soon("the successor's turn", successor.lock("a").into_future()).await?;
    assert!(guard.fence() > fence);
    assert!(ledger::append(&path, guard.fence(), "successor")?);
    holder.signal(SIGCONT);
    assert_eq!(holder.expect("lost").await, "expired");
    assert!(!holder.append(&path, "stale").await, "a stale write was accepted");
    let entries = ledger::read(&path)?;
    let values: Vec<_> = entries.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["before", "successor"]);
    assert!(successor.check(&guard.sequencer()).await?, "what it does now ends no grant");
    // It goes on with a new session, behind its successor.
    holder.tell("take a").await;
    until_length(successor.store(), "a", 2).await;
    guard.release().await?;
    assert!(holder.granted().await > fence);
    Ok(())
}

/// A short stop is outlived.
async fn a_briefly_stopped_holder_loses_nothing(w: World) -> Verdict {
    let other = w.keeper().await;
    let mut holder = Taker::start(&w, w.steady() * 2, NO_DELAY).await;
    holder.take("a").await;
    holder.signal(SIGSTOP);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(other.lock("a").try_now().await?.is_none());
    holder.signal(SIGCONT);
    holder.release().await;
    until_length(other.store(), "a", 0).await;
    Ok(())
}

/// I7: the one behind it is served once the dead waiter's session has run out.
async fn a_killed_waiter_does_not_delay_the_others(w: World) -> Verdict {
    let (holder, behind) = (w.keeper().await, w.keeper().await);
    let held = holder.lock("a").await?;
    let mut waiter = Taker::start(&w, ttl(&w), NO_DELAY).await;
    waiter.tell("take a").await;
    until_length(holder.store(), "a", 2).await;
    let lock = behind.lock("a");
    let behind = tokio::spawn(async move { lock.await });
    until_length(holder.store(), "a", 3).await;
    waiter.signal(SIGKILL);
    waiter.gone().await;
    let released = Instant::now();
    held.release().await?;
    soon("the turn of the one behind", behind).await??.release().await?;
    assert!(released.elapsed() <= ttl(&w) + SLACK, "served after {:?}", released.elapsed());
    Ok(())
}

/// I15: the same for one of several readers.
async fn a_killed_reader_makes_way_for_the_writer(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let reader = keeper.rwlock("a").read().await?;
    let mut killed = Taker::start(&w, ttl(&w), NO_DELAY).await;
    killed.tell("share a").await;
    killed.granted().await;
    let lock = w.keeper().await.lock("a");
    let writer = tokio::spawn(async move { lock.await });
    until_length(keeper.store(), "a", 3).await;
    killed.signal(SIGKILL);
    until_length(keeper.store(), "a", 2).await;
    assert!(!writer.is_finished(), "one reader is left");
    reader.release().await?;
    soon("the writer's turn", writer).await??.release().await?;
    Ok(())
}

/// The waiter's TTL is far away, so it is the hand-over that wakes it.
async fn a_hand_over_wakes_another_process(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let mut waiter = Taker::start(&w, Duration::from_secs(60), NO_DELAY).await;
    for _ in 0..5 {
        let held = keeper.lock("a").await?;
        waiter.tell("take a").await;
        until_length(keeper.store(), "a", 2).await;
        let released = Instant::now();
        held.release().await?;
        waiter.granted().await;
        assert!(released.elapsed() < SLACK, "woken after {:?}", released.elapsed());
        waiter.release().await;
    }
    Ok(())
}

/// I14: evicted by another process, with the next renewal.
async fn a_process_sees_its_eviction(w: World) -> Verdict {
    let keeper = w.keeper().await;
    let mut holder = Taker::start(&w, w.steady(), NO_DELAY).await;
    let fence = holder.take("a").await;
    let line = keeper.get("a").await?.expect("a line");
    assert!(keeper.evict("a", line.tickets[0].id).await?);
    let next = keeper.lock("a").try_now().await?.expect("free at once");
    assert!(next.fence() > fence);
    assert_eq!(holder.expect("lost").await, "evicted");
    assert!(keeper.check(&next.sequencer()).await?);
    Ok(())
}

/// A process that returns from `main` with a guard in its hand, without closing anything.
async fn a_process_that_ends_leaves_nothing(w: World) -> Verdict {
    let store = w.store().await;
    for last_word in ["", "drop"] {
        let mut taker = Taker::start(&w, Duration::from_secs(60), NO_DELAY).await;
        taker.tell("try a").await;
        taker.granted().await;
        if !last_word.is_empty() {
            taker.tell(last_word).await;
        }
        assert!(taker.end().await.success());
        eventually("no ticket is left", async || tickets(&store).await == 0).await;
    }
    Ok(())
}
