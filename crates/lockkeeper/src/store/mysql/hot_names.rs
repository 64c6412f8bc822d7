//! Which names this process releases again and again.

use crate::model::name::Name;
use foldhash::fast::RandomState;
use std::{
    hash::BuildHasher as _,
    sync::atomic::{AtomicU64, Ordering},
};

const PLACES: usize = 1024;
/// From so many releases on, with no other name in the same place between them, a name counts as one.
const OFTEN: u64 = 8;

/// A count for each name that was released lately, in a place chosen by its hash. A name that comes to a place
/// of another begins anew, so what is counted as frequent is few names in comparison with all.
pub(super) struct Often {
    /// The upper bits are of the name's hash, the lower eight are the count.
    places: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for Often {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { places, hasher: RandomState::default() }
    }
}

impl Often {
    /// The name is released once more: is it a frequent one?
    pub(super) fn again(&self, name: &Name) -> bool {
        let hash = self.hasher.hash_one(name.as_str());
        let place = &self.places[usize::try_from(hash % PLACES as u64).unwrap_or(0)];
        let (tag, last) = (hash & !0xff, place.load(Ordering::Relaxed));
        let count = if last & !0xff == tag { (last & 0xff) + 1 } else { 1 };
        place.store(tag | count.min(OFTEN), Ordering::Relaxed);
        count >= OFTEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_frequent_after_some_releases_and_many_names_in_turn_are_not() {
        let (often, name) = (Often::default(), Name::new("a").unwrap());
        let counted: Vec<bool> = (0..OFTEN + 1).map(|_| often.again(&name)).collect();
        assert_eq!(counted.iter().filter(|frequent| **frequent).count(), 2, "{counted:?}");
        for i in 0..100_000 {
            assert!(!often.again(&Name::new(&format!("name {i}")).unwrap()));
        }
        assert!(!often.again(&name), "others had its place");
    }
}
