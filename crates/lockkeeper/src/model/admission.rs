//! Which tickets are admitted: the one rule behind every primitive.
//!
//! The longest prefix of the line whose weights fit the capacity is admitted. The weights make it a mutex
//! (each ticket weighs all of the capacity), a read-write lock (a reader weighs 1) or a semaphore. No
//! ticket overtakes: a light one behind a heavy one that does not fit must wait too, so readers never
//! starve a writer.
//!
//! No clock and no I/O here. Stores that decide in SQL or Lua are checked against this function.

/// How many tickets at the head of the line are admitted.
pub fn admitted(weights: impl IntoIterator<Item = u32>, capacity: u32) -> usize {
    let mut room = Room::of(capacity);
    weights.into_iter().take_while(|&weight| room.admit(weight)).count()
}

/// What is left of a line's capacity while walking it from its head.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    left: u32,
    full: bool,
}

impl Room {
    /// An empty line of this capacity.
    #[must_use]
    pub fn of(capacity: u32) -> Self {
        Self { left: capacity, full: false }
    }

    /// Takes `weight` if it fits and no ticket before was turned away.
    pub fn admit(&mut self, weight: u32) -> bool {
        match self.left.checked_sub(weight) {
            Some(left) if !self.full => {
                self.left = left;
                true
            }
            _ => {
                self.full = true;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::PLAIN_CAPACITY;
    use proptest::{collection::vec, prelude::*};

    #[test]
    fn a_mutex_admits_its_head_only() {
        assert_eq!(admitted([PLAIN_CAPACITY, PLAIN_CAPACITY, PLAIN_CAPACITY], PLAIN_CAPACITY), 1);
        assert_eq!(admitted([], PLAIN_CAPACITY), 0);
    }

    #[test]
    fn readers_go_together_up_to_the_first_writer() {
        assert_eq!(admitted([1, 1, PLAIN_CAPACITY, 1], PLAIN_CAPACITY), 2);
        assert_eq!(admitted([PLAIN_CAPACITY, 1, 1], PLAIN_CAPACITY), 1);
    }

    #[test]
    fn a_light_ticket_does_not_overtake_a_heavy_one() {
        assert_eq!(admitted([2, 3, 1], 4), 1);
        assert_eq!(admitted([2, 2, 1], 4), 2);
    }

    #[test]
    fn every_short_line_agrees_with_the_definition() {
        for capacity in 1..=4u32 {
            for code in 0..4u32.pow(5) {
                let weights: Vec<u32> = (0..5).map(|i| code / 4u32.pow(i) % 4 + 1).collect();
                let by_definition =
                    (0..=5).rfind(|&n| weights[..n].iter().sum::<u32>() <= capacity).unwrap();
                assert_eq!(admitted(weights.iter().copied(), capacity), by_definition);
            }
        }
    }

    proptest! {
        #[test]
        fn the_admitted_fit_and_the_next_one_does_not(
            weights in vec(1u32..=8, 0..40), capacity in 1u32..=16,
        ) {
            let n = admitted(weights.iter().copied(), capacity);
            prop_assert!(weights[..n].iter().sum::<u32>() <= capacity);
            prop_assert!(n == weights.len() || weights[..=n].iter().sum::<u32>() > capacity);
        }

        #[test]
        fn a_departure_never_revokes_an_admission(
            weights in vec(1u32..=8, 1..40), capacity in 1u32..=16, gone in any::<prop::sample::Index>(),
        ) {
            let gone = gone.index(weights.len());
            let before = admitted(weights.iter().copied(), capacity);
            let rest: Vec<u32> =
                weights.iter().enumerate().filter(|(i, _)| *i != gone).map(|(_, w)| *w).collect();
            let after = admitted(rest, capacity);
            prop_assert!(after + usize::from(gone < before) >= before);
        }
    }
}
