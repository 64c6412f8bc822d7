use super::*;

#[test]
fn a_hint_that_overtakes_the_answer_to_an_enter_is_not_lost() {
    let desk = Desk::new(Clock::system(), Moment::NEVER);
    let wait = Wait { ahead: 1, holder: None, recheck: Duration::from_secs(60) };
    let enter = |hint: bool| {
        let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
        let _turn = desk.listen(ticket, &name, None);
        if hint {
            desk.look(Some(ticket));
        }
        desk.look(Some(TicketId::random()));
        desk.queued(ticket, &wait);
        let due = desk.due().poll;
        desk.forget(ticket);
        !due.is_empty()
    };
    assert!(enter(true), "it looks again at once");
    assert!(!enter(false), "it waits");
}

#[test]
fn who_is_ended_between_its_grant_and_its_hold_holds_nothing() {
    let desk = Desk::new(Clock::system(), Moment::NEVER);
    let take = |ended: bool| {
        let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
        let mut turn = desk.listen(ticket, &name, None);
        desk.queued(ticket, &Wait { ahead: 1, holder: None, recheck: Duration::MAX });
        desk.granted(ticket, 7);
        if ended {
            desk.ended(ticket);
        }
        assert_eq!(turn.try_recv(), Ok(7));
        let grip = Grip::new(name, 7, None);
        desk.hold(ticket, Arc::clone(&grip));
        grip.why()
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
    let desk = Desk::new(Clock::system(), Moment::NEVER);
    let tickets: Vec<TicketId> = (0..=LANES).map(|_| desk.ticket()).collect();
    for (ticket, lane) in tickets.iter().zip(0..LANES) {
        assert_eq!(ticket.lane(), lane);
    }
    assert!(tickets[64].lane() >= LANES, "no lane is left");
    desk.forget(tickets[64]);
    desk.forget(tickets[7]);
    assert_eq!(desk.ticket().lane(), 7);
    assert!(desk.ticket().lane() >= LANES);
}

const TTL: Duration = Duration::from_secs(60);

/// Between the look at the clock and the new deadline of a renewal, others had seen the old deadline pass.
#[test]
fn a_loss_that_was_seen_is_final_although_a_renewal_comes_in() {
    let clock = Clock::movable();
    for seen in [true, false] {
        let desk = Desk::new(clock.clone(), clock.now() + TTL);
        if seen {
            clock.advance(2 * TTL);
            assert_eq!(desk.lease(), Lease::Lost(Loss::Expired));
        }
        let renewed = desk.renewed(clock.now() + TTL, 1, None, TicketDigest::default());
        assert_eq!((renewed, desk.may_be_gone()), (!seen, seen));
        assert_eq!(desk.lease() == Lease::Held, !seen);
    }
}

/// A desk that has compared all its tickets once, with a store that shows none.
fn compared() -> Desk {
    let desk = Desk::new(Clock::system(), Moment::NEVER);
    assert!(begins_to_compare(&desk));
    desk.verified(1);
    assert!(!begins_to_compare(&desk), "the version is the same");
    desk
}

/// Is a renewal of the same version followed by a comparison of all tickets? Then it begins.
fn begins_to_compare(desk: &Desk) -> bool {
    assert!(desk.renewed(Moment::from_millis(u64::MAX >> 24), 1, None, TicketDigest::default()));
    desk.due().verify.is_some()
}

fn enters(desk: &Desk) -> (TicketId, Name) {
    let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
    drop(desk.listen(ticket, &name, None));
    (ticket, name)
}

fn changes_version(desk: &Desk) {
    assert!(desk.renewed(Moment::from_millis(u64::MAX >> 24), 2, None, TicketDigest::default()));
    assert!(desk.due().verify.is_some());
}

/// A failover while an enter was under way: the old server has answered it, and the comparison with the new
/// one did not know of its ticket, but counted as complete.
#[test]
fn a_grant_that_a_comparison_cannot_have_seen_leads_to_another_one() {
    let desk = compared();
    let (ticket, name) = enters(&desk);
    changes_version(&desk);
    desk.verified(2);
    assert!(desk.hold(ticket, Grip::new(name, 7, None)));
    changes_version(&desk);
    desk.verified(2);

    let (ticket, name) = enters(&desk);
    desk.book().verified = None;
    changes_version(&desk);
    assert!(desk.hold(ticket, Grip::new(name, 8, None)));
    desk.verified(2);
    changes_version(&desk);
}

/// A grant that was told and not yet held was not among the tickets that were compared.
#[test]
fn a_grant_on_its_way_to_its_waiter_is_compared() {
    for (there, lost) in [
        (None, true),
        (Some(Stand::Granted { fence: 8 }), true),
        (Some(Stand::Granted { fence: 7 }), false),
    ] {
        let desk = Desk::new(Clock::system(), Moment::NEVER);
        let (name, ticket) = (Name::new("a").unwrap(), TicketId::random());
        let _turn = desk.listen(ticket, &name, None);
        desk.queued(ticket, &Wait { ahead: 1, holder: None, recheck: Duration::MAX });
        desk.granted(ticket, 7);
        for expected in desk.expected() {
            desk.compared(&expected, there.as_ref(), true);
        }
        let grip = Grip::new(name, 7, None);
        assert!(desk.hold(ticket, Arc::clone(&grip)));
        assert_eq!(grip.why(), lost.then_some(Loss::Evicted));
    }
}
