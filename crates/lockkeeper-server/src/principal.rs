//! What a caller may do.

use crate::problem::Problem;
use lockkeeper::{Name, store::ListScope};
use percent_encoding::percent_decode_str;
use std::{
    fmt,
    str::FromStr,
    sync::{Arc, LazyLock},
};

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Nothing: probes, and the console's own files.
    Open,
    /// To look: listings, events, checks, values of cells.
    Read,
    /// To take locks and to write cells. A principal that may lock a name may also look at it.
    Lock,
    /// To evict, and to see the store and the metrics. A principal that may do so for a name may also look at it.
    Admin,
}

/// The names for which a scope is given: `*`, `jobs/*`, or one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

/// One scope for some names, as a line of the file of principals has it: `lock:jobs/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    scope: Scope,
    names: Pattern,
}

/// The caller of a request, as an extension of it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal(Arc<Rights>);

#[derive(Debug, PartialEq, Eq)]
struct Rights {
    name: String,
    grants: Vec<Grant>,
    credential: CredentialId,
}

/// Which credential has admitted the caller: one that was admitted by a token is another one than its successor with a
/// fresh token, so that the streams of a token end with it. Sessions and limits go by the name alone.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CredentialId([u8; 32]);

impl CredentialId {
    pub(crate) fn new(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialId(hidden)")
    }
}

static EVERYTHING: LazyLock<Principal> = LazyLock::new(|| {
    let names = Pattern { text: String::new(), is_prefix: true };
    let all = [Scope::Read, Scope::Lock, Scope::Admin];
    let grants = all.map(|scope| Grant { scope, names: names.clone() });
    Principal::new(String::new(), grants.into())
});

impl Principal {
    pub(crate) fn new(name: String, grants: Vec<Grant>) -> Self {
        Self::admitted(name, grants, CredentialId::default())
    }

    pub(crate) fn admitted(name: String, grants: Vec<Grant>, credential: CredentialId) -> Self {
        Self(Arc::new(Rights { name, grants, credential }))
    }

    /// A caller that may do everything: without authentication, every caller.
    #[must_use]
    pub fn everything() -> Self {
        EVERYTHING.clone()
    }

    /// Its name; empty without authentication.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// May it use routes of this scope at all, for some name?
    #[must_use]
    pub fn has(&self, scope: Scope) -> bool {
        scope == Scope::Open || self.patterns(scope).next().is_some()
    }

    /// May it do this with every lock? Needed for what says something about all of them.
    #[must_use]
    pub fn has_all(&self, scope: Scope) -> bool {
        scope == Scope::Open
            || self.patterns(scope).any(|names| names.is_prefix && names.text.is_empty())
    }

    /// May it do this with this lock?
    #[must_use]
    pub fn may(&self, scope: Scope, name: &Name) -> bool {
        scope == Scope::Open || self.patterns(scope).any(|names| names.has(name.as_str()))
    }

    /// The prefixes of all names with which it may do this, within those that begin with `within`: none contains
    /// another one. A name that begins with one of them still has to be asked about ([`may`](Self::may)), for a
    /// principal can have single names.
    #[must_use]
    pub fn prefixes(&self, scope: Scope, within: &str) -> Vec<String> {
        if scope == Scope::Open {
            return vec![within.to_owned()];
        }
        shortest(self.patterns(scope).filter_map(|names| names.within(within)).collect())
    }

    fn patterns(&self, scope: Scope) -> impl Iterator<Item = &Pattern> {
        let gives = move |grant: &&Grant| grant.scope == scope || scope == Scope::Read;
        self.0.grants.iter().filter(gives).map(|grant| &grant.names)
    }

    /// What shows all names with which it may do this, within those that begin with `within`, and no other name: in the
    /// order of the names, none twice.
    pub(crate) fn listings(&self, scope: Scope, within: &str) -> Vec<ListScope> {
        let prefixes = self.patterns(scope).filter(|names| names.is_prefix);
        let prefixes = shortest(prefixes.filter_map(|names| names.within(within)).collect());
        let is_covered = |text: &str| prefixes.iter().any(|prefix| text.starts_with(prefix));
        let names = self.patterns(scope).filter(|names| !names.is_prefix);
        let mut names: Vec<&str> = names.filter_map(|names| names.within(within)).collect();
        names.retain(|name| !is_covered(name));
        names.sort_unstable();
        names.dedup();
        // No name begins with one of the prefixes, so all names of a prefix stand together in the order.
        let exact = names.into_iter().filter_map(|name| Name::new(name).ok());
        let mut all: Vec<ListScope> = exact.map(ListScope::Exact).collect();
        let of = |prefix: &String| ListScope::Prefix { prefix: prefix.clone(), after: None };
        all.extend(prefixes.iter().map(of));
        all.sort_by(|one, other| text(one).cmp(text(other)));
        all
    }

    /// The same as a result.
    ///
    /// # Errors
    /// `denied`.
    pub(crate) fn require(&self, scope: Scope, name: &Name) -> Result<(), Problem> {
        match self.may(scope, name) {
            true => Ok(()),
            false => Err(Problem::denied(scope)),
        }
    }
}

/// Those that cover all others.
fn shortest(mut all: Vec<&str>) -> Vec<String> {
    all.sort_unstable();
    // In the order of bytes, all texts with a prefix stand directly behind it.
    let mut shortest: Vec<String> = Vec::new();
    for prefix in all {
        if shortest.last().is_none_or(|last| !prefix.starts_with(last.as_str())) {
            shortest.push(prefix.to_owned());
        }
    }
    shortest
}

