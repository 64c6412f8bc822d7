//! `lockkeeper migrate`: tables and functions in a database, made or printed.

use crate::{cli::Common, failure::Failure, store};
use lockkeeper::Keeper;

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper --store prod migrate                 make or update the tables
  lockkeeper --store prod migrate --print >lk.sql
                                                  let a DBA run the statements";

/// The statements, or the word that they were run.
pub(crate) async fn migrate(print: bool, common: &Common) -> Result<String, Failure> {
    let url = store::url(common.store.as_deref())?;
    let script = lockkeeper::store::migration(&url)?;
    if print {
        return Ok(script);
    }
    Keeper::connect(&url).await?.close().await;
    Ok("the store is up to date\n".to_owned())
}
