//! What can be measured.

pub(crate) mod hammer;
pub(crate) mod handover;
pub(crate) mod held;
pub(crate) mod idle;
mod line;
mod pairs;
mod run;
mod service;
pub(crate) mod service_load;
mod stalls;

use crate::{args::Plan, report::Report, source::Source};
use Part::{DownTheLine, InTurn, Own, ToAndFro, Uncontended};
use anyhow::Result;
use handover::HandOvers;
use line::{Cold, Line};
use pairs::Pairs;
use servers::Recipe;

/// One benchmark.
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// The server; without one, locks are in files.
    server: Option<Recipe>,
    parts: &'static [Part],
}

enum Part {
    Uncontended(Pairs),
    InTurn(HandOvers),
    DownTheLine(Line),
    ToAndFro(Cold),
    Own(fn(&Plan, &mut Report) -> Result<()>),
}

/// One run of a benchmark.
pub(crate) struct Run<'a> {
    plan: &'a Plan,
    source: &'a Source,
}

impl Bench {
    pub(crate) fn run(&self, plan: &Plan) -> Result<Report> {
        let mut report = Report::new(self.name);
        let source = match Source::open(self.server.as_ref(), plan)? {
            Ok(source) => source,
            Err(why) => {
                report.missed(&why);
                return Ok(report);
            }
        };
        let run = Run { plan, source: &source };
        for part in self.parts {
            match part {
                Uncontended(pairs) => pairs.run(&run, &mut report)?,
                InTurn(hand_overs) => hand_overs.run(&run, &mut report)?,
                DownTheLine(line) => line.run(&run, &mut report)?,
                ToAndFro(cold) => cold.run(&run, &mut report)?,
                Own(own) => own(plan, &mut report)?,
            }
        }
        Ok(report)
    }
}

const fn bench(
    name: &'static str,
    server: Option<Recipe>,
    parts: &'static [Part],
    what: &'static str,
) -> Bench {
    Bench { name, what, server, parts }
}

const REDIS: Option<Recipe> = Some(servers::REDIS);
const POSTGRES: Option<Recipe> = Some(servers::POSTGRES);
const MARIADB: Option<Recipe> = Some(servers::MARIADB);
const MYSQL: Option<Recipe> = Some(servers::MYSQL);
const ETCD: Option<Recipe> = Some(servers::ETCD);
const ZOOKEEPER: Option<Recipe> = Some(servers::ZOOKEEPER_SYNCED);
const ZOOKEEPER_UNSYNCED: Option<Recipe> = Some(servers::ZOOKEEPER);

/// All of them, in the order in which they run.
#[rustfmt::skip]
pub(crate) const ALL: &[Bench] = &[
    bench("pairs", None, &[Uncontended(pairs::SQLITE)],
        "lock and release in one process, beside bare SQLite transactions"),
    bench("handoff", None, &[InTurn(handover::SQLITE)],
        "from a release in one process to the grant in another"),
    bench("idle", None, &[Own(idle::run)],
        "processor time of a process that waits"),
    bench("stalls", None, &[Own(stalls::run)],
        "how long other tasks of the runtime are held up at full load"),
    bench("held", None, &[Own(held::run)],
        "many locks in one hand: time, renewals, memory"),
    bench("hammer", None, &[Own(hammer::run)],
        "many processes on one file"),
    bench("run", None, &[Own(run::run)],
        "the whole of lockkeeper run x -- true on each store, beside flock and sh"),
    bench("redis-pairs", REDIS, &[Uncontended(pairs::REDIS)],
        "lock and release on Redis, beside bare scripts and a plain key"),
    bench("redis-tasks", REDIS, &[Uncontended(pairs::REDIS_TASKS)],
        "the same from 64 tasks at once, each with a name of its own"),
    bench("redis-handoff", REDIS, &[InTurn(handover::REDIS)],
        "from a release in one process to the grant in another, on Redis"),
    bench("postgres", POSTGRES, &[Uncontended(pairs::POSTGRES), DownTheLine(line::POSTGRES), ToAndFro(line::COLD_POSTGRES)],
        "lock and release beside a bare lock table of PostgreSQL, and turns in a long line"),
    bench("mariadb", MARIADB, &[Uncontended(pairs::MARIADB), DownTheLine(line::MYSQL), ToAndFro(line::COLD)],
        "lock and release beside a bare lock table of MariaDB, and turns in a line"),
    bench("mysql", MYSQL, &[Uncontended(pairs::MYSQL), DownTheLine(line::MYSQL), ToAndFro(line::COLD)],
        "the same on MySQL itself"),
    bench("etcd-pairs", ETCD, &[Uncontended(pairs::ETCD)],
        "lock and release on etcd, beside a bare transaction and a delete"),
    bench("etcd-handoff", ETCD, &[InTurn(handover::ETCD), ToAndFro(line::COLD)],
        "from a release to the next grant, beside etcd's own lock service"),
    bench("zookeeper-pairs", ZOOKEEPER, &[Uncontended(pairs::ZOOKEEPER)],
        "lock and release on ZooKeeper, beside a bare creation and a deletion"),
    bench("zookeeper-unsynced", ZOOKEEPER_UNSYNCED, &[Uncontended(pairs::ZOOKEEPER_UNSYNCED)],
        "the same on a server that does not sync its log"),
    bench("zookeeper-handoff", ZOOKEEPER_UNSYNCED, &[InTurn(handover::ZOOKEEPER)],
        "from a release in one process to the grant in another, beside kazoo's lock"),
    bench("service", None, &[Own(service::run), InTurn(handover::SERVICE), Uncontended(pairs::SERVICE)],
        "the HTTP service beside a bare axum program, and beside the store without it"),
    bench("service-redis", REDIS, &[InTurn(handover::SERVICE)],
        "from a release by one client of the HTTP service to the grant of another, on Redis"),
    bench("service-load", None, &[Own(service_load::run)],
        "a client of the HTTP service beside 3,000 that are slow or wait"),
];

/// The benchmark of this name.
pub(crate) fn find(name: &str) -> Result<&'static Bench, String> {
    ALL.iter().find(|bench| bench.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|bench| bench.name).collect();
        format!("there are {}", names.join(", "))
    })
}
