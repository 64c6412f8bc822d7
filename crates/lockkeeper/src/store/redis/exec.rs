//! Running scripts and commands.
//!
//! When a key under our prefix holds something else, the server says only that some key has the wrong type.
//! [`explained`] then asks for the types and names the key; that costs a few commands more, only in that case.

use super::{
    KIND, Redis,
    connection::Connection,
    keys::Keys,
    reply::{Entry, hex},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::StoreResult,
};
use redis::{Cmd, FromRedisValue, Script, ToRedisArgs};

/// A script with its keys and arguments, ready to be sent, as often as need be.
pub(in crate::store) struct Call {
    pub(super) script: &'static Script,
    pub(super) command: Cmd,
}

impl Call {
    pub(in crate::store) fn new(script: &'static Script, keys: &[impl AsRef<str>]) -> Self {
        // Room for the keys, and for the arguments of most calls, which repeat the name.
        let bytes: usize = keys.iter().map(|key| key.as_ref().len()).sum();
        let mut command = Cmd::with_capacity(keys.len() + 14, 512 + 2 * bytes);
        command.arg("EVALSHA").arg(script.get_hash()).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        Self { script, command }
    }

    /// Over the line of a name; the ticket is the first argument behind the name.
    pub(super) fn over_line(
        script: &'static Script,
        keys: &Keys,
        (name, ticket): (&Name, TicketId),
        more_keys: &[&str],
    ) -> Self {
        let [order, tickets] = keys.line(name);
        let Keys { ends, sessions, numbers, own, .. } = keys;
        let line: [&str; 6] = [ends, sessions, numbers, own, &order, &tickets];
        let mut call = Self::new(script, &[&line, more_keys].concat());
        call.arg(name.as_str()).arg(ticket.to_string());
        call
    }

    /// Over a whole bucket, and the lines of these entries.
    pub(super) fn over_bucket(
        script: &'static Script,
        keys: &Keys,
        session: SessionId,
        numbers: &[u64],
        entries: &[Entry],
    ) -> Self {
        let bucket = keys.bucket().map(str::to_owned).into_iter();
        let lines = entries.iter().flat_map(|entry| keys.line(&entry.name));
        let mut call = Self::new(script, &bucket.chain(lines).collect::<Vec<_>>());
        call.arg(hex(session)).arg(numbers);
        for Entry { session, ticket, name } in entries {
            call.arg(name.as_str()).arg(ticket).arg(session);
        }
        call
    }

    pub(in crate::store) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.command.arg(arg);
        self
    }
}

impl Redis {
    /// Runs a script over keys of this bucket and this name.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        keys: &Keys,
        name: Option<&Name>,
        call: &Call,
    ) -> StoreResult<T> {
        match self.connection.run(call).await {
            Err(e) => Err(explained(&self.connection, e, keys.types(name)).await),
            reply => reply,
        }
    }
}

/// The error, with the key that has caused it, if one of these has another type than locks keep there.
pub(super) async fn explained(
    connection: &Connection,
    e: StoreError,
    types: impl IntoIterator<Item = (String, &'static str)>,
) -> StoreError {
    if e.kind != ErrorKind::Misconfigured {
        return e;
    }
    for (key, wanted) in types {
        match connection.query::<String>(redis::cmd("TYPE").arg(&key)).await {
            Ok(found) if found != "none" && found != wanted => {
                let what = format!(
                    "the key {key:?} holds a {found}, where locks keep a {wanted}; remove it, or \
                     choose another prefix="
                );
                let outcome = e.outcome;
                let named = StoreError::not_applied(KIND, e.kind, what);
                return StoreError { outcome, ..named }.because(e);
            }
            Ok(_) => {}
            // The user may lack the right to ask for types. Then the server's own words must do.
            Err(_) => return e,
        }
    }
    e
}
