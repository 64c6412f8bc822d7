//! The rights that the user lacks, with the statement that grants them.

use super::{KIND, connection::Connections, error, reply, schema::with_prefix};
use crate::{
    error::{ErrorKind, StoreError},
    store::StoreResult,
};

/// Each right with a statement that needs it and changes nothing.
const TRIALS: [(&str, &str); 4] = [
    ("SELECT", "SELECT 1 FROM lk_session WHERE FALSE"),
    ("INSERT", "INSERT INTO lk_closed SELECT * FROM lk_closed WHERE FALSE"),
    ("UPDATE", "UPDATE lk_session SET ttl = ttl WHERE FALSE"),
    ("DELETE", "DELETE FROM lk_closed WHERE FALSE"),
];
/// This call answers every user who may call it with an error of the procedure's own.
const CALL: &str = "CALL lk_fence_check(NULL, '', '', 0)";

/// The rights that making the tables needs besides. ALTER and DROP are for the tables of an older layout.
pub(super) const MAKING: &str = "CREATE, ALTER, DROP, CREATE ROUTINE, ALTER ROUTINE";

/// Tries the rights that locks need, after the tables were found or made, or were not for lack of a right.
pub(super) async fn check<T>(
    connections: &Connections,
    prefix: &str,
    ensured: StoreResult<T>,
) -> StoreResult<T> {
    if ensured.as_ref().is_err_and(|e| e.kind != ErrorKind::Denied) {
        return ensured;
    }
    let missing = missing(connections, prefix).await?;
    let (e, rights) = match ensured {
        Ok(ensured) if missing.is_empty() => return Ok(ensured),
        Ok(_) => {
            let what = format!("the user lacks {missing}");
            (StoreError::not_applied(KIND, ErrorKind::Denied, what), missing.as_str())
        }
        Err(e) if error::needs_system_right(&e) => return Err(e),
        Err(e) if missing.is_empty() => (e, MAKING),
        Err(e) => (e, missing.as_str()),
    };
    Err(with_grant(connections, e, rights).await)
}

/// The rights that are missing, with commas between them.
async fn missing(connections: &Connections, prefix: &str) -> StoreResult<String> {
    let mut missing = Vec::new();
    for (right, trial) in TRIALS {
        match connections.once(&with_prefix(prefix, trial)).await {
            Err(e) if e.kind == ErrorKind::Denied => missing.push(right),
            // There is no table yet, or the server takes no writes: other errors report that.
            Err(_) => break,
            Ok(_) => {}
        }
    }
    let called = connections.once(&with_prefix(prefix, CALL)).await;
    if called.is_err_and(|e| error::code(&e) == Some(1370)) {
        missing.push("EXECUTE");
    }
    Ok(missing.join(", "))
}

/// The error, with the statement that would have helped.
async fn with_grant(connections: &Connections, mut e: StoreError, rights: &str) -> StoreError {
    if let Ok((account, database)) = grantee(connections).await {
        e.what.push_str(&format!("; GRANT {rights} ON {database}.* TO {account}"));
    }
    e
}

/// The account that the server takes us for, and the database, as a GRANT names them.
async fn grantee(connections: &Connections) -> StoreResult<(String, String)> {
    let row = reply::one(
        connections.once("SELECT CURRENT_USER() AS account, DATABASE() AS place").await?,
    )?;
    let (account, place): (String, String) =
        (reply::field(&row, "account")?, reply::field(&row, "place")?);
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    // In a GRANT an underscore stands for any character.
    let place = place.replace('`', "``").replace('_', "\\_");
    Ok((format!("{}@{}", quoted(user), quoted(host)), format!("`{place}`")))
}
