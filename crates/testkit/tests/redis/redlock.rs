//! Redlock, when nodes come back without their memory while their neighbours go on.

use crate::support::Witness;
use lockkeeper::{Error, ErrorKind, Guard, Keeper};
use servers::{Running, Unavailable};
use std::time::{Duration, Instant};
use testkit::{
    register::Register,
    trials::Fixture,
    world::{eventually, soon},
};

testkit::tests! {
    [FiveNodes] =>
        nodes_that_have_forgotten_a_holder_do_not_give_its_lock_to_another,
        a_holder_keeps_its_lock_as_long_as_a_majority_remembers_it,
        nodes_that_come_back_with_old_data_do_not_give_a_lock_to_another,
        a_restart_that_keeps_the_scripts_is_noticed,
        clients_that_disagree_about_max_ttl_are_refused,
        a_client_that_gets_no_lock_tells_no_server_its_max_ttl,
        max_ttl_can_be_changed_as_documented;
    [servers::REDLOCK] =>
        servers_that_were_all_flushed_do_not_give_a_lock_to_another,
        servers_that_may_have_forgotten_a_holder_are_not_new;
    [(FiveNodes, servers::REDLOCK)] =>
        a_server_without_a_quarantine_has_a_floor_for_fences;
}

const TTL: Duration = Duration::from_secs(4);
/// For how long a node that has started empty has no vote.
const QUARANTINE: &str = "6s";

/// The nodes of Redlock, each with a vote from its start.
#[derive(Clone, Copy)]
struct FiveNodes;

impl Fixture for FiveNodes {
    type Ready = Running;

    fn variant(&self) -> &'static str {
        servers::REDLOCK.variant()
    }

    fn missing(&self) -> Option<Unavailable> {
        servers::REDLOCK.missing()
    }

    fn start(&self) -> anyhow::Result<Running> {
        let server = servers::REDLOCK.start()?;
        testkit::servers::give_votes(&server)?;
        Ok(server)
    }
}

async fn keeper(server: &Running) -> Keeper {
    let url = format!("{}?max_ttl={QUARANTINE}", server.url());
    Keeper::builder().ttl(TTL).connect(&url).await.expect("the servers answer")
}

/// Waits until the other keeper has the lock, and makes sure that the holder has lost it by then.
async fn follows(holder: &Guard, other: &Keeper) -> Guard {
    let mut next = None;
    eventually("the other one's turn", async || {
        next = try_beside(holder, other).await;
        next.is_some()
    })
    .await;
    next.expect("granted")
}

/// Nodes die and come back with nothing.
fn forget(server: &mut Running, nodes: &[usize]) {
    for node in nodes {
        server.nodes()[*node].kill().expect("killed");
        server.nodes()[*node].restart().expect("restarted");
    }
}

/// Tries to get the lock that another one has; it must not be had while that one believes in it.
async fn try_beside(holder: &Guard, keeper: &Keeper) -> Option<Guard> {
    // While too many nodes have no vote there is an error instead.
    let tried = keeper.lock("a").try_now().await.ok().flatten();
    assert!(tried.is_none() || !holder.is_held(), "two have it");
    tried
}

/// It is renewed until long after it would have ended without, while another one tries to get it.
async fn is_kept(holder: &Guard, other: &Keeper) {
    let began = Instant::now();
    eventually("more than a TTL has passed", async || {
        assert!(try_beside(holder, other).await.is_none());
        assert!(holder.is_held(), "{:?}", holder.health());
        began.elapsed() > TTL * 5 / 4
    })
    .await;
}

