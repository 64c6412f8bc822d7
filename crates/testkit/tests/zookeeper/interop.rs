//! Raw lines beside the real kazoo, as it is and with Curator's names, the real Curator and the real go-zookeeper: one
//! line, one order, and every release wakes the next one. The table in docs/zookeeper.md is held to here.

use anyhow::{Context as _, Result};
use lockkeeper::{Error, Keeper, Owner};
use nix::sys::signal::Signal::SIGKILL;
use servers::{CURATOR, GO_PEERS, KAZOO, Running, Unavailable, ZOOKEEPER};
use std::{
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};
use testkit::{
    taker::Taker,
    trials::{Fixture, Shared},
    world::{soon, until_length},
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// The client whose locks stand in line with ours.
#[derive(Clone, Copy, Debug)]
enum Peer {
    /// kazoo as it is.
    Kazoo,
    /// kazoo, told to look for Curator's names too.
    KazooTold,
    /// kazoo, told to name its nodes as Curator does.
    KazooAsCurator,
    Curator,
    Go,
}

testkit::tests! {
    [Peer::Kazoo, Peer::KazooTold, Peer::KazooAsCurator, Peer::Curator, Peer::Go] =>
        locks_of_both_are_granted_in_the_order_in_which_they_were_asked_for,
        a_release_of_either_wakes_the_next_one_at_once,
        no_update_is_lost_between_both,
        our_lock_is_granted_when_their_process_is_killed,
        their_lock_is_granted_when_our_process_is_killed,
        their_lock_can_be_seen_and_evicted;
    // That of Go cannot try.
    [Peer::Kazoo, Peer::KazooTold, Peer::KazooAsCurator, Peer::Curator] =>
        a_try_of_either_is_busy_and_leaves_nothing,
        modes_that_theirs_would_not_see_are_refused;
    [Peer::Kazoo, Peer::KazooTold, Peer::KazooAsCurator] =>
        folders_that_were_removed_by_hand_are_made_again;
    [Peer::Curator] =>
        readers_of_both_share_and_writers_of_both_do_not,
        readers_and_writers_of_both_are_granted_in_their_order,
        a_semaphore_that_is_used_as_a_mutex_is_another_lock,
        a_mutex_and_a_read_write_lock_are_different_lines;
    [Peer::Kazoo] =>
        a_plain_lock_of_kazoo_does_not_see_the_names_of_curator;
}

static NO_KAZOO: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_peers(&[KAZOO]).pop());
static NO_CURATOR: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_java_peers(&[CURATOR]).pop());
static NO_GO: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_built_peers(&[GO_PEERS]).pop());

impl Fixture for Peer {
    type Ready = Setup;

    fn variant(&self) -> &'static str {
        match self {
            Self::Kazoo => "kazoo",
            Self::KazooTold => "kazoo_told",
            Self::KazooAsCurator => "kazoo_as_curator",
            Self::Curator => "curator",
            Self::Go => "go",
        }
    }

    fn missing(&self) -> Option<Unavailable> {
        let peer = || match self {
            Self::Kazoo | Self::KazooTold | Self::KazooAsCurator => NO_KAZOO.clone(),
            Self::Curator => NO_CURATOR.clone(),
            Self::Go => NO_GO.clone(),
        };
        ZOOKEEPER.missing().or_else(peer)
    }

    fn start(&self) -> Result<Setup> {
        Ok(Setup::new(Shared(ZOOKEEPER).start()?.running()?, *self))
    }
}

/// One server, a name in it, and the client that shares its line.
struct Setup {
    url: String,
    hosts: String,
    peer: Peer,
    name: String,
}

impl Setup {
    fn new(server: &Running, peer: Peer) -> Self {
        Self {
            url: server.url().to_owned(),
            hosts: format!("127.0.0.1:{}", server.ports()[0]),
            peer,
            name: format!("/interop/{:016x}", rand::random::<u64>()),
        }
    }

    /// A process of theirs.
    async fn theirs(&self) -> Taker {
        let style = match self.peer {
            Peer::Curator => {
                return testkit::peers::java(CURATOR, "CuratorLock.java", &[&self.hosts]).await;
            }
            Peer::Go => return testkit::peers::built(GO_PEERS, "zookeeper", &[&self.hosts]).await,
            Peer::Kazoo => "plain",
            Peer::KazooTold => "told",
            Peer::KazooAsCurator => "curator",
        };
        let python = KAZOO.python().expect("it was installed a moment ago");
        testkit::peers::python(&python, "kazoo_lock.py", &[&self.hosts, style]).await
    }

