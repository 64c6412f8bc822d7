use super::*;

#[test]
fn a_hint_that_overtakes_the_answer_to_an_enter_is_not_lost() {
    let state = SessionState::new(Clock::system(), Moment::NEVER);
    let wait = Wait { ahead: 1, holder: None, recheck: Duration::from_secs(60) };
    let enter = |hint: bool| {
        let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
        let _turn = state.add_waiter(ticket, &name, None);
        if hint {
            state.recheck(Some(ticket));
        }
        state.recheck(Some(TicketId::random()));
        state.queued(ticket, &wait);
        let due = state.due().poll;
        state.forget(ticket);
        !due.is_empty()
    };
    assert!(enter(true), "it looks again at once");
    assert!(!enter(false), "it waits");
}

#[test]
fn a_ticket_ended_between_its_grant_and_its_hold_is_not_held() {
    let state = SessionState::new(Clock::system(), Moment::NEVER);
    let take = |ended: bool| {
        let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
        let mut grant = state.add_waiter(ticket, &name, None);
        state.queued(ticket, &Wait { ahead: 1, holder: None, recheck: Duration::MAX });
        state.granted(ticket, 7);
        if ended {
            state.ended(ticket);
        }
        assert_eq!(grant.try_recv(), Ok(7));
        let hold_state = HoldState::new(name, 7, None);
        state.hold(ticket, Arc::clone(&hold_state));
        hold_state.why()
    };
    assert_eq!(take(true), Some(Loss::Evicted));
    assert_eq!(take(false), None);
}

#[test]
fn who_stands_far_back_looks_less_often_and_who_is_near_every_second() {
    let seconds = [0, 15, 16, 160, 10_000, usize::MAX].map(|n| Wait::rest_most(n).as_secs());
    assert_eq!(seconds, [1, 1, 2, 11, 30, 30]);
}

#[test]
fn a_ticket_takes_the_first_lane_that_is_free() {
    let state = SessionState::new(Clock::system(), Moment::NEVER);
    let tickets: Vec<TicketId> = (0..=LANES).map(|_| state.ticket()).collect();
    for (ticket, lane) in tickets.iter().zip(0..LANES) {
        assert_eq!(ticket.lane(), lane);
    }
    assert!(tickets[64].lane() >= LANES, "no lane is left");
    state.forget(tickets[64]);
    state.forget(tickets[7]);
    assert_eq!(state.ticket().lane(), 7);
    assert!(state.ticket().lane() >= LANES);
}

const TTL: Duration = Duration::from_secs(60);

/// Between the look at the clock and the new deadline of a renewal, others had seen the old deadline pass.
#[test]
fn a_loss_that_was_seen_is_final_although_a_renewal_comes_in() {
    let clock = Clock::movable();
    for seen in [true, false] {
        let state = SessionState::new(clock.clone(), clock.now() + TTL);
        if seen {
            clock.advance(2 * TTL);
            assert_eq!(state.lease(), Lease::Lost(Loss::Expired));
        }
        let renewed = state.renewed(clock.now() + TTL, 1, None, TicketDigest::default());
        assert_eq!((renewed, state.may_be_gone()), (!seen, seen));
        assert_eq!(state.lease() == Lease::Held, !seen);
    }
}

/// A state that has compared all its tickets once, with a store that shows none.
fn compared() -> SessionState {
    let state = SessionState::new(Clock::system(), Moment::NEVER);
    assert!(begins_to_compare(&state));
    state.verified(1);
    assert!(!begins_to_compare(&state), "the version is the same");
    state
}

/// Is a renewal of the same version followed by a comparison of all tickets? Then it begins.
fn begins_to_compare(state: &SessionState) -> bool {
    assert!(state.renewed(Moment::from_millis(u64::MAX >> 24), 1, None, TicketDigest::default()));
    state.due().verify.is_some()
}

fn enters(state: &SessionState) -> (TicketId, Name) {
    let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
    drop(state.add_waiter(ticket, &name, None));
    (ticket, name)
}

fn changes_version(state: &SessionState, version: u64) {
    let deadline = Moment::from_millis(u64::MAX >> 24);
    assert!(state.renewed(deadline, version, None, TicketDigest::default()));
    assert!(state.due().verify.is_some());
}

/// A failover while an enter was under way: the old server has answered it, and the comparison with the new
/// one did not know of its ticket, but counted as complete.
#[test]
fn a_grant_that_a_comparison_cannot_have_seen_leads_to_another_one() {
    let state = compared();
    let (ticket, name) = enters(&state);
    changes_version(&state, 2);
    state.verified(2);
    assert!(state.hold(ticket, HoldState::new(name, 7, None)));
    changes_version(&state, 2);
    state.verified(2);

    let (ticket, name) = enters(&state);
    changes_version(&state, 3);
    assert!(state.hold(ticket, HoldState::new(name, 8, None)));
    state.verified(3);
    changes_version(&state, 3);
}

