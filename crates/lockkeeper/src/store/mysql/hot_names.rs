//! The names that this process releases again and again.
//!
//! A rarely used name is released with its session taken out of the index, or every renewal would walk over all
//! names that the session has ever locked. For a hot name that would write the index twice for each pair of enter and
//! leave, so there the session stays.

use crate::model::name::Name;
use foldhash::fast::RandomState;
use std::{
    hash::BuildHasher as _,
    sync::atomic::{AtomicU64, Ordering},
};

const SLOTS: usize = 1024;
/// A name is hot from so many releases on, with no release of another name in the same slot between them.
const HOT: u64 = 8;

/// A count for each name that was released lately, in a slot chosen by its hash. A name that comes to the slot
/// of another begins anew, so few names are hot in comparison with all.
pub(super) struct HotNames {
    /// The upper bits are of the name's hash, the lower eight are the count.
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for HotNames {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { slots, hasher: RandomState::default() }
    }
}

impl HotNames {
    /// Counts a release of the name. Says whether the name is hot.
    pub(super) fn count_release(&self, name: &Name) -> bool {
        let hash = self.hasher.hash_one(name.as_str());
        let slot = &self.slots[usize::try_from(hash % SLOTS as u64).unwrap_or(0)];
        let (tag, last) = (hash & !0xff, slot.load(Ordering::Relaxed));
        let count = if last & !0xff == tag { (last & 0xff) + 1 } else { 1 };
        slot.store(tag | count.min(HOT), Ordering::Relaxed);
        count >= HOT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hot_after_some_releases_and_many_names_in_turn_are_not() {
        let (names, name) = (HotNames::default(), Name::new("a").unwrap());
        let counted: Vec<bool> = (0..HOT + 1).map(|_| names.count_release(&name)).collect();
        assert_eq!(counted.iter().filter(|hot| **hot).count(), 2, "{counted:?}");
        for i in 0..100_000 {
            assert!(!names.count_release(&Name::new(&format!("name {i}")).unwrap()));
        }
        assert!(!names.count_release(&name), "other names had its slot");
    }
}
