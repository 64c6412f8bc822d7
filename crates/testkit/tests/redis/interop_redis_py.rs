//! Plain string locks (`?compat=string`) beside the real redis-py: each keeps the other out, and neither ends or
//! prolongs a lock of the other.

use anyhow::{Context as _, Result, ensure};
use lockkeeper::{Keeper, Loss, Owner};
use servers::{REDIS, REDIS_PY, Running, Unavailable};
use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};
use testkit::{
    taker::Taker,
    trials::{Fixture, Shared},
    world::{eventually, soon},
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// Of locks whose end is awaited.
const SHORT: Duration = Duration::from_secs(1);

testkit::tests! {
    [RedisPy] =>
        ours_keeps_theirs_out_until_it_is_released,
        theirs_keeps_ours_out_until_it_is_released,
        theirs_gives_way_to_ours_when_it_expires,
        ours_gives_way_to_theirs_when_its_process_is_killed,
        both_together_lose_no_update,
        theirs_can_be_prolonged_while_it_is_theirs,
        ours_is_neither_released_nor_prolonged_by_theirs,
        theirs_is_neither_released_nor_prolonged_by_ours,
        theirs_can_be_seen_and_evicted,
        a_value_of_any_bytes_and_without_an_end_is_respected;
}

/// redis-py beside a server that all tests share.
#[derive(Clone, Copy)]
struct RedisPy;

static MISSING: LazyLock<Option<Unavailable>> =
    LazyLock::new(|| servers::install_peers(&[REDIS_PY]).pop());

impl Fixture for RedisPy {
    type Ready = Setup;

    fn variant(&self) -> &'static str {
        REDIS_PY.name
    }

    fn missing(&self) -> Option<Unavailable> {
        REDIS.missing().or_else(|| MISSING.clone())
    }

    fn start(&self) -> Result<Setup> {
        Setup::new(Shared(REDIS).start()?.running()?)
    }
}

/// One server, a name in it, and the programs that take its lock.
struct Setup {
    url: String,
    python: PathBuf,
    name: String,
}

impl Setup {
    fn new(server: &Running) -> Result<Self> {
        let python = REDIS_PY.python().context("it was installed a moment ago")?;
        let name = format!("interop/{:016x}", rand::random::<u64>());
        Ok(Self { url: server.url().to_owned(), python, name })
    }

    /// A process of theirs; without a time to live its locks have no end.
    async fn theirs(&self, ttl: Option<Duration>) -> Taker {
        let ttl = ttl.unwrap_or_default().as_millis().to_string();
        testkit::peers::python(&self.python, "redis_py.py", &[&self.url, &ttl]).await
    }

    fn our_url(&self) -> String {
        format!("{}?compat=string", self.url)
    }

    async fn keeper(&self, ttl: Duration) -> Result<Keeper> {
        Ok(Keeper::builder().ttl(ttl).connect(&self.our_url()).await?)
    }

    /// A process of ours.
    async fn ours(&self, ttl: Duration) -> Taker {
        let program = Path::new(env!("CARGO_BIN_EXE_taker"));
        Taker::at(program, &self.our_url(), ttl, Duration::ZERO).await
    }

    /// A command as an administrator would give it.
    async fn by_hand<T: redis::FromRedisValue>(&self, words: &[&[u8]]) -> Result<T> {
        let client = redis::Client::open(self.url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(std::str::from_utf8(words[0])?);
        Ok(command.arg(&words[1..]).query_async(&mut connection).await?)
    }

    /// For how long the lock lasts; `None` if it is not there or has no end.
    async fn remaining(&self) -> Result<Option<Duration>> {
        let ms: i64 = self.by_hand(&[b"PTTL", self.name.as_bytes()]).await?;
        Ok(u64::try_from(ms).ok().map(Duration::from_millis))
    }

    /// Ends the lock, whichever side has it.
    async fn remove(&self) -> Result<()> {
        let removed: u64 = self.by_hand(&[b"DEL", self.name.as_bytes()]).await?;
        ensure!(removed == 1, "nothing was there");
        Ok(())
    }
}

async fn say(taker: &mut Taker, command: &str, answer: &str) {
    let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
    taker.tell(command).await;
    assert_eq!(taker.expect(word).await, rest, "the answer to {command}");
}

async fn ours_keeps_theirs_out_until_it_is_released(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(Some(LONG)).await);
    let guard = keeper.lock(&c.name).try_now().await?.context("free")?;
    say(&mut theirs, &format!("try {}", c.name), "busy").await;
    theirs.tell(&format!("take {}", c.name)).await;
    assert!(guard.is_held());
    guard.release().await?;
    theirs.expect("granted").await;
    assert!(keeper.lock(&c.name).try_now().await?.is_none());
    Ok(())
}

