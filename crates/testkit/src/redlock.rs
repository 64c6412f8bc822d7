//! What only Redlock and the plain string locks of Redis promise.

use crate::{
    case::{Case, Need, Verdict},
    servers::give_votes,
    world::{World, eventually, soon},
};
use anyhow::{Context as _, ensure};
use lockkeeper::{Error, ErrorKind, Keeper};
use servers::Running;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

/// The cases of Redlock alone.
pub(crate) fn own_cases() -> Vec<Case> {
    let needs = &[Need::SurvivesFailover];
    vec![
        Case::new("failover", "a_minority_may_be_lost", needs, a_minority_may_be_lost),
        Case::new(
            "failover",
            "a_minority_that_stands_still_delays_no_client",
            needs,
            frozen_minority,
        ),
        Case::new("failover", "a_node_that_comes_back_is_of_use_again", needs, mended),
        Case::new(
            "failover",
            "a_program_beside_a_frozen_node_is_not_delayed",
            needs,
            frozen_at_first,
        ),
    ]
}

/// The cases of `?compat=string`, on a single server.
pub(crate) fn plain_cases() -> Vec<Case> {
    vec![
        Case::new("compat", "plain_locks_exclude_each_other", &[], plain_locks_exclude_each_other),
        Case::new("compat", "theirs_and_ours_exclude_each_other", &[], theirs_and_ours),
        Case::new("compat", "a_key_of_another_type_is_busy_and_left_alone", &[], of_another_type),
        Case::new("compat", "a_plain_lock_has_no_fence", &[], a_plain_lock_has_no_fence),
        Case::new("compat", "names_that_are_our_own_keys_are_refused", &[], our_own_keys),
        Case::new("compat", "an_error_names_the_store_of_the_url", &[], the_store_of_the_url),
    ]
}

fn kill(running: &mut Running, nodes: &[usize]) -> Verdict {
    nodes.iter().try_for_each(|at| running.nodes()[*at].kill())
}

/// Two servers of five are lost and no client notices. With the third one there is a clear error, soon;
/// and when they are back, empty, all goes on after their quarantine.
async fn a_minority_may_be_lost(_: World) -> Verdict {
    let mut running = tokio::task::spawn_blocking(|| servers::REDLOCK.start()).await??;
    give_votes(&running)?;
    let url = format!("{}?max_ttl=5s", running.url());
    let ttl = Duration::from_secs(4);
    let (one, two) =
        (Keeper::builder().ttl(ttl).connect(&url).await?, Keeper::connect(&url).await?);
    let held = one.lock("held").try_now().await?.expect("free");
    kill(&mut running, &[1, 3])?;

    let guard = one.lock("a").try_now().await?.expect("free");
    assert!(two.lock("a").ttl(ttl).try_now().await?.is_none());
    tokio::time::sleep(ttl * 5 / 4).await;
    for guard in [&held, &guard] {
        assert!(guard.is_held(), "renewed by the other three: {:?}", guard.health());
        assert!(two.check(&guard.sequencer()).await?);
    }
    guard.set_label("still here").await?;
    let before = guard.fence();
    guard.release().await?;
    let next = two.lock("a").ttl(ttl).try_now().await?.expect("free at once");
    assert!(next.fence() > before);
    next.release().await?;

    kill(&mut running, &[0])?;
    let began = Instant::now();
    let Err(Error::Store(e)) = two.lock("a").ttl(ttl).try_now().await else {
        anyhow::bail!("two of five are no majority");
    };
    ensure!(e.kind == ErrorKind::Unavailable && e.to_string().contains("majority"), "{e}");
    ensure!(began.elapsed() < Duration::from_secs(5), "said after {:?}", began.elapsed());
    soon("the loss", held.lost()).await;

    tokio::task::block_in_place(|| running.restart())?;
    eventually("all is as before", async || {
        matches!(two.lock("a").ttl(ttl).try_now().await, Ok(Some(_)))
    })
    .await;
    Ok(())
}

