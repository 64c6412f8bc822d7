//! What a store says of itself.

use crate::{
    case::{Case, Verdict, cases},
    raw_session::{LONG, RawSession},
    world::World,
};
use lockkeeper::{
    Keeper, Mode, Name, Store as _, TicketId,
    store::{Entered, Manner, PollScope, TicketStatus},
};
use std::time::Duration;

pub(crate) fn cases() -> Vec<Case> {
    cases!("contract":
        [] it_claims_what_the_suite_was_told, terms_leave_room_for_belief,
            a_poll_answers_for_every_ticket, missing_capabilities_are_told_early;
        [SessionsShared] handles_share_their_data;
        [Fair] a_waiter_is_told_when_to_look_again;
    )
}

/// The capabilities are plain facts, and the suite holds a store to each of them.
async fn it_claims_what_the_suite_was_told(w: World) -> Verdict {
    let store = w.store().await;
    assert_eq!(store.capabilities(), w.can());
    assert!(!store.scheme().is_empty());
    Ok(())
}

/// The identity belongs to the data, and what one handle writes the others read.
async fn handles_share_their_data(w: World) -> Verdict {
    let (one, two) = (w.store().await, w.store().await);
    assert_eq!((one.id(), one.scheme()), (two.id(), two.scheme()));
    let raw = RawSession::open(&one).await;
    let held = raw.take("a").await;
    assert!(two.check(held.clone()).await?);
    let through_the_other = RawSession { store: two, ..raw };
    assert!(through_the_other.lives().await, "a session is the data's and not the handle's");
    assert_eq!(
        through_the_other.stand("a", held.ticket).await,
        TicketStatus::Granted { fence: held.fence },
    );
    Ok(())
}

/// I12: the client stops before the store does, and never gets less than it asked for by much.
async fn terms_leave_room_for_belief(w: World) -> Verdict {
    let store = w.store().await;
    for ttl in [w.short(), Duration::from_secs(15), LONG] {
        let terms = RawSession::open_for(&store, ttl, Duration::from_secs(1)).await.terms;
        assert!(terms.belief() < terms.ttl && terms.belief() > terms.ttl / 2, "{terms:?}");
        assert!(terms.ttl >= ttl / 2 && terms.lock_delay >= Duration::from_secs(1), "{terms:?}");
    }
    Ok(())
}

/// Those asked for, each once, also if there is no such ticket; or all there are.
async fn a_poll_answers_for_every_ticket(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let (a, b) = (raw.take("a").await, raw.take("b").await);
    let unknown = (Name::new("c")?, TicketId::random());
    let asked = vec![(a.name.clone(), a.ticket), unknown.clone(), (b.name.clone(), b.ticket)];
    let mut stands = store.poll(raw.session, PollScope::These(asked)).await?;
    stands.sort_by(|x, y| x.0.cmp(&y.0));
    let granted = |fence| TicketStatus::Granted { fence };
    let wanted = [
        (a.name.clone(), a.ticket, granted(a.fence)),
        (b.name.clone(), b.ticket, granted(b.fence)),
        (unknown.0, unknown.1, TicketStatus::Gone),
    ];
    assert_eq!(stands, wanted);
    let mut all = raw.all().await;
    all.sort_by(|x, y| x.0.cmp(&y.0));
    assert_eq!(all, wanted[..2]);
    assert_eq!(store.poll(raw.session, PollScope::These(Vec::new())).await?, []);
    Ok(())
}

/// `require` says no before anything relies on it.
async fn missing_capabilities_are_told_early(w: World) -> Verdict {
    let keeper = Keeper::over(w.store().await);
    assert!(keeper.require("nothing", |_| true).is_ok());
    let refused = keeper.require("flying", |_| false).expect_err("no store can");
    assert!(refused.to_string().contains("flying"), "{refused}");
    Ok(())
}

/// I7: not later than when the line can move without a write.
async fn a_waiter_is_told_when_to_look_again(w: World) -> Verdict {
    let store = w.store().await;
    let delay = Duration::from_secs(1);
    let short = RawSession::open_for(&store, w.short(), delay).await;
    short.take("a").await;
    let waiter = RawSession::open(&store).await;
    let (ticket, entered) = waiter.queue("a").await;
    let bound = short.terms.ttl + delay + Duration::from_secs(1);
    let Entered::Queued(wait) = entered else { panic!("{entered:?}") };
    assert!(wait.recheck <= bound && wait.ahead == 1, "{wait:?}");
    let TicketStatus::Waiting(wait) = waiter.stand("a", ticket).await else {
        panic!("not waiting")
    };
    assert!(wait.recheck <= bound && wait.ahead == 1, "{wait:?}");
    let busy = waiter.enter("a", TicketId::random(), Mode::Exclusive, Manner::Contend).await?;
    let Entered::Busy(wait) = busy else { panic!("{busy:?}") };
    assert!(wait.recheck <= bound && wait.ahead == 2, "{wait:?}");
    Ok(())
}
