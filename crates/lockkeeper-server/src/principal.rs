//! What a caller may do.

use crate::problem::Problem;
use lockkeeper::Name;
use std::sync::Arc;

/// What a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Nothing: probes, and the console's own files.
    Open,
    /// To look: listings, events, checks, values of cells.
    Read,
    /// To take locks and to write cells. A principal that may lock a name may also look at it.
    Lock,
    /// To evict, and to see the store and the metrics.
    Admin,
}

/// The caller of a request, as an extension of it.
#[derive(Clone, Debug)]
pub struct Principal {
    name: Arc<str>,
}

impl Principal {
    /// A caller that may do everything: without authentication, every caller.
    #[must_use]
    pub fn everything() -> Self {
        Self { name: "".into() }
    }

    /// Its name; empty without authentication.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// May it use routes of this scope at all, for some name?
    #[must_use]
    pub fn has(&self, scope: Scope) -> bool {
        let _ = scope;
        true
    }

    /// May it do this with this lock?
    #[must_use]
    pub fn may(&self, scope: Scope, name: &Name) -> bool {
        let _ = name;
        self.has(scope)
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
