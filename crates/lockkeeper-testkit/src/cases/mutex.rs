//! One at a time: the same promises for everything that can serve as a mutex.

use crate::{
    case::{Case, Local, Need, Verdict, cases},
    mutex_like::MutexLike,
    raw_session::RawSession,
    register::{Register, Room},
    world::{World, length, line, soon, tickets, until_length},
};
use lockkeeper::{
    Error, Mode, Retry, Store as _, TicketId,
    store::{Edited, Entered, Left, Manner, TicketStatus},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinSet;

const TASKS: usize = 8;
const TIMES: usize = 50;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!("mutex":
        [] a_repeated_leave_ends_nothing, a_strangers_requests_change_nothing,
            a_strangers_ticket_id_gives_nothing, a_stranger_cannot_close_a_ticket, contenders_exclude_each_other,
            a_contender_gets_it_by_trying_again, a_contender_gives_up_when_its_policy_says_so;
        [Fair] a_contender_never_overtakes_the_line, a_withdrawn_waiter_is_skipped;
        [Fair, Shared] a_contender_that_would_fit_never_overtakes_the_line;
    );
    for mutex in MutexLike::ALL {
        let mut add = |name: &str, body: fn(World, MutexLike) -> Local| {
            let name = format!("{}_{name}", mutex.word());
            let needs = [mutex.needs(), &[Need::Fair]].concat();
            cases.push(Case::new("mutex", name, &needs, move |world| body(world, mutex)));
        };
        add("never_tears_a_counter", |w, mutex| Box::pin(never_tears_a_counter(w, mutex)));
        add("is_granted_in_order", |w, mutex| Box::pin(is_granted_in_order(w, mutex)));
        add("try_never_overtakes", |w, mutex| Box::pin(try_never_overtakes(w, mutex)));
        add("busy_try_leaves_nothing", |w, mutex| Box::pin(busy_try_leaves_nothing(w, mutex)));
        add("timeout_leaves_nothing", |w, mutex| Box::pin(timeout_leaves_nothing(w, mutex)));
        add("release_frees_at_once", |w, mutex| Box::pin(release_frees_at_once(w, mutex)));
    }
    cases
}

/// I2, I3: tasks of two processes read, let others run, and write; no update is lost, no two holders
/// meet, and every grant has a higher fence than those before it.
async fn never_tears_a_counter(w: World, mutex: MutexLike) -> Verdict {
    let keepers = [w.keeper().await, w.keeper().await];
    let (register, room) = (Arc::new(Register::default()), Arc::new(Room::outage(1)));
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let (keeper, register, room) = (keepers[i % 2].clone(), register.clone(), room.clone());
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let held = mutex.take(&keeper, "counter").await?;
                room.visit(1).await;
                assert!(register.increment(held.fence()).await, "a stale fence without a loss");
                held.release().await?;
            }
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    register.assert_no_update_was_lost();
    assert_eq!(register.value(), (TASKS * TIMES) as u64);
    Ok(())
}

/// I6: grants follow the order in which tickets entered, across keepers.
async fn is_granted_in_order(w: World, mutex: MutexLike) -> Verdict {
    let store = w.store().await;
    let holder = mutex.take(&w.keeper().await, "line").await?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..6 {
        let (keeper, order) = (w.keeper().await, order.clone());
        tasks.spawn(async move {
            let held = mutex.take(&keeper, "line").await?;
            order.lock().unwrap().push((i, held.fence()));
            held.release().await
        });
        until_length(&store, "line", i + 2).await;
    }
    holder.release().await?;
    for done in soon("every task's turn", tasks.join_all()).await {
        done?;
    }
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted(), "granted out of order: {order:?}");
    Ok(())
}

/// I6: a try is turned away while a ticket waits, also at the moment of a hand-over.
async fn try_never_overtakes(w: World, mutex: MutexLike) -> Verdict {
    let (one, two, three) = (w.keeper().await, w.keeper().await, w.keeper().await);
    let first = mutex.take(&one, "line").await?;
    let waiter = tokio::spawn(async move { mutex.take(&two, "line").await });
    until_length(three.store(), "line", 2).await;
    assert!(mutex.try_now(&three, "line").await?.is_none(), "held, and a ticket waits");
    first.release().await?;
    assert!(mutex.try_now(&three, "line").await?.is_none(), "handed over to the one who waited");
    soon("the waiter's turn", waiter).await??.release().await?;
    assert!(mutex.try_now(&three, "line").await?.is_some(), "free");
    Ok(())
}

