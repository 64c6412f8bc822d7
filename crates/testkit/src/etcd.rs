//! What only a cluster of etcd promises: it goes on when its leader does not.

use crate::{
    case::{Case, Need, Verdict},
    register::Register,
    world::{World, eventually, soon, tickets},
};
use anyhow::Context as _;
use lockkeeper::Keeper;
use servers::{Recipe, Running};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinSet;

/// Long enough for an election to fit between two renewals.
const TTL: Duration = Duration::from_secs(6);

/// The cases of a cluster alone, on Debian's etcd.
pub(crate) fn own_cases() -> Vec<Case> {
    let (whole, parted) = (servers::ETCD_CLUSTER, servers::ETCD_PARTED);
    let needs = &[Need::SurvivesFailover];
    let case = |(name, body): (&'static str, Body)| {
        Case::new("failover", name, needs, move |_: World| body(whole, parted))
    };
    failover().map(case).into()
}

type Body = fn(Recipe, Recipe) -> Pin<Box<dyn Future<Output = Verdict>>>;

/// What happens when members fail: by a cluster of one recipe, and one that can be parted of another.
#[must_use]
pub fn failover() -> [(&'static str, Body); 4] {
    [
        ("a_killed_leader_takes_nothing_with_it", |whole, _| Box::pin(killed_leader(whole))),
        ("a_leader_that_stands_still_holds_nobody_up", |whole, _| Box::pin(frozen_leader(whole))),
        ("a_leader_that_is_cut_off_grants_nothing", |_, parted| Box::pin(parted_leader(parted))),
        ("without_a_majority_there_is_a_clear_error_and_no_lock", |whole, _| {
            Box::pin(minority(whole))
        }),
    ]
}

/// The member that leads, by its place among the nodes.
fn leader(running: &Running) -> anyhow::Result<usize> {
    let leads = |port: &u16| {
        let ask = || -> std::io::Result<String> {
            let mut member = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
            member.set_read_timeout(Some(Duration::from_secs(2)))?;
            member.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            member.read_to_string(&mut text)?;
            Ok(text)
        };
        ask().is_ok_and(|text| text.lines().any(|line| line == "etcd_server_is_leader 1"))
    };
    running.ports()[..3].iter().position(leads).context("no member leads")
}

async fn cluster(recipe: Recipe) -> anyhow::Result<Running> {
    tokio::task::spawn_blocking(move || recipe.start()).await?
}

/// Takers that work all the time, each with its own connections.
struct Load {
    register: Arc<Register>,
    fences: Arc<Mutex<Vec<u64>>>,
    keepers: Vec<Keeper>,
    tasks: JoinSet<()>,
}

impl Load {
    async fn start(url: &str) -> anyhow::Result<Self> {
        let mut load = Self {
            register: Arc::default(),
            fences: Arc::default(),
            keepers: Vec::new(),
            tasks: JoinSet::new(),
        };
        for _ in 0..4 {
            let keeper = Keeper::builder().ttl(TTL).connect(url).await?;
            load.keepers.push(keeper.clone());
            let (register, fences) = (load.register.clone(), load.fences.clone());
            load.tasks.spawn(async move {
                loop {
                    let lock = keeper.lock("counter").wait(Duration::from_secs(50));
                    let Ok(guard) = lock.await else { continue };
                    fences.lock().expect("not poisoned").push(guard.fence());
                    register.increment(guard.fence()).await;
                    // Lost meanwhile, it is not there to be released.
                    let _ = guard.release().await;
                }
            });
        }
        Ok(load)
    }

    fn done(&self) -> u64 {
        self.register.value()
    }

    /// So many more have their turn, within the patience of a case.
    async fn go_on(&self, more: u64) {
        let wanted = self.done() + more;
        eventually("those who wait are served", async || self.done() >= wanted).await;
    }

    /// Ends the work; checks that no fence went back, no update was lost and no ticket is left.
    async fn end(mut self) -> Verdict {
        self.tasks.shutdown().await;
        self.register.assert_no_update_was_lost();
        let fences = self.fences.lock().expect("not poisoned").clone();
        assert!(fences.is_sorted_by(|a, b| a < b), "a fence went back: {fences:?}");
        let store = self.keepers[0].store().clone();
        // Before the sessions end, and with them whatever a fault has left behind.
        eventually("no ticket is left", async || tickets(&store).await == 0).await;
        for keeper in &self.keepers {
            soon("the close", keeper.close()).await;
        }
        Ok(())
    }
}

/// Leases are everybody's: what was held is held, and those who wait are served by the others.
async fn killed_leader(recipe: Recipe) -> Verdict {
    let mut running = cluster(recipe).await?;
    let url = running.url().to_owned();
    let keeper = Keeper::builder().ttl(TTL).connect(&url).await?;
    let held = keeper.lock("held").try_now().await?.expect("free");
    let load = Load::start(&url).await?;
    load.go_on(20).await;
    let first = leader(&running)?;
    running.nodes()[first].kill()?;
    load.go_on(20).await;
    assert!(held.is_held(), "renewed at the new leader: {:?}", held.health());
    assert!(keeper.check(&held.sequencer()).await?);
    tokio::task::block_in_place(|| running.restart())?;
    load.go_on(20).await;
    held.release().await?;
    keeper.close().await;
    load.end().await
}

/// It answers nobody, so everybody turns to the others; when it goes on it knows that it leads no
/// more. Whoever was cut short by it knows by its deadline.
async fn frozen_leader(recipe: Recipe) -> Verdict {
    let mut running = cluster(recipe).await?;
    let url = running.url().to_owned();
    let keeper = Keeper::builder().ttl(TTL).connect(&url).await?;
    let held = keeper.lock("held").try_now().await?.expect("free");
    let load = Load::start(&url).await?;
    load.go_on(20).await;
    let first = leader(&running)?;
    running.nodes()[first].freeze()?;
    load.go_on(20).await;
    running.nodes()[first].thaw()?;
    load.go_on(20).await;
    if held.is_held() {
        assert!(keeper.check(&held.sequencer()).await?, "believed in, and so in the store");
    } else {
        soon("the loss is told", held.lost()).await;
    }
    drop(held);
    keeper.close().await;
    load.end().await
}

/// Clients reach it, and it still takes itself for the leader, for a while. Nobody is granted anything
/// there; everybody turns to the others.
async fn parted_leader(recipe: Recipe) -> Verdict {
    let running = cluster(recipe).await?;
    let url = running.url().to_owned();
    let keeper = Keeper::builder().ttl(TTL).connect(&url).await?;
    let held = keeper.lock("held").try_now().await?.expect("free");
    let load = Load::start(&url).await?;
    load.go_on(20).await;
    let first = leader(&running)?;
    servers::etcd::cut_off(&running, first)?;
    let alone = format!("etcd://127.0.0.1:{}", running.ports()[first]);
    load.go_on(20).await;
    let cut = soon("an answer", Keeper::connect(&alone)).await;
    assert!(cut.is_err(), "a member that is cut off answers");
    assert!(leader(&running).is_ok_and(|leader| leader != first), "another one leads");
    servers::etcd::rejoin(&running)?;
    load.go_on(20).await;
    if held.is_held() {
        assert!(keeper.check(&held.sequencer()).await?, "believed in, and so in the store");
    } else {
        soon("the loss is told", held.lost()).await;
    }
    drop(held);
    keeper.close().await;
    load.end().await
}

/// One of three decides nothing: holders hear of their loss by their deadline, nobody gets a lock, and
/// all goes on when the others are back.
async fn minority(recipe: Recipe) -> Verdict {
    let mut running = cluster(recipe).await?;
    let url = running.url().to_owned();
    let keeper = Keeper::builder().ttl(TTL).connect(&url).await?;
    let held = keeper.lock("held").try_now().await?.expect("free");
    let fence = held.fence();
    for at in [0, 2] {
        running.nodes()[at].kill()?;
    }
    let refused = soon("an answer", keeper.lock("other").try_now()).await;
    assert!(refused.is_err(), "one of three has granted: {refused:?}");
    soon("the loss", held.lost()).await;
    assert!(!held.is_held());
    tokio::task::block_in_place(|| running.restart())?;
    let next = soon("the next holder", keeper.lock("held").into_future()).await?;
    assert!(next.fence() > fence);
    next.release().await?;
    keeper.close().await;
    Ok(())
}
