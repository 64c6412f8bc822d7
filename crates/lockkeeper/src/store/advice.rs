//! What about a server's set-up can hurt locks.

use std::fmt;

/// The worst that can come of what an [`Advice`] names. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing; no promise suffers.
    Information,
    /// Locks are slower than they could be.
    Performance,
    /// Locks cannot be taken or renewed, or soon cannot. A lock that is lost for it goes to no second holder
    /// before the first has stopped believing.
    Availability,
    /// A crash, a restart or a failover of the server can forget locks whose holders live: afterwards two can
    /// hold one lock, until the first of them renews.
    Durability,
    /// Two can hold one lock although no server has failed.
    Exclusion,
}

impl Severity {
    /// In one word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Information => "information",
            Self::Performance => "performance",
            Self::Availability => "availability",
            Self::Durability => "durability",
            Self::Exclusion => "exclusion",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something about a store's set-up that its users should know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Advice {
    /// What it is about, for programs: `eviction`, `replica`, `clock-skew`. A code never changes its meaning.
    pub code: &'static str,
    /// The worst that can come of it.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What can happen because of it.
    pub consequence: String,
    /// What to do about it.
    pub remedy: String,
}

impl Advice {
    /// What was found, what can happen because of it, and what to do about it.
    pub fn new(
        code: &'static str,
        severity: Severity,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (what, consequence, remedy) = (what.into(), consequence.into(), remedy.into());
        Self { code, severity, what, consequence, remedy }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.consequence, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_exclusion_is_the_worst() {
        use Severity::{Availability, Durability, Exclusion, Information, Performance};
        assert!([Information, Performance, Availability, Durability, Exclusion].is_sorted());
    }
}
