//! The rights that the user lacks, with the statements that grant them.

use super::{connection::Connection, reply::get, statements::Statements};
use crate::{
    error::{ErrorKind, StoreError},
    store::{StoreResult, common::repeat::Repeat},
};

/// Each missing right, and the statement that grants it.
pub(super) async fn missing(
    requests: &Connection,
    statements: &Statements,
    schema: &str,
) -> StoreResult<Vec<(String, String)>> {
    let rows = requests.call(&statements.rights, &[&schema], Repeat::Always).await?;
    rows.iter().map(|row| Ok((get(row, "privilege")?, get(row, "remedy")?))).collect()
}

/// The error, with what to grant if it is about rights.
pub(super) async fn explain(
    mut e: StoreError,
    requests: &Connection,
    statements: &Statements,
    schema: &str,
) -> StoreError {
    if e.kind == ErrorKind::Denied
        && let Ok(missing) = missing(requests, statements, schema).await
    {
        for (_, statement) in missing {
            e.what.push_str("; ");
            e.what.push_str(&statement);
        }
    }
    e
}