/// I10: a try that finds the lock taken is `None` and leaves no ticket.
async fn busy_try_leaves_nothing(w: World, mutex: MutexLike) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = mutex.take(&one, "busy").await?;
    for keeper in [&one, &two] {
        assert!(mutex.try_now(keeper, "busy").await?.is_none());
        assert_eq!(length(two.store(), "busy").await, 1);
    }
    held.release().await?;
    assert_eq!(tickets(two.store()).await, 0);
    Ok(())
}

/// I10: a wait that ends too early says so, and its ticket is gone.
async fn timeout_leaves_nothing(w: World, mutex: MutexLike) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = mutex.take(&one, "slow").await?;
    for keeper in [&one, &two] {
        let late = mutex.wait(keeper, "slow", Duration::from_millis(60)).await;
        assert!(matches!(late, Err(Error::NotAcquired { .. })), "{late:?}");
        until_length(two.store(), "slow", 1).await;
    }
    held.release().await?;
    mutex.wait(&two, "slow", Duration::from_secs(10)).await?.release().await?;
    Ok(())
}

/// A release that has returned is done: the next one gets it at once.
async fn release_frees_at_once(w: World, mutex: MutexLike) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    for _ in 0..10 {
        mutex.try_now(&one, "turns").await?.expect("free").release().await?;
        mutex.try_now(&two, "turns").await?.expect("free").release().await?;
    }
    assert_eq!(tickets(two.store()).await, 0);
    Ok(())
}

/// I4: a leave that comes again finds nothing, whichever session holds the lock then.
async fn a_repeated_leave_ends_nothing(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let first = one.take("a").await;
    assert_eq!(one.leave("a", first.ticket).await, Left::Released);
    assert_eq!(one.leave("a", first.ticket).await, Left::Gone);
    let second = two.take("a").await;
    assert_eq!(one.leave("a", first.ticket).await, Left::Gone);
    assert!(two.check(&second).await);
    Ok(())
}

/// I4: leave, annotate and write with a ticket of another session do nothing.
async fn a_strangers_requests_change_nothing(w: World) -> Verdict {
    let store = w.store().await;
    let (owner, stranger) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = owner.take("a").await;
    let before = line(&store, "a").await.expect("a line").tickets[0].label.clone();
    assert_eq!(stranger.leave("a", held.ticket).await, Left::Gone);
    assert_eq!(stranger.annotate(&held, 1, b"mine").await, Edited::NotHeld);
    if w.can().cells {
        assert_eq!(stranger.write(&held, 1, b"mine").await, Edited::NotHeld);
        assert_eq!(store.read(held.name.clone()).await?, None);
    }
    stranger.close().await;
    assert!(owner.check(&held).await);
    assert_eq!(line(&store, "a").await.expect("a line").tickets[0].label, before);
    Ok(())
}

/// I4: a stranger's leave does not mark the ticket as closed either: its owner may enter it again,
/// while it stands and after it was evicted.
async fn a_stranger_cannot_close_a_ticket(w: World) -> Verdict {
    let store = w.store().await;
    let (owner, stranger) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = owner.take("a").await;
    assert_eq!(stranger.leave_as("a", held.ticket, None, true).await, Left::Gone);
    let again = || owner.enter("a", held.ticket, Mode::Exclusive, Manner::Contend);
    assert_eq!(again().await?, Entered::Granted { fence: held.fence });
    assert!(store.evict(held.name.clone(), held.ticket).await?);
    let after = again().await?;
    assert!(matches!(after, Entered::Granted { fence } if fence > held.fence), "{after:?}");
    Ok(())
}

/// I4: ticket ids are public, so knowing one gives no part of the grant behind it.
async fn a_strangers_ticket_id_gives_nothing(w: World) -> Verdict {
    let store = w.store().await;
    let (owner, stranger) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let held = owner.take("a").await;
    assert_eq!(stranger.stand("a", held.ticket).await, TicketStatus::Gone, "polled by a stranger");
    let entered = stranger.enter("a", held.ticket, Mode::Exclusive, Manner::Contend).await;
    assert!(
        !matches!(entered, Ok(Entered::Granted { .. } | Entered::Queued(_))),
        "a stranger with the holder's ticket id was told {entered:?}",
    );
    assert!(owner.check(&held).await);
    assert_eq!(length(&store, "a").await, 1);
    Ok(())
}

