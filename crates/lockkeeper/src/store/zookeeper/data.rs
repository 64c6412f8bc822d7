//! What nodes carry: small, versioned texts with free bytes behind them.
//!
//! A ticket: `lockkeeper 1 KEPT_MS NOTE_EDIT CELL_EDIT PID HOST PROGRAM`, a line's end, and the note.
//! A cell: `lockkeeper 1 FENCE`, a line's end, and the value. What does not begin so is somebody
//! else's, and is shown as a note if it is text.

use crate::{
    model::ticket::{LABEL_MAX, Owner},
    store::Cell,
};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::time::Duration;

const HEAD: &str = "lockkeeper 1 ";

/// What a ticket's node carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Card {
    /// For how long after its last renewal the ticket is kept, lock-delay included.
    pub(super) kept: Duration,
    /// The last edit of the note, and of the cell.
    pub(super) note_edit: u64,
    pub(super) cell_edit: u64,
    /// [Unknown](Owner::is_unknown) on others' tickets.
    pub(super) owner: Owner,
    pub(super) note: Vec<u8>,
}

impl Card {
    pub(super) fn write(&self) -> Vec<u8> {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let Owner { host, pid, program } = &self.owner;
        let (host, program) = (encoded(host), encoded(program));
        let (kept, note, cell) = (self.kept.as_millis(), self.note_edit, self.cell_edit);
        let head = format!("{HEAD}{kept} {note} {cell} {pid} {host} {program}\n");
        [head.as_bytes(), &self.note].concat()
    }

    pub(super) fn read(bytes: &[u8]) -> Self {
        Self::own(bytes).unwrap_or_else(|| Self { note: words(bytes), ..Self::default() })
    }

    fn own(bytes: &[u8]) -> Option<Self> {
        let (head, note) = split(bytes)?;
        let mut words = head.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (kept, note_edit, cell_edit) = (number()?, number()?, number()?);
        let pid = u32::try_from(number()?).ok()?;
        let mut text = || Some(percent_decode_str(words.next()?).decode_utf8().ok()?.into_owned());
        let owner = Owner { host: text()?, pid, program: text()? };
        let kept = Duration::from_millis(kept);
        Some(Self { kept, note_edit, cell_edit, owner, note: note.to_vec() })
    }
}

/// What another library wrote, if it is text for people: an address, a name. Else nothing is shown.
fn words(bytes: &[u8]) -> Vec<u8> {
    let short = &bytes[..bytes.len().min(LABEL_MAX)];
    match std::str::from_utf8(short) {
        Ok(text) if !text.chars().any(char::is_control) => short.to_vec(),
        _ => Vec::new(),
    }
}

pub(super) fn write_cell(fence: u64, value: &[u8]) -> Vec<u8> {
    [format!("{HEAD}{fence}\n").as_bytes(), value].concat()
}

pub(super) fn read_cell(bytes: &[u8]) -> Option<Cell> {
    let (fence, value) = split(bytes)?;
    Some(Cell { bytes: value.to_vec(), fence: fence.parse().ok()? })
}

/// The first line without its beginning, and the rest.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(HEAD.as_bytes())?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[test]
    fn what_others_wrote_is_a_note_if_it_is_text() {
        for (foreign, shown) in [
            (&b"10.0.0.7"[..], &b"10.0.0.7"[..]),
            (b"", b""),
            (b"\xff\xfe", b""),
            (b"lockkeeper 1 x\n", b""),
            (b"lockkeeper 2 ", b"lockkeeper 2 "),
        ] {
            let card = Card::read(foreign);
            assert!(card.owner.is_unknown());
            assert_eq!(card.note, shown);
            assert_eq!(read_cell(foreign), None);
        }
        assert_eq!(Card::read(&[b'x'; 9_999]).note.len(), LABEL_MAX);
    }

    proptest! {
        #[test]
        fn a_card_reads_back_as_it_was_written(
            host in "\\PC{0,20}", program in "\\PC{0,20}", pid in any::<u32>(),
            numbers in any::<(u32, u64, u64)>(), note in vec(any::<u8>(), 0..50),
        ) {
            let card = Card {
                kept: Duration::from_millis(numbers.0.into()),
                note_edit: numbers.1,
                cell_edit: numbers.2,
                owner: Owner { host, pid, program },
                note,
            };
            prop_assert_eq!(Card::read(&card.write()), card);
        }

        #[test]
        fn a_cell_reads_back_as_it_was_written(
            fence in any::<u64>(), bytes in vec(any::<u8>(), 0..50),
        ) {
            prop_assert_eq!(read_cell(&write_cell(fence, &bytes)), Some(Cell { bytes, fence }));
        }
    }
}
