//! Which stores must be there, and which may be missing.

use std::env;

/// The stores whose absence is a failure rather than an ignored test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Require {
    names: Vec<String>,
}

impl Require {
    /// The environment variable that holds it.
    pub const VARIABLE: &str = "LOCKKEEPER_REQUIRE";

    /// What the environment asks for; nothing if the variable is not set.
    #[must_use]
    pub fn from_env() -> Self {
        Self::parse(&env::var(Self::VARIABLE).unwrap_or_default())
    }

    /// Names of stores with commas or spaces between them, or `all`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        Self { names: words.map(str::to_owned).collect() }
    }

    /// Whether this store must be there.
    #[must_use]
    pub fn wants(&self, store: &str) -> bool {
        self.names.iter().any(|name| name == "all" || name == store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_required_unless_said() {
        assert!(!Require::parse("").wants("redis"));
        assert!(!Require::parse("etcd").wants("redis"));
    }

    #[test]
    fn stores_are_required_by_name_or_all_at_once() {
        let some = Require::parse("etcd, redis");
        assert!(some.wants("redis") && some.wants("etcd") && !some.wants("mysql"));
        assert!(!Require::parse("redis-cluster").wants("redis"));
        assert!(Require::parse("all").wants("anything"));
    }
}
