//! In the user's own transaction.
//!
//! Thin wrappers around the functions `lk_lock` and `lk_fence_check`, which can be called from any
//! language and with any driver; `docs/sql.md` describes them.

use super::{KIND, error, schema};
use crate::{
    error::{Error, ErrorKind, Loss, Result, StoreError},
    model::{name::Name, sequencer::Sequencer},
};
use std::time::Duration;
use tokio_postgres::{
    GenericClient,
    types::{ToSql, Type},
};

/// Where the functions are: the schema of the store's URL.
#[derive(Clone, Debug)]
pub struct Schema {
    quoted: String,
}

impl Default for Schema {
    fn default() -> Self {
        Self::new("lockkeeper")
    }
}

impl Schema {
    /// The schema of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { quoted: schema::quoted(name) }
    }

    /// Takes a lock for exactly as long as the transaction lives; waits at most `wait` while it is held. Returns
    /// a number that is greater than the fence of every grant before.
    ///
    /// Other tickets wait in line meanwhile, as for any lock. The transaction must be READ COMMITTED.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if the lock did not come free in time; the transaction is then aborted,
    /// as after every error. Otherwise the database's error.
    ///
    /// # Cancel safety
    /// The transaction may have taken the lock; it releases it when it ends.
    pub async fn lock_in(
        &self,
        tx: &(impl GenericClient + Sync),
        name: impl AsRef<str> + Send,
        wait: Duration,
    ) -> Result<u64> {
        let name = Name::new(name.as_ref())?;
        let sql = format!("SELECT {}.lk_lock($1, $2)", self.quoted);
        let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        let values: [(&(dyn ToSql + Sync), Type); 2] =
            [(&name.as_str(), Type::TEXT), (&wait_ms, Type::INT8)];
        match tx.query_typed(&sql, &values).await {
            Ok(rows) => fence(&rows),
            Err(e) if code(&e) == "LK001" => Err(Error::NotAcquired { name, waited: wait }),
            Err(e) => Err(error::error(e).into()),
        }
    }

    /// Makes sure that the sequencer's grant is held until the transaction ends: the transaction's writes and
    /// the ownership check are one atomic step. The next ticket waits for the transaction, and so does a
    /// release of the guard itself: commit first.
    ///
    /// # Errors
    /// [`Error::Lost`] if the grant is not held any more; the transaction is then aborted. Otherwise the
    /// database's error.
    ///
    /// # Cancel safety
    /// The transaction may keep the grant from ending until it ends itself.
    pub async fn fence_check(
        &self,
        tx: &(impl GenericClient + Sync),
        sequencer: &Sequencer,
    ) -> Result<()> {
        let claim = sequencer.claim();
        let sql = format!("SELECT {}.lk_fence_check($1, $2, $3)", self.quoted);
        let (ticket, fence) = (claim.ticket.to_bytes(), claim.fence.cast_signed());
        let values: [(&(dyn ToSql + Sync), Type); 3] =
            [(&claim.name.as_str(), Type::TEXT), (&&ticket[..], Type::BYTEA), (&fence, Type::INT8)];
        match tx.query_typed(&sql, &values).await {
            Ok(_) => Ok(()),
            Err(e) if code(&e) == "LK003" => {
                Err(Error::Lost { name: claim.name.clone(), why: Loss::Expired })
            }
            Err(e) => Err(error::error(e).into()),
        }
    }
}

/// [`Schema::lock_in`] with the schema that URLs have by default.
///
/// # Errors
/// As there.
///
/// # Cancel safety
/// As there.
pub async fn lock_in(
    tx: &(impl GenericClient + Sync),
    name: impl AsRef<str> + Send,
    wait: Duration,
) -> Result<u64> {
    Schema::default().lock_in(tx, name, wait).await
}

/// [`Schema::fence_check`] with the schema that URLs have by default.
///
/// # Errors
/// As there.
///
/// # Cancel safety
/// As there.
pub async fn fence_check(tx: &(impl GenericClient + Sync), sequencer: &Sequencer) -> Result<()> {
    Schema::default().fence_check(tx, sequencer).await
}

fn code(e: &tokio_postgres::Error) -> &str {
    e.code().map_or("", |code| code.code())
}

fn fence(rows: &[tokio_postgres::Row]) -> Result<u64> {
    let fence = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
    fence.map(i64::cast_unsigned).ok_or_else(|| {
        StoreError::unknown(KIND, ErrorKind::Corrupt, "the server's answer has no fence").into()
    })
}