    /// A process of ours.
    async fn ours(&self, ttl: Duration) -> Taker {
        let url = format!("{}?{}", self.url, self.raw());
        Taker::at(Path::new(env!("CARGO_BIN_EXE_taker")), &url, ttl, Duration::ZERO).await
    }

    async fn keeper(&self) -> Result<Keeper> {
        self.keeper_with(self.raw()).await
    }

    /// How our nodes must be named so that theirs wait for them.
    fn raw(&self) -> &'static str {
        match self.peer {
            Peer::Kazoo => "raw=kazoo",
            Peer::KazooTold | Peer::KazooAsCurator | Peer::Curator | Peer::Go => "raw=true",
        }
    }

    async fn keeper_with(&self, option: &str) -> Result<Keeper> {
        let url = format!("{}?{option}", self.url);
        Ok(Keeper::builder().ttl(LONG).connect(&url).await?)
    }

    fn words(&self, command: &str) -> String {
        format!("{command} {}", self.name)
    }
}

async fn locks_of_both_are_granted_in_the_order_in_which_they_were_asked_for(
    c: Setup,
) -> Result<()> {
    let witness = c.keeper().await?;
    let mut line = [
        c.ours(LONG).await,
        c.theirs().await,
        c.ours(LONG).await,
        c.theirs().await,
        c.ours(LONG).await,
    ];
    for (at, taker) in line.iter_mut().enumerate() {
        taker.tell(&c.words("take")).await;
        until_length(witness.store(), &c.name, at + 1).await;
    }
    for at in 0..line.len() {
        line[at].expect("granted").await;
        for later in &mut line[at + 1..] {
            assert!(later.is_silent().await, "two at once");
        }
        let seen = witness.get(&c.name).await?.context("a line")?;
        assert_eq!((seen.tickets.len(), seen.holders().count()), (line.len() - at, 1));
        line[at].release().await;
    }
    until_length(witness.store(), &c.name, 0).await;
    Ok(())
}

async fn a_try_of_either_is_busy_and_leaves_nothing(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper().await?, c.theirs().await);
    let guard = keeper.lock(&c.name).try_now().await?.context("free")?;
    theirs.tell(&c.words("try")).await;
    theirs.expect("busy").await;
    guard.release().await?;
    theirs.tell(&c.words("try")).await;
    theirs.expect("granted").await;
    assert!(keeper.lock(&c.name).try_now().await?.is_none());
    until_length(keeper.store(), &c.name, 1).await;
    theirs.release().await;
    assert!(keeper.lock(&c.name).try_now().await?.is_some());
    Ok(())
}

/// Our own re-check comes once a second, and theirs have none.
async fn a_release_of_either_wakes_the_next_one_at_once(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper().await?, c.theirs().await);
    let (mut to_theirs, mut to_ours) = (Vec::new(), Vec::new());
    let mut guard = keeper.lock(&c.name).await?;
    for _ in 0..5 {
        theirs.tell(&c.words("take")).await;
        until_length(keeper.store(), &c.name, 2).await;
        let began = Instant::now();
        guard.release().await?;
        theirs.expect("granted").await;
        to_theirs.push(began.elapsed());
        let next = tokio::spawn(keeper.lock(&c.name).into_future());
        until_length(keeper.store(), &c.name, 2).await;
        let began = Instant::now();
        theirs.release().await;
        guard = soon("our turn", next).await??;
        to_ours.push(began.elapsed());
    }
    for times in [to_theirs, to_ours] {
        let quickest = times.iter().min().context("five times")?;
        assert!(*quickest < Duration::from_millis(250), "woken after {times:?}");
    }
    Ok(())
}

/// A number in a file that checks nothing, only kept right by the lock.
async fn no_update_is_lost_between_both(c: Setup) -> Result<()> {
    const TIMES: u32 = 25;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("number");
    std::fs::write(&path, "0")?;
    let mut takers = [c.ours(LONG).await, c.theirs().await, c.ours(LONG).await, c.theirs().await];
    for taker in &mut takers {
        taker.tell(&format!("{} {} {TIMES}", c.words("count"), path.display())).await;
    }
    for taker in &mut takers {
        taker.expect("counted").await;
    }
    assert_eq!(std::fs::read_to_string(&path)?, (4 * TIMES).to_string());
    Ok(())
}

