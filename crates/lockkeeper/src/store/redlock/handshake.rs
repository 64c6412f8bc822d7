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
//!
//! Nodes that Redlock has never used have nothing to forget, and the first client need not wait for them. But a
//! node that was emptied (`FLUSHALL`, an evicted key) shows no keys either, and has just forgotten a holder. So
//! every handshake leaves a mark that is no key: a script, which lasts as long as the server runs (`mark.lua`).
//! A node is new only if it has no key of ours, does not know the mark, and nothing says that it could have lost
//! the mark in this run; any doubt means quarantine. What was held there before this run ended long ago, because
//! a new node must also have been up for longer than `max_ttl` (`nodes.rs`).

use super::decide::majority;
use crate::{
    store::redis::{Handshake, Live, is_unknown_script},
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
/// forgotten no holder; then there is no quarantine.
pub(super) const BOOT: &str = "lockkeeper:redlock:boot";

static HANDSHAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("handshake.lua")));

/// Asks a node what `max_ttl` it was told, and tells it ours.
pub(super) static TELL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("tell.lua")));

/// A node that knows this script was used for Redlock since it was started. `SCRIPT LOAD` brings it there, because
/// newer servers evict scripts that came with `EVAL`.
static MARK: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("mark.lua")));

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
    /// The nodes that are new to us.
    newcomers: Mutex<Vec<Option<Newcomer>>>,
}

/// A node that Redlock has not used since it was started, and that has no key of ours.
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
        let is_marked = is_marked(live).await?;
        let may_be_new = !is_marked && {
            let info: String = redis::cmd("INFO").arg("all").query_async(live).await?;
            cannot_have_lost_the_mark(&info)
        };
        let writes = self.may_write.load(Ordering::Relaxed) && self.is_settled();
        let mut handshake = HANDSHAKE.key(BOOT);
        handshake.key(&self.key).arg(&run).arg(if writes { self.ours } else { 0 });
        let (has_no_key, told): (bool, u64) = handshake.invoke_async(live).await?;
        self.hear(node, told);
        // Only now: if two clients come at once, the one that has written the boot key sees a new node.
        if !is_marked {
            MARK.load_async(live).await?;
        }
        let uptime = field(&info, "uptime_in_seconds:").and_then(|s| s.parse().ok()).unwrap_or(0);
        let uptime = Duration::from_secs(uptime);
        let is_new = has_no_key && may_be_new;
        self.newcomers()[node] = is_new.then_some(Newcomer { run, uptime });
        Ok(())
    }

    fn newcomers(&self) -> MutexGuard<'_, Vec<Option<Newcomer>>> {
        self.newcomers.lock()
    }

    /// All nodes, if all of them are new to us.
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

async fn is_marked(live: &mut Live) -> RedisResult<bool> {
    let mut ask = redis::cmd("EVALSHA");
    match ask.arg(MARK.get_hash()).arg(0).query_async::<()>(live).await {
        Err(e) if is_unknown_script(&e) => Ok(false),
        answer => answer.map(|()| true),
    }
}

/// Whether a server that does not know the mark, and says this of itself, can never have known it in this run.
/// `SCRIPT FLUSH` takes the mark away, and is counted; before Redis 7 all `SCRIPT` commands are counted together.
/// A promoted replica has its primary's keys, or lack of keys, and not its scripts.
fn cannot_have_lost_the_mark(info: &str) -> bool {
    let counted = |command: &str| field(info, &format!("cmdstat_{command}:")).is_some();
    let was_replica = field(info, "master_replid2:").is_none_or(|id| id.bytes().any(|b| b != b'0'));
    counted("info") && !counted("script|flush") && !counted("script") && !was_replica
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

    /// Servers know the mark by its hash, also those that an older or a newer version has marked.
    #[test]
    fn the_mark_is_the_same_in_every_version() {
        assert_eq!(MARK.get_hash(), "8387229f28c316401998f4fb8b57670964e84653");
    }

    #[test]
    fn a_server_that_may_have_lost_the_mark_is_not_new() {
        let zeros = "0".repeat(40);
        let new = format!("cmdstat_info:calls=1\r\nmaster_replid2:{zeros}\r\n");
        assert!(cannot_have_lost_the_mark(&new));
        for other in
            ["cmdstat_get:calls=1", "cmdstat_evalsha:calls=9", "cmdstat_script|load:calls=1"]
        {
            assert!(cannot_have_lost_the_mark(&format!("{new}{other}\r\n")), "{other}");
        }
        for flush in ["cmdstat_script|flush:calls=1", "cmdstat_script:calls=1"] {
            assert!(!cannot_have_lost_the_mark(&format!("{new}{flush}\r\n")), "{flush}");
        }
        let promoted = new.replace(&zeros, "7f3a");
        let no_statistics = new.replace("cmdstat_info", "other");
        for doubtful in [promoted, no_statistics, "cmdstat_info:calls=1\r\n".into(), "".into()] {
            assert!(!cannot_have_lost_the_mark(&doubtful), "{doubtful}");
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