/// The holder has the nodes A, B and C, and C goes as well. Then C, D and E come back empty: three nodes
/// that know nothing of the lock would be a majority for another one, had they a vote.
async fn nodes_that_have_forgotten_a_holder_do_not_give_its_lock_to_another(mut server: Running) {
    let (one, two, register) = (keeper(&server).await, keeper(&server).await, Register::default());
    for node in [3, 4] {
        server.nodes()[node].kill().expect("killed");
    }
    let held = one.lock("a").try_now().await.expect("three of five").expect("free");
    assert!(register.write(held.fence(), 1));
    is_kept(&held, &two).await;

    server.nodes()[2].kill().expect("killed");
    for node in [2, 3, 4] {
        server.nodes()[node].restart().expect("restarted");
    }
    let next = follows(&held, &two).await;
    soon("the loss", held.lost()).await;
    assert!(next.is_held() && next.fence() > held.fence());
    assert!(two.check(&next.sequencer()).await.expect("an answer"));
    assert!(!two.check(&held.sequencer()).await.expect("an answer"));
    assert!(register.write(next.fence(), 2));
    assert!(!register.write(held.fence(), 3), "the older one comes too late");
}

/// Two of five forget, one after the other; the other three are enough to keep the lock, to release
/// it, and to give it to the next.
async fn a_holder_keeps_its_lock_as_long_as_a_majority_remembers_it(mut server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").try_now().await.expect("five of five").expect("free");
    for node in [0, 1] {
        forget(&mut server, &[node]);
        is_kept(&held, &two).await;
    }
    let fence = held.fence();
    held.release().await.expect("released");
    let next = two.lock("a").try_now().await.expect("three of five").expect("free");
    assert!(next.fence() > fence);
}

/// Three nodes of five have kept a copy of their data from before the lock, and come back with it. That is
/// worse than nothing: they believe that they have forgotten nothing.
async fn nodes_that_come_back_with_old_data_do_not_give_a_lock_to_another(mut server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    one.lock("a")
        .try_now()
        .await
        .expect("five of five")
        .expect("free")
        .release()
        .await
        .expect("ok");
    for node in [0, 1, 2] {
        Witness::at(server.ports()[node]).await.command(&["SAVE"]).await;
    }
    let held = one.lock("a").try_now().await.expect("five of five").expect("free");
    forget(&mut server, &[0, 1, 2]);
    assert!(follows(&held, &two).await.fence() > held.fence());
    soon("the loss", held.lost()).await;
}

/// Before Redis 7 scripts come back with the append-only file and with a promoted replica, so that a server
/// which has restarted knows all of ours. The test teaches them to it in its place.
async fn a_restart_that_keeps_the_scripts_is_noticed(mut server: Running) {
    let one = keeper(&server).await;
    one.lock("b")
        .try_now()
        .await
        .expect("five of five")
        .expect("free")
        .release()
        .await
        .expect("ok");
    for node in [0, 1, 2] {
        Witness::at(server.ports()[node]).await.command(&["SAVE"]).await;
    }
    let held = one.lock("a").try_now().await.expect("five of five").expect("free");
    forget(&mut server, &[0, 1, 2]);
    for node in [0, 1, 2] {
        let mut witness = Witness::at(server.ports()[node]).await;
        for script in scripts() {
            witness.command(&["SCRIPT", "LOAD", &script]).await;
        }
    }
    let two = keeper(&server).await;
    assert!(follows(&held, &two).await.fence() > held.fence());
    soon("the loss", held.lost()).await;
}

const BOOT: &str = "lockkeeper:redlock:boot";

async fn up_for_long(server: &Running) {
    for port in server.ports() {
        let mut witness = Witness::at(*port).await;
        eventually("it has been up for longer than max_ttl", async || {
            let info = witness.info("server").await;
            let uptime =
                info.lines().find_map(|l| l.strip_prefix("uptime_in_seconds:")?.parse().ok());
            uptime.is_some_and(|uptime: u64| uptime > 6)
        })
        .await;
    }
}

async fn all(server: &Running, commands: &[&[&str]]) {
    for port in server.ports() {
        let mut witness = Witness::at(*port).await;
        for command in commands {
            witness.command(command).await;
        }
    }
}

/// The first client of new servers takes a lock at once. All servers must answer it within a second; on a machine
/// that is too busy for that they are made new again.
async fn first_lock(server: &Running) -> Guard {
    let mut first = None;
    eventually("a lock from new servers", async || {
        first = keeper(server).await.lock("a").try_now().await.ok().flatten();
        if first.is_none() {
            all(server, &[&["FLUSHALL"], &["SCRIPT", "FLUSH"], &["CONFIG", "RESETSTAT"]]).await;
        }
        first.is_some()
    })
    .await;
    first.expect("granted")
}

