//! What `doctor` says of one thing that it looked at.

use crate::{exit_code, handover::Trouble, output::printable};
use anstyle::{AnsiColor, Style};
use lockkeeper::{Advice, Error, ErrorKind, Severity};
use serde::Serialize;
use std::time::Duration;
use unicode_width::UnicodeWidthStr as _;

/// How good or bad it is. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// A promise is weaker, locks are slow, or may soon be refused.
    Warning,
    /// Locks cannot be taken, or the check could not be made.
    Failed,
    /// Two can hold one lock.
    Unsafe,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Unsafe => "unsafe",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Ok => AnsiColor::Green.on_default(),
            Self::Note => AnsiColor::Cyan.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default().bold(),
            Self::Failed | Self::Unsafe => AnsiColor::Red.on_default().bold(),
        }
    }

    /// All in all, in one word.
    pub(super) fn overall(self) -> &'static str {
        match self {
            Self::Ok | Self::Note => "fine",
            Self::Warning => "warnings",
            Self::Failed => "failed",
            Self::Unsafe => "unsafe",
        }
    }

    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Ok | Self::Note => 0,
            Self::Warning => exit_code::WARNINGS,
            Self::Unsafe => exit_code::UNSAFE,
            Self::Failed => exit_code::UNCHECKED,
        }
    }
}

impl From<Severity> for Level {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Information => Self::Note,
            Severity::Exclusion => Self::Unsafe,
            _ => Self::Warning,
        }
    }
}

/// One line of the answer.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) code: &'static str,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Verdict {
    pub(super) fn ok(code: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, code, message: message.into(), remedy: None }
    }

    pub(super) fn note(code: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::ok(code, message) }
    }

    pub(super) fn failed(
        code: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (message, remedy) = (message.into(), Some(remedy.into()));
        Self { level: Level::Failed, code, message, remedy }
    }

    pub(super) fn of_advice(advice: &Advice) -> Self {
        let message = format!("{}: {}", advice.what, advice.consequence);
        let (level, remedy) = (advice.severity.into(), Some(advice.remedy.clone()));
        Self { level, code: advice.code, message, remedy }
    }

    /// Why a step could not be taken.
    pub(super) fn of_trouble(step: &str, trouble: Trouble, limit: Duration) -> Self {
        match trouble {
            Trouble::Late => Self::failed(
                "silent",
                format!("{step}: no answer within {limit:?}"),
                "is the server hung, or does a firewall drop what is sent to it? --timeout gives it more time",
            ),
            Trouble::Store(e) => Self::of_error(step, e),
        }
    }

    fn of_error(step: &str, error: Error) -> Self {
        let (code, remedy) = diagnosis(&error);
        let message = format!("{step}: {}", crate::failure::chain(&error.into()));
        let refused = code == NETWORK_FILE_SYSTEM;
        let level = if refused { Level::Unsafe } else { Level::Failed };
        Self { level, code, message, remedy: Some(remedy.to_owned()) }
    }

    /// The line for people: level, code, what was found, what to do.
    pub(super) fn line(&self) -> String {
        let (style, word) = (self.level.style(), self.level.word());
        let blanks = 8 - word.len();
        let remedy = self.remedy.as_ref().map(|remedy| format!(" → {remedy}")).unwrap_or_default();
        let text = printable(&format!("{:<18} {}{remedy}", self.code, self.message));
        format!("{style}{word}{style:#}{:blanks$} {text}\n", "")
    }

    /// The same for a terminal of so many columns: what was found stands below itself, and what to do on lines of
    /// its own.
    pub(super) fn lines(&self, width: usize) -> String {
        let (style, word) = (self.level.style(), self.level.word());
        let room = width.saturating_sub(INDENT).max(NARROWEST);
        let remedy = self.remedy.as_ref().map(|remedy| format!("→ {remedy}"));
        let texts = [Some(self.message.clone()), remedy].into_iter().flatten();
        let mut rows = texts.flat_map(|text| wrapped(&printable(&text), room));
        let code = printable(self.code);
        let first = rows.next().unwrap_or_default();
        let mut text = format!("{style}{word:<9}{style:#}{code:<18} {first}\n");
        for row in rows {
            text += &format!("{:INDENT$}{row}\n", "");
        }
        text
    }
}