/// No client waits for two servers that stand still, and when they go on nothing is left on them.
async fn frozen_minority(_: World) -> Verdict {
    let mut running = tokio::task::spawn_blocking(|| servers::REDLOCK.start()).await??;
    give_votes(&running)?;
    // So long that the patience with a node is at its longest, half a second.
    let (ttl, url) = (Duration::from_secs(60), format!("{}?max_ttl=90s", running.url()));
    let keeper = Keeper::builder().ttl(ttl).connect(&url).await?;
    keeper.lock("a").try_now().await?.expect("free").release().await?;
    for at in [1, 3] {
        running.nodes()[at].freeze()?;
    }
    let began = Instant::now();
    for _ in 0..40 {
        keeper.lock("a").try_now().await?.expect("free").release().await?;
    }
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(10), "40 locks and releases took {took:?}");
    for at in [1, 3] {
        running.nodes()[at].thaw()?;
    }
    for at in [1, 3] {
        let mut node = Raw::at(running.ports()[at])?;
        eventually("nothing is left", async || {
            node.ask(&["HEXISTS", "lk:rl:a", "k"]).is_ok_and(|answer| answer == ":0")
        })
        .await;
    }
    keeper.close().await;
    Ok(())
}

/// A program that starts beside a frozen server connects, takes a lock, releases it and ends, long before it
/// could know that the server answers no more.
async fn frozen_at_first(_: World) -> Verdict {
    const QUICK: Duration = Duration::from_millis(1500);
    let mut running = tokio::task::spawn_blocking(|| servers::REDLOCK.start()).await??;
    give_votes(&running)?;
    running.nodes()[2].freeze()?;
    // Again and again, for the machine may be busy; each attempt alone would wait for the server.
    eventually("a program is done soon", async || {
        let began = Instant::now();
        let keeper = Keeper::connect(running.url()).await.expect("four of five answer");
        let guard = keeper.lock("a").try_now().await.expect("four of five answer");
        let released = guard.expect("free").release().await;
        keeper.close().await;
        released.is_ok() && began.elapsed() < QUICK
    })
    .await;
    running.nodes()[2].thaw()?;
    Ok(())
}

/// A server that has lost a ticket gets it back with the next renewal, so that another may be lost.
async fn mended(_: World) -> Verdict {
    let mut running = tokio::task::spawn_blocking(|| servers::REDLOCK.start()).await??;
    give_votes(&running)?;
    let url = format!("{}?max_ttl=5s", running.url());
    let ttl = Duration::from_secs(4);
    let (one, two) =
        (Keeper::builder().ttl(ttl).connect(&url).await?, Keeper::connect(&url).await?);
    let held = one.lock("a").label("mine").try_now().await?.expect("free");
    for at in [0, 1] {
        running.nodes()[at].kill()?;
        tokio::task::block_in_place(|| running.nodes()[at].restart())?;
        let mut node = Raw::at(running.ports()[at])?;
        eventually("the ticket is back", async || {
            node.ask(&["HGET", "lk:rl:a", "f"]).is_ok_and(|f| f == held.fence().to_string())
        })
        .await;
    }
    // The two that have it back are two of the three that are left.
    kill(&mut running, &[3, 4])?;
    let until = Instant::now() + ttl * 5 / 4;
    eventually("more than a TTL has passed", async || Instant::now() > until).await;
    assert!(held.is_held(), "{:?}", held.health());
    assert!(two.check(&held.sequencer()).await?);
    held.release().await?;
    Ok(())
}

