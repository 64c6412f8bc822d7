//! What is sent first on every new connection to a node, and what the node says about itself.
//!
//! A node that has restarted may have forgotten a holder, so it stays without a vote for `max_ttl`: its
//! quarantine. Its `run_id` tells that it has restarted, since no data bring that back; scripts do come back,
//! before Redis 7. Restarts break connections, so the first request on each one notes the run (`handshake.lua`).
//!
//! The quarantine is as long as the longest lock that may have been forgotten, and the clients say how long that
//! is: so all must say the same. Each node keeps what it was told. A client that says something else gets no
//! session and no vote, whatever the other nodes were told, for they may have forgotten it. A client tells no
//! node anything before a majority has answered it and none of them was told something else: otherwise a wrong
//! client that only a node without memory answers would have all others refused.

use super::decide::majority;
use crate::{
    store::redis::{Handshake, Live},
    sync::Mutex,
};
use redis::{RedisError, RedisResult, Script};
use std::{
    sync::{
        Arc, LazyLock, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Where a node keeps since when it has its data. An operator can set it to 0 on a new node that has certainly
/// forgotten nothing; then there is no quarantine.
pub(super) const BOOT: &str = "lockkeeper:redlock:boot";

static HANDSHAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("handshake.lua")));

/// Asks a node what `max_ttl` it was told, and tells it ours.
pub(super) static TELL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("tell.lua")));

/// Ends the quarantine of a node that is new to us.
pub(super) static WAIVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("waive.lua")));

/// The `max_ttl` that we say, and what each node was told.
pub(super) struct Agreement {
    /// Where a node keeps what it was told, in microseconds.
    pub(super) key: String,
    pub(super) ours: u64,
    /// By each node, as last heard; 0 if it was told nothing.
    told: Vec<AtomicU64>,
    /// Set when a session was opened: from then on, once a majority agrees, the next handshake tells a node that
    /// was told nothing. Programs that only list locks write nothing.
    may_write: AtomicBool,
    /// The nodes that no lockkeeper had used before.
    newcomers: Mutex<Vec<Option<Newcomer>>>,
}

/// A node that no lockkeeper had used before.
#[derive(Clone)]
pub(super) struct Newcomer {
    pub(super) run: String,
    pub(super) uptime: Duration,
}

impl Agreement {
    pub(super) fn new(key: String, ours: u64, nodes: usize) -> Arc<Self> {
        let told = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        let newcomers = Mutex::new(vec![None; nodes]);
        Arc::new(Self { key, ours, told, may_write: AtomicBool::new(false), newcomers })
    }

    pub(super) fn handshake(self: &Arc<Self>, node: usize) -> Handshake {
        let agreement = Arc::clone(self);
        Arc::new(move |live| {
            let agreement = Arc::clone(&agreement);
            Box::pin(async move { agreement.shake_hands(node, live).await })
        })
    }

    async fn shake_hands(&self, node: usize, live: &mut Live) -> RedisResult<()> {
        let info: String = redis::cmd("INFO").arg("server").query_async(live).await?;
        let run = run(&info)?;
        let writes = self.may_write.load(Ordering::Relaxed) && self.is_settled();
        let mut handshake = HANDSHAKE.key(BOOT);
        handshake.key(&self.key).arg(&run).arg(if writes { self.ours } else { 0 });
        let (is_new, told): (bool, u64) = handshake.invoke_async(live).await?;
        self.hear(node, told);
        let uptime = field(&info, "uptime_in_seconds:").and_then(|s| s.parse().ok()).unwrap_or(0);
        let uptime = Duration::from_secs(uptime);
        self.newcomers()[node] = is_new.then_some(Newcomer { run, uptime });
        Ok(())
    }

    fn newcomers(&self) -> MutexGuard<'_, Vec<Option<Newcomer>>> {
        self.newcomers.lock()
    }

    /// All nodes, if no lockkeeper had used any of them before.
    pub(super) fn all_new(&self) -> Option<Vec<Newcomer>> {
        self.newcomers().iter().cloned().collect()
    }

    /// Whether all nodes that have answered so far are new to us.
    pub(super) fn may_be_new(&self, answered: usize) -> bool {
        self.newcomers().iter().flatten().count() >= answered
    }

    /// Notes what a node was told, or that it was told nothing (0).
    pub(super) fn hear(&self, node: usize, told: u64) {
        self.told[node].store(told, Ordering::Relaxed);
    }

    /// Whether a majority was told what we say, as last heard, and no node anything else.
    pub(super) fn is_settled(&self) -> bool {
        let ours = self.told.iter().filter(|told| told.load(Ordering::Relaxed) == self.ours);
        ours.count() >= majority(self.told.len()) && self.other().is_none()
    }

    /// From now on handshakes may tell nodes that were told nothing.
    pub(super) fn allow_writing(&self) {
        self.may_write.store(true, Ordering::Relaxed);
    }

    /// What a node was told that is not what we say.
    pub(super) fn other(&self) -> Option<Duration> {
        let told = self.told.iter().map(|told| told.load(Ordering::Relaxed));
        told.filter(|told| *told != 0 && *told != self.ours).max().map(Duration::from_micros)
    }
}

/// The id of the server's present run. Without it no restart would be noticed.
fn run(info: &str) -> RedisResult<String> {
    let run = field(info, "run_id:").filter(|run| !run.is_empty());
    run.map(str::to_owned).ok_or_else(|| {
        let what = "the server, or a proxy before it, does not show its run_id in INFO, and Redlock could not \
                    notice that it has restarted and forgotten locks; connect directly to the server";
        RedisError::from((redis::ErrorKind::InvalidClientConfig, "Redlock cannot use this server", what.to_owned()))
    })
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_hides_which_run_it_is_is_refused() {
        let shown = "# Server\r\nrun_id:7f3a\r\nuptime_in_seconds:9\r\n";
        assert_eq!(run(shown).ok().as_deref(), Some("7f3a"));
        for hidden in ["", "# Server\r\nuptime_in_seconds:9\r\n", "run_id:\r\n"] {
            let e = run(hidden).expect_err("no restart would be noticed");
            assert!(e.to_string().contains("run_id"), "{e}");
        }
    }

    #[test]
    fn what_a_majority_was_told_is_settled_unless_one_node_differs() {
        let agreement = Agreement::new("key".into(), 7, 3);
        assert!(!agreement.is_settled());
        agreement.hear(0, 7);
        assert!(!agreement.is_settled());
        agreement.hear(1, 7);
        assert!(agreement.is_settled());
        agreement.hear(2, 8);
        assert!(!agreement.is_settled());
    }
}