/// All servers show no key of ours, as new ones do, but have just forgotten a holder.
async fn servers_that_were_all_flushed_do_not_give_a_lock_to_another(server: Running) {
    up_for_long(&server).await;
    let held = first_lock(&server).await;
    all(&server, &[&["FLUSHALL"]]).await;
    let other = keeper(&server).await;
    assert!(try_beside(&held, &other).await.is_none(), "at once");
    assert!(follows(&held, &other).await.fence() > held.fence());
    soon("the loss", held.lost()).await;
}

/// Whatever has emptied the servers, they have no vote unless it is certain that they are new.
async fn servers_that_may_have_forgotten_a_holder_are_not_new(mut server: Running) {
    up_for_long(&server).await;
    let mark = scripts().into_iter().find(|text| text.starts_with("-- A mark")).expect("the mark");
    let ways: &[&[&[&str]]] = &[
        &[&["FLUSHALL"]],
        // Evicted, with all else or alone.
        &[&["DEL", BOOT]],
        &[&["FLUSHALL"], &["SCRIPT", "FLUSH"]],
        // As a client of another version leaves a server, whose other scripts are not ours. That there was a flush
        // is hidden, so that the mark alone tells.
        &[
            &["FLUSHALL"],
            &["SCRIPT", "FLUSH"],
            &["CONFIG", "RESETSTAT"],
            &["SCRIPT", "LOAD", &mark],
        ],
    ];
    first_lock(&server).await.release().await.expect("released");
    let has_no_vote = async |server: &Running, why: &str| {
        let refused = keeper(server).await.lock("a").try_now().await;
        let Err(Error::Store(e)) = refused else { panic!("{why}: {refused:?}") };
        assert!(e.to_string().contains("no vote"), "{why}: {e}");
    };
    for way in ways {
        all(&server, way).await;
        has_no_vote(&server, &format!("{way:?}")).await;
    }
    all(&server, &[&["FLUSHALL"]]).await;
    forget(&mut server, &[0, 1, 2, 3, 4]);
    has_no_vote(&server, "flushed and started again").await;
    // Started again, and not asked for anything while what was held before can have lasted.
    forget(&mut server, &[0, 1, 2, 3, 4]);
    up_for_long(&server).await;
    first_lock(&server).await.release().await.expect("released");
}

/// A server that the operator declares new, and one that its clients have found new, begin with a floor.
async fn a_server_without_a_quarantine_has_a_floor_for_fences(
    (declared, found): (Running, Running),
) {
    up_for_long(&found).await;
    let _guards = (keeper(&declared).await, first_lock(&found).await);
    for port in declared.ports().iter().chain(found.ports()) {
        let mut witness = Witness::at(*port).await;
        eventually("the server has its floor", async || {
            let boot = witness.text(&["GET", BOOT]).await;
            let words: Vec<&str> = boot.split(' ').collect();
            let now: u64 = witness.texts(&["TIME"]).await[0].parse().expect("seconds");
            let floor =
                words.get(2).map(|floor| floor.parse::<u64>().expect("a number") / 1_000_000);
            words[0] == "0" && floor.is_some_and(|floor| floor <= now && floor + 600 > now)
        })
        .await;
    }
}

/// The scripts of Redlock, as its clients send them.
fn scripts() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockkeeper/src/store/redlock");
    let files = std::fs::read_dir(folder).expect("the store's folder");
    let paths = files.map(|file| file.expect("a file").path());
    let scripts = paths.filter(|path| path.extension().is_some_and(|extension| extension == "lua"));
    scripts.map(|path| std::fs::read_to_string(path).expect("a script")).collect()
}

