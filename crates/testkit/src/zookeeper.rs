//! What an ensemble of ZooKeeper servers promises when it loses one of them.

use crate::{
    case::{Case, Need, Verdict},
    failover::{Blow, Cluster, PROMISES, without_its_leader},
    world::{World, soon},
};
use lockkeeper::{Error, Guard, Keeper, Loss};
use servers::{Divided, Running};
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, block_in_place, spawn_blocking};

/// The cases of an ensemble. Each has an ensemble of its own, for others could not work with it.
pub(crate) fn own_cases() -> Vec<Case> {
    let needs = &[Need::SurvivesFailover];
    let lost = PROMISES.map(|(name, blow)| {
        Case::new("failover", name, needs, move |_: World| loses_its_leader(blow))
    });
    let cut_off = "a_member_that_is_cut_off_renews_nothing";
    let mut all = Vec::from(lost);
    all.push(Case::new("failover", cut_off, needs, cut_off_member));
    let between = "keepers_that_connect_while_there_is_no_leader_wait_for_one";
    all.push(Case::new("failover", between, needs, connects_without_a_leader));
    all
}

async fn loses_its_leader(blow: Blow) -> Verdict {
    without_its_leader(spawn_blocking(Divided::start).await??, blow).await
}

impl Cluster for Divided {
    fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    fn leader(&self) -> anyhow::Result<usize> {
        self.leader()
    }

    fn cut_off(&self, member: usize) -> anyhow::Result<()> {
        self.cut_off(member);
        Ok(())
    }

    fn rejoin(&self, member: usize) -> anyhow::Result<()> {
        self.mend(member);
        Ok(())
    }
}

/// Without a leader every server hangs up. It makes no difference to one who connects whether an election
/// takes a moment or there are too few for one.
async fn connects_without_a_leader(_: World) -> Verdict {
    let mut servers = spawn_blocking(Divided::start).await??;
    let url = servers.running.url().to_owned();
    let (first, second) = (servers.leader()?, (servers.leader()? + 1) % 3);
    block_in_place(|| servers.running.nodes()[first].kill())?;
    let mut connecting = many_connect(&url);
    soon("all are in", all_are_in(&mut connecting)).await?;
    block_in_place(|| servers.running.nodes()[second].kill())?;
    match Keeper::connect(&url).await {
        Err(Error::Store(e)) => assert!(e.is_transient(), "{e:?}"),
        other => anyhow::bail!("no server serves, and yet {other:?}"),
    }
    let mut connecting = many_connect(&url);
    block_in_place(|| servers.running.nodes()[first].restart())?;
    soon("all are in", all_are_in(&mut connecting)).await
}

/// New keepers that wait for the store and take a lock.
fn many_connect(url: &str) -> JoinSet<lockkeeper::Result<()>> {
    let connect = |at: usize| {
        let url = url.to_owned();
        async move {
            let wait = Duration::from_secs(60);
            let keeper = Keeper::builder().connect_wait(wait).connect(&url).await?;
            keeper.lock(format!("of {at}")).await?.release().await
        }
    };
    (0..20).map(connect).collect()
}

async fn all_are_in(connecting: &mut JoinSet<lockkeeper::Result<()>>) -> Verdict {
    while let Some(end) = connecting.join_next().await {
        end??;
    }
    Ok(())
}

/// A follower that has lost its leader goes on answering reads and pings for a while. Its clients'
/// sessions are not prolonged by that, so they must not believe it.
async fn cut_off_member(_: World) -> Verdict {
    let servers = spawn_blocking(Divided::start).await??;
    let leader = servers.leader()?;
    let (follower, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let url = |at: usize| format!("zookeeper://127.0.0.1:{}", servers.running.ports()[at]);
    let ttl = Duration::from_secs(2);
    let keeper = Keeper::builder().ttl(ttl).connect(&url(follower)).await?;
    let held: Guard = keeper.lock("a").await?;
    let successor = Keeper::connect(&url(other)).await?;
    let lock = successor.lock("a");
    let (mut sure, began) = (Instant::now(), Instant::now());
    servers.cut_off(follower);
    let next = tokio::spawn(lock.into_future());
    while held.is_held() {
        sure = Instant::now();
        anyhow::ensure!(began.elapsed() < ttl * 2, "still sure of it");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!next.is_finished(), "two were sure of it, until {:?}", sure.elapsed());
    assert_eq!(held.lost().await, Loss::Expired);
    let next = soon("the successor's turn", next).await??;
    assert!(next.fence() > held.fence());
    Ok(())
}
