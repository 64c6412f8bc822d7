//! One lease, one renewal, many tickets; and when it ends, all of them end.

use crate::{
    case::{Case, Verdict, cases},
    fault_store::{Fate, FaultStore, Op},
    hint_filter::HintFate,
    raw_session::RawSession,
    world::{World, eventually, length, soon, tickets, until_length},
};
use lockkeeper::{
    ErrorKind, Guard, Keeper, Loss, Mode, Renew, Store as _, TicketId,
    store::{Edited, Entered, Left, Manner, Renewal, TicketDigest, TicketStatus},
};
use std::{sync::Arc, time::Duration};

pub(crate) fn cases() -> Vec<Case> {
    cases!("session":
        [] closing_ends_all_its_tickets, expiry_ends_all_its_tickets,
            an_expired_session_is_never_revived, the_dead_stay_dead,
            a_renewed_session_lives_on, one_renewal_serves_a_thousand_locks,
            locks_of_the_same_times_share_a_session, a_ghost_is_left,
            an_eviction_is_seen_within_one_renewal, a_session_ended_elsewhere_is_lost,
            an_own_ttl_has_its_own_rhythm, nothing_is_sent_for_a_session_that_the_store_has_ended,
            a_version_changes_only_when_others_interfere;
        [RenewalShowsTickets] a_renewal_shows_the_tickets_that_the_store_has,
            a_lock_that_vanished_is_lost_within_two_renewals,
            a_ticket_that_came_back_is_left_within_two_renewals;
        [Fair] a_closed_session_hands_over_at_once;
        [SessionsShared] any_handle_knows_all_tickets, any_handle_renews_all_tickets,
            tickets_of_all_handles_are_shown_and_stand, a_ghost_of_another_handle_is_left;
        [SessionsShared, Fair] any_handle_can_close_and_hand_over;
    )
}

/// I11: whatever it held or waited for.
async fn closing_ends_all_its_tickets(w: World) -> Verdict {
    let store = w.store().await;
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let other = two.take("b").await;
    for name in ["a", "c"] {
        one.take(name).await;
    }
    if w.can().fair {
        one.queue("b").await;
        assert_eq!(one.all().await.len(), 3);
    }
    one.close().await;
    assert_eq!(tickets(&store).await, 1, "only the other's is left");
    assert!(two.check(&other).await);
    assert_eq!(one.renew().await, Renewal::Lost);
    assert_eq!(one.all().await, []);
    let entered = one.enter("a", TicketId::random(), Mode::Exclusive, Manner::Contend).await;
    assert_eq!(entered.expect_err("the session is over").kind, ErrorKind::SessionOver);
    Ok(())
}

/// I11, I7: a clean end frees at once, whatever the lock-delay.
async fn a_closed_session_hands_over_at_once(w: World) -> Verdict {
    let store = w.store().await;
    let one = RawSession::open_for(&store, crate::LONG, crate::LONG).await;
    let two = RawSession::open(&store).await;
    one.take("a").await;
    let (next, _) = two.queue("a").await;
    one.close().await;
    assert!(matches!(two.stand("a", next).await, TicketStatus::Granted { .. }));
    Ok(())
}

/// I11: when the first of its tickets gives way, the others do in the same moment; or right after it,
/// where the parts of a session are on several servers.
async fn expiry_ends_all_its_tickets(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        silent.take(name).await;
    }
    let other = RawSession::open(&store).await;
    eventually("the silent session's first lock is free", async || {
        matches!(other.contend(names[0]).await.1, Entered::Granted { .. })
    })
    .await;
    for name in &names[1..] {
        if w.is_sharded() {
            eventually("the next lock is free", async || {
                matches!(other.contend(name).await.1, Entered::Granted { .. })
            })
            .await;
        } else {
            other.take(name).await;
        }
    }
    assert_eq!(silent.renew().await, Renewal::Lost);
    assert_eq!(silent.all().await, []);
    Ok(())
}

