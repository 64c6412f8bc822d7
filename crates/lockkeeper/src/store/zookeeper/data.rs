//! The data of nodes: a short versioned text, and free bytes behind it.
//!
//! A ticket: `lockkeeper 1 KEPT_MS LABEL_EDIT CELL_EDIT PID HOST PROGRAM`, a newline, and the label.
//! A cell: `lockkeeper 1 FENCE`, a newline, and the value. Data that begins otherwise is another
//! library's, and is shown as a label if it is text.

use crate::{
    model::ticket::{LABEL_MAX, Owner},
    store::{
        Cell,
        common::text::{read_owner, split_head, write_owner},
    },
};
use std::time::Duration;

const HEAD: &str = "lockkeeper 1 ";

/// The data of a ticket's node. It decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TicketData {
    /// For how long after its last renewal the ticket is kept, lock-delay included.
    pub(super) kept: Duration,
    /// The last edit of the label, and of the cell.
    pub(super) label_edit: u64,
    pub(super) cell_edit: u64,
    /// [Unknown](Owner::is_unknown) on other libraries' tickets.
    pub(super) owner: Owner,
    pub(super) label: Vec<u8>,
}

impl TicketData {
    pub(super) fn write(&self) -> Vec<u8> {
        let (kept, label, cell) = (self.kept.as_millis(), self.label_edit, self.cell_edit);
        let head = format!("{HEAD}{kept} {label} {cell} {}\n", write_owner(&self.owner));
        [head.as_bytes(), &self.label].concat()
    }

    pub(super) fn read(bytes: &[u8]) -> Self {
        Self::own(bytes).unwrap_or_else(|| Self { label: text(bytes), ..Self::default() })
    }

    fn own(bytes: &[u8]) -> Option<Self> {
        let (head, label) = split(bytes)?;
        let mut words = head.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (kept, label_edit, cell_edit) = (number()?, number()?, number()?);
        let owner = read_owner(&mut words)?;
        let kept = Duration::from_millis(kept);
        Some(Self { kept, label_edit, cell_edit, owner, label: label.to_vec() })
    }
}

/// Another library's data, if it is text for people: an address, a name.
fn text(bytes: &[u8]) -> Vec<u8> {
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

/// The first line without `HEAD`, and the rest.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    split_head(bytes.strip_prefix(HEAD.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[test]
    fn other_libraries_data_is_a_label_if_it_is_text() {
        for (foreign, shown) in [
            (&b"10.0.0.7"[..], &b"10.0.0.7"[..]),
            (b"", b""),
            (b"\xff\xfe", b""),
            (b"lockkeeper 1 x\n", b""),
            (b"lockkeeper 2 ", b"lockkeeper 2 "),
        ] {
            let data = TicketData::read(foreign);
            assert!(data.owner.is_unknown());
            assert_eq!(data.label, shown);
            assert_eq!(read_cell(foreign), None);
        }
        assert_eq!(TicketData::read(&[b'x'; 9_999]).label.len(), LABEL_MAX);
    }

    proptest! {
        #[test]
        fn a_tickets_data_reads_back_as_it_was_written(
            host in "\\PC{0,20}", program in "\\PC{0,20}", pid in any::<u32>(),
            numbers in any::<(u32, u64, u64)>(), label in vec(any::<u8>(), 0..50),
        ) {
            let data = TicketData {
                kept: Duration::from_millis(numbers.0.into()),
                label_edit: numbers.1,
                cell_edit: numbers.2,
                owner: Owner { host, pid, program },
                label,
            };
            prop_assert_eq!(TicketData::read(&data.write()), data);
        }

        #[test]
        fn a_cell_reads_back_as_it_was_written(
            fence in any::<u64>(), bytes in vec(any::<u8>(), 0..50),
        ) {
            prop_assert_eq!(read_cell(&write_cell(fence, &bytes)), Some(Cell { bytes, fence }));
        }
    }
}