async fn theirs_keeps_ours_out_until_it_is_released(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(Some(LONG)).await);
    say(&mut theirs, &format!("try {}", c.name), "granted").await;
    assert!(keeper.lock(&c.name).try_now().await?.is_none());
    let waiter = tokio::spawn(keeper.lock(&c.name).unfair().into_future());
    say(&mut theirs, "owned", "owned True").await;
    assert!(!waiter.is_finished());
    say(&mut theirs, "release", "done").await;
    let guard = soon("our turn", waiter).await??;
    say(&mut theirs, &format!("try {}", c.name), "busy").await;
    guard.release().await?;
    Ok(())
}

/// Their process ends without a word, while ours waits.
async fn theirs_gives_way_to_ours_when_it_expires(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(Some(SHORT)).await);
    say(&mut theirs, &format!("try {}", c.name), "granted").await;
    let waiter = tokio::spawn(keeper.lock(&c.name).unfair().into_future());
    theirs.signal(nix::sys::signal::Signal::SIGKILL);
    theirs.gone().await;
    soon("our turn", waiter).await??.release().await?;
    Ok(())
}

async fn ours_gives_way_to_theirs_when_its_process_is_killed(c: Setup) -> Result<()> {
    let (mut ours, mut theirs) = (c.ours(SHORT).await, c.theirs(Some(LONG)).await);
    ours.tell(&format!("try {}", c.name)).await;
    ours.expect("granted").await;
    say(&mut theirs, &format!("try {}", c.name), "busy").await;
    theirs.tell(&format!("take {}", c.name)).await;
    ours.signal(nix::sys::signal::Signal::SIGKILL);
    theirs.expect("granted").await;
    ours.gone().await;
    Ok(())
}

/// Four processes add their marks to a file that checks nothing. No ticket stands in a line, so they go on
/// until both sides are seen to have taken turns.
async fn both_together_lose_no_update(c: Setup) -> Result<()> {
    const ROUNDS: usize = 25;
    const TURNS: usize = 10;
    let file = tempfile::NamedTempFile::new()?;
    let mut takers = [
        (c.ours(LONG).await, 'a'),
        (c.ours(LONG).await, 'b'),
        (c.theirs(Some(LONG)).await, 'Y'),
        (c.theirs(Some(LONG)).await, 'Z'),
    ];
    let (mut due, mut turns) = (0, 0);
    eventually("both sides take turns", async || {
        for (taker, mark) in &mut takers {
            let path = file.path().display();
            taker.tell(&format!("sign {} {path} {ROUNDS} {mark}", c.name)).await;
        }
        for (taker, _) in &mut takers {
            taker.expect("signed").await;
        }
        due += ROUNDS * takers.len();
        let signed = std::fs::read_to_string(file.path()).expect("it is there");
        assert_eq!(signed.len(), due, "an update was lost: {signed}");
        let ours: Vec<bool> = signed.chars().map(char::is_lowercase).collect();
        turns = ours.windows(2).filter(|pair| pair[0] != pair[1]).count();
        turns >= TURNS
    })
    .await;
    Ok(())
}

async fn theirs_can_be_prolonged_while_it_is_theirs(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(Some(LONG / 2)).await);
    say(&mut theirs, &format!("try {}", c.name), "granted").await;
    assert!(keeper.lock(&c.name).try_now().await?.is_none());
    say(&mut theirs, "owned", "owned True").await;
    say(&mut theirs, "extend", "done").await;
    ensure!(c.remaining().await?.is_some_and(|left| left > LONG / 2), "it is longer now");
    say(&mut theirs, "reacquire", "done").await;
    ensure!(c.remaining().await?.is_some_and(|left| left <= LONG / 2), "as long as at first");
    assert!(keeper.lock(&c.name).try_now().await?.is_none());
    say(&mut theirs, "release", "done").await;
    keeper.lock(&c.name).try_now().await?.context("free")?.release().await?;
    Ok(())
}

