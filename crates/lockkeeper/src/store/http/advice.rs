//! What about the way to the service can hurt locks.

use super::Http;
use crate::store::{Advice, Severity};

impl Http {
    /// What travels to the service unprotected, and that its store is to be looked at elsewhere.
    pub(super) fn find_advice(&self) -> Vec<Advice> {
        let mut found = vec![not_shown()];
        found.extend(self.client.shows_secrets_on_the_way().then(in_the_clear));
        found
    }
}

fn not_shown() -> Advice {
    Advice::new(
        "not-shown",
        Severity::Information,
        "the set-up of the store behind the service is not looked at from here",
        "what could hurt locks there is not known here",
        "run lockkeeper doctor with the URL of the service's own store",
    )
}

fn in_the_clear() -> Advice {
    Advice::new(
        "no-tls",
        Severity::Exclusion,
        "the service is on another machine and is spoken to without TLS",
        "the token and the secrets of sessions can be read on the way, and used to end locks or take them over",
        "let the service or a proxy before it serve TLS, and write lockkeeper+https://",
    )
}
