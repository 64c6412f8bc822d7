//! Raw lines (`?raw=true`) beside the mutex and the election of etcd's Go library and beside jetcd, which
//! asks etcd's own lock service: one line, one order, one leader.

use anyhow::{Context as _, Result};
use lockkeeper::Keeper;
use nix::sys::signal::Signal::SIGKILL;
use servers::{BuiltPeer, ETCD, GO_PEERS, JETCD};
use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};
use testkit::{
    live::Server,
    taker::Taker,
    trials,
    world::{soon, until_length},
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// A library: what builds it, and its program.
type Library = (BuiltPeer, &'static str);

const GO: Library = (GO_PEERS, "etcd");
const JAVA: Library = (JETCD, "JetcdLock");

macro_rules! tests {
    ($library:expr, $server:ident: $($test:ident),* $(,)?) => {
        vec![$({
            let (server, library) = (Arc::clone(&$server), $library);
            let name = format!("{}::{}", library.1, stringify!($test));
            trials::test(name, async move || $test(&Meeting::new(&server, library)?).await)
        }),*]
    };
}

fn main() -> ExitCode {
    let lacks = trials::lacks(&ETCD);
    let no_go = lacks.clone().or_else(|| servers::install_built_peers(&[GO_PEERS]).pop());
    let no_java = lacks.or_else(|| servers::install_built_peers(&[JETCD]).pop());
    let server = Arc::new(Server::of(ETCD));
    let go = tests![GO, server:
        they_stand_in_one_line_in_the_order_they_came,
        a_try_of_either_is_busy_and_leaves_nothing,
        no_update_is_lost_between_both,
        our_lock_is_granted_when_their_process_is_killed,
        their_lock_is_granted_when_our_process_is_killed,
        candidates_of_both_lead_in_the_order_they_came,
    ];
    let java = tests![JAVA, server:
        they_stand_in_one_line_in_the_order_they_came,
        no_update_is_lost_between_both,
        our_lock_is_granted_when_their_process_is_killed,
        their_lock_is_granted_when_our_process_is_killed,
    ];
    trials::main_of([(no_go.as_ref(), go), (no_java.as_ref(), java)])
}

/// One server and a name in it.
struct Meeting {
    address: String,
    library: Library,
    name: String,
}

impl Meeting {
    fn new(server: &Server, library: Library) -> Result<Self> {
        let address = format!("127.0.0.1:{}", server.running()?.ports()[0]);
        Ok(Self { address, library, name: format!("meeting/{:016x}", rand::random::<u64>()) })
    }

    /// A process of theirs.
    async fn theirs(&self) -> Taker {
        let (peer, program) = self.library;
        Taker::of_built_peer(peer, program, &[&self.address]).await
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

async fn they_stand_in_one_line_in_the_order_they_came(m: &Meeting) -> Result<()> {
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

async fn a_try_of_either_is_busy_and_leaves_nothing(m: &Meeting) -> Result<()> {
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
async fn no_update_is_lost_between_both(m: &Meeting) -> Result<()> {
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

async fn our_lock_is_granted_when_their_process_is_killed(m: &Meeting) -> Result<()> {
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

async fn their_lock_is_granted_when_our_process_is_killed(m: &Meeting) -> Result<()> {
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
async fn candidates_of_both_lead_in_the_order_they_came(m: &Meeting) -> Result<()> {
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
