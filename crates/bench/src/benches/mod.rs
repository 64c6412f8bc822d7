//! What can be measured.

mod etcd;
pub(crate) mod hammer;
pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod idle;
mod mysql;
mod pairs;
mod postgres;
pub(crate) mod redis_handoff;
mod redis_pairs;
mod sql;
mod stalls;
mod zookeeper;

use crate::{args::Plan, report::Report};
use anyhow::Result;

/// One benchmark.
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Plan) -> Result<Report>,
}

/// All of them, in the order in which they run.
pub(crate) const ALL: &[Bench] = &[
    Bench {
        name: "pairs",
        what: "lock and release in one process, beside bare SQLite transactions",
        run: pairs::run,
    },
    Bench {
        name: "handoff",
        what: "from a release in one process to the grant in another",
        run: handoff::run,
    },
    Bench { name: "idle", what: "processor time of a process that waits", run: idle::run },
    Bench {
        name: "stalls",
        what: "how long other tasks of the runtime are held up at full load",
        run: stalls::run,
    },
    Bench { name: "held", what: "many locks in one hand: time, renewals, memory", run: held::run },
    Bench { name: "hammer", what: "many processes on one file", run: hammer::run },
    Bench {
        name: "redis-pairs",
        what: "lock and release on Redis, beside bare scripts and a plain key",
        run: redis_pairs::alone,
    },
    Bench {
        name: "redis-tasks",
        what: "the same from 64 tasks at once, each with a name of its own",
        run: redis_pairs::at_once,
    },
    Bench {
        name: "redis-handoff",
        what: "from a release in one process to the grant in another, on Redis",
        run: redis_handoff::run,
    },
    Bench {
        name: "postgres",
        what: "lock and release beside a bare lock table of PostgreSQL, and turns in a long line",
        run: postgres::run,
    },
    Bench {
        name: "mariadb",
        what: "lock and release beside a bare lock table of MariaDB, and turns in a line",
        run: mysql::mariadb,
    },
    Bench { name: "mysql", what: "the same on MySQL itself", run: mysql::mysql },
    Bench {
        name: "etcd-pairs",
        what: "lock and release on etcd, beside a bare transaction and a delete",
        run: etcd::pairs,
    },
    Bench {
        name: "etcd-handoff",
        what: "from a release to the next grant, beside etcd's own lock service",
        run: etcd::handoff,
    },
    Bench {
        name: "zookeeper-pairs",
        what: "lock and release on ZooKeeper, beside a bare creation and a deletion",
        run: zookeeper::pairs,
    },
    Bench {
        name: "zookeeper-handoff",
        what: "from a release in one process to the grant in another, beside kazoo's lock",
        run: zookeeper::handoff,
    },
];

/// The benchmark of this name.
pub(crate) fn find(name: &str) -> Result<&'static Bench, String> {
    ALL.iter().find(|bench| bench.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|bench| bench.name).collect();
        format!("there are {}", names.join(", "))
    })
}