fn text(listing: &ListScope) -> &str {
    match listing {
        ListScope::Exact(name) => name.as_str(),
        ListScope::Prefix { prefix, .. } => prefix,
    }
}

impl Pattern {
    fn has(&self, name: &str) -> bool {
        if self.is_prefix { name.starts_with(&self.text) } else { name == self.text }
    }

    /// The longer one of this and `prefix`, if names with both can be.
    fn within<'a>(&'a self, prefix: &'a str) -> Option<&'a str> {
        if self.text.starts_with(prefix) {
            return Some(&self.text);
        }
        (self.is_prefix && prefix.starts_with(&self.text)).then_some(prefix)
    }
}

impl FromStr for Grant {
    type Err = &'static str;

    /// `read`, `read:*`, `lock:jobs/*`, `admin:nightly`; a blank, a star or a percent sign of a name is written as in
    /// URLs (`%20`, `%2A`, `%25`).
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (scope, names) = text.split_once(':').unwrap_or((text, "*"));
        let scope = match scope {
            "read" => Scope::Read,
            "lock" => Scope::Lock,
            "admin" => Scope::Admin,
            _ => {
                return Err(
                    "a scope is read, lock or admin, alone or with names, as in lock:jobs/*",
                );
            }
        };
        let (text, is_prefix) = match names.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (names, false),
        };
        if text.contains('*') {
            return Err(
                "a star stands only at the end of names, as in lock:jobs/*; write %2A for a name's own",
            );
        }
        let decoded = percent_decode_str(text).decode_utf8();
        let text = decoded.map_err(|_| "the names of a scope are not UTF-8")?.into_owned();
        if !is_prefix && Name::new(&text).is_err() {
            return Err(
                "behind the colon stands a name, the beginning of names with a star, or a star",
            );
        }
        Ok(Self { scope, names: Pattern { text, is_prefix } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(scopes: &str) -> Principal {
        let grants = scopes.split(' ').map(|scope| scope.parse().unwrap()).collect();
        Principal::new("ci".to_owned(), grants)
    }

    fn may(principal: &Principal, scope: Scope, name: &str) -> bool {
        principal.may(scope, &Name::new(name).unwrap())
    }

    #[test]
    fn a_scope_reaches_no_further_than_its_names() {
        let ci = principal("lock:jobs/* read:web admin:jobs/old");
        assert!(may(&ci, Scope::Lock, "jobs/a") && may(&ci, Scope::Read, "jobs/a"));
        assert!(may(&ci, Scope::Read, "web") && !may(&ci, Scope::Lock, "web"));
        assert!(!may(&ci, Scope::Read, "web2") && !may(&ci, Scope::Read, "jobs"));
        assert!(may(&ci, Scope::Admin, "jobs/old") && !may(&ci, Scope::Admin, "jobs/older"));
        let admin = principal("admin");
        assert!(may(&admin, Scope::Read, "a") && !may(&admin, Scope::Lock, "a"));
        assert!(admin.has_all(Scope::Admin) && !ci.has_all(Scope::Admin));
        assert!(ci.has(Scope::Admin) && !admin.has(Scope::Lock));
        assert!(!principal("read").has(Scope::Admin) && !principal("read").has(Scope::Lock));
    }

    #[test]
    fn the_prefixes_cover_all_names_once() {
        let ci = principal("lock:jobs/* read:jobs/a/* read:web");
        assert_eq!(ci.prefixes(Scope::Read, ""), ["jobs/", "web"]);
        assert_eq!(ci.prefixes(Scope::Lock, "jobs/b"), ["jobs/b"]);
        assert_eq!(ci.prefixes(Scope::Read, "j"), ["jobs/"]);
        assert!(
            ci.prefixes(Scope::Read, "webs").is_empty() && ci.prefixes(Scope::Admin, "").is_empty()
        );
        assert_eq!(Principal::everything().prefixes(Scope::Admin, ""), [""]);
    }

    #[test]
    fn a_listing_shows_all_names_and_no_other() {
        let ci = principal("lock:jobs/* read:jobs/a/* read:web read:web/* read:jobs/z read:a");
        let all = ci.listings(Scope::Read, "");
        let texts: Vec<_> = all.iter().map(|of| (text(of), is_exact(of))).collect();
        assert_eq!(texts, [("a", true), ("jobs/", false), ("web", true), ("web/", false)]);
        let within = ci.listings(Scope::Read, "web/b");
        assert!(within.len() == 1 && text(&within[0]) == "web/b" && !is_exact(&within[0]));
    }

    fn is_exact(listing: &ListScope) -> bool {
        matches!(listing, ListScope::Exact(_))
    }

    #[test]
    fn names_are_written_as_in_urls() {
        let ci = principal("lock:a%20b%2A read:%25*");
        assert!(may(&ci, Scope::Lock, "a b*") && !may(&ci, Scope::Lock, "a b"));
        assert!(may(&ci, Scope::Read, "%x"));
        for bad in ["", "write", "lock:", "lock:a*b", "lock:**", "lock:%ff", "Lock", "open:*"] {
            assert!(bad.parse::<Grant>().is_err(), "{bad}");
        }
    }
}
