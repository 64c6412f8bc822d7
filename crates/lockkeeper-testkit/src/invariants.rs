//! Which cases stand for which invariant.
//!
//! The table below is checked with every run: each invariant has cases, and each case named here
//! exists. (Cases of the mutex group are named here as they are for a plain lock; they run for every
//! primitive that can serve as a mutex.)

use crate::case::Case;

/// An invariant, what it says, and the cases that put it to the test.
#[derive(Clone, Copy, Debug)]
pub struct Invariant {
    /// Its number.
    pub number: &'static str,
    /// What it says.
    pub says: &'static str,
    /// `group::case`, the most telling first.
    pub cases: &'static [&'static str],
}

/// All invariants.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        number: "I1",
        says: "fences of a name grow in grant order, and re-entry keeps its fence",
        cases: &[
            "fence::it_grows_across_releases",
            "fence::it_grows_across_expiry",
            "fence::it_grows_across_an_eviction",
            "fence::it_grows_across_a_reopened_store",
            "fence::it_is_kept_by_re_entry",
            "model::it_does_what_the_reference_does",
        ],
    },
    Invariant {
        number: "I2",
        says: "a resource that checks fences never accepts a lower one after a higher one",
        cases: &[
            "fence::a_paused_holder_is_refused_by_the_resource",
            "process::a_stopped_holder_is_lost_and_fenced_off",
            "chaos::no_update_is_lost_on_day_1",
        ],
    },
    Invariant {
        number: "I3",
        says: "granted tickets obey the admission rule, in the store's own order",
        cases: &[
            "mutex::lock_never_tears_a_counter",
            "rw::readers_and_writers_never_meet",
            "semaphore::random_weights_never_exceed_the_capacity",
            "waiting::a_grant_found_while_comparing_tickets_is_kept",
            "process::processes_count_right",
            "model::it_does_what_the_reference_does",
        ],
    },
    Invariant {
        number: "I4",
        says: "a wrong session or ticket changes nothing; a repeated release never ends a later grant",
        cases: &[
            "mutex::a_strangers_requests_change_nothing",
            "mutex::a_strangers_ticket_id_gives_nothing",
            "replay::a_late_leave_never_ends_a_later_grant",
        ],
    },
    Invariant {
        number: "I5",
        says: "what has ended is never renewed back to life, and nothing is sent for it",
        cases: &[
            "session::an_expired_session_is_never_revived",
            "session::the_dead_stay_dead",
            "loss::nothing_is_sent_after_a_loss",
            "clock::an_answer_that_comes_too_late_revives_nothing",
            "replay::a_late_open_revives_nothing",
        ],
    },
    Invariant {
        number: "I6",
        says: "in line, grants follow the order of the tickets; none overtakes",
        cases: &[
            "mutex::lock_is_granted_in_order",
            "mutex::a_contender_never_overtakes_the_line",
            "rw::a_waiting_writer_is_not_starved",
            "semaphore::a_light_one_does_not_overtake_a_heavy_one",
        ],
    },
    Invariant {
        number: "I7",
        says: "every live waiter is served in the end, and no lock is free while a ticket waits",
        cases: &[
            "waiting::without_any_hint_they_are_served",
            "waiting::a_waiter_outlives_an_outage",
            "waiting::a_waiter_outlives_its_session",
            "process::a_killed_waiter_does_not_delay_the_others",
        ],
    },
    Invariant {
        number: "I8",
        says: "an abnormal end keeps the lock closed for its delay; a clean one does not",
        cases: &[
            "delay::an_abnormal_end_keeps_it_closed",
            "delay::a_clean_release_frees_at_once",
            "delay::a_loss_noticed_late_still_keeps_it_closed",
        ],
    },
    Invariant {
        number: "I9",
        says: "n acquires of an owner need n releases, and no other owner comes between",
        cases: &["reentry::n_acquires_need_n_releases", "reentry::another_keeper_is_another_owner"],
    },
    Invariant {
        number: "I10",
        says: "an acquire that was cancelled or timed out leaves no ticket",
        cases: &[
            "cancel::a_taken_lock_dropped_at_every_poll_leaves_nothing",
            "mutex::lock_timeout_leaves_nothing",
            "replay::a_late_enter_of_a_stray_is_refused",
            "chaos::impatience_leaves_nothing_on_day_1",
        ],
    },
    Invariant {
        number: "I11",
        says: "the end of a session ends all its tickets at once",
        cases: &["session::closing_ends_all_its_tickets", "session::expiry_ends_all_its_tickets"],
    },
    Invariant {
        number: "I12",
        says: "a client is told of its loss by its deadline, before any successor",
        cases: &[
            "loss::silence_loses_it_before_a_successor_is_granted",
            "loss::it_is_told_by_the_deadline",
            "clock::a_jump_past_the_ttl_ends_belief_at_once",
        ],
    },
    Invariant {
        number: "I13",
        says: "a check that says yes was right at some moment of the call; after a no never a yes",
        cases: &["evict::a_check_is_false_for_ever_after", "delay::a_check_agrees_with_the_line"],
    },
    Invariant {
        number: "I14",
        says: "an eviction raises the floor of the fences, so the evicted holder is fenced off",
        cases: &[
            "evict::it_frees_the_lock_and_tells_the_holder",
            "cells::an_evicted_holder_cannot_write",
        ],
    },
    Invariant {
        number: "I15",
        says: "a killed holder gives way within its TTL, its delay and a hand-over",
        cases: &[
            "process::a_killed_holder_gives_way",
            "process::a_killed_holder_gives_way_after_its_delay",
        ],
    },
];

/// Every invariant must have cases, and every case named above must exist.
pub(crate) fn check(cases: &[Case]) -> Result<(), String> {
    let exists =
        |wanted: &&str| cases.iter().any(|c| format!("{}::{}", c.group, c.name) == **wanted);
    for invariant in INVARIANTS {
        let number = invariant.number;
        if invariant.cases.is_empty() {
            return Err(format!("{number} has no case"));
        }
        if let Some(missing) = invariant.cases.iter().find(|name| !exists(name)) {
            return Err(format!("{number} names a case that does not exist: {missing}"));
        }
    }
    Ok(())
}
