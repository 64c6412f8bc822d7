//! What an ensemble of ZooKeeper servers promises when it loses one of them.

use crate::{
    case::{Case, Need, Verdict},
    register::Register,
    world::{World, eventually, until_empty},
};
use lockkeeper::{Guard, Keeper, Loss};
use servers::Divided;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::{JoinSet, block_in_place, spawn_blocking};

/// The cases of an ensemble. Each has an ensemble of its own, for others could not work with it.
pub(crate) fn own_cases() -> Vec<Case> {
    let needs = &[Need::SurvivesFailover];
    vec![
        Case::new("failover", "a_leader_may_be_killed", needs, async |_: World| {
            let kill = |servers: &mut Divided, at: usize| servers.running.nodes()[at].kill();
            without_its_leader(kill, |_, _| Ok(())).await
        }),
        Case::new("failover", "a_leader_may_stand_still", needs, async |_: World| {
            let freeze = |servers: &mut Divided, at: usize| servers.running.nodes()[at].freeze();
            let thaw = |servers: &mut Divided, at: usize| servers.running.nodes()[at].thaw();
            without_its_leader(freeze, thaw).await
        }),
        Case::new("failover", "a_leader_may_be_cut_off", needs, async |_: World| {
            let cut = |servers: &mut Divided, at: usize| {
                servers.cut_off(at);
                Ok(())
            };
            let mend = |servers: &mut Divided, at: usize| {
                servers.mend(at);
                Ok(())
            };
            without_its_leader(cut, mend).await
        }),
        Case::new("failover", "a_member_that_is_cut_off_renews_nothing", needs, cut_off_member),
    ]
}

type Blow = fn(&mut Divided, usize) -> anyhow::Result<()>;

/// Keepers take turns; in the midst of it the leader is lost, and later comes back.
async fn without_its_leader(strike: Blow, relieve: Blow) -> Verdict {
    let mut servers = spawn_blocking(Divided::start).await??;
    let url = servers.running.url().to_owned();
    let (register, done) = (Arc::new(Register::default()), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let keeper = Keeper::builder().ttl(Duration::from_secs(4)).connect(&url).await?;
        tasks.spawn(take_turns(keeper, Arc::clone(&register), Arc::clone(&done)));
    }
    let progress = async |what: &str| {
        let before = register.value();
        eventually(what, async || register.value() >= before + 20).await;
    };
    progress("turns are taken").await;
    let leader = servers.leader()?;
    block_in_place(|| strike(&mut servers, leader))?;
    progress("turns are taken without the leader").await;
    block_in_place(|| relieve(&mut servers, leader))?;
    progress("turns are taken with the old leader among the followers").await;
    done.store(true, Ordering::SeqCst);
    tasks.join_all().await.into_iter().collect::<anyhow::Result<()>>()?;
    register.assert_no_update_was_lost();
    until_empty(Keeper::connect(&url).await?.store()).await;
    Ok(())
}

/// What goes wrong is told and tried again. Only one thing must never be: to be turned away by the
/// resource while one still believes in the lock.
async fn take_turns(keeper: Keeper, register: Arc<Register>, done: Arc<AtomicBool>) -> Verdict {
    while !done.load(Ordering::SeqCst) {
        let Ok(guard) = keeper.lock("a").wait(Duration::from_secs(30)).await else { continue };
        let accepted = register.increment(guard.fence()).await;
        assert!(accepted || !guard.is_held(), "another one wrote while this one was sure");
        // An error says that it was lost, or will be.
        let _ = guard.release().await;
    }
    keeper.close().await;
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
    let next = crate::world::soon("the successor's turn", next).await??;
    assert!(next.fence() > held.fence());
    Ok(())
}
