//! Values that are text: a first line of fields, and free bytes behind it. Stores without tables write
//! them, so that the server's own tools show something useful.

use crate::model::ticket::{Owner, TicketId};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The first line, and what is behind it.
pub(in crate::store) fn split_head(value: &[u8]) -> Option<(&str, &[u8])> {
    let at = value.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&value[..at]).ok()?, &value[at + 1..]))
}

/// Three fields: `PID HOST PROGRAM`.
pub(in crate::store) fn write_owner(owner: &Owner) -> String {
    let word = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    format!("{} {} {}", owner.pid, word(&owner.host), word(&owner.program))
}

pub(in crate::store) fn read_owner<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Owner> {
    let pid = words.next()?.parse().ok()?;
    let mut word = || Some(percent_decode_str(words.next()?).decode_utf8().ok()?.into_owned());
    Some(Owner { host: word()?, pid, program: word()? })
}

/// An id for another library's ticket that has none: FNV-1a of 128 bits, so that every process finds the
/// same.
pub(in crate::store) fn hashed_id(text: &[u8]) -> TicketId {
    let hash = text.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    });
    TicketId::from_bytes(hash.to_be_bytes())
}
