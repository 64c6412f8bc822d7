//! Raw lines (`?raw=true`) beside the mutex and the election of etcd's Go library and beside jetcd, which
//! asks etcd's own lock service: one line, one order, one leader.

use anyhow::{Context as _, Result};
use lockkeeper::Keeper;
use nix::sys::signal::Signal::SIGKILL;
use servers::{BuiltPeer, ETCD, GO_PEERS, JETCD, Running, Unavailable};
use std::{path::Path, sync::LazyLock, time::Duration};
use testkit::{
    taker::Taker,
    trials::{Fixture, Shared},
    world::{soon, until_length},
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// A library: what builds it, and its program.
#[derive(Clone, Copy)]
struct Library {
    peer: BuiltPeer,
    program: &'static str,
}

const GO: Library = Library { peer: GO_PEERS, program: "etcd" };
const JAVA: Library = Library { peer: JETCD, program: "JetcdLock" };

testkit::tests! {
    [GO, JAVA] =>
        locks_of_both_are_granted_in_the_order_in_which_they_were_asked_for,
        no_update_is_lost_between_both,
        our_lock_is_granted_when_their_process_is_killed,
        their_lock_is_granted_when_our_process_is_killed;
    [GO] =>
        a_try_of_either_is_busy_and_leaves_nothing,
        candidates_of_both_lead_in_the_order_they_came;
}

static NO_GO: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_built_peers(&[GO_PEERS]).pop());
static NO_JAVA: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_built_peers(&[JETCD]).pop());

impl Fixture for Library {
    type Ready = Setup;

    fn variant(&self) -> &'static str {
        self.program
    }

    fn missing(&self) -> Option<Unavailable> {
        let peer = || if self.peer.name == JETCD.name { NO_JAVA.clone() } else { NO_GO.clone() };
        ETCD.missing().or_else(peer)
    }

    fn start(&self) -> Result<Setup> {
        Setup::new(Shared(ETCD).start()?.running()?, *self)
    }
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
    async fn theirs(&self) -> Taker {
        let Library { peer, program } = self.library;
        testkit::peers::built(peer, program, &[&self.address]).await
    }

    fn our_url(&self) -> String {
        format!("etcd://{}?raw=true", self.address)
    }

    /// A process of ours.
    async fn ours(&self, ttl: Duration) -> Taker {
        let program = Path::new(env!("CARGO_BIN_EXE_taker"));
        Taker::at(program, &self.our_url(), ttl, Duration::ZERO).await
    }

    async fn keeper(&self) -> Result<Keeper> {
        Ok(Keeper::builder().ttl(LONG).connect(&self.our_url()).await?)
    }

    fn words(&self, command: &str) -> String {
        format!("{command} {}", self.name)
    }
}

async fn locks_of_both_are_granted_in_the_order_in_which_they_were_asked_for(
    m: Setup,
) -> Result<()> {
    let witness = m.keeper().await?;
    let mut line = [
        m.ours(LONG).await,
        m.theirs().await,
        m.ours(LONG).await,
        m.theirs().await,
        m.ours(LONG).await,
    ];
    for (at, taker) in line.iter_mut().enumerate() {
        taker.tell(&m.words("take")).await;
        until_length(witness.store(), &m.name, at + 1).await;
    }
    for at in 0..line.len() {
        line[at].expect("granted").await;
        for later in &mut line[at + 1..] {
            assert!(later.is_silent().await, "two at once");
        }
        let seen = witness.get(&m.name).await?.context("a line")?;
        assert_eq!((seen.tickets.len(), seen.holders().count()), (line.len() - at, 1));
        line[at].release().await;
    }
    until_length(witness.store(), &m.name, 0).await;
    Ok(())
}

async fn a_try_of_either_is_busy_and_leaves_nothing(m: Setup) -> Result<()> {
    let (keeper, mut theirs) = (m.keeper().await?, m.theirs().await);
    let guard = keeper.lock(&m.name).try_now().await?.context("free")?;
    theirs.tell(&m.words("try")).await;
    theirs.expect("busy").await;
    guard.release().await?;
    theirs.tell(&m.words("try")).await;
    theirs.expect("granted").await;
    assert!(keeper.lock(&m.name).try_now().await?.is_none());
    until_length(keeper.store(), &m.name, 1).await;
    theirs.release().await;
    assert!(keeper.lock(&m.name).try_now().await?.is_some());
    Ok(())
}

/// A number in a file that checks nothing, only kept right by the lock.
async fn no_update_is_lost_between_both(m: Setup) -> Result<()> {
    const TIMES: u32 = 25;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("number");
    std::fs::write(&path, "0")?;
    let mut takers = [m.ours(LONG).await, m.theirs().await, m.ours(LONG).await, m.theirs().await];
    for taker in &mut takers {
        taker.tell(&format!("{} {} {TIMES}", m.words("count"), path.display())).await;
    }
    for taker in &mut takers {
        taker.expect("counted").await;
    }
    assert_eq!(std::fs::read_to_string(&path)?, (4 * TIMES).to_string());
    Ok(())
}

async fn our_lock_is_granted_when_their_process_is_killed(m: Setup) -> Result<()> {
    let (keeper, mut theirs) = (m.keeper().await?, m.theirs().await);
    theirs.tell(&m.words("take")).await;
    theirs.expect("granted").await;
    let waiter = tokio::spawn(keeper.lock(&m.name).into_future());
    until_length(keeper.store(), &m.name, 2).await;
    theirs.signal(SIGKILL);
    theirs.gone().await;
    soon("our turn", waiter).await??.release().await?;
    Ok(())
}

async fn their_lock_is_granted_when_our_process_is_killed(m: Setup) -> Result<()> {
    let (mut ours, mut theirs) = (m.ours(Duration::from_secs(2)).await, m.theirs().await);
    ours.tell(&m.words("take")).await;
    ours.expect("granted").await;
    theirs.tell(&m.words("take")).await;
    until_length(m.keeper().await?.store(), &m.name, 2).await;
    ours.signal(SIGKILL);
    theirs.expect("granted").await;
    ours.gone().await;
    Ok(())
}

/// Each library's followers see the other's leader.
async fn candidates_of_both_lead_in_the_order_they_came(m: Setup) -> Result<()> {
    let (keeper, mut theirs, mut observer) =
        (m.keeper().await?, m.theirs().await, m.theirs().await);
    let election = keeper.election(&m.name);
    let term = election.campaign("we").await?;
    observer.tell(&m.words("leader")).await;
    assert_eq!(observer.expect("leader").await, "we");
    theirs.tell(&format!("{} they", m.words("campaign"))).await;
    until_length(keeper.store(), &m.name, 2).await;
    assert!(theirs.is_silent().await, "two leaders");
    term.resign().await?;
    theirs.expect("elected").await;
    observer.tell(&m.words("leader")).await;
    assert_eq!(observer.expect("leader").await, "they");
    let again = tokio::spawn(election.campaign("we again").into_future());
    until_length(keeper.store(), &m.name, 2).await;
    theirs.tell("resign").await;
    theirs.expect("resigned").await;
    soon("our turn", again).await??.resign().await?;
    Ok(())
}
