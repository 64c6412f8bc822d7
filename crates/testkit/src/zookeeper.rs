//! What an ensemble of ZooKeeper servers promises when it loses one of them.

use crate::{
    case::{Case, Need, Verdict},
    failover::{Blow, Cluster, PROMISES, without_its_leader},
    world::{World, soon},
};
use lockkeeper::{Guard, Keeper, Loss};
use servers::{Divided, Running};
use std::time::{Duration, Instant};
use tokio::task::spawn_blocking;

/// The cases of an ensemble. Each has an ensemble of its own, for others could not work with it.
pub(crate) fn own_cases() -> Vec<Case> {
    let needs = &[Need::SurvivesFailover];
    let lost = PROMISES.map(|(name, blow)| {
        Case::new("failover", name, needs, move |_: World| loses_its_leader(blow))
    });
    let cut_off = "a_member_that_is_cut_off_renews_nothing";
    let mut all = Vec::from(lost);
    all.push(Case::new("failover", cut_off, needs, cut_off_member));
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
