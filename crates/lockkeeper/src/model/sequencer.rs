//! A grant as text, for others to check.

use crate::{
    error::{Error, Result},
    model::{name::Name, ticket::Mode},
    store::{Claim, StoreId},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::{fmt, str::FromStr};

/// What a name keeps as it is inside a sequencer: enough to read it, nothing to trip over.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'/').remove(b'.');

/// A grant as text: which store, which name, in which mode, which ticket, which fence.
///
/// A holder sends it along with its requests; the receiver asks [`Keeper::check`] whether the grant
/// still stands, or compares the fence with the highest one it has seen. It is printable ASCII
/// without blanks. It is no secret and gives no rights: what a program may do, the store decides by the
/// credentials of its URL. A program that may use the store can check the grant, and write the name's cell
/// under it ([`Keeper::write_under`]).
///
/// [`Keeper::check`]: crate::Keeper::check
/// [`Keeper::write_under`]: crate::Keeper::write_under
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequencer {
    store: StoreId,
    claim: Claim,
}

impl Sequencer {
    /// The grant of this store, as text. For the author of a store's client: others get one from
    /// [`Guard::sequencer`](crate::Guard::sequencer).
    #[must_use]
    pub fn of(store: StoreId, claim: Claim) -> Self {
        Self { store, claim }
    }

    /// The identity of the store that the grant is from.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.claim.name
    }

    /// How it was granted.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.claim.mode
    }

    /// The number of the grant; 0 if its store has none. Such a sequencer can be checked, not compared.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.claim.fence
    }

    /// The grant, as a store checks it.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl fmt::Display for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { name, ticket, mode, fence } = &self.claim;
        let name = utf8_percent_encode(name.as_str(), KEPT);
        write!(f, "lk1:{}:", self.store)?;
        match mode {
            Mode::Exclusive => f.write_str("x")?,
            Mode::Shared => f.write_str("s")?,
            Mode::Permits { weight, of } => write!(f, "{weight}-{of}")?,
        }
        write!(f, ":{fence}:{ticket}:{name}")
    }
}

impl FromStr for Sequencer {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        if s.starts_with("lk1.") {
            return Err(Error::Sequencer(
                "it is signed; its signature has to be verified, by the keys",
            ));
        }
        let parts: Vec<&str> = s.split(':').collect();
        let ["lk1", store, mode, fence, ticket, name] = parts[..] else {
            return Err(Error::Sequencer(
                "it does not have the form lk1:STORE:MODE:FENCE:TICKET:NAME",
            ));
        };
        let store = hex(store).ok_or(Error::Sequencer("the store is not 16 hexadecimal digits"))?;
        let mode = parse_mode(mode).ok_or(Error::Sequencer("the mode is unknown"))?;
        let fence = digits(fence).ok_or(Error::Sequencer("the fence is not a number"))?;
        let name = percent_decode_str(name)
            .decode_utf8()
            .map_err(|_| Error::Sequencer("the name is not UTF-8"))?;
        let claim = Claim { name: Name::new(&name)?, ticket: ticket.parse()?, mode, fence };
        Ok(Self { store: StoreId(store.to_be_bytes()), claim })
    }
}

fn hex(s: &str) -> Option<u64> {
    let plain = s.len() == 16 && s.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(s, 16).ok()).flatten()
}

/// A number without sign.
fn digits<N: FromStr>(s: &str) -> Option<N> {
    s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse().ok()).flatten()
}

fn parse_mode(s: &str) -> Option<Mode> {
    match s {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        permits => {
            let (weight, of) = permits.split_once('-')?;
            Some(Mode::Permits { weight: digits(weight)?, of: digits(of)? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::TicketId;
    use proptest::prelude::*;

    fn sequencer(name: &str, mode: Mode, fence: u64) -> Sequencer {
        let ticket = TicketId::random();
        let claim = Claim { name: Name::new(name).unwrap(), ticket, mode, fence };
        Sequencer::of(StoreId([7; 8]), claim)
    }

    #[test]
    fn nonsense_is_no_sequencer() {
        let good = sequencer("a", Mode::Exclusive, 7).to_string();
        assert!(good.parse::<Sequencer>().is_ok());
        for bad in [
            "",
            "lk1",
            "lk2:0:x:1:0:a",
            &good.replace(":x:", ":y:"),
            &good.replace(":7:", ":+7:"),
            &format!("{good}:b"),
        ] {
            assert!(bad.parse::<Sequencer>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_sequencer_is_printable_and_reads_back(
            name in "\\PC{1,80}", fence: u64, permits in prop::option::of((1u32..9, 1u32..9)),
        ) {
            let mode = permits.map_or(Mode::Shared, |(weight, of)| Mode::Permits { weight, of });
            let sequencer = sequencer(&name, mode, fence);
            let text = sequencer.to_string();
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<Sequencer>().unwrap(), sequencer);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            let _ = text.parse::<Sequencer>();
        }
    }
}
