//! Sequencers, plain and signed.

use super::Security;
use crate::problem::Problem;
use lockkeeper::{Sequencer, SignedError};
use std::time::{Duration, SystemTime};

impl Security {
    /// Are there keys?
    pub(crate) fn signs(&self) -> bool {
        self.keys.is_some()
    }

    /// The grant as text: signed if there are keys. Its session ends after this time unless it is renewed.
    pub(crate) fn write_sequencer(&self, sequencer: &Sequencer, ends_in: Duration) -> String {
        match &self.keys {
            None => sequencer.to_string(),
            Some(keys) => {
                let now = SystemTime::now();
                keys.get().sign(sequencer, now, now + ends_in)
            }
        }
    }

    /// Reads a sequencer that a client has sent: with keys, one that they have signed.
    pub(crate) fn read_sequencer(&self, text: &str) -> Result<Sequencer, Problem> {
        let refused = |detail: String| Problem::new("sequencer", detail).not_applied();
        let plain = || text.parse::<Sequencer>().map_err(|e| refused(e.to_string()));
        let Some(keys) = &self.keys else { return plain() };
        match keys.get().verify(text) {
            Ok(signed) => Ok(signed.sequencer),
            Err(SignedError::Unsigned) if self.accept_plain_sequencers => plain(),
            Err(e @ SignedError::Unsigned) => {
                let what = format!("{e}; send it as this service has given it out (lk1.…)");
                Err(Problem::new("unsigned", what).not_applied())
            }
            Err(e) => Err(refused(e.to_string())),
        }
    }
}
