//! What went wrong, with what code to end and what to do about it.

use crate::{exit_code, output, sharing, store};
use lockkeeper::{Error, ErrorKind};
use serde_json::json;
use std::borrow::Cow;

/// What to do about a store that does not answer.
pub(crate) const NO_STORE: &str = "is the store running, and is --store or LOCKKEEPER_STORE right?";

/// What to do about a store that refuses, unless more is known.
const CHECK_RIGHTS: &str = "check the rights to the store, or the credentials in its URL";

/// The end of a command that did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    error: anyhow::Error,
    hint: Option<Cow<'static, str>>,
}

impl Failure {
    /// A failure with this exit code.
    pub(crate) fn new(code: u8, error: anyhow::Error) -> Self {
        Self { code, error, hint: None }
    }

    /// Flags that contradict each other.
    pub(crate) fn usage(what: String) -> Self {
        Self::new(exit_code::USAGE, anyhow::Error::msg(what))
            .hint("the verb's --help has its flags and examples")
    }

    /// Something that cannot happen unless lockkeeper or the system below it has a fault.
    pub(crate) fn bug(error: impl Into<anyhow::Error>) -> Self {
        Self::new(exit_code::BUG, error.into())
    }

    /// Adds what the user can do.
    pub(crate) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what stands in the way of this user, if the failure is about rights to a local file. A failure that
    /// knows better what to do keeps its own hint.
    pub(crate) fn about(self, store: Option<&str>) -> Self {
        if self.code != exit_code::DENIED || self.hint.as_deref() != Some(CHECK_RIGHTS) {
            return self;
        }
        let embedded = || store::embedded().ok();
        let url = store.map(str::to_owned).or_else(embedded);
        match url.as_deref().and_then(sharing::obstacle) {
            Some(obstacle) => self.hint(obstacle),
            None => self,
        }
    }

    /// The code to end with.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The error with the chain of its sources, on one line.
    pub(crate) fn line(&self) -> String {
        output::printable(&chain(&self.error))
    }

    /// Tells the user, and gives the code to end with.
    pub(crate) fn report(&self, json: bool) -> u8 {
        if json {
            let (message, hint, exit_code) = (self.line(), &self.hint, self.code);
            output::json_line(json!({
                "event": "error", "message": message, "hint": hint, "exit_code": exit_code,
            }));
        } else {
            output::error(&self.line());
            if let Some(hint) = &self.hint {
                output::note(&format!("hint: {hint}"));
            }
        }
        self.code
    }
}

/// An error with its sources on one line. Many errors repeat the one below them: what has been said
/// is not said again.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            let colon = if line.is_empty() { "" } else { ": " };
            line += &format!("{colon}{cause}");
        }
    }
    line
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, hint) = (exit_code::of(&error), hint(&error).map(Cow::Borrowed));
        Self { code, error: error.into(), hint }
    }
}

fn hint(error: &Error) -> Option<&'static str> {
    let trouble = match error {
        Error::Capacity { .. } => {
            return Some(
                "everybody who uses the name at one time must give the same --limit, or none",
            );
        }
        Error::Unavailable { .. } => ErrorKind::Unavailable,
        Error::Store(e) => e.kind,
        _ => return None,
    };
    match trouble {
        ErrorKind::Unavailable => Some(NO_STORE),
        ErrorKind::Denied => Some(CHECK_RIGHTS),
        ErrorKind::Misconfigured | ErrorKind::Corrupt => Some("check --store or LOCKKEEPER_STORE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::StoreError;

    #[test]
    fn the_chain_of_sources_is_one_line_without_control_characters() {
        let below = std::io::Error::other("disk\u{1b}[2J on fire");
        let e =
            StoreError::not_applied("sqlite", ErrorKind::Unavailable, "cannot read").because(below);
        let failure = Failure::from(Error::Store(e));
        assert_eq!(failure.line(), "sqlite: cannot read: disk\\u{1b}[2J on fire");
        assert_eq!(failure.code, 69);
        assert!(failure.hint.is_some());
    }

    #[test]
    fn a_source_that_its_error_repeats_is_said_once() {
        let below = std::io::Error::other("connection refused");
        let what = "cannot connect: connection refused";
        let e = StoreError::not_applied("redis", ErrorKind::Unavailable, what).because(below);
        let failure = Failure::from(Error::Store(e));
        assert_eq!(failure.line(), "redis: cannot connect: connection refused");
    }
}