/// I5: also if no other session has come in the meantime.
async fn an_expired_session_is_never_revived(w: World) -> Verdict {
    let store = w.store().await;
    let silent = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let held = silent.take("a").await;
    until_length(&store, "a", 0).await;
    for _ in 0..3 {
        assert_eq!(silent.renew().await, Renewal::Lost);
        let entered = silent.enter("a", held.ticket, Mode::Exclusive, Manner::Contend).await;
        assert_eq!(entered.expect_err("the session is over").kind, ErrorKind::SessionOver);
        assert!(!silent.check(&held).await);
    }
    assert_eq!(tickets(&store).await, 0);
    Ok(())
}

/// I5: after another session was granted over its expired ticket, the old session can do nothing.
async fn the_dead_stay_dead(w: World) -> Verdict {
    let store = w.store().await;
    let old = RawSession::open_for(&store, w.short(), Duration::ZERO).await;
    let before = old.take("a").await;
    let new = RawSession::open(&store).await;
    until_length(&store, "a", 0).await;
    let after = new.take("a").await;
    assert_eq!(old.renew().await, Renewal::Lost);
    assert_eq!(old.leave("a", before.ticket).await, Left::Gone);
    assert_eq!(old.annotate(&before, 1, b"x").await, Edited::NotHeld);
    if w.can().cells {
        assert_eq!(old.write(&before, 1, b"x").await, Edited::NotHeld);
    }
    assert_eq!(old.stand("a", before.ticket).await, TicketStatus::Gone);
    old.close().await;
    assert!(new.check(&after).await && !new.check(&before).await);
    Ok(())
}

