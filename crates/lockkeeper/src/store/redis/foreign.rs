//! Keys under our prefix that hold something else: which one it is, and what to do about it.
//!
//! The server says only that some key has the wrong type. To find out which costs a few commands more,
//! and only when something is wrong.

use super::{KIND, Redis, keys::Keys, link::Link};
use crate::{
    error::{ErrorKind, StoreError},
    model::name::Name,
    store::StoreResult,
};
use redis::{Cmd, FromRedisValue, Script, ScriptInvocation};

impl Redis {
    /// Runs a script over keys of this bucket and this name.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        keys: &Keys,
        name: Option<&Name>,
        script: &ScriptInvocation<'_>,
    ) -> StoreResult<T> {
        match self.link.run(script).await {
            Err(e) => Err(explained(&self.link, e, keys.kinds(name)).await),
            answer => answer,
        }
    }

    /// The same by a command that is made already.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        call: &Cmd,
        name: &Name,
    ) -> StoreResult<T> {
        match self.link.call(script, call).await {
            Err(e) => Err(explained(&self.link, e, self.keys(name).kinds(Some(name))).await),
            answer => answer,
        }
    }
}

/// The error, with the key that has caused it, if one of these has.
pub(super) async fn explained(
    link: &Link,
    e: StoreError,
    kinds: impl IntoIterator<Item = (String, &'static str)>,
) -> StoreError {
    if e.kind != ErrorKind::Misconfigured {
        return e;
    }
    for (key, wanted) in kinds {
        match link.query::<String>(redis::cmd("TYPE").arg(&key)).await {
            Ok(found) if found != "none" && found != wanted => {
                let what = format!(
                    "the key {key:?} holds a {found}, where locks keep a {wanted}; remove it, or \
                     choose another prefix="
                );
                return StoreError {
                    outcome: e.outcome,
                    ..StoreError::not_applied(KIND, e.kind, what)
                }
                .because(e);
            }
            Ok(_) => {}
            // Then the server's words must do.
            Err(_) => return e,
        }
    }
    e
}
