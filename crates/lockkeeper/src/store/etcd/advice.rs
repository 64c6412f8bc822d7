//! What in a cluster's set-up could hurt locks.

use super::{KIND, client::Client};
use crate::{
    error::{StoreError, Trouble},
    store::{Advice, StoreResult},
};

/// The oldest version that understands what we ask.
const OLDEST: Version = (3, 4, 0);

type Version = (u32, u32, u32);

/// Looks at the member that we speak with.
pub(super) async fn of(client: &Client) -> StoreResult<Vec<Advice>> {
    let status = match client.status().await {
        Ok(status) => status,
        // Who may not ask for it can still take locks.
        Err(e) if e.trouble == Trouble::Denied => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut advice: Vec<Advice> = known_bugs(version(&status.version)?).into_iter().collect();
    advice.extend(status.errors.iter().map(|alarm| Advice {
        what: format!("the member reports: {alarm}"),
        consequence: "it may refuse writes, so that no lock can be taken or released".into(),
        remedy: "see etcd's maintenance guide: compact, defragment, disarm the alarm".into(),
    }));
    Ok(advice)
}

fn version(text: &str) -> StoreResult<Version> {
    let mut numbers = text.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let found = (next(), next(), next());
    if found >= OLDEST {
        return Ok(found);
    }
    let what = format!("the server has version {text}; at least 3.4 is needed");
    Err(StoreError::not_applied(KIND, Trouble::Misconfigured, what))
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