/// A renewal of a store that shows its tickets, which are those that the session expects. Is it followed by a
/// comparison? Then it begins.
fn is_shown_and_begins_to_compare(state: &SessionState, version: u64) -> bool {
    let (deadline, digest) = (Moment::from_millis(u64::MAX >> 24), state.digest());
    assert!(state.renewed(deadline, version, Some(digest), digest));
    state.due().verify.is_some()
}

/// How a grant reaches the session.
#[derive(Clone, Copy, Debug)]
enum By {
    Answer,
    AnswerToARepeatedEnter,
    Hint,
}

const WAITING: TicketStatus =
    TicketStatus::Waiting(Wait { ahead: 1, holder: None, recheck: Duration::MAX });

/// Lets a ticket enter, wait while `meanwhile` happens, and be held.
fn is_granted(
    state: &SessionState,
    by: By,
    meanwhile: impl FnOnce(),
) -> (TicketId, Arc<HoldState>) {
    let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
    let _turn = state.add_waiter(ticket, &name, None);
    if let (By::Hint, TicketStatus::Waiting(wait)) = (by, WAITING) {
        state.queued(ticket, &wait);
    }
    meanwhile();
    match by {
        By::Answer => {}
        By::AnswerToARepeatedEnter => drop(state.add_waiter(ticket, &name, None)),
        By::Hint => state.granted(ticket, 7),
    }
    let hold_state = HoldState::new(name, 7, None);
    assert!(state.hold(ticket, Arc::clone(&hold_state)));
    (ticket, hold_state)
}

/// A failover while a ticket waited: the old server grants it, late, and the new one has it as one that
/// waits. The tickets are the same in both, so no digest shows the difference.
#[test]
fn a_late_grant_of_a_ticket_that_stayed_is_compared_although_renewals_show_tickets() {
    for by in [By::Answer, By::AnswerToARepeatedEnter, By::Hint] {
        for under_way in [false, true] {
            let state = SessionState::new(Clock::system(), Moment::NEVER);
            assert!(is_shown_and_begins_to_compare(&state, 1));
            state.verified(1);
            let (ticket, hold_state) = is_granted(&state, by, || {
                assert!(is_shown_and_begins_to_compare(&state, 2));
                if !under_way {
                    state.verified(2);
                }
            });
            if under_way {
                state.verified(2);
            }
            assert!(is_shown_and_begins_to_compare(&state, 2), "{by:?} {under_way}");
            for expected in state.expected() {
                assert_eq!(expected.ticket, ticket);
                state.compared(&expected, Some(&WAITING), true);
            }
            state.verified(2);
            assert_eq!(hold_state.why(), Some(Loss::Evicted), "{by:?} {under_way}");
            assert!(!is_shown_and_begins_to_compare(&state, 2), "once is enough");
        }
    }
}

/// A comparison because tickets came and went while a renewal was under way is followed by no other one.
#[test]
fn a_grant_costs_no_comparison_while_the_version_is_the_same() {
    for by in [By::Answer, By::AnswerToARepeatedEnter, By::Hint] {
        let state = SessionState::new(Clock::system(), Moment::NEVER);
        assert!(is_shown_and_begins_to_compare(&state, 1));
        state.verified(1);
        is_granted(&state, by, || {
            let (deadline, none) = (Moment::from_millis(u64::MAX >> 24), TicketDigest::default());
            let others = TicketDigest { count: 9, ..none };
            assert!(state.renewed(deadline, 1, Some(others), none));
            assert!(state.due().verify.is_some());
            state.verified(1);
        });
        assert!(!is_shown_and_begins_to_compare(&state, 1), "{by:?}");
    }
}

/// A grant that was told and not yet held was not among the tickets that were compared.
#[test]
fn a_grant_on_its_way_to_its_waiter_is_compared() {
    for (there, lost) in [
        (None, true),
        (Some(TicketStatus::Granted { fence: 8 }), true),
        (Some(TicketStatus::Granted { fence: 7 }), false),
    ] {
        let state = SessionState::new(Clock::system(), Moment::NEVER);
        let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
        let _turn = state.add_waiter(ticket, &name, None);
        state.queued(ticket, &Wait { ahead: 1, holder: None, recheck: Duration::MAX });
        state.granted(ticket, 7);
        for expected in state.expected() {
            state.compared(&expected, there.as_ref(), true);
        }
        let hold_state = HoldState::new(name, 7, None);
        assert!(state.hold(ticket, Arc::clone(&hold_state)));
        assert_eq!(hold_state.why(), lost.then_some(Loss::Evicted));
    }
}

#[test]
fn an_outage_lasts_from_the_first_request_without_an_answer() {
    let clock = Clock::movable();
    let state = SessionState::new(clock.clone(), Moment::NEVER);
    let second = Duration::from_secs(1);
    let silent = || Arc::new(StoreError::unknown("x", crate::ErrorKind::Unavailable, "silence"));
    let lasts = || state.away().map(|away| away.lasts(clock.now()));
    for _ in 0..2 {
        let sent = clock.now();
        clock.advance(5 * second);
        state.unreached(&silent(), sent);
    }
    assert!(lasts() >= Some(10 * second), "{:?}", lasts());
    state.reached();
    assert_eq!(lasts(), None);
}
