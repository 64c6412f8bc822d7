//! Names of keys.

use super::{Redlock, flavour::Flavour, handshake::BOOT};
use crate::{error::ErrorKind, model::name::Name, store::StoreResult};

impl Redlock {
    pub(super) fn key(&self, name: &Name) -> String {
        match self.flavour {
            Flavour::Fenced => format!("{}:rl:{name}", self.prefix),
            Flavour::Plain => name.to_string(),
        }
    }

    /// The closed tickets of a name.
    pub(super) fn closed_key(&self, name: &Name) -> String {
        format!("{}:rl-closed:{name}", self.prefix)
    }

    /// The names that are held.
    pub(super) fn index(&self) -> String {
        format!("{}:rl-index", self.prefix)
    }

    /// The keys of the quarantine. Plain strings have no quarantine; their scripts get a key in their place
    /// that they use in any case.
    pub(super) fn quarantine_keys(&self) -> [String; 2] {
        match &self.nodes.agreement {
            Some(agreement) => [BOOT.to_owned(), agreement.key.clone()],
            None => [self.index(), self.index()],
        }
    }

    /// A plain string of such a name would overwrite keys of ours.
    pub(super) fn allows(&self, name: &Name) -> StoreResult<()> {
        let own = format!("{}:", self.prefix);
        let reserved = [&own[..], "lk:", "lockkeeper:"];
        let taken = reserved.into_iter().find(|prefix| name.as_str().starts_with(prefix));
        let Some(prefix) = taken.filter(|_| self.flavour == Flavour::Plain) else { return Ok(()) };
        let what = format!(
            "with compat=string a lock's key is its name, and {name:?} begins with {prefix:?}: keys of \
             lockkeeper itself begin so"
        );
        Err(self.refused(ErrorKind::Name, what))
    }
}