/// I5: a renewal in time is good for another TTL, many times over.
async fn a_renewed_session_lives_on(w: World) -> Verdict {
    let keeper = w.keeper_for(w.steady()).await;
    let guard = keeper.lock("a").try_now().await?.expect("free");
    let began = std::time::Instant::now();
    let other = w.keeper().await;
    while began.elapsed() < w.steady() * 3 / 2 {
        assert!(guard.is_held(), "lost after {:?}: {:?}", began.elapsed(), guard.health());
        assert!(other.check(&guard.sequencer()).await?);
        assert!(other.lock("a").try_now().await?.is_none());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    guard.release().await?;
    Ok(())
}

/// However many locks there are, a renewal is one request.
async fn one_renewal_serves_a_thousand_locks(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let mut guards = Vec::new();
    for i in 0..1_000 {
        // Not a try: of a thousand, one may meet a slow server.
        guards.push(keeper.lock(format!("name {i}")).unfair().await?);
    }
    let (began, before) = (std::time::Instant::now(), faults.count(Op::Renew));
    eventually("two more renewals", async || faults.count(Op::Renew) >= before + 2).await;
    // Between the first and the second of them lies one interval, a third of the TTL.
    assert!(began.elapsed() > w.steady() / 4, "2 renewals in {:?}", began.elapsed());
    assert_eq!(faults.sessions().len(), 1);
    assert!(guards.iter().all(Guard::is_held));
    keeper.close().await;
    assert_eq!(tickets(faults.inner()).await, 0);
    Ok(())
}

/// Also when all come at once and the session is not open yet; another TTL is another session.
async fn locks_of_the_same_times_share_a_session(w: World) -> Verdict {
    let faults = w.fault_store().await;
    faults.only(&[Op::Open], Fate::Pend { before: 3, after: 3 });
    let keeper = Keeper::over(faults.store());
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..20 {
        let lock = keeper.lock(format!("name {i}"));
        tasks.spawn(async move { lock.try_now().await });
    }
    let guards: Result<Vec<_>, _> = tasks.join_all().await.into_iter().collect();
    assert!(guards?.iter().all(Option::is_some));
    assert_eq!(faults.sessions().len(), 1);
    let _other = keeper.lock("b").ttl(Duration::from_secs(40)).try_now().await?.expect("free");
    let _same = keeper.lock("c").ttl(Duration::from_secs(40)).try_now().await?.expect("free");
    assert_eq!(faults.sessions().len(), 2);
    Ok(())
}

/// A ticket that the store has and the keeper does not know of is left, so that it holds up no line.
async fn a_ghost_is_left(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let known = keeper.lock("known").try_now().await?.expect("free");
    let ghost =
        RawSession { session: faults.sessions()[0], ..RawSession::open(faults.inner()).await };
    ghost.take("haunted").await;
    until_length(faults.inner(), "haunted", 0).await;
    // Once more, when the tickets have been compared already: another's interference shows it.
    ghost.take("haunted").await;
    let doomed = keeper.lock("doomed").try_now().await?.expect("free");
    assert!(w.keeper().await.evict("doomed", doomed.ticket()).await?);
    until_length(faults.inner(), "haunted", 0).await;
    assert!(known.is_held());
    known.release().await?;
    Ok(())
}

/// The tickets of a session are those that the store has, whichever handle put them there: another one with
/// its secret, or a copy of the data from before a leave.
async fn any_handle_knows_all_tickets(w: World) -> Verdict {
    let one = RawSession::open(&w.store().await).await;
    let two = RawSession { store: w.store().await, ..one.clone() };
    let (a, b) = (one.take("a").await, two.take("b b ").await);
    let mut held = vec![("a".to_owned(), a.ticket), ("b b ".to_owned(), b.ticket)];
    held.sort();
    for raw in [&one, &two, &RawSession { store: w.store().await, ..one.clone() }] {
        let mut all: Vec<_> =
            raw.all().await.into_iter().map(|(n, t, _)| (n.to_string(), t)).collect();
        all.sort();
        assert_eq!(all, held);
    }
    two.leave("a", a.ticket).await;
    assert_eq!(one.all().await.len(), 1);
    Ok(())
}

/// A renewal is one of the whole session, also of what another handle has entered since.
async fn any_handle_renews_all_tickets(w: World) -> Verdict {
    let one = RawSession::open_for(&w.store().await, w.steady(), Duration::ZERO).await;
    let two = RawSession { store: w.store().await, ..one.clone() };
    assert!(one.lives().await);
    let mut claims = Vec::new();
    for at in 0..8 {
        claims.push(two.take(&format!("name {at}")).await);
    }
    let end = std::time::Instant::now() + w.steady() * 5 / 4;
    eventually("longer than it lives unrenewed", async || {
        assert!(one.lives().await);
        std::time::Instant::now() > end
    })
    .await;
    for claim in &claims {
        assert!(two.check(claim).await, "{}", claim.name);
    }
    Ok(())
}

/// A handle that serves a session together with another one leaves out none of the tickets that the other has
/// entered: not when all are polled, and from then on not in a renewal's answer.
async fn tickets_of_all_handles_are_shown_and_stand(w: World) -> Verdict {
    let one = RawSession::open(&w.store().await).await;
    let two = RawSession { store: w.store().await, ..one.clone() };
    let a = one.take("a").await;
    both_know(&two, &one, 1).await;
    two.take("b").await;
    both_know(&two, &one, 2).await;
    // Also what comes and goes when all tickets of the other handle have been seen.
    one.take("c").await;
    both_know(&two, &one, 3).await;
    one.leave("a", a.ticket).await;
    two.take("d").await;
    both_know(&one, &two, 3).await;
    Ok(())
}

async fn both_know(one: &RawSession, two: &RawSession, tickets: u64) {
    for raw in [one, two, one, two] {
        assert!(raw.lives().await);
        let stands = raw.all().await;
        let granted =
            stands.iter().filter(|(_, _, stand)| matches!(stand, TicketStatus::Granted { .. }));
        assert_eq!(granted.count() as u64, tickets, "{stands:?}");
        let all: TicketDigest = stands.into_iter().map(|(_, ticket, _)| ticket).collect();
        match raw.renew().await {
            Renewal::Renewed { tickets, .. } => assert!(tickets.is_none_or(|t| t == all)),
            Renewal::Lost => panic!("the session is over"),
        }
    }
}

/// As a server that was restored from a copy would have it.
async fn a_ghost_of_another_handle_is_left(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let known = keeper.lock("known").try_now().await?.expect("free");
    let ghost =
        RawSession { session: faults.sessions()[0], ..RawSession::open(&w.store().await).await };
    ghost.take("haunted").await;
    let doomed = keeper.lock("doomed").try_now().await?.expect("free");
    assert!(w.keeper().await.evict("doomed", doomed.ticket()).await?);
    until_length(faults.inner(), "haunted", 0).await;
    assert!(known.is_held());
    Ok(())
}

/// The waiters behind it need not wait for anything else.
async fn any_handle_can_close_and_hand_over(w: World) -> Verdict {
    let one = RawSession::open(&w.store().await).await;
    one.take("a").await;
    let waiter = w.keeper().await;
    let next = tokio::spawn(waiter.lock("a").into_future());
    until_length(waiter.store(), "a", 2).await;
    RawSession { store: w.store().await, ..one }.close().await;
    soon("the hand-over", next).await??.release().await?;
    Ok(())
}

/// I14: with hints and without, the holder hears of its eviction from its next renewal.
async fn an_eviction_is_seen_within_one_renewal(w: World) -> Verdict {
    for fate in [HintFate::Pass, HintFate::Drop] {
        let faults = w.fault_store().await;
        faults.hint_fate(fate);
        let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
        let (kept, guard) = (take(&keeper, "kept").await, take(&keeper, "a").await);
        let before = faults.count(Op::Renew);
        assert!(w.keeper().await.evict("a", guard.ticket()).await?);
        assert_eq!(soon("the loss", guard.lost()).await, Loss::Evicted);
        // One may have been under way already.
        assert!(faults.count(Op::Renew) <= before + 2, "{fate:?}");
        assert!(!guard.is_held() && kept.is_held(), "only the evicted one is lost");
        assert!(guard.release().await.is_err());
        kept.release().await?;
    }
    Ok(())
}

async fn take(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).try_now().await.expect("an answer").expect("free")
}

