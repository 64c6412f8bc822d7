//! Plain string locks (`?compat=string`) beside the real redsync, redislock, node-redlock and rslock:
//! each library keeps the other out, and a release ends no lock of another.

use anyhow::{Context as _, Result, anyhow};
use lockkeeper::Keeper;
use nix::sys::signal::Signal::SIGKILL;
use rslock::LockManager;
use servers::{BuiltPeer, GO_PEERS, NODE_PEERS, REDIS, Running, Unavailable};
use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};
use testkit::{
    live::Server,
    taker::Taker,
    trials::{Fixture, Shared},
    world::soon,
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// Of locks whose end is awaited.
const SHORT: Duration = Duration::from_secs(1);

/// A library: what builds it, its program, and whether that counts times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Library {
    peer: BuiltPeer,
    program: &'static str,
    in_ms: bool,
}

const REDSYNC: Library = Library { peer: GO_PEERS, program: "redsync", in_ms: false };
const REDISLOCK: Library = Library { peer: GO_PEERS, program: "redislock", in_ms: false };
const NODE_REDLOCK: Library =
    Library { peer: NODE_PEERS, program: "node_redlock.mjs", in_ms: true };

testkit::tests! {
    [Shared(REDIS)] =>
        rslock_and_ours_keep_each_other_out;
    [REDSYNC, REDISLOCK, NODE_REDLOCK] =>
        our_lock_keeps_theirs_out_until_it_is_released,
        their_lock_keeps_ours_out_until_it_is_released,
        our_lock_is_granted_when_theirs_expires,
        their_lock_is_granted_when_our_process_is_killed,
        no_update_is_lost_between_both,
        a_release_or_an_extension_ends_no_lock_of_the_other;
}

static NO_GO: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_built_peers(&[GO_PEERS]).pop());
static NO_NODE: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_built_peers(&[NODE_PEERS]).pop());

impl Fixture for Library {
    type Ready = Setup;

    fn variant(&self) -> &'static str {
        self.program
    }

    fn missing(&self) -> Option<Unavailable> {
        let peer = || if self.in_ms { NO_NODE.clone() } else { NO_GO.clone() };
        REDIS.missing().or_else(peer)
    }

    fn start(&self) -> Result<Setup> {
        Setup::new(Shared(REDIS).start()?.running()?, *self)
    }
}

/// rslock is a library for Rust, so it needs no process of its own.
async fn rslock_and_ours_keep_each_other_out(server: Arc<Server>) -> Result<()> {
    let port = server.running()?.ports()[0];
    let name = format!("interop/{:016x}", rand::random::<u64>());
    let theirs = LockManager::new(vec![format!("redis://127.0.0.1:{port}/")]);
    let ours = Keeper::connect(&format!("redis://127.0.0.1:{port}?compat=string")).await?;
    let guard = ours.lock(&name).try_now().await?.context("free")?;
    assert!(theirs.lock(name.as_bytes(), LONG).await.is_err(), "ours is held");
    guard.release().await?;
    let held = theirs.lock(name.as_bytes(), LONG).await.map_err(|e| anyhow!("{e:?}"))?;
    assert!(ours.lock(&name).try_now().await?.is_none(), "theirs is held");
    let waiter = tokio::spawn(ours.lock(&name).unfair().into_future());
    theirs.unlock(&held).await;
    soon("our turn", waiter).await??.release().await?;
    Ok(())
}

/// One server and a name in it.
struct Setup {
    address: String,
    library: Library,
    name: String,
}

impl Setup {
    fn new(server: &Running, library: Library) -> Result<Self> {
        let address = format!("127.0.0.1:{}", server.ports()[0]);
        Ok(Self { address, library, name: format!("interop/{:016x}", rand::random::<u64>()) })
    }

    /// A process of theirs.
    async fn theirs(&self, ttl: Duration) -> Taker {
        let ms = ttl.as_millis();
        let ttl = if self.library.in_ms { ms.to_string() } else { format!("{ms}ms") };
        testkit::peers::built(self.library.peer, self.library.program, &[&self.address, &ttl]).await
    }

    fn our_url(&self) -> String {
        format!("redis://{}?compat=string", self.address)
    }

    async fn keeper(&self) -> Result<Keeper> {
        Ok(Keeper::builder().ttl(LONG).connect(&self.our_url()).await?)
    }

    /// A process of ours.
    async fn ours(&self, ttl: Duration) -> Taker {
        let program = Path::new(env!("CARGO_BIN_EXE_taker"));
        Taker::at(program, &self.our_url(), ttl, Duration::ZERO).await
    }