/// Three nodes of five have forgotten a lock whose clients say 40 s, and stay out for as long as their next
/// client says. One that says 3 s must not shorten that.
async fn clients_that_disagree_about_max_ttl_are_refused(mut server: Running) {
    let (one, other) = (keeper_of(&server, "40s", 30).await, keeper_of(&server, "3s", 2).await);
    let held = one.lock("a").try_now().await.expect("five of five").expect("free");
    let refused = async |keeper: &Keeper| match keeper.lock("a").try_now().await {
        Err(Error::Store(e)) if e.kind == ErrorKind::Misconfigured => {
            let said = e.to_string();
            assert!(said.contains("40s") && said.contains("3s"), "{said}");
            true
        }
        Err(_) => false,
        Ok(got) => {
            assert!(got.is_none() || !held.is_held(), "two have it");
            panic!("granted to a client that disagrees: {got:?}")
        }
    };
    assert!(refused(&other).await, "by nodes that remember");
    forget(&mut server, &[2, 3, 4]);
    let began = Instant::now();
    let fresh = keeper_of(&server, "3s", 2).await;
    eventually("a shorter quarantine would be over", async || {
        assert!(refused(&fresh).await && refused(&other).await, "by those that still remember");
        began.elapsed() > Duration::from_secs(5)
    })
    .await;
    let agreeing = keeper_of(&server, "40s", 30).await;
    match agreeing.lock("a").try_now().await {
        Err(Error::Store(e)) => {
            assert_eq!(e.kind, ErrorKind::Unavailable, "three have no vote: {e}")
        }
        other => assert!(matches!(other, Ok(None)), "two say that it is held: {other:?}"),
    }
}

/// Four nodes of five stand still, and the fifth was told nothing yet. A client with another `max_ttl` gets no lock
/// there, but it told the fifth its own, and from then on that one refused all clients that were right.
async fn a_client_that_gets_no_lock_tells_no_server_its_max_ttl(mut server: Running) {
    // It connects while no server was told anything.
    let wrong = keeper_of(&server, "3s", 2).await;
    let right = keeper_of(&server, "40s", 30).await;
    let lock = right.lock("a").try_now().await.expect("five of five").expect("free");
    lock.release().await.expect("released");
    right.close().await;
    let mut fresh = Witness::at(server.ports()[4]).await;
    fresh.command(&["DEL", "lk:rl-max-ttl"]).await;
    for node in 0..4 {
        server.nodes()[node].freeze().expect("frozen");
    }
    assert!(wrong.lock("a").try_now().await.is_err(), "four are silent");
    for node in 0..4 {
        server.nodes()[node].thaw().expect("thawed");
    }
    let told = fresh.number(&["EXISTS", "lk:rl-max-ttl"]).await;
    assert_eq!(told, 0, "the wrong client has told it nothing");
    let again = keeper_of(&server, "40s", 30).await;
    let lock = again.lock("a").try_now().await.expect("the right one is welcome").expect("free");
    lock.release().await.expect("released");
    assert!(wrong.lock("a").try_now().await.is_err(), "it is refused as before");
}

/// When no lock is held, the servers can be told to forget what they were told.
async fn max_ttl_can_be_changed_as_documented(server: Running) {
    let before = keeper_of(&server, "40s", 30).await;
    before
        .lock("a")
        .try_now()
        .await
        .expect("an answer")
        .expect("free")
        .release()
        .await
        .expect("ok");
    let after = keeper_of(&server, "50s", 30).await;
    assert!(after.lock("a").try_now().await.is_err(), "they disagree");
    for port in server.ports() {
        Witness::at(*port).await.command(&["DEL", "lk:rl-max-ttl"]).await;
    }
    eventually("the new one is taken", async || {
        matches!(after.lock("a").try_now().await, Ok(Some(_)))
    })
    .await;
    assert!(before.lock("a").try_now().await.is_err(), "now the old one is refused");
}

async fn keeper_of(server: &Running, max_ttl: &str, ttl: u64) -> Keeper {
    let url = format!("{}?max_ttl={max_ttl}", server.url());
    Keeper::builder().ttl(Duration::from_secs(ttl)).connect(&url).await.expect("the servers answer")
}
