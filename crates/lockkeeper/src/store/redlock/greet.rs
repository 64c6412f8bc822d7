//! What every node is told first on a new connection, and what it says about itself.
//!
//! A node that has restarted may have forgotten a holder, so it stays without a vote for `max_ttl`. That a
//! node has restarted is seen by its `run_id`, which comes back with no data; scripts do, before Redis 7.
//! Restarts break connections, so the first request on each one notes the run (`greet.lua`).
//!
//! The quarantine is as long as the longest lock that may have been forgotten, and that is what the clients
//! say: so all must say the same. Each node keeps what it was told. A client that says something else gets
//! no session and no vote, whatever the other nodes were told, for they may have forgotten it. A client tells
//! no node anything before a majority has answered it and none of them was told something else: otherwise a
//! client that is wrong, and that only a node without memory answers, would have all others refused.

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

/// Where a node keeps since when it has its data. The operator who sets up a new node that has certainly
/// forgotten nothing can set it to 0, and need not wait.
pub(super) const BOOT: &str = "lockkeeper:redlock:boot";

static GREET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("greet.lua")));

/// Asks a node what it was told, and tells it.
pub(super) static TELL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("tell.lua")));

/// Ends the quarantine of a node that is new to us.
pub(super) static WAIVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("waive.lua")));

/// What we say to the nodes about `max_ttl`, and what they were told.
pub(super) struct Agreement {
    /// Where a node keeps what it was told, in microseconds.
    pub(super) key: String,
    pub(super) ours: u64,
    /// By each node, as last heard; 0 if it was told nothing.
    told: Vec<AtomicU64>,
    /// A session was opened: once this is settled, nodes that were told nothing are told by the next greeting.
    /// Programs that only look say nothing.
    speaks: AtomicBool,
    /// What was heard of nodes that had never heard of us.
    newcomers: Mutex<Vec<Option<Newcomer>>>,
}

/// A node that had never heard of us.
#[derive(Clone)]
pub(super) struct Newcomer {
    pub(super) run: String,
    pub(super) uptime: Duration,
}

impl Agreement {
    pub(super) fn new(key: String, ours: u64, nodes: usize) -> Arc<Self> {
        let told = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        let newcomers = Mutex::new(vec![None; nodes]);
        Arc::new(Self { key, ours, told, speaks: AtomicBool::new(false), newcomers })
    }

    /// What is said to this node on every new connection.
    pub(super) fn greeting(self: &Arc<Self>, node: usize) -> Handshake {
        let agreement = Arc::clone(self);
        Arc::new(move |live| {
            let agreement = Arc::clone(&agreement);
            Box::pin(async move { agreement.greet(node, live).await })
        })
    }

    async fn greet(&self, node: usize, live: &mut Live) -> RedisResult<()> {
        let info: String = redis::cmd("INFO").arg("server").query_async(live).await?;
        let run = run(&info)?;
        let speaks = self.speaks.load(Ordering::Relaxed) && self.is_settled();
        let mut greet = GREET.key(BOOT);
        greet.key(&self.key).arg(&run).arg(if speaks { self.ours } else { 0 });
        let (is_new, told): (bool, u64) = greet.invoke_async(live).await?;
        self.hear(node, told);
        let uptime = field(&info, "uptime_in_seconds:").and_then(|s| s.parse().ok()).unwrap_or(0);
        let uptime = Duration::from_secs(uptime);
        self.newcomers()[node] = is_new.then_some(Newcomer { run, uptime });
        Ok(())
    }

    fn newcomers(&self) -> MutexGuard<'_, Vec<Option<Newcomer>>> {
        self.newcomers.lock()
    }

    /// All nodes, if none of them had ever heard of us.
    pub(super) fn all_new(&self) -> Option<Vec<Newcomer>> {
        self.newcomers().iter().cloned().collect()
    }

    /// Had none of the nodes that have answered so far ever heard of us?
    pub(super) fn may_be_new(&self, answered: usize) -> bool {
        self.newcomers().iter().flatten().count() >= answered
    }

    /// A node was told this, or nothing (0).
    pub(super) fn hear(&self, node: usize, told: u64) {
        self.told[node].store(told, Ordering::Relaxed);
    }

    /// Was a majority told what we say, as last heard, and no node anything else?
    pub(super) fn is_settled(&self) -> bool {
        let ours = self.told.iter().filter(|told| told.load(Ordering::Relaxed) == self.ours);
        ours.count() >= majority(self.told.len()) && self.other().is_none()
    }

    /// From now on nodes that were told nothing may be told what we say.
    pub(super) fn speak(&self) {
        self.speaks.store(true, Ordering::Relaxed);
    }

    /// What a node was told that is not what we say.
    pub(super) fn other(&self) -> Option<Duration> {
        let told = self.told.iter().map(|told| told.load(Ordering::Relaxed));
        told.filter(|told| *told != 0 && *told != self.ours).max().map(Duration::from_micros)
    }
}

/// Which run of the server this is. Without it no restart would be noticed.
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