/// A connection that speaks Redis by hand, as another library would.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn to(w: &World) -> anyhow::Result<Self> {
        let address = w.url().strip_prefix("redis://").context("a single server")?;
        let address = address.split(['?', '/']).next().context("a server")?;
        Self::at(address.rsplit_once(':').context("a port")?.1.parse()?)
    }

    fn at(port: u16) -> anyhow::Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)))
    }

    /// Sends one command; the answer is its first line, or the text that follows it.
    fn ask(&mut self, command: &[&str]) -> anyhow::Result<String> {
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        let first = self.line()?;
        if first.starts_with('$') && first != "$-1" { self.line() } else { Ok(first) }
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The delete that every library has.
    fn compare_delete(&mut self, key: &str, value: &str) -> anyhow::Result<String> {
        let script = "if redis.call('get',KEYS[1])==ARGV[1] then \
                      return redis.call('del',KEYS[1]) else return 0 end";
        self.ask(&["EVAL", script, "1", key, value])
    }
}

/// A keeper of plain string locks.
async fn plain(w: &World) -> anyhow::Result<Keeper> {
    Ok(Keeper::connect(&format!("{}&compat=string", w.url())).await?)
}

/// The keys are the names themselves, and all cases share a server.
fn fresh_name() -> String {
    format!("plain {:016x}", rand::random::<u64>())
}

/// Two processes of ours.
async fn plain_locks_exclude_each_other(w: World) -> Verdict {
    let (one, two, name) = (plain(&w).await?, plain(&w).await?, fresh_name());
    let guard = one.lock(&name).try_now().await?.expect("free");
    assert!(two.lock(&name).try_now().await?.is_none());
    assert!(two.check(&guard.sequencer()).await?);
    let line = two.get(&name).await?.expect("a line");
    assert_eq!(line.tickets[0].id, guard.ticket());
    guard.release().await?;
    let guard = two.lock(&name).try_now().await?.expect("free at once");
    assert!(one.evict(&name, guard.ticket()).await?);
    assert!(!one.check(&guard.sequencer()).await?);
    one.lock(&name).try_now().await?.expect("free at once").release().await?;
    Ok(())
}

/// `SET NX PX` and the delete that compares, by hand, in both directions.
async fn theirs_and_ours(w: World) -> Verdict {
    let (keeper, mut raw, name) = (plain(&w).await?, Raw::to(&w)?, fresh_name());
    let guard = keeper.lock(&name).try_now().await?.expect("free");
    let take = ["SET", &name, "theirs", "NX", "PX", "60000"];
    assert_eq!(raw.ask(&take)?, "$-1", "ours keeps them out");
    assert_eq!(raw.compare_delete(&name, "theirs")?, ":0");
    let left: u64 = raw.ask(&["PTTL", &name])?.trim_start_matches(':').parse()?;
    assert!(left > 0, "ours ends by itself");
    guard.release().await?;

    assert_eq!(raw.ask(&take)?, "+OK", "free at once");
    assert!(keeper.lock(&name).try_now().await?.is_none(), "theirs keeps us out");
    let theirs = keeper.get(&name).await?.expect("a line").tickets.remove(0);
    assert!(theirs.owner.is_some_and(|owner| owner.is_unknown()), "another client");
    assert!(theirs.label.is_empty(), "a token is no label");
    assert!(theirs.ends_in > Duration::from_secs(30) && theirs.granted_ago.is_none());
    assert_eq!(raw.ask(&["GET", &name])?, "theirs", "and we have left it alone");
    assert_eq!(raw.compare_delete(&name, "theirs")?, ":1");

    assert_eq!(raw.ask(&["SET", &name, "for ever", "NX"])?, "+OK");
    assert!(keeper.lock(&name).try_now().await?.is_none(), "one without an end is respected");
    assert_eq!(raw.ask(&["PTTL", &name])?, ":-1", "and stays without one");
    assert_eq!(raw.ask(&["DEL", &name])?, ":1");
    keeper.lock(&name).try_now().await?.expect("free at once").release().await?;
    Ok(())
}

