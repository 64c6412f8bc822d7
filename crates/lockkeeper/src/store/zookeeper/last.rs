//! What the last ticket in a line says of the next one.
//!
//! The number in a node's name is how many nodes were created in its line before it; deletions do not
//! change that. So if our last ticket was admitted and has left, and the next one has the very next
//! number, then nobody has come between the two: the next one stands alone, and its creation suffices
//! to know that.

use crate::name::Name;
use std::collections::HashMap;

/// How many lines are remembered. One that is forgotten costs a list.
const LINES_MAX: usize = 1_000;

/// How a ticket's node came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Birth {
    /// The number in its name, if it can be read.
    pub(super) number: Option<i32>,
    /// The number of the write that made it.
    pub(super) czxid: u64,
    /// The connection on which it was asked for and answered.
    pub(super) connection: u64,
}

impl Birth {
    /// Whether nobody came into the line between that ticket and this one.
    ///
    /// A line whose node was removed and made anew counts from 0. Before it gives this number again
    /// there are the end of that ticket, the end and the beginning of the line's node, and as many
    /// creations as the number says. Each is a write: nobody creates several tickets in one.
    pub(super) fn follows(self, that: Self) -> bool {
        let (Some(number), Some(before)) = (self.number, that.number) else { return false };
        let (Ok(created), Some(writes)) =
            (u64::try_from(number), self.czxid.checked_sub(that.czxid))
        else {
            return false;
        };
        // On another connection the server may have been set back to another past meanwhile.
        self.connection == that.connection
            && before.checked_add(1) == Some(number)
            && writes < created + 4
    }
}

/// A ticket that was granted as soon as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) birth: Birth,
    /// Others do not seem to use the line, so the next one may be created without a list.
    pub(super) quiet: bool,
    /// It has left, and the server has said so.
    left: bool,
}

/// The last exclusive tickets of lines, as long as no other ticket of ours has come since.
#[derive(Debug, Default)]
pub(super) struct Lasts(HashMap<Name, Last>);

impl Lasts {
    /// The last ticket, if it has left. Whoever asks is the last one from now on.
    pub(super) fn take(&mut self, name: &Name) -> Option<Last> {
        self.0.remove(name).filter(|last| last.left)
    }

    /// Notes that a ticket was granted as soon as it came.
    pub(super) fn granted(&mut self, name: &Name, birth: Birth, quiet: bool) {
        if self.0.len() >= LINES_MAX {
            self.0.clear();
        }
        self.0.insert(name.clone(), Last { birth, quiet, left: false });
    }

    /// Notes that the ticket of this creation has left.
    pub(super) fn left(&mut self, name: &Name, czxid: u64) {
        if let Some(last) = self.0.get_mut(name).filter(|last| last.birth.czxid == czxid) {
            last.left = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn birth(number: i32, czxid: u64) -> Birth {
        Birth { number: Some(number), czxid, connection: 1 }
    }

    #[test]
    fn only_the_very_next_number_of_the_same_line_follows() {
        let last = birth(7, 100);
        assert!(birth(8, 102).follows(last) && birth(8, 111).follows(last));
        assert!(!birth(9, 102).follows(last), "somebody came between");
        assert!(!birth(8, 112).follows(last), "the line may have been made anew");
        assert!(!birth(8, 99).follows(last), "an older past");
        assert!(!Birth { connection: 2, ..birth(8, 102) }.follows(last));
        assert!(!Birth { number: None, ..birth(8, 102) }.follows(last));
        assert!(!birth(i32::MIN, 102).follows(birth(i32::MAX, 100)), "the count has wrapped");
        assert!(!birth(-7, 102).follows(birth(-8, 100)));
    }

    #[test]
    fn a_ticket_is_the_last_one_once_it_has_left_and_until_another_comes() {
        let (name, mut lasts) = (Name::new("a").unwrap(), Lasts::default());
        lasts.granted(&name, birth(1, 10), true);
        assert_eq!(lasts.take(&name), None, "it has not left");
        lasts.left(&name, 10);
        assert_eq!(lasts.take(&name), None, "another came before it left");
        lasts.granted(&name, birth(2, 20), true);
        lasts.left(&name, 10);
        lasts.left(&name, 20);
        assert_eq!(lasts.take(&name).map(|last| last.birth), Some(birth(2, 20)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut lasts = Lasts::default();
        for n in 0..3 * LINES_MAX {
            lasts.granted(&Name::new(&n.to_string()).unwrap(), birth(0, 1), true);
        }
        assert!(lasts.0.len() <= LINES_MAX);
    }
}
