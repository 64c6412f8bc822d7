//! A lock between two processes, as text.

use crate::{
    error::{Error, Result},
    model::{
        name::Name,
        sequencer::Sequencer,
        ticket::{Mode, SessionId},
    },
    store::{Attach, Claim, StoreId, Terms},
};
use std::{fmt, str::FromStr, time::Duration};

/// A lock that a process has let go of without releasing it ([`Guard::detach`](crate::Guard::detach)), so
/// that another one can [attach](crate::Keeper::attach) it.
///
/// It has the session's secret: a process that knows it can renew and release the lock. `Debug` does not show it. Its
/// text ([`secret_text`](Self::secret_text)) belongs into a file that only its owner can read, and not into
/// arguments, logs or an environment. It does not contain the store's URL.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a detached lock is not renewed: unless it is attached it ends with its TTL"]
pub struct Detached {
    session: SessionId,
    terms: Terms,
    /// What the store needs besides.
    state: Vec<u8>,
    sequencer: Sequencer,
}

impl Detached {
    pub(crate) fn new(
        store: StoreId,
        session: SessionId,
        terms: Terms,
        state: Vec<u8>,
        claim: Claim,
    ) -> Self {
        Self { session, terms, state, sequencer: Sequencer::of(store, claim) }
    }

    /// The text from which it can be read again (`parse`). Printable ASCII without blanks, and a secret.
    #[must_use]
    pub fn secret_text(&self) -> String {
        let Terms { ttl, lock_delay, margin } = self.terms;
        let [ttl, lock_delay, margin] = [ttl, lock_delay, margin].map(|time| time.as_micros());
        let (session, state) = (hex(&self.session.to_bytes()), hex(&self.state));
        format!("lkd1:{session}:{ttl}:{lock_delay}:{margin}:{state}:{}", self.sequencer)
    }

    /// The grant, for others to check. It is no secret.
    #[must_use]
    pub fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// The identity of the store that has the lock.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.sequencer.store()
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        self.sequencer.name()
    }

    /// How it is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.sequencer.mode()
    }

    /// The number of the grant; 0 if its store has none ([`Guard::fence`](crate::Guard::fence)).
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.sequencer.fence()
    }

    /// The terms on which the store holds the lock.
    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) fn claim(&self) -> &Claim {
        self.sequencer.claim()
    }

    pub(crate) fn to_attach(&self) -> Attach {
        let Self { session, terms, state, .. } = self;
        Attach {
            session: *session,
            terms: *terms,
            claim: self.claim().clone(),
            state: state.clone(),
        }
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sequencer, terms) = (self.sequencer.to_string(), &self.terms);
        let mut detached = f.debug_struct("Detached");
        detached.field("sequencer", &sequencer).field("terms", terms).finish_non_exhaustive()
    }
}

impl FromStr for Detached {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.splitn(7, ':').collect();
        let ["lkd1", session, ttl, lock_delay, margin, state, sequencer] = parts[..] else {
            return Err(Error::Detached("it does not have the form lkd1:…"));
        };
        let session = bytes(session).and_then(|bytes| bytes.try_into().ok());
        let session = session.ok_or(Error::Detached("its session is not 32 hexadecimal digits"))?;
        let [ttl, lock_delay, margin] = [ttl, lock_delay, margin].map(micros);
        let times = ttl.zip(lock_delay).zip(margin);
        let ((ttl, lock_delay), margin) = times.ok_or(Error::Detached("a time is no number"))?;
        let state = bytes(state).ok_or(Error::Detached("its state is not hexadecimal"))?;
        let sequencer =
            sequencer.parse().map_err(|_| Error::Detached("its grant makes no sense"))?;
        let terms = Terms { ttl, lock_delay, margin };
        Ok(Self { session: SessionId::from_bytes(session), terms, state, sequencer })
    }
}

/// A time within what a store grants; longer ones would overflow a clock.
fn micros(text: &str) -> Option<Duration> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let micros = plain.then(|| text.parse().ok().map(Duration::from_micros)).flatten()?;
    (micros <= TIME_BOUND).then_some(micros)
}

/// No store grants as much: TTL and lock-delay are a day each at most when they are asked for.
const TIME_BOUND: Duration = Duration::from_secs(30 * 24 * 3600);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let plain = hex.len().is_multiple_of(2) && hex.bytes().all(|b| b.is_ascii_hexdigit());
    let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).ok();
    if plain { (0..hex.len()).step_by(2).map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::TicketId;
    use proptest::prelude::*;

    fn detached(name: &str, state: Vec<u8>, ttl_ms: u64) -> Detached {
        let (name, mode) = (Name::new(name).unwrap(), Mode::Exclusive);
        let claim = Claim { name, ticket: TicketId::random(), mode, fence: 7 };
        let terms = Terms::new(Duration::from_millis(ttl_ms), Duration::from_secs(1));
        Detached::new(StoreId([7; 8]), SessionId::from_bytes([0xab; 16]), terms, state, claim)
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let detached = detached("a", vec![0xcd; 16], 1_000);
        let shown = format!("{detached:?}");
        assert!(shown.contains("lk1:") && !shown.contains("[205"), "{shown}");
        let attach = format!("{:?}", detached.to_attach());
        assert!(!attach.contains("[205"), "{attach}");
        for shown in [shown, attach] {
            assert!(
                !shown.contains(&"ab".repeat(16)) && !shown.contains(&"cd".repeat(16)),
                "{shown}"
            );
        }
    }

    #[test]
    fn an_error_does_not_repeat_the_text() {
        let good = detached("a", vec![1], 1_000).secret_text();
        assert!(good.parse::<Detached>().is_ok());
        let long = good.replacen(":1000000:", ":99999999999999:", 1);
        for bad in ["", "lkd1", "lkd2:a", &good[..40], &good.replace(":01:", ":1:"), &long] {
            let e = bad.parse::<Detached>().expect_err(bad).to_string();
            assert!(!e.contains("abab"), "{e}");
        }
    }

    proptest! {
        #[test]
        fn a_detached_lock_reads_back(
            name in "\\PC{1,80}", state: Vec<u8>, ttl_ms in 100u64..100_000_000,
        ) {
            let detached = detached(&name, state, ttl_ms);
            let text = detached.secret_text();
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()));
            prop_assert_eq!(text.parse::<Detached>().unwrap(), detached);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            let _ = text.parse::<Detached>();
            let _ = format!("lkd1:{text}").parse::<Detached>();
        }
    }
}