/// A session that was closed behind its back is lost with the next renewal, and so are its locks.
async fn a_session_ended_elsewhere_is_lost(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let guards = [take(&keeper, "a").await, take(&keeper, "b").await];
    faults.inner().close(faults.sessions()[0]).await?;
    for guard in &guards {
        assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionGone);
    }
    // The keeper goes on with a new session.
    let again = take(&keeper, "a").await;
    assert!(again.fence() > guards[0].fence());
    assert_eq!(faults.sessions().len(), 2);
    Ok(())
}

/// A keeper's slow renewal interval is not used for a lock with a short TTL of its own.
async fn an_own_ttl_has_its_own_rhythm(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let renew = Renew { interval: Some(Duration::from_secs(20)), ..Renew::DEFAULT };
    let keeper =
        Keeper::builder().ttl(Duration::from_secs(60)).renew(renew).over(faults.store())?;
    let guard = keeper.lock("a").ttl(w.steady()).try_now().await?.expect("free");
    eventually("two renewals", async || faults.count(Op::Renew) >= 2).await;
    assert!(guard.is_held());
    Ok(())
}

/// I5: the store has said that the session is over; nothing more is sent for it.
async fn nothing_is_sent_for_a_session_that_the_store_has_ended(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let guard = take(&keeper, "a").await;
    let session = faults.sessions()[0];
    faults.inner().close(session).await?;
    let refused = keeper.lock("b").try_now().await;
    assert!(refused.is_err(), "the store says that the session is over: {refused:?}");
    assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionGone);
    let said = requests_for(&faults, session);
    drop(guard);
    // Longer than to the next renewal, had there been one.
    tokio::time::sleep(w.steady() / 2).await;
    keeper.close().await;
    assert_eq!(requests_for(&faults, session), said);
    Ok(())
}

fn requests_for(faults: &Arc<FaultStore>, session: lockkeeper::store::SessionId) -> Vec<Op> {
    faults.log().iter().filter(|c| c.session == Some(session)).map(|c| c.op).collect()
}

/// What the session does itself leaves the version as it is; an eviction changes it.
async fn a_version_changes_only_when_others_interfere(w: World) -> Verdict {
    let store = w.store().await;
    let raw = RawSession::open(&store).await;
    let before = version(&raw).await;
    let (a, b) = (raw.take("a").await, raw.take("b").await);
    assert_eq!(version(&raw).await, before, "entering is its own doing");
    raw.leave("a", a.ticket).await;
    assert_eq!(version(&raw).await, before, "leaving is its own doing");
    assert!(store.evict(b.name.clone(), b.ticket).await?);
    assert_ne!(version(&raw).await, before, "an eviction is not");
    assert_eq!(length(&store, "b").await, 0);
    Ok(())
}