    /// Ends the lock, whatever process has it.
    async fn remove(&self) -> Result<()> {
        let client = redis::Client::open(format!("redis://{}", self.address))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let removed: u64 = redis::cmd("DEL").arg(&self.name).query_async(&mut connection).await?;
        anyhow::ensure!(removed == 1, "nothing was there");
        Ok(())
    }
}

async fn ask(taker: &mut Taker, command: &str, m: &Setup, answer: &str) {
    taker.tell(&format!("{command} {}", m.name)).await;
    taker.expect(answer).await;
}

async fn our_lock_keeps_theirs_out_until_it_is_released(m: Setup) -> Result<()> {
    let (keeper, mut theirs) = (m.keeper().await?, m.theirs(LONG).await);
    let guard = keeper.lock(&m.name).try_now().await?.context("free")?;
    ask(&mut theirs, "try", &m, "busy").await;
    theirs.tell(&format!("take {}", m.name)).await;
    assert!(theirs.is_silent().await && guard.is_held());
    guard.release().await?;
    theirs.expect("granted").await;
    assert!(keeper.lock(&m.name).try_now().await?.is_none());
    Ok(())
}

async fn their_lock_keeps_ours_out_until_it_is_released(m: Setup) -> Result<()> {
    let (keeper, mut theirs) = (m.keeper().await?, m.theirs(LONG).await);
    ask(&mut theirs, "try", &m, "granted").await;
    assert!(keeper.lock(&m.name).try_now().await?.is_none());
    let waiter = tokio::spawn(keeper.lock(&m.name).unfair().into_future());
    ask(&mut theirs, "extend", &m, "extended").await;
    assert!(!waiter.is_finished());
    ask(&mut theirs, "release", &m, "released").await;
    let guard = soon("our turn", waiter).await??;
    ask(&mut theirs, "try", &m, "busy").await;
    guard.release().await?;
    Ok(())
}

/// Their process is killed while ours waits.
async fn our_lock_is_granted_when_theirs_expires(m: Setup) -> Result<()> {
    let (keeper, mut theirs) = (m.keeper().await?, m.theirs(SHORT).await);
    ask(&mut theirs, "try", &m, "granted").await;
    let waiter = tokio::spawn(keeper.lock(&m.name).unfair().into_future());
    theirs.signal(SIGKILL);
    theirs.gone().await;
    soon("our turn", waiter).await??.release().await?;
    Ok(())
}

async fn their_lock_is_granted_when_our_process_is_killed(m: Setup) -> Result<()> {
    let (mut ours, mut theirs) = (m.ours(SHORT).await, m.theirs(LONG).await);
    ask(&mut ours, "try", &m, "granted").await;
    ask(&mut theirs, "try", &m, "busy").await;
    theirs.tell(&format!("take {}", m.name)).await;
    ours.signal(SIGKILL);
    theirs.expect("granted").await;
    ours.gone().await;
    Ok(())
}

/// A file that checks nothing, only kept right by the lock.
async fn no_update_is_lost_between_both(m: Setup) -> Result<()> {
    const TIMES: usize = 25;
    let file = tempfile::NamedTempFile::new()?;
    let mut takers =
        [m.ours(LONG).await, m.theirs(LONG).await, m.ours(LONG).await, m.theirs(LONG).await];
    for taker in &mut takers {
        taker.tell(&format!("sign {} {} {TIMES} x", m.name, file.path().display())).await;
    }
    for taker in &mut takers {
        taker.expect("signed").await;
    }
    assert_eq!(std::fs::read_to_string(file.path())?.len(), 4 * TIMES);
    Ok(())
}

/// The lock passes to the other while the first believes that it still holds it.
async fn a_release_or_an_extension_ends_no_lock_of_the_other(m: Setup) -> Result<()> {
    let (keeper, mut theirs) = (m.keeper().await?, m.theirs(LONG).await);
    ask(&mut theirs, "try", &m, "granted").await;
    m.remove().await?;
    let ours = keeper.lock(&m.name).try_now().await?.context("free")?;
    ask(&mut theirs, "extend", &m, "refused").await;
    ask(&mut theirs, "release", &m, "refused").await;
    ours.extend(LONG / 2).await?;
    assert!(keeper.check(&ours.sequencer()).await?);
    m.remove().await?;
    ask(&mut theirs, "try", &m, "granted").await;
    let _ = ours.release().await;
    assert!(keeper.lock(&m.name).try_now().await?.is_none(), "our release ended their lock");
    ask(&mut theirs, "release", &m, "released").await;
    Ok(())
}
