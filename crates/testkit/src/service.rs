//! The service in front of other stores: the suite through it, and what becomes of locks when an instance ends.
//!
//! An instance is a child process: the `taker` program, told to serve. It ends with its value, or when the test program
//! has gone.

use crate::{
    case::{Case, Verdict},
    live::{Server, still_held, until_length},
    servers,
    world::{World, eventually, soon},
};
use anyhow::{Context as _, bail, ensure};
use lockkeeper::{Keeper, Loss};
use lockkeeper_server::{Listener, Options, Service};
use lockkeeper_testkit::{Dataset, Subject};
use std::{
    env,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    sync::oneshot,
    task::{JoinSet, spawn_blocking},
};

/// With `all`, the whole suite runs through the service in front of every kind of store, and not over SQLite alone.
pub const EXTENT: &str = "LOCKKEEPER_SERVICE";

/// The `main` of a program that serves a store at these addresses: it says where it listens, line by line, then
/// `ready`. It ends with its input.
///
/// # Errors
/// Those of the store and of the sockets.
pub async fn serve(store: &str, addresses: &[String]) -> anyhow::Result<()> {
    let (parent, gone) = oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        drop(parent);
    });
    let keeper = Keeper::connect(store).await?;
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(Listener::bind(&address.parse()?, 0o600).await?);
    }
    for listener in &listeners {
        println!("{}", listener.address()?);
    }
    println!("ready");
    let service = Service::new(keeper.store().clone(), Options::default());
    tokio::select! {
        served = lockkeeper_server::serve(service, listeners) => Ok(served?),
        _ = gone => Ok(()),
    }
}

/// One instance of the service, which is killed with this.
#[derive(Debug)]
pub struct Instance {
    child: Child,
    addresses: Vec<String>,
}

impl Instance {
    /// Starts one in front of this store. Waits until it listens.
    ///
    /// # Errors
    /// If it ends before.
    pub fn start(program: &Path, store: &str, addresses: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["serve", store])
            .args(addresses)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output is a pipe")?).lines();
        let mut instance = Self { child, addresses: Vec::new() };
        for line in lines {
            let line = line?;
            if line == "ready" {
                return Ok(instance);
            }
            instance.addresses.push(line);
        }
        bail!("the service in front of {store} ended before it listened")
    }

    /// Starts one at any port of this host.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn at_any_port(program: PathBuf, store: String) -> anyhow::Result<Self> {
        spawn_blocking(move || Self::start(&program, &store, &["127.0.0.1:0"])).await?
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.addresses[0]
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The service in front of SQLite; and, where [`EXTENT`] asks for it, in front of Redis and etcd, on a socket in the file
/// system, and as two instances of which every handle loses one. `program` is the `taker`.
#[must_use]
pub fn subjects(program: &Path) -> Vec<Subject> {
    let on_files = servers::sqlite().can();
    let program = program.to_owned();
    let sqlite = {
        let program = program.clone();
        Subject::new("http-sqlite", on_files, move || one(program.clone(), file(), false))
    };
    let sqlite = own_cases(&program).into_iter().fold(sqlite.across_processes(), Subject::case);
    let mut all = vec![sqlite];
    if env::var(EXTENT).is_ok_and(|extent| extent == "all") {
        let of = program.clone();
        all.push(
            Subject::new("http-unix", on_files, move || one(of.clone(), file(), true))
                .across_processes(),
        );
        let of = program.clone();
        all.push(
            Subject::new("http-failover", on_files, move || two(of.clone())).across_processes(),
        );
        all.push(of_server(&program, "http-redis", ::servers::REDIS, &servers::redis()[0]));
        let etcd = of_server(&program, "http-etcd", ::servers::ETCD, &servers::etcd()[0]);
        all.push(etcd.short_ttl(Duration::from_secs(2)));
    }
    all
}

/// Fresh data of an embedded store: its URL, and its folder.
fn file() -> anyhow::Result<(String, TempDir)> {
    let folder = tempfile::tempdir()?;
    Ok((format!("sqlite:{}", folder.path().join("locks.db").display()), folder))
}