async fn version(raw: &RawSession) -> u64 {
    match raw.renew().await {
        Renewal::Renewed { version, .. } => version,
        Renewal::Lost => panic!("the session is over"),
    }
}

/// Every renewal's answer agrees with a poll of all tickets, whatever was done before it.
async fn a_renewal_shows_the_tickets_that_the_store_has(w: World) -> Verdict {
    let store = w.store().await;
    let (raw, other) = (RawSession::open(&store).await, RawSession::open(&store).await);
    shows(&raw, 0).await;
    let (a, b, c) = (raw.take("a").await, raw.take("b").await, raw.take("c").await);
    shows(&raw, 3).await;
    // Of two sessions each has its own.
    let taken = other.take("d").await;
    shows(&raw, 3).await;
    shows(&other, 1).await;
    if w.can().fair {
        let (waiting, _) = raw.queue("d").await;
        shows(&raw, 4).await;
        other.leave("d", taken.ticket).await;
        shows(&raw, 4).await; // granted by the hand-over
        raw.leave("d", waiting).await;
    }
    raw.leave("a", a.ticket).await;
    shows(&raw, 2).await;
    store.evict(b.name, b.ticket).await?;
    shows(&raw, 1).await;
    if w.can().at_least {
        raw.leave_as("c", c.ticket, Some(crate::LONG), false).await;
        shows(&raw, 0).await; // the lock is closed, but by no ticket of the session
    }
    Ok(())
}

async fn shows(raw: &RawSession, tickets: u64) {
    let all: TicketDigest = raw.all().await.into_iter().map(|(_, ticket, _)| ticket).collect();
    assert_eq!(all.count, tickets);
    match raw.renew().await {
        Renewal::Renewed { tickets, .. } => assert_eq!(tickets, Some(all)),
        Renewal::Lost => panic!("the session is over"),
    }
}

/// As after a failover to a replica that missed the grant, which no socket and no version shows.
async fn a_lock_that_vanished_is_lost_within_two_renewals(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let (kept, guard) = (take(&keeper, "kept").await, take(&keeper, "a").await);
    let behind_its_back = compared(&faults).await;
    let before = faults.count(Op::Renew);
    assert_eq!(behind_its_back.leave("a", guard.ticket()).await, Left::Released);
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Evicted);
    assert!(faults.count(Op::Renew) <= before + 2, "{} renewals", faults.count(Op::Renew) - before);
    assert!(!guard.is_held() && kept.is_held(), "only the one that vanished is lost");
    kept.release().await?;
    Ok(())
}

/// As after a failover to a replica that missed the release.
async fn a_ticket_that_came_back_is_left_within_two_renewals(w: World) -> Verdict {
    let faults = w.fault_store().await;
    let keeper = Keeper::builder().ttl(w.steady()).over(faults.store())?;
    let known = take(&keeper, "known").await;
    let behind_its_back = compared(&faults).await;
    let before = faults.count(Op::Renew);
    behind_its_back.take("haunted").await;
    until_length(faults.inner(), "haunted", 0).await;
    assert!(faults.count(Op::Renew) <= before + 2, "{} renewals", faults.count(Op::Renew) - before);
    assert!(known.is_held());
    known.release().await?;
    Ok(())
}

/// Waits until all tickets were compared for the first time, as they always are, and then renewed.
/// Returns a raw session that acts for the keeper's session without the keeper's knowledge.
async fn compared(faults: &Arc<FaultStore>) -> RawSession {
    eventually("all tickets are compared", async || faults.count(Op::PollAll) > 0).await;
    let before = faults.count(Op::Renew);
    eventually("one more renewal", async || faults.count(Op::Renew) > before).await;
    RawSession { session: faults.sessions()[0], ..RawSession::open(faults.inner()).await }
}
