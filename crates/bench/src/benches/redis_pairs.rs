//! Pairs of lock and release on Redis, uncontended: one task, or many with a name each.

use crate::{
    args::Plan,
    flavour::Flavour,
    floor::redis::{Plain, Scripts, connect, ensure_same},
    pair::{Pair, Speed, Stack, StoreAlone, open, speed},
    report::Report,
    rounds::Rounds,
    server::{self, Server},
};
use anyhow::Result;
use lockkeeper::Name;
use rslock::LockManager;
use servers::REDIS;
use std::time::Duration;

/// The shares that the whole stack must reach: of the bare scripts and of the plain key with one
/// task, of the bare scripts with many.
const OF_SCRIPTS: f64 = 0.8;
const OF_PLAIN: f64 = 0.65;
const OF_SCRIPTS_AT_ONCE: f64 = 0.6;
/// How many tasks are many.
const TASKS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scripts,
    Plain,
    Store,
    Stack,
    Peer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Variant(Kind, Flavour);

impl Variant {
    fn what(self) -> String {
        let kind = match self.0 {
            Kind::Scripts => "floor: two bare EVALSHA, same scripts",
            Kind::Plain => "floor: SET NX PX and compare-delete",
            Kind::Store => "Redis store alone",
            Kind::Stack => "whole stack",
            Kind::Peer => "rslock",
        };
        format!("{kind}, {}", self.1.word())
    }

    fn measure(self, server: &Server, tasks: usize, time: Duration) -> Result<Speed> {
        let crowd = Crowd { url: server.url().to_owned(), tasks, time, server: server.pid() };
        match self.0 {
            Kind::Scripts => self.1.run(crowd.scripts()),
            Kind::Plain => self.1.run(crowd.plain()),
            Kind::Store => self.1.run(crowd.store()),
            Kind::Stack => self.1.run(crowd.stack()),
            Kind::Peer => self.1.run(crowd.peer()),
        }
    }
}

/// So many tasks, each with a name of its own, over one connection.
struct Crowd {
    url: String,
    tasks: usize,
    time: Duration,
    server: u32,
}

impl Crowd {
    async fn scripts(self) -> Result<Speed> {
        let keeper = server::keeper(&self.url).await?;
        let session = open(keeper.store()).await?;
        let wire = connect(&self.url).await?;
        self.speed(|name| Scripts::over(wire.clone(), session, name.as_str())).await
    }

    async fn plain(self) -> Result<Speed> {
        let mut wire = connect(&self.url).await?;
        Plain::load(&mut wire).await?;
        self.speed(|name| Plain::over(wire.clone(), name.as_str())).await
    }

    async fn store(self) -> Result<Speed> {
        let keeper = server::keeper(&self.url).await?;
        let alone = StoreAlone::over(keeper.store().clone()).await?;
        self.speed(|name| alone.named(name)).await
    }

    async fn stack(self) -> Result<Speed> {
        let keeper = server::keeper(&self.url).await?;
        let speed =
            self.speed(|name| Stack { keeper: keeper.clone(), name: name.to_string() }).await;
        keeper.close().await;
        speed
    }

    async fn peer(self) -> Result<Speed> {
        let manager = LockManager::new(vec![self.url.as_str()]);
        self.speed(|name| Peer { manager: manager.clone(), name: name.to_string() }).await
    }

    async fn speed<P: Pair>(&self, one: impl Fn(Name) -> P) -> Result<Speed> {
        let pairs = (0..self.tasks).map(|i| Ok(one(Name::new(&format!("pairs/{i}"))?)));
        speed(pairs.collect::<Result<_>>()?, self.time, Some(self.server)).await
    }
}

struct Peer {
    manager: LockManager,
    name: String,
}

impl Pair for Peer {
    async fn pair(&mut self) -> Result<()> {
        let lock = self.manager.acquire(self.name.as_str(), lockkeeper::TTL_DEFAULT).await?;
        lock.release().await;
        Ok(())
    }
}

/// One task.
pub(super) fn alone(plan: &Plan) -> Result<Report> {
    run(plan, "redis-pairs", 1)
}

/// Many tasks at once.
pub(super) fn at_once(plan: &Plan) -> Result<Report> {
    run(plan, "redis-tasks", TASKS)
}

fn run(plan: &Plan, name: &'static str, tasks: usize) -> Result<Report> {
    let server = Server::start(REDIS, plan)?;
    ensure_same(server.url())?;
    let kinds = [Kind::Scripts, Kind::Plain, Kind::Store, Kind::Stack, Kind::Peer];
    let variants: Vec<Variant> = Flavour::BOTH
        .iter()
        .flat_map(|flavour| kinds.map(|kind| Variant(kind, *flavour)))
        .collect();
    let rounds = Rounds::run(plan.rounds, &variants, |v| v.measure(&server, tasks, plan.round()))?;
    let mut report = Report::new(name);
    let of = |kind, flavour| variants.iter().position(|v| *v == Variant(kind, flavour));
    let share = |i: usize, floor: Option<usize>| {
        floor.map_or(f64::NAN, |floor| rounds.ratio(i, floor, |speed| speed.pairs_per_s))
    };
    for (i, variant) in variants.iter().enumerate() {
        let Variant(kind, flavour) = *variant;
        let of_scripts = share(i, of(Kind::Scripts, flavour));
        let of_plain = share(i, of(Kind::Plain, flavour));
        let cpu_of_plain = of(Kind::Plain, flavour)
            .map_or(f64::NAN, |plain| rounds.ratio(plain, i, |s| s.cpu_us + s.server_cpu_us));
        report.row(
            variant.what(),
            &[
                ("pairs_per_s", rounds.median(i, |speed| speed.pairs_per_s)),
                ("of_scripts", of_scripts),
                ("of_plain", of_plain),
                ("cpu_of_plain", cpu_of_plain),
                ("cpu_us", rounds.median(i, |speed| speed.cpu_us)),
                ("server_cpu_us", rounds.median(i, |speed| speed.server_cpu_us)),
            ],
        );
        let word = flavour.word();
        if kind == Kind::Stack && tasks == 1 {
            report.at_least(format!("share of the bare scripts, {word}"), OF_SCRIPTS, of_scripts);
            report.at_least(format!("share of the plain key, {word}"), OF_PLAIN, of_plain);
        } else if kind == Kind::Stack {
            let what = format!("share of the bare scripts at {tasks} tasks, {word}");
            report.at_least(what, OF_SCRIPTS_AT_ONCE, of_scripts);
        }
    }
    let what = "cpu_of_plain: the same share by the processor time of client and server together, \
        which other programs disturb less than the clock on the wall";
    report.note(what);
    report.note(format!("tasks: {tasks}, each with a name of its own, over one connection"));
    Ok(report)
}
