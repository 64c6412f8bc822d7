//! What in a cluster's set-up could hurt locks.

use super::{
    Etcd, KIND,
    client::{HasHeader as _, StatusResponse},
};
use crate::{
    error::{ErrorKind, StoreError},
    store::{Advice, StoreResult},
};

/// The oldest version that understands all requests.
const OLDEST: Version = (3, 4, 0);

type Version = (u32, u32, u32);

/// A history of fewer revisions is young.
const YOUNG: i64 = 10_000;

/// The default quota of a file. A server before 3.6 does not tell the quota in use.
const QUOTA: i64 = 2 << 30;

impl Etcd {
    /// Asks the member in use.
    pub(super) async fn setup_advice(&self) -> StoreResult<Vec<Advice>> {
        let status = match self.client.status().await {
            Ok(status) => status,
            // A user without the right to ask for the status can still take locks.
            Err(e) if e.kind == ErrorKind::Denied => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut advice: Vec<Advice> = known_bugs(version(&status.version)?).into_iter().collect();
        advice.extend(status.errors.iter().map(|alarm| Advice {
            what: format!("the member reports: {alarm}"),
            consequence: "it may refuse writes, so that no lock can be taken or released".into(),
            remedy: "see etcd's maintenance guide: compact, defragment, disarm the alarm".into(),
        }));
        let old = status.revision() > YOUNG && self.compactor.is_none();
        if old && !self.client.has_compacted(&self.keys.id(), 1).await? {
            advice.push(grows(&status));
        }
        advice.extend(nearly_full(&status));
        Ok(advice)
    }
}

/// A history that is never compacted fills the file.
fn grows(status: &StatusResponse) -> Advice {
    let revisions = status.revision();
    Advice {
        what: format!(
            "the cluster keeps its whole history: {revisions} revisions, {}",
            figures(status)
        ),
        consequence:
            "every lock and release adds some 300 bytes; when the file has reached its quota, \
                      no client of the cluster can write any more"
                .into(),
        remedy: "start etcd with --auto-compaction-retention=1h, or add compact=1h to the URL if \
                 no other client needs old revisions"
            .into(),
    }
}

fn nearly_full(status: &StatusResponse) -> Option<Advice> {
    (status.db_size > quota(status) / 4 * 3).then(|| Advice {
        what: format!("the member's file is nearly full: {}", figures(status)),
        consequence: "when it has reached its quota, no client of the cluster can write any more"
            .into(),
        remedy: "compact and defragment, or raise --quota-backend-bytes".into(),
    })
}

fn quota(status: &StatusResponse) -> i64 {
    if status.db_size_quota > 0 { status.db_size_quota } else { QUOTA }
}

fn figures(status: &StatusResponse) -> String {
    let mb = |bytes: i64| bytes >> 20;
    let StatusResponse { db_size, db_size_in_use, db_size_quota, .. } = status;
    let quota = match mb(*db_size_quota) {
        0 => "which this version does not tell, 2048 MB by default".to_owned(),
        told => format!("{told} MB"),
    };
    let (size, used) = (mb(*db_size), mb(*db_size_in_use));
    format!("a file of {size} MB, of which {used} MB are in use; its quota is {quota}")
}

fn version(text: &str) -> StoreResult<Version> {
    let mut numbers = text.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let found = (next(), next(), next());
    if found >= OLDEST {
        return Ok(found);
    }
    let what = format!("the server has version {text}; at least 3.4 is needed");
    Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what))
}

/// The first version of each series without the known bugs of leases.
fn known_bugs(found: Version) -> Option<Advice> {
    let fixed = match found {
        (3, 4, _) => (3, 4, 38),
        (3, 5, _) => (3, 5, 23),
        (3, 6, _) => (3, 6, 5),
        _ => return None,
    };
    let words = |(major, minor, patch)| format!("{major}.{minor}.{patch}");
    (found < fixed).then(|| Advice {
        what: format!("the server has version {}", words(found)),
        consequence:
            "a member that has stalled or lost its leadership may renew leases that are over, \
             or end leases that live, and events may be lost around a compaction: two can believe \
             in one lock for a while; fences still tell them apart"
                .into(),
        remedy: format!("use {} or newer", words(fixed)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs_are_named() {
        for old in ["3.4.23", "3.5.1", "3.5.22", "3.6.0", "3.6.4"] {
            assert!(known_bugs(version(old).unwrap()).is_some(), "{old}");
        }
        for good in ["3.4.38", "3.5.23", "3.6.5", "3.7.0", "3.7.0-rc.1", "4.0.0"] {
            assert!(known_bugs(version(good).unwrap()).is_none(), "{good}");
        }
    }

    #[test]
    fn a_server_that_is_too_old_is_refused_with_what_is_needed() {
        let e = version("3.3.27").unwrap_err().to_string();
        assert!(e.contains("3.3.27") && e.contains("3.4"), "{e}");
    }
}
