//! In the user's own transaction.
//!
//! Thin wrappers around the procedures `lk_lock` and `lk_fence_check`, which can be called from any
//! language and with any driver; `docs/mysql.md` describes them.

use super::{KIND, error, schema};
use crate::{
    error::{Error, ErrorKind, Loss, Result, StoreError},
    model::{name::Name, sequencer::Sequencer},
};
use mysql_async::{Row, Value, prelude::Queryable};
use std::time::Duration;

/// The procedures of a store, whose names begin with the prefix of its URL.
#[derive(Clone, Debug)]
pub struct Procedures {
    lock: String,
    fence_check: String,
}

impl Default for Procedures {
    fn default() -> Self {
        Self::new("lk")
    }
}

impl Procedures {
    /// The procedures with this prefix.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self {
            lock: schema::with_prefix(prefix, "CALL lk_lock(?, ?)"),
            fence_check: schema::with_prefix(prefix, "CALL lk_fence_check(?, ?, ?, ?)"),
        }
    }

    /// Takes a lock for exactly as long as the transaction lives; waits at most `wait` while a guard or another
    /// transaction holds it. Returns a number that is greater than the fence of every grant before.
    ///
    /// Other tickets wait in line meanwhile, as for any lock.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if the lock did not come free in time. A [`StoreError`] if the
    /// transaction has read before something was granted and so cannot tell how the lock stands: take
    /// the lock first, or use READ COMMITTED. Otherwise the database's error. Roll the transaction back
    /// after any of them.
    ///
    /// # Cancel safety
    /// The connection is in an unknown state: drop it too, and the transaction ends.
    pub async fn lock_in<C: Queryable>(
        &self,
        tx: &mut C,
        name: impl AsRef<str> + Send,
        wait: Duration,
    ) -> Result<u64> {
        let name = Name::new(name.as_ref())?;
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(LONGEST_WAIT_MS);
        let params: Vec<Value> = vec![name.as_str().as_bytes().into(), wait_ms.into()];
        let answer: mysql_async::Result<Option<Row>> =
            tx.exec_first(self.lock.as_str(), params).await;
        match answer {
            Ok(row) => fence(row),
            Err(e) => Err(match state(&e) {
                "LK001" => Error::NotAcquired { name, waited: wait },
                "LK002" => old_snapshot().because(e).into(),
                _ => error::error(e).into(),
            }),
        }
    }

    /// Makes sure that the sequencer's grant is held until the transaction ends: the transaction's writes and
    /// the ownership check are one atomic step. The next ticket waits for the transaction, and so does a
    /// release of the guard itself: commit first.
    ///
    /// # Errors
    /// [`Error::Lost`] if the grant is not held any more. Otherwise the database's error. Roll the transaction
    /// back after any of them.
    ///
    /// # Cancel safety
    /// The connection is in an unknown state: drop it too, and the transaction ends.
    pub async fn fence_check<C: Queryable>(&self, tx: &mut C, sequencer: &Sequencer) -> Result<()> {
        let claim = sequencer.claim();
        let params: Vec<Value> = vec![
            sequencer.store().0.as_slice().into(),
            claim.name.as_str().as_bytes().into(),
            claim.ticket.to_bytes().as_slice().into(),
            claim.fence.into(),
        ];
        let answer: mysql_async::Result<Option<Row>> =
            tx.exec_first(self.fence_check.as_str(), params).await;
        match answer {
            Ok(_) => Ok(()),
            Err(e) if state(&e) == "LK003" => {
                Err(Error::Lost { name: claim.name.clone(), why: Loss::Expired })
            }
            Err(e) => Err(error::error(e).into()),
        }
    }
}

/// The longest wait that is sent, a day: the server can add it to a time.
const LONGEST_WAIT_MS: u64 = 86_400_000;

/// [`Procedures::lock_in`] with the prefix that URLs have by default.
///
/// # Errors
/// As there.
///
/// # Cancel safety
/// As there.
pub async fn lock_in<C: Queryable>(
    tx: &mut C,
    name: impl AsRef<str> + Send,
    wait: Duration,
) -> Result<u64> {
    Procedures::default().lock_in(tx, name, wait).await
}

/// [`Procedures::fence_check`] with the prefix that URLs have by default.
///
/// # Errors
/// As there.
///
/// # Cancel safety
/// As there.
pub async fn fence_check<C: Queryable>(tx: &mut C, sequencer: &Sequencer) -> Result<()> {
    Procedures::default().fence_check(tx, sequencer).await
}

fn state(e: &mysql_async::Error) -> &str {
    match e {
        mysql_async::Error::Server(e) => &e.state,
        _ => "",
    }
}

fn old_snapshot() -> StoreError {
    let what = "the transaction has read before the lock was last granted; take the lock first, or \
         use READ COMMITTED";
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
}

fn fence(row: Option<Row>) -> Result<u64> {
    let fence = row.and_then(|row| row.get_opt(0)?.ok());
    fence.ok_or_else(|| {
        StoreError::unknown(KIND, ErrorKind::Corrupt, "the server's answer has no fence").into()
    })
}