/// One instance.
async fn one(
    program: PathBuf,
    data: anyhow::Result<(String, TempDir)>,
    through_a_file: bool,
) -> anyhow::Result<Dataset> {
    let (store, folder) = data?;
    let socket = folder.path().join("service.sock").display().to_string();
    let address = if through_a_file { format!("unix:{socket}") } else { "127.0.0.1:0".to_owned() };
    let instance = spawn_blocking(move || Instance::start(&program, &store, &[&address])).await??;
    let url = match through_a_file {
        true => format!("lockkeeper+unix:{socket}"),
        false => format!("lockkeeper+http://{}", instance.address()),
    };
    Ok(Dataset::url(url).keep(instance).keep(folder))
}

/// Two instances. Each handle is connected to one that then dies; the other one goes on.
async fn two(program: PathBuf) -> anyhow::Result<Dataset> {
    let (store, folder) = file()?;
    let stays = Instance::at_any_port(program.clone(), store.clone()).await?;
    let stays_at = stays.address().to_owned();
    let url = format!("lockkeeper+http://127.0.0.1:1,{stays_at}");
    let open = move || {
        let (program, store, stays) = (program.clone(), store.clone(), stays_at.clone());
        async move {
            let fresh = Instance::at_any_port(program, store).await?;
            let url = format!("lockkeeper+http://{},{stays}", fresh.address());
            let handle = Keeper::connect(&url).await?.store().clone();
            spawn_blocking(move || drop(fresh)).await?;
            Ok(handle)
        }
    };
    Ok(Dataset::new(open).at(url).keep(stays).keep(folder))
}

/// One instance for each case, in front of a server that all cases share.
fn of_server(program: &Path, name: &str, recipe: ::servers::Recipe, direct: &Subject) -> Subject {
    let (server, program) = (Arc::new(Server::of(recipe)), program.to_owned());
    let subject = Subject::new(name, direct.can(), move || {
        let (server, program) = (Arc::clone(&server), program.clone());
        async move {
            let url = spawn_blocking(move || anyhow::Ok(server.running()?.url().to_owned()));
            let url = format!("{}?prefix=t{:016x}", url.await??, rand::random::<u64>());
            let instance = Instance::at_any_port(program, url).await?;
            let url = format!("lockkeeper+http://{}", instance.address());
            Ok(Dataset::url(url).keep(instance))
        }
    });
    let subject = subject.across_processes();
    match recipe.obstacle() {
        Some(obstacle) => subject.unavailable(obstacle),
        None => subject,
    }
}

type OwnCase = fn(PathBuf) -> crate::case::Local;

/// What happens to locks when instances of the service come and go.
fn own_cases(program: &Path) -> Vec<Case> {
    let all: [(&str, OwnCase); 4] = [
        ("an_instance_is_killed_and_its_locks_go_on_at_another", |p| Box::pin(killed(p))),
        ("two_instances_count_without_losing_one", |p| Box::pin(counted(p))),
        ("locks_of_a_store_that_forgets_are_lost_with_the_service", |p| Box::pin(forgotten(p))),
        ("locks_outlive_a_restart_of_the_only_instance", |p| Box::pin(restarted(p))),
    ];
    let case = |(name, run): (&str, OwnCase)| {
        let program = program.to_owned();
        Case::new("instances", name, &[], move |_: World| run(program.clone()))
    };
    all.into_iter().map(case).collect()
}

/// Two instances on one store, and the URL of both.
async fn pair(program: &Path) -> anyhow::Result<(Instance, Instance, String, TempDir)> {
    let (store, folder) = file()?;
    let one = Instance::at_any_port(program.to_owned(), store.clone()).await?;
    let two = Instance::at_any_port(program.to_owned(), store).await?;
    let url = format!("lockkeeper+http://{},{}", one.address(), two.address());
    Ok((one, two, url, folder))
}