/// I3: contending alone excludes too.
async fn contenders_exclude_each_other(w: World) -> Verdict {
    let (register, room) = (Arc::new(Register::default()), Arc::new(Room::outage(1)));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (keeper, register, room) = (w.keeper().await, register.clone(), room.clone());
        let retry = Retry::exponential(Duration::from_millis(1), Duration::from_millis(20));
        tasks.spawn(async move {
            for _ in 0..15 {
                let guard = keeper.lock("c").unfair().retry(retry.clone()).await?;
                room.visit(1).await;
                assert!(register.increment(guard.fence()).await);
                guard.release().await?;
            }
            anyhow::Ok(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    register.assert_no_update_was_lost();
    assert_eq!(register.value(), 60);
    Ok(())
}

/// A contender has no ticket in the line while it waits, and gets the lock when it is free.
async fn a_contender_gets_it_by_trying_again(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = one.lock("a").try_now().await?.expect("free");
    let retry = Retry::limited(10_000, Duration::from_millis(10));
    let contender = two.lock("a").unfair().retry(retry);
    let contender = tokio::spawn(async move { contender.await });
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(length(one.store(), "a").await, 1, "a contender stands in no line");
    }
    held.release().await?;
    soon("the contender's turn", contender).await??.release().await?;
    Ok(())
}

/// The policy ends the attempts, and nothing stays behind.
async fn a_contender_gives_up_when_its_policy_says_so(w: World) -> Verdict {
    let (one, two) = (w.keeper().await, w.keeper().await);
    let held = one.lock("a").try_now().await?.expect("free");
    let never = two.lock("a").unfair().retry(Retry::none()).await;
    assert!(never.is_err_and(|e| e.is_not_acquired()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let policy = {
        let asked = asked.clone();
        move |failed| {
            asked.lock().unwrap().push(failed);
            (failed < 3).then_some(Duration::from_millis(5))
        }
    };
    let late = two.lock("a").unfair().retry(Retry::custom(policy)).await;
    assert!(late.is_err_and(|e| e.is_not_acquired()));
    let mut asked = asked.lock().unwrap().clone();
    // An attempt that a hint has called for does not count.
    asked.dedup();
    assert_eq!(asked, [1, 2, 3]);
    held.release().await?;
    assert_eq!(tickets(one.store()).await, 0);
    Ok(())
}

/// I6: a lock that is handed over along its line is never free for a contender.
async fn a_contender_never_overtakes_the_line(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two, three) = (
        RawSession::open(&store).await,
        RawSession::open(&store).await,
        RawSession::open(&store).await,
    );
    let first = one.take("a").await;
    let (second, entered) = two.queue("a").await;
    assert!(matches!(entered, Entered::Queued(_)));
    assert!(matches!(three.contend("a").await.1, Entered::Busy(_)));
    one.leave("a", first.ticket).await;
    assert!(matches!(three.contend("a").await.1, Entered::Busy(_)));
    assert!(matches!(two.stand("a", second).await, TicketStatus::Granted { .. }));
    assert_eq!(length(&store, "a").await, 1, "contenders leave nothing");
    Ok(())
}

/// I6: there would be room for one more reader, but a writer waits.
async fn a_contender_that_would_fit_never_overtakes_the_line(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    one.queue_for("a", Mode::Shared).await;
    let late = TicketId::random();
    let reader = || two.enter("a", late, Mode::Shared, Manner::Contend);
    let (writer, _) = one.queue("a").await;
    assert!(matches!(reader().await?, Entered::Busy(_)));
    assert_eq!(one.leave("a", writer).await, Left::Withdrawn);
    assert!(matches!(reader().await?, Entered::Granted { .. }));
    Ok(())
}

/// I6: one who gives up leaves the order of the others as it was.
async fn a_withdrawn_waiter_is_skipped(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let first = one.take("a").await;
    let (quitter, _) = two.queue("a").await;
    let (last, entered) = one.queue("a").await;
    assert!(matches!(entered, Entered::Queued(wait) if wait.ahead == 2));
    assert_eq!(two.leave("a", quitter).await, Left::Withdrawn);
    assert!(matches!(one.stand("a", last).await, TicketStatus::Waiting(wait) if wait.ahead == 1));
    assert_eq!(one.leave("a", first.ticket).await, Left::Released);
    assert!(matches!(one.stand("a", last).await, TicketStatus::Granted { .. }));
    Ok(())
}
