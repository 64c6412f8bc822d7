//! Locks inside the user's own transactions: thin wrappers of procedures that any program can call.
//!
//! [`lock_in`] takes a lock that lives exactly as long as the transaction. [`fence_check`] makes
//! the commit of the user's data and the check that a lock is still held one atomic step:
//!
//! ```no_run
//! # async fn pay(keeper: lockkeeper::Keeper, pool: mysql_async::Pool) -> Result<(), Box<dyn std::error::Error>> {
//! use lockkeeper::store::mysql::tx;
//! use mysql_async::{TxOpts, prelude::Queryable};
//!
//! let guard = keeper.lock("account/7").await?;
//! let mut connection = pool.get_conn().await?;
//! let mut tx = connection.start_transaction(TxOpts::new()).await?;
//! tx.query_drop("UPDATE account SET paid = 1 WHERE id = 7").await?;
//! tx::fence_check(&mut tx, &guard.sequencer()).await?;   // or another has the lock by now
//! tx.commit().await?;                                    // and nobody gets it before this
//! # Ok(())
//! # }
//! ```

use super::schema;
use crate::{Name, Sequencer};
use mysql_async::{Row, Value, prelude::Queryable};
use std::time::Duration;

/// Why a transaction should be rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError {
    /// The lock is held by others, and did not come free in time.
    #[error("the lock is held by others")]
    Held,
    /// The transaction has read before something was granted, so it cannot tell how the lock stands
    /// now: begin it again, take the lock first, or use READ COMMITTED.
    #[error("the transaction's snapshot is older than the lock; take the lock first")]
    OldSnapshot,
    /// The grant is over: another may have the lock.
    #[error("the lock is not held any more")]
    Lost,
    /// The server or the connection has failed.
    #[error("mysql: {0}")]
    Mysql(#[source] mysql_async::Error),
}

impl From<mysql_async::Error> for TxError {
    fn from(e: mysql_async::Error) -> Self {
        match &e {
            mysql_async::Error::Server(said) => match said.state.as_str() {
                "LK001" => Self::Held,
                "LK002" => Self::OldSnapshot,
                "LK003" => Self::Lost,
                _ => Self::Mysql(e),
            },
            _ => Self::Mysql(e),
        }
    }
}

/// The procedures of a store, for those whose URL has a `prefix=`.
#[derive(Clone, Debug)]
pub struct Procedures {
    lock: String,
    fence_check: String,
}

impl Default for Procedures {
    fn default() -> Self {
        Self::with_prefix("lk")
    }
}

impl Procedures {
    /// The procedures of the store whose URL says `prefix=` so.
    #[must_use]
    pub fn with_prefix(prefix: &str) -> Self {
        Self {
            lock: schema::named(prefix, "CALL lk_lock(?, ?)"),
            fence_check: schema::named(prefix, "CALL lk_fence_check(?, ?, ?, ?)"),
        }
    }

    /// As [`lock_in`].
    ///
    /// # Errors
    /// As [`lock_in`].
    pub async fn lock_in<C: Queryable>(
        &self,
        tx: &mut C,
        name: &Name,
        wait: Duration,
    ) -> Result<u64, TxError> {
        let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(3_600_000);
        let params: Vec<Value> = vec![name.as_str().as_bytes().into(), wait.into()];
        let row: Option<Row> = tx.exec_first(self.lock.as_str(), params).await?;
        row.and_then(|row| row.get_opt(0)?.ok()).ok_or(TxError::Held)
    }

    /// As [`fence_check`].
    ///
    /// # Errors
    /// As [`fence_check`].
    pub async fn fence_check<C: Queryable>(
        &self,
        tx: &mut C,
        sequencer: &Sequencer,
    ) -> Result<(), TxError> {
        let claim = sequencer.claim();
        let params: Vec<Value> = vec![
            sequencer.store().0.as_slice().into(),
            claim.name.as_str().as_bytes().into(),
            claim.ticket.to_bytes().as_slice().into(),
            claim.fence.into(),
        ];
        let held: Option<Row> = tx.exec_first(self.fence_check.as_str(), params).await?;
        held.map(drop).ok_or(TxError::Lost)
    }
}

/// Takes the lock for as long as the transaction lives, and says its fence. Who asks for it
/// meanwhile waits in line; who stands in line already is not overtaken.
///
/// Waits at most `wait` for those who hold the lock, and for another transaction that has it as long
/// as `innodb_lock_wait_timeout` says.
///
/// # Errors
/// [`TxError::Held`], [`TxError::OldSnapshot`], or the server's error. The transaction should then be
/// rolled back.
///
/// # Cancel safety
/// Dropping the future leaves the transaction in an unknown state: drop the connection too.
pub async fn lock_in<C: Queryable>(
    tx: &mut C,
    name: &Name,
    wait: Duration,
) -> Result<u64, TxError> {
    Procedures::default().lock_in(tx, name, wait).await
}

/// Makes sure that a grant is still held, and that nobody else is granted the lock before the
/// transaction has ended. Locks the ticket's row alone: renewals go on.
///
/// # Errors
/// [`TxError::Lost`] if the grant is over, or the server's error. The transaction should then be
/// rolled back.
///
/// # Cancel safety
/// Dropping the future leaves the transaction in an unknown state: drop the connection too.
pub async fn fence_check<C: Queryable>(tx: &mut C, sequencer: &Sequencer) -> Result<(), TxError> {
    Procedures::default().fence_check(tx, sequencer).await
}
