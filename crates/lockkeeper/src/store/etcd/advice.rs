//! What in a cluster's set-up could hurt locks.

use super::{
    Etcd, KIND,
    client::{HasHeader as _, StatusResponse},
};
use crate::{
    error::{ErrorKind, StoreError},
    store::{Advice, Severity, StoreResult, common::tls::dial},
};
use std::{io, time::Duration};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The oldest version that understands all requests.
const OLDEST: Version = (3, 4, 0);

type Version = (u32, u32, u32);

/// A history of fewer revisions is young.
const YOUNG: i64 = 10_000;

/// The default quota of a file. A server before 3.6 does not tell the quota in use.
const QUOTA: i64 = 2 << 30;

/// For how long a member may take to tell its quota.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// The most that is read of its figures.
const METRICS_MAX: u64 = 4 << 20;
const QUOTA_METRIC: &str = "etcd_server_quota_backend_bytes ";

impl Etcd {
    /// Refuses a member that is too old.
    pub(super) async fn refuse_old(&self) -> StoreResult<()> {
        match self.client.status().await {
            Ok(status) => version(&status.version).map(drop),
            Err(e) if e.kind == ErrorKind::Denied => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Asks the member in use.
    pub(super) async fn setup_advice(&self) -> StoreResult<Vec<Advice>> {
        let mut status = match self.client.status().await {
            Ok(status) => status,
            // A user without the right to ask for the status can still take locks.
            Err(e) if e.kind == ErrorKind::Denied => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        if status.db_size_quota == 0 {
            status.db_size_quota = self.quota().await.unwrap_or(0);
        }
        let found = version(&status.version)?;
        let mut advice: Vec<Advice> = known_bugs(found).into_iter().collect();
        advice.extend(end_of_life(found));
        advice.extend(status.errors.iter().map(|alarm| {
            Advice::new(
                "alarm",
                Severity::Availability,
                format!("the member reports: {alarm}"),
                "it may refuse writes, so that no lock can be taken or released",
                "see etcd's maintenance guide: compact, defragment, disarm the alarm",
            )
        }));
        let old = status.revision() > YOUNG && self.compactor.is_none();
        if old && !self.client.has_compacted(&self.keys.id(), 1).await? {
            advice.push(grows(&status));
        }
        advice.extend(nearly_full(&status));
        Ok(advice)
    }

    /// The quota among the figures that a member shows at the clients' address, where that needs no TLS.
    async fn quota(&self) -> Option<i64> {
        for (host, port) in &self.plain_endpoints {
            let asked = crate::clock::timeout(METRICS_TIMEOUT, metrics(host, *port)).await;
            if let Some(quota) = asked.ok().and_then(Result::ok).and_then(|text| quota_in(&text)) {
                return Some(quota);
            }
        }
        None
    }
}

async fn metrics(host: &str, port: u16) -> io::Result<String> {
    let mut member = dial(host, port, None, METRICS_TIMEOUT).await?;
    member.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut text = String::new();
    member.take(METRICS_MAX).read_to_string(&mut text).await?;
    Ok(text)
}

fn quota_in(metrics: &str) -> Option<i64> {
    let quota = metrics.lines().find_map(|line| line.strip_prefix(QUOTA_METRIC))?;
    Some(quota.trim().parse::<f64>().ok()? as i64).filter(|quota| *quota > 0)
}

/// A history that is never compacted fills the file.
fn grows(status: &StatusResponse) -> Advice {
    let revisions = status.revision();
    Advice::new(
        "no-compaction",
        Severity::Availability,
        format!("the cluster keeps its whole history: {revisions} revisions, {}", figures(status)),
        "every lock and release adds some 300 bytes; when the file has reached its quota, no client of the \
         cluster can write any more",
        "start etcd with --auto-compaction-retention=1h, or add compact=1h to the URL if no other client \
         needs old revisions",
    )
}

fn nearly_full(status: &StatusResponse) -> Option<Advice> {
    (status.db_size > quota(status) / 4 * 3).then(|| {
        Advice::new(
            "nearly-full",
            Severity::Availability,
            format!("the member's file is nearly full: {}", figures(status)),
            "when it has reached its quota, no client of the cluster can write any more",
            "compact and defragment, or raise --quota-backend-bytes",
        )
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
    (found < fixed).then(|| {
        Advice::new(
            "lease-bugs",
            Severity::Exclusion,
            format!("the server has version {}", words(found)),
            "a member that has stalled or lost its leadership may renew leases that are over, or end leases \
             that live, and events may be lost around a compaction: two can believe in one lock for a while; \
             fences still tell them apart",
            format!("use {} or newer", words(fixed)),
        )
    })
}

/// A series that gets no more corrections.
fn end_of_life((major, minor, _): Version) -> Option<Advice> {
    ((major, minor) < (3, 5)).then(|| {
        Advice::new(
            "end-of-life",
            Severity::Information,
            format!("etcd {major}.{minor} is no longer maintained"),
            "faults that are found in it are not corrected",
            "use 3.5 or newer",
        )
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
    fn a_series_without_corrections_is_named() {
        assert!(end_of_life((3, 4, 38)).is_some() && end_of_life((3, 5, 0)).is_none());
    }

    #[test]
    fn the_quota_is_found_among_the_figures() {
        let text = "# TYPE etcd_server_quota_backend_bytes gauge\n\
                    etcd_server_quota_backend_bytes 1.6777216e+07\nother 1\n";
        assert_eq!(quota_in(text), Some(16 << 20));
        assert_eq!(quota_in("HTTP/1.0 404 Not Found\n"), None);
    }

    #[test]
    fn a_file_is_nearly_full_at_three_quarters_of_the_quota() {
        let at = |db_size, db_size_quota| {
            nearly_full(&StatusResponse { db_size, db_size_quota, ..StatusResponse::default() })
        };
        assert!(at(12 << 20, 16 << 20).is_none() && at(13 << 20, 16 << 20).is_some());
        assert!(at(1 << 30, 0).is_none() && at(7 << 28, 0).is_some(), "2 GB by default");
    }

    #[test]
    fn a_server_that_is_too_old_is_refused_with_what_is_needed() {
        let e = version("3.3.27").unwrap_err().to_string();
        assert!(e.contains("3.3.27") && e.contains("3.4"), "{e}");
    }
}
