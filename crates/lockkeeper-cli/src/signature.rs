//! `check --keys`: the signature comes first, and the store is asked only about what a key has signed.

use crate::{exit_code, failure::Failure, grant};
use anyhow::Context as _;
use jiff::Timestamp;
use lockkeeper::{Sequencer, Signed, SignedError, SigningKeys};
use serde::Serialize;
use std::{path::Path, time::SystemTime};

/// What was given to check.
#[derive(Debug)]
pub(crate) enum Given {
    /// Without keys: a grant, whose text anyone can have made.
    Plain(Sequencer),
    /// A grant that one of the keys has signed.
    Signed(Box<Signed>),
    /// No key has signed it.
    Refused(SignedError),
}

/// When and with which key a grant was signed.
#[derive(Debug, Serialize)]
pub(crate) struct SignedView<'a> {
    key: &'a str,
    issued: String,
    until: String,
}

impl Given {
    /// Reads the sequencer, and verifies its signature if there are keys.
    pub(crate) fn read(sequencer: Option<&str>, keys: Option<&Path>) -> Result<Self, Failure> {
        let text = grant::text(sequencer)?;
        let Some(path) = keys else {
            return grant::parse(&text).map(Self::Plain);
        };
        let keys = SigningKeys::read(path)
            .with_context(|| format!("the keys in {}", path.display()))
            .map_err(|e| Failure::new(exit_code::CONFIGURATION, e))?;
        match keys.verify(&text) {
            Ok(signed) => Ok(Self::Signed(Box::new(signed))),
            Err(e @ SignedError::Form) => Err(grant::usage(e.to_string())),
            Err(refused) => Ok(Self::Refused(refused)),
        }
    }

    /// When and with which key it was signed.
    pub(crate) fn view(&self) -> Option<SignedView<'_>> {
        match self {
            Self::Signed(signed) => Some(SignedView {
                key: &signed.kid,
                issued: rfc_3339(signed.issued),
                until: rfc_3339(signed.until),
            }),
            _ => None,
        }
    }
}

fn rfc_3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| format!("{time:.3}")).unwrap_or_default()
}