/// The columns of level and code.
const INDENT: usize = 28;
/// What is left for words at least, however narrow the terminal is.
const NARROWEST: usize = 20;

/// The words of a text on lines of at most so many columns; a longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

const NETWORK_FILE_SYSTEM: &str = "network-file-system";

/// A code for what went wrong, and what to do about it.
fn diagnosis(error: &Error) -> (&'static str, &'static str) {
    let kind = match error {
        Error::Unavailable { .. } => ErrorKind::Unavailable,
        Error::Store(e) => e.kind,
        Error::NotAcquired { .. } => {
            return (
                "not-granted",
                "a lock of doctor's own was not granted: look at `lockkeeper ls`",
            );
        }
        Error::Lost { .. } => {
            return (
                "lost",
                "the store forgot a lock within seconds: is another program removing its data?",
            );
        }
        _ => return ("unexpected", "please report this"),
    };
    let text = error.to_string();
    match kind {
        ErrorKind::Denied if text.starts_with("sqlite") => (
            "not-writable",
            "let this user write the file and its folder (chmod, chown, a common group), or name another file",
        ),
        ErrorKind::Denied => (
            "denied",
            "check user, password and rights; password_file= keeps a password out of the URL",
        ),
        ErrorKind::Unavailable if text.contains("is a replica") || text.contains("read-only") => {
            ("replica", "connect to the primary")
        }
        ErrorKind::Unavailable => (
            "unreachable",
            "is the server running, are host and port right, and does no firewall stand between?",
        ),
        ErrorKind::Full => (
            "full",
            "make room: etcd: compact, defragment, disarm the alarm; a file: free its disk",
        ),
        ErrorKind::Misconfigured if text.contains("network file system") => (
            NETWORK_FILE_SYSTEM,
            "use a file on a local disk, or a store that is made for several machines",
        ),
        ErrorKind::Corrupt => (
            "corrupt",
            "the data was damaged or changed by others: restore it, or use another place",
        ),
        _ => ("misconfigured", "mend what the message names, and run doctor again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::StoreError;

    #[test]
    fn a_file_on_a_network_file_system_is_unsafe() {
        let what =
            "/mnt is on a network file system (NFS), where SQLite cannot lock between machines";
        let e = StoreError::not_applied("sqlite", ErrorKind::Misconfigured, what);
        let verdict = Verdict::of_error("connect", Error::Store(e));
        assert_eq!((verdict.level, verdict.code), (Level::Unsafe, NETWORK_FILE_SYSTEM));
        assert!(verdict.line().contains("local disk"), "{}", verdict.line());
    }

    #[test]
    fn each_severity_has_its_level_and_code() {
        let code = |severity| Level::from(severity).exit_code();
        assert_eq!(code(Severity::Information), 0);
        for weaker in [Severity::Performance, Severity::Availability, Severity::Durability] {
            assert_eq!(code(weaker), 1);
        }
        assert_eq!(code(Severity::Exclusion), 2);
        assert_eq!(Level::Failed.exit_code(), 3);
        assert!(Level::Unsafe > Level::Failed && Level::Failed > Level::Warning);
    }

    #[test]
    fn on_a_terminal_long_findings_stand_below_themselves() {
        let advice =
            Advice::new("eviction", Severity::Exclusion, "one two three four five", "six", "do");
        let lines = Verdict::of_advice(&advice).lines(48);
        let lines = anstream::adapter::strip_str(&lines).to_string();
        let below = " ".repeat(28);
        let wanted = format!(
            "unsafe   eviction           one two three four\n{below}five: six\n{below}→ do\n"
        );
        assert_eq!(lines, wanted);
        assert!(lines.lines().all(|line| line.width() <= 48));
    }

    #[test]
    fn a_line_has_level_code_finding_and_remedy() {
        let advice =
            Advice::new("eviction", Severity::Exclusion, "it evicts\n", "locks go", "stop it");
        let line = anstream::adapter::strip_str(&Verdict::of_advice(&advice).line()).to_string();
        assert_eq!(line, "unsafe   eviction           it evicts\\u{a}: locks go → stop it\n");
    }
}