/// They come back to a lock that was theirs and is ours now.
async fn ours_is_neither_released_nor_prolonged_by_theirs(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(Some(LONG)).await);
    say(&mut theirs, &format!("try {}", c.name), "granted").await;
    c.remove().await?;
    let guard = keeper.lock(&c.name).try_now().await?.context("free")?;
    say(&mut theirs, "owned", "owned False").await;
    for action in ["extend", "reacquire", "release"] {
        say(&mut theirs, action, "refused LockNotOwnedError").await;
    }
    guard.extend(LONG / 2).await?;
    assert!(guard.is_held() && keeper.check(&guard.sequencer()).await?);
    guard.release().await?;
    Ok(())
}

/// We come back to a lock that was ours and is theirs now: the next renewal sees it, and leaves it alone.
async fn theirs_is_neither_released_nor_prolonged_by_ours(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(Some(LONG / 2)).await);
    let (seen, unseen) =
        (keeper.lock(&c.name).try_now().await?.context("free")?, c.keeper(LONG).await?);
    c.remove().await?;
    let released = unseen.lock(&c.name).try_now().await?.context("free")?;
    c.remove().await?;
    say(&mut theirs, &format!("try {}", c.name), "granted").await;
    // One does not know it yet when it is released, the other learns it from its renewal.
    let _ = released.release().await;
    let _ = seen.extend(LONG / 2).await;
    assert_eq!(soon("the loss", seen.lost()).await, Loss::Evicted);
    let _ = seen.release().await;
    say(&mut theirs, "owned", "owned True").await;
    ensure!(c.remaining().await?.is_some_and(|left| left <= LONG / 2), "not a moment longer");
    say(&mut theirs, "release", "done").await;
    Ok(())
}

async fn theirs_can_be_seen_and_evicted(c: Setup) -> Result<()> {
    let (keeper, mut theirs) = (c.keeper(LONG).await?, c.theirs(None).await);
    say(&mut theirs, &format!("try {}", c.name), "granted").await;
    let line = keeper.get(&c.name).await?.context("a line")?;
    let shown = &line.tickets[0];
    assert!(shown.owner.as_ref().is_some_and(Owner::is_unknown), "another client");
    assert!(shown.label.is_empty(), "their token is no label");
    assert_eq!(shown.ends_in, Duration::MAX);
    let ticket = shown.id;
    assert!(keeper.evict(&c.name, ticket).await?, "one without an end would stay for ever");
    assert!(!keeper.evict(&c.name, ticket).await?, "once");
    let guard = keeper.lock(&c.name).try_now().await?.context("free at once")?;
    assert!(!keeper.evict(&c.name, ticket).await?, "it was not for the next one");
    say(&mut theirs, "release", "refused LockNotOwnedError").await;
    guard.release().await?;
    Ok(())
}

async fn a_value_of_any_bytes_and_without_an_end_is_respected(c: Setup) -> Result<()> {
    let keeper = c.keeper(LONG).await?;
    for value in [&b"\xff\x00\r\n \xfe."[..], b"", b"lkt1.x"] {
        let () = c.by_hand(&[b"SET", c.name.as_bytes(), value, b"NX"]).await?;
        assert!(keeper.lock(&c.name).try_now().await?.is_none());
        let line = keeper.get(&c.name).await?.context("a line")?;
        assert!(line.tickets[0].label.is_empty());
        let waiter = tokio::spawn(keeper.lock(&c.name).unfair().into_future());
        assert_eq!(c.remaining().await?, None, "it stays without an end");
        let there: Vec<u8> = c.by_hand(&[b"GET", c.name.as_bytes()]).await?;
        assert_eq!(there, value);
        c.remove().await?;
        soon("our turn", waiter).await??.release().await?;
    }
    Ok(())
}
