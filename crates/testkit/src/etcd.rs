//! What only a cluster of etcd promises: it goes on when its leader does not.

use crate::{
    case::{Case, Local, Need, Verdict},
    failover::{Blow, Cluster, PROMISES, without_its_leader},
    world::{World, eventually, soon},
};
use anyhow::Context as _;
use lockkeeper::Keeper;
use servers::{Recipe, Running};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    time::Duration,
};
use tokio::task::spawn_blocking;

/// Long enough for an election to fit between two renewals.
const TTL: Duration = Duration::from_secs(6);

/// The cases of a cluster alone, on Debian's etcd.
pub(crate) fn own_cases() -> Vec<Case> {
    let needs = &[Need::SurvivesFailover];
    let case = |(name, run): (&str, Run)| Case::new("failover", name, needs, move |_: World| run());
    failover(servers::ETCD_PARTED).into_iter().map(case).collect()
}

type Run = Box<dyn Fn() -> Local + Send + Sync>;

/// What happens when members fail, on clusters of this recipe, which can be parted.
#[must_use]
pub fn failover(recipe: Recipe) -> Vec<(&'static str, Run)> {
    let lost = PROMISES.map(|(name, blow)| -> (_, Run) {
        (name, Box::new(move || Box::pin(loses_its_leader(recipe, blow))))
    });
    let mut all = Vec::from(lost);
    let name = "without_a_majority_there_is_a_clear_error_and_no_lock";
    all.push((name, Box::new(move || Box::pin(minority(recipe)))));
    all
}

async fn loses_its_leader(recipe: Recipe, blow: Blow) -> Verdict {
    let running = spawn_blocking(move || recipe.start()).await??;
    without_its_leader(Parted(running), blow).await
}

/// A cluster that can be parted.
struct Parted(Running);

impl Cluster for Parted {
    fn running(&mut self) -> &mut Running {
        &mut self.0
    }

    fn leader(&self) -> anyhow::Result<usize> {
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
        self.0.ports()[..3].iter().position(leads).context("no member leads")
    }

    fn cut_off(&self, member: usize) -> anyhow::Result<()> {
        servers::etcd::cut_off(&self.0, member)
    }

    fn rejoin(&self, _member: usize) -> anyhow::Result<()> {
        servers::etcd::rejoin(&self.0)
    }

    async fn goes_on_without(&self, member: usize) -> Verdict {
        let alone = format!("etcd://127.0.0.1:{}", self.0.ports()[member]);
        let cut = soon("an answer", Keeper::connect(&alone)).await;
        anyhow::ensure!(cut.is_err(), "a member that is cut off answers");
        let leads = async || self.leader().is_ok_and(|leader| leader != member);
        eventually("another one leads", leads).await;
        Ok(())
    }
}

/// One of three decides nothing: holders hear of their loss by their deadline, no client gets a lock, and
/// all goes on when the others are back.
async fn minority(recipe: Recipe) -> Verdict {
    let mut running = spawn_blocking(move || recipe.start()).await??;
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
