//! What every cluster promises when its leader is lost: to holders, to waiters, and to what the lock
//! protects.

use crate::{
    case::Verdict,
    live::still_held,
    register::Register,
    world::{eventually, soon, tickets},
};
use anyhow::Context as _;
use lockkeeper::Keeper;
use servers::Running;
use std::{panic::resume_unwind, sync::Arc, time::Duration};
use tokio::task::{JoinSet, block_in_place};

/// Of the keepers that take turns: an election fits between two renewals, if the machine is not too busy.
const TTL: Duration = Duration::from_secs(6);
/// Of the one who holds a lock all the time: longer than any election.
const LONG: Duration = Duration::from_secs(60);

/// Servers that agree with each other, as many as it takes to lose one.
pub(crate) trait Cluster {
    fn running(&mut self) -> &mut Running;

    /// The member that leads, by its place among the nodes.
    fn leader(&self) -> anyhow::Result<usize>;

    /// Cuts a member off from the others; clients still reach it.
    fn cut_off(&self, member: usize) -> anyhow::Result<()>;

    fn rejoin(&self, member: usize) -> anyhow::Result<()>;

    /// What else must be so while a member is cut off and the others have gone on.
    async fn goes_on_without(&self, _member: usize) -> Verdict {
        Ok(())
    }
}

/// How a leader is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// And started again.
    Killed,
    /// It answers no request, and when it goes on it takes itself for the leader, for a moment.
    Frozen,
    /// Clients reach it, and it takes itself for the leader, for a while.
    CutOff,
}

/// The promises, by how the leader is lost.
pub(crate) const PROMISES: [(&str, Blow); 3] = [
    ("a_killed_leader_takes_nothing_with_it", Blow::Killed),
    ("a_leader_that_stands_still_delays_no_other", Blow::Frozen),
    ("a_leader_that_is_cut_off_grants_nothing", Blow::CutOff),
];

impl Blow {
    fn strike(self, cluster: &mut impl Cluster, member: usize) -> anyhow::Result<()> {
        match self {
            Self::Killed => cluster.running().nodes()[member].kill(),
            Self::Frozen => cluster.running().nodes()[member].freeze(),
            Self::CutOff => cluster.cut_off(member),
        }
    }

    fn relieve(self, cluster: &mut impl Cluster, member: usize) -> anyhow::Result<()> {
        match self {
            Self::Killed => cluster.running().restart(),
            Self::Frozen => cluster.running().nodes()[member].thaw(),
            Self::CutOff => cluster.rejoin(member),
        }
    }
}

/// Keepers take turns; in the midst of it the leader is lost, and later comes back. Turns go on, and who
/// holds a lock for longer than all that takes still holds it.
pub(crate) async fn without_its_leader(mut cluster: impl Cluster, blow: Blow) -> Verdict {
    let url = cluster.running().url().to_owned();
    let keeper = Keeper::builder().ttl(LONG).connect(&url).await?;
    let held = keeper.lock("held").try_now().await?.context("free")?;
    let load = Load::start(&url).await?;
    load.goes_on("turns are taken").await;
    let leader = cluster.leader()?;
    block_in_place(|| blow.strike(&mut cluster, leader))?;
    load.goes_on("turns are taken without the leader").await;
    if blow == Blow::CutOff {
        cluster.goes_on_without(leader).await?;
    }
    still_held(&keeper, &held).await;
    block_in_place(|| blow.relieve(&mut cluster, leader))?;
    load.goes_on("turns are taken with the old leader among the others").await;
    still_held(&keeper, &held).await;
    held.release().await?;
    keeper.close().await;
    load.end().await
}

/// Takers that work all the time, each with its own connections.
struct Load {
    register: Arc<Register>,
    keepers: Vec<Keeper>,
    tasks: JoinSet<()>,
}

impl Load {
    async fn start(url: &str) -> anyhow::Result<Self> {
        let (register, mut keepers, mut tasks) = (Arc::default(), Vec::new(), JoinSet::new());
        for _ in 0..4 {
            let keeper = Keeper::builder().ttl(TTL).connect(url).await?;
            tasks.spawn(take_turns(keeper.clone(), Arc::clone(&register)));
            keepers.push(keeper);
        }
        Ok(Self { register, keepers, tasks })
    }

    async fn goes_on(&self, what: &str) {
        let before = self.register.value();
        eventually(what, async || self.register.value() >= before + 20).await;
    }

    /// Stops them wherever they are. No update was lost, and no ticket is left, though all sessions live.
    async fn end(mut self) -> Verdict {
        self.tasks.abort_all();
        while let Some(end) = self.tasks.join_next().await {
            if let Err(e) = end
                && let Ok(panic) = e.try_into_panic()
            {
                resume_unwind(panic);
            }
        }
        self.register.assert_no_update_was_lost();
        let store = self.keepers[0].store().clone();
        eventually("no ticket is left", async || tickets(&store).await == 0).await;
        for keeper in &self.keepers {
            soon("the close", keeper.close()).await;
        }
        Ok(())
    }
}

/// What goes wrong is told and tried again. Only one thing must never be: to be turned away by the
/// resource while one still believes in the lock.
async fn take_turns(keeper: Keeper, register: Arc<Register>) {
    loop {
        let Ok(guard) = keeper.lock("a").wait(Duration::from_secs(30)).await else { continue };
        let accepted = register.increment(guard.fence()).await;
        assert!(accepted || !guard.is_held(), "another one wrote while this one was sure");
        // An error says that it was lost, or will be.
        let _ = guard.release().await;
    }
}