async fn our_lock_is_granted_when_their_process_is_killed(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper().await?, c.theirs().await);
    theirs.tell(&c.words("take")).await;
    theirs.expect("granted").await;
    let waiter = tokio::spawn(keeper.lock(&c.name).into_future());
    until_length(keeper.store(), &c.name, 2).await;
    theirs.signal(SIGKILL);
    theirs.gone().await;
    soon("our turn", waiter).await??.release().await?;
    Ok(())
}

async fn their_lock_is_granted_when_our_process_is_killed(c: Setup) -> Result<()> {
    let (mut ours, mut theirs) = (c.ours(Duration::from_secs(2)).await, c.theirs().await);
    ours.tell(&c.words("take")).await;
    ours.expect("granted").await;
    theirs.tell(&c.words("take")).await;
    until_length(c.keeper().await?.store(), &c.name, 2).await;
    ours.signal(SIGKILL);
    theirs.expect("granted").await;
    ours.gone().await;
    Ok(())
}

async fn their_lock_can_be_seen_and_evicted(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper().await?, c.theirs().await);
    theirs.tell(&c.words("take")).await;
    theirs.expect("granted").await;
    let line = keeper.get(&c.name).await?.context("a line")?;
    let [ticket] = &line.tickets[..] else { anyhow::bail!("{line:?}") };
    assert_eq!((ticket.label.as_slice(), &ticket.owner), (&b"theirs"[..], &Some(Owner::default())));
    assert!(ticket.fence.is_some());
    assert!(ticket.entered_ago < LONG && ticket.ends_in.is_zero(), "{ticket:?}");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let lock = keeper.lock(&c.name).on_wait(move |wait| drop(tell.send(wait.holder.clone())));
    let waiter = tokio::spawn(lock.into_future());
    let holder = soon("word of who holds it", told.recv()).await.flatten().context("a holder")?;
    assert_eq!((holder.owner, holder.label), (Owner::default(), b"theirs".to_vec()));
    assert!(keeper.evict(&c.name, ticket.id).await?);
    let guard = soon("our turn", waiter).await??;
    assert!(Some(guard.fence()) > ticket.fence);
    theirs.tell(&c.words("contenders")).await;
    assert!(theirs.expect("contenders").await.contains("lockkeeper"), "they see ours");
    guard.release().await?;
    Ok(())
}

/// Ours would be granted beside theirs.
async fn modes_that_theirs_would_not_see_are_refused(c: Setup) -> Result<()> {
    let (keeper, rw, mut theirs) =
        (c.keeper().await?, c.keeper_with("raw=rw").await?, c.theirs().await);
    theirs.tell(&c.words("take")).await;
    theirs.expect("granted").await;
    let lock = keeper.rwlock(&c.name);
    let refused = [
        lock.read().try_now().await,
        keeper.semaphore(&c.name, 2).acquire(1).try_now().await,
        rw.semaphore(&c.name, 2).acquire(1).try_now().await,
    ];
    for answer in refused {
        assert!(matches!(answer, Err(Error::Unsupported { .. })), "{answer:?}");
    }
    assert!(lock.write().try_now().await?.is_none());
    theirs.release().await;
    let writer = lock.write().try_now().await?.context("free")?;
    theirs.tell(&c.words("try")).await;
    theirs.expect("busy").await;
    writer.release().await?;
    Ok(())
}

/// Curator's mutex and its write lock look for different names, and so do `raw=true` and `raw=rw`.
async fn a_mutex_and_a_read_write_lock_are_different_lines(c: Setup) -> Result<()> {
    for (raw, command) in [("raw=true", "trywrite"), ("raw=rw", "try")] {
        let (keeper, mut theirs) = (c.keeper_with(raw).await?, c.theirs().await);
        let guard = keeper.lock(&c.name).try_now().await?.context("free")?;
        theirs.tell(&c.words(command)).await;
        theirs.expect("granted").await;
        assert!(keeper.lock(&c.name).unfair().try_now().await?.is_none(), "ours sees theirs");
        guard.release().await?;
        theirs.release().await;
        until_length(keeper.store(), &c.name, 0).await;
    }
    Ok(())
}

/// It keeps other nodes, below the line.
async fn a_semaphore_that_is_used_as_a_mutex_is_another_lock(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper().await?, c.theirs().await);
    let guard = keeper.lock(&c.name).try_now().await?.context("free")?;
    theirs.tell(&c.words("semaphore")).await;
    theirs.expect("granted").await;
    guard.release().await?;
    Ok(())
}