async fn killed(program: PathBuf) -> Verdict {
    let (mut one, _two, url, _folder) = pair(&program).await?;
    let ttl = Duration::from_secs(6);
    let connect = async || Keeper::builder().ttl(ttl).connect(&url).await;
    let (first, second) = (connect().await?, connect().await?);
    let held = first.lock("a").await?;
    let waiter = tokio::spawn(second.lock("a").into_future());
    until_length(&first, "a", 2).await;
    one.kill();
    still_held(&first, &held).await;
    let fence = held.fence();
    held.release().await?;
    let next = soon("the waiter's grant", waiter).await??;
    ensure!(next.fence() > fence, "{} after {fence}", next.fence());
    next.write(b"written through the other one".to_vec()).await?;
    next.release().await?;
    ensure!(second.read("a").await?.is_some());
    Ok(())
}

/// Keepers count under one lock while the instance that they use is killed and started again, twice.
async fn counted(program: PathBuf) -> Verdict {
    const ROUNDS: u32 = 40;
    const KEEPERS: u32 = 4;
    let (mut one, mut two, url, folder) = pair(&program).await?;
    let store = format!("sqlite:{}", folder.path().join("locks.db").display());
    let count = Arc::new(Mutex::new((0_u32, 0_u64)));
    let mut keepers: JoinSet<lockkeeper::Result<()>> = JoinSet::new();
    for _ in 0..KEEPERS {
        let keeper = Keeper::builder().ttl(Duration::from_secs(10)).connect(&url).await?;
        let count = Arc::clone(&count);
        keepers.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = keeper.lock("counter").wait(Duration::from_secs(50)).await?;
                let before = count.lock().unwrap_or_else(PoisonError::into_inner).0;
                tokio::task::yield_now().await;
                let mut now = count.lock().unwrap_or_else(PoisonError::into_inner);
                assert!(guard.fence() > now.1, "{} after {}", guard.fence(), now.1);
                *now = (before + 1, guard.fence());
            }
            Ok(())
        });
    }
    let reached = async |share: u32| {
        let is_there = || {
            count.lock().unwrap_or_else(PoisonError::into_inner).0 >= KEEPERS * ROUNDS * share / 3
        };
        eventually("a part is counted", async || is_there()).await;
    };
    reached(1).await;
    one = again(program.clone(), store.clone(), one).await?;
    reached(2).await;
    two = again(program, store, two).await?;
    while let Some(done) = keepers.join_next().await {
        done??;
    }
    let total = count.lock().unwrap_or_else(PoisonError::into_inner).0;
    ensure!(total == KEEPERS * ROUNDS, "{total} were counted");
    drop((one, two));
    Ok(())
}

/// Kills an instance, and starts another one at its address.
async fn again(program: PathBuf, store: String, mut dies: Instance) -> anyhow::Result<Instance> {
    spawn_blocking(move || {
        dies.kill();
        Instance::start(&program, &store, &[dies.address()])
    })
    .await?
}

async fn restarted(program: PathBuf) -> Verdict {
    let (store, _folder) = file()?;
    let instance = Instance::at_any_port(program.clone(), store.clone()).await?;
    let url = format!("lockkeeper+http://{}", instance.address());
    let keeper = Keeper::builder().ttl(Duration::from_secs(10)).connect(&url).await?;
    let held = keeper.lock("a").await?;
    let _instance = again(program, store, instance).await?;
    still_held(&keeper, &held).await;
    held.release().await?;
    Ok(())
}

async fn forgotten(program: PathBuf) -> Verdict {
    let store = "memory://service".to_owned();
    let instance = Instance::at_any_port(program.clone(), store.clone()).await?;
    let url = format!("lockkeeper+http://{}", instance.address());
    let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(&url).await?;
    let held = keeper.lock("a").await?;
    let sequencer = held.sequencer();
    let _instance = again(program, store, instance).await?;
    ensure!(soon("the loss", held.lost()).await == Loss::SessionGone);
    let next = soon("another grant", keeper.lock("a").into_future()).await?;
    ensure!(next.sequencer().store() != sequencer.store(), "the data is another one");
    ensure!(!keeper.check(&sequencer).await?);
    ensure!(keeper.check(&next.sequencer()).await?);
    Ok(())
}