/// Redisson's locks are hashes. Whatever stands under the name keeps us out, and is not touched.
async fn of_another_type(w: World) -> Verdict {
    let (keeper, mut raw, name) = (plain(&w).await?, Raw::to(&w)?, fresh_name());
    assert_eq!(raw.ask(&["HSET", &name, "field", "value"])?, ":1");
    assert!(keeper.lock(&name).try_now().await?.is_none(), "busy");
    let theirs = keeper.get(&name).await?.expect("a line").tickets.remove(0);
    let owner = theirs.owner.expect("another client");
    assert!(owner.is_unknown() && owner.program.contains("hash"), "{owner:?}");
    assert_eq!(theirs.ends_in, Duration::MAX, "it never ends by itself");
    let refused = keeper.evict(&name, theirs.id).await;
    assert!(refused.is_err(), "it may be no lock at all: {refused:?}");
    assert_eq!(raw.ask(&["HGET", &name, "field"])?, "value");
    assert_eq!(raw.ask(&["PTTL", &name])?, ":-1");
    assert_eq!(raw.ask(&["DEL", &name])?, ":1");
    keeper.lock(&name).try_now().await?.expect("free at once").release().await?;
    Ok(())
}

/// The clients of other libraries take the same lock and draw no numbers: ours would prove nothing.
async fn a_plain_lock_has_no_fence(w: World) -> Verdict {
    let (keeper, name) = (plain(&w).await?, fresh_name());
    assert!(!keeper.capabilities().fenced);
    for _ in 0..2 {
        let guard = keeper.lock(&name).try_now().await?.expect("free");
        assert_eq!(guard.fence(), 0, "there is none");
        let sequencer = guard.sequencer();
        assert_eq!(sequencer.fence(), 0);
        assert!(keeper.check(&sequencer).await?, "the ticket is proof enough");
        let line = keeper.get(&name).await?.expect("a line");
        assert_eq!(line.tickets[0].fence, Some(0), "held, without a number");
        guard.release().await?;
        assert!(!keeper.check(&sequencer).await?);
    }
    Ok(())
}

/// A lock named as a key of ours would write over what all others need.
async fn our_own_keys(w: World) -> Verdict {
    let (keeper, fenced) = (plain(&w).await?, Keeper::connect(w.url()).await?);
    let prefix = w.url().split("prefix=").nth(1).context("a prefix")?.to_owned();
    let index = format!("{prefix}:rl-index");
    for name in [&index[..], "lk:rl-index", "lk:{0}:s", "lockkeeper:redlock:boot"] {
        let refused = keeper.lock(name).try_now().await;
        let Err(Error::Store(e)) = refused else { anyhow::bail!("{name}: {refused:?}") };
        ensure!(e.kind == ErrorKind::Name && e.store == "redis", "{e}");
        ensure!(e.to_string().contains("begins with"), "the rule is said: {e}");
        let ticket = lockkeeper::TicketId::random();
        let refused = keeper.evict(name, ticket).await;
        assert!(matches!(refused, Err(Error::Store(e)) if e.kind == ErrorKind::Name));
    }
    let name = fresh_name();
    for keeper in [&keeper, &fenced] {
        keeper.lock(&name).try_now().await?.expect("free").release().await?;
    }
    fenced.lock("lk:rl-index").try_now().await?.expect("free").release().await?;
    Ok(())
}

/// The two kinds of URL share their code, not their words.
async fn the_store_of_the_url(_: World) -> Verdict {
    let mut running = tokio::task::spawn_blocking(|| servers::REDIS.start()).await??;
    let keeper = Keeper::connect(&format!("{}?compat=string", running.url())).await?;
    running.nodes()[0].kill()?;
    let refused = keeper.lock("a").try_now().await;
    let Err(Error::Store(e)) = refused else { anyhow::bail!("{refused:?}") };
    ensure!(e.kind == ErrorKind::Unavailable, "{e}");
    let said = e.to_string();
    ensure!(said.starts_with("redis: ") && !said.contains("redlock"), "{said}");
    ensure!(!said.contains("majority"), "there is one server: {said}");
    Ok(())
}