async fn a_plain_lock_of_kazoo_does_not_see_the_names_of_curator(c: Setup) -> Result<()> {
    for raw in ["raw=true", "raw=rw"] {
        let (keeper, mut theirs) = (c.keeper_with(raw).await?, c.theirs().await);
        let guard = keeper.lock(&c.name).try_now().await?.context("free")?;
        theirs.tell(&c.words("try")).await;
        theirs.expect("granted").await;
        guard.release().await?;
        theirs.release().await;
        until_length(keeper.store(), &c.name, 0).await;
    }
    Ok(())
}

/// The folders of our own names, with the identity of the data.
async fn folders_that_were_removed_by_hand_are_made_again(c: Setup) -> Result<()> {
    let prefix = format!("of-{:016x}", rand::random::<u64>());
    let url = format!("zookeeper://{}?prefix={prefix}", c.hosts);
    let (keeper, mut theirs) = (Keeper::connect(&url).await?, c.theirs().await);
    keeper.lock("a").await?.release().await?;
    theirs.tell(&format!("remove /{prefix}")).await;
    theirs.expect("removed").await;
    let guard = keeper.lock("a").await?;
    guard.write(b"value".to_vec()).await?;
    let other = Keeper::connect(&url).await?;
    assert!(other.lock("a").try_now().await?.is_none(), "it is the same line");
    assert!(other.check(&guard.sequencer()).await?, "and the same data");
    // Made anew by others it is other data, and what was before does not hold there.
    theirs.tell(&format!("remove /{prefix}")).await;
    theirs.expect("removed").await;
    let anew = Keeper::connect(&url).await?;
    let _guard = anew.lock("a").await?;
    let late = Keeper::builder().ttl(LONG).connect(&url).await?;
    assert!(!late.check(&guard.sequencer()).await.unwrap_or(false));
    Ok(())
}

/// The names are those of Curator's `InterProcessReadWriteLock`.
async fn readers_of_both_share_and_writers_of_both_do_not(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper_with("raw=rw").await?, c.theirs().await);
    let lock = keeper.rwlock(&c.name);
    let mut ask = async |command: &str, answer: &str| {
        theirs.tell(&c.words(command)).await;
        theirs.expect(answer).await;
    };
    let reader = lock.read().try_now().await?.context("free")?;
    ask("tryread", "granted").await;
    assert!(lock.write().try_now().await?.is_none());
    reader.release().await?;
    assert!(lock.write().try_now().await?.is_none(), "theirs still reads");
    let second = lock.read().try_now().await?.context("readers share")?;
    ask("release", "released").await;
    ask("trywrite", "busy").await;
    second.release().await?;
    ask("trywrite", "granted").await;
    assert!(lock.read().try_now().await?.is_none());
    assert!(lock.write().try_now().await?.is_none());
    ask("release", "released").await;
    let writer = lock.write().try_now().await?.context("free again")?;
    ask("tryread", "busy").await;
    ask("trywrite", "busy").await;
    writer.release().await?;
    until_length(keeper.store(), &c.name, 0).await;
    Ok(())
}

/// A writer behind readers, readers behind it, and a writer behind them: two of each side.
async fn readers_and_writers_of_both_are_granted_in_their_order(c: Setup) -> Result<()> {
    let (one, two) = (c.keeper_with("raw=rw").await?, c.keeper_with("raw=rw").await?);
    let (mut third, mut fourth) = (c.theirs().await, c.theirs().await);
    let first = one.rwlock(&c.name).read().await?;
    let arrived = async |many: usize| until_length(one.store(), &c.name, many).await;
    third.tell(&c.words("write")).await;
    arrived(2).await;
    let reader = tokio::spawn(two.rwlock(&c.name).read().into_future());
    arrived(3).await;
    fourth.tell(&c.words("read")).await;
    arrived(4).await;
    let last = tokio::spawn(one.rwlock(&c.name).write().into_future());
    arrived(5).await;
    assert!(third.is_silent().await, "ours reads");
    assert!(fourth.is_silent().await && !reader.is_finished(), "no ticket passes a writer");
    first.release().await?;
    third.expect("granted").await;
    assert!(fourth.is_silent().await && !reader.is_finished(), "theirs writes");
    third.release().await;
    let reader = soon("our reader's turn", reader).await??;
    fourth.expect("granted").await;
    assert!(!last.is_finished(), "two read");
    reader.release().await?;
    arrived(2).await;
    assert!(!last.is_finished(), "theirs reads");
    fourth.release().await;
    soon("our writer's turn", last).await??.release().await?;
    Ok(())
}
