//! Which rights the user lacks, and the statement that grants them.

use super::{KIND, connection::Link, error, reply, schema};
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
/// This one answers with an error of its own to whoever may call it.
const CALL: &str = "CALL lk_fence_check(NULL, '', '', 0)";

/// What the first to connect needs besides. ALTER and DROP are for the tables of an older layout.
pub(super) const MAKING: &str = "CREATE, ALTER, DROP, CREATE ROUTINE, ALTER ROUTINE";

/// Tries the rights that locks need, after the tables were made or found: or were not, for lack of a
/// right.
pub(super) async fn check<T>(
    link: &Link,
    prefix: &str,
    prepared: StoreResult<T>,
) -> StoreResult<T> {
    if prepared.as_ref().is_err_and(|e| e.kind != ErrorKind::Denied) {
        return prepared;
    }
    let missing = missing(link, prefix).await?;
    match prepared {
        Ok(prepared) if missing.is_empty() => Ok(prepared),
        Ok(_) => {
            let what = format!("the user lacks {missing}");
            Err(granted_by(link, StoreError::not_applied(KIND, ErrorKind::Denied, what), &missing)
                .await)
        }
        Err(e) if error::is_for_the_system(&e) => Err(e),
        Err(e) if missing.is_empty() => Err(granted_by(link, e, MAKING).await),
        Err(e) => Err(granted_by(link, e, &missing).await),
    }
}

/// The rights that are missing, with commas between them.
async fn missing(link: &Link, prefix: &str) -> StoreResult<String> {
    let mut missing = Vec::new();
    for (right, trial) in TRIALS {
        match link.once(&schema::named(prefix, trial)).await {
            Err(e) if e.kind == ErrorKind::Denied => missing.push(right),
            // There is no table yet, or the server takes no writes: that is for others to say.
            Err(_) => break,
            Ok(_) => {}
        }
    }
    let called = link.once(&schema::named(prefix, CALL)).await;
    if called.is_err_and(|e| error::code(&e) == Some(1370)) {
        missing.push("EXECUTE");
    }
    Ok(missing.join(", "))
}

/// The error, with the statement that would have helped.
async fn granted_by(link: &Link, mut e: StoreError, rights: &str) -> StoreError {
    if let Ok((account, database)) = who_and_where(link).await {
        e.what.push_str(&format!("; GRANT {rights} ON {database}.* TO {account}"));
    }
    e
}

/// The account that the server takes us for, and the database, as they stand in a GRANT.
async fn who_and_where(link: &Link) -> StoreResult<(String, String)> {
    let row =
        reply::one(link.once("SELECT CURRENT_USER() AS account, DATABASE() AS place").await?)?;
    let (account, place): (String, String) =
        (reply::field(&row, "account")?, reply::field(&row, "place")?);
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    // There an underscore stands for any character.
    let place = place.replace('`', "``").replace('_', "\\_");
    Ok((format!("{}@{}", quoted(user), quoted(host)), format!("`{place}`")))
}
