//! Pairs of lock and release, uncontended, beside the bare floor of each store: a table for each.

use super::Run;
use crate::{
    flavour::Flavour::{self, CurrentThread, MultiThread},
    floor::{etcd, mysql, postgres, redis, sqlite, zookeeper},
    pair::{At, Boxed, Ready, Slices, Speed, in_turns, stack, stack_of, store_alone},
    report::Report,
    rounds::Rounds,
    service::stack_through,
    source::{Site, keeper_over},
};
use anyhow::Result;
use lockkeeper::{Keeper, store::memory::Memory};

/// What is compared on one store.
pub(crate) struct Pairs {
    sides: &'static [Side],
    /// How the server is set, one after the other.
    settings: &'static [Setting],
    flavours: &'static [Flavour],
    tasks: usize,
    /// The server does all its work on its first thread, so its processor time can be counted.
    one_thread: bool,
    shares: &'static [Share],
    targets: &'static [Target],
    /// Rounds that do not count.
    warm_up: u32,
    /// Fails if the floor does not ask the server for what the library asks for.
    same: fn(&str) -> Result<()>,
    notes: &'static [&'static str],
}

struct Side {
    what: &'static str,
    open: fn(At) -> Boxed<Ready>,
}

/// A way to commit; `set` returns the URL that leads to it.
struct Setting {
    what: &'static str,
    set: fn(String) -> Boxed<String>,
}

/// A figure of every side: how much of another side's it is.
struct Share {
    figure: &'static str,
    of: usize,
    by: fn(&Speed) -> f64,
}

/// What a side must reach of a share.
struct Target {
    what: &'static str,
    side: usize,
    share: usize,
    least: f64,
}

const STACK: Side = Side { what: "whole stack", open: stack };
const NO_SETTING: &[Setting] = &[Setting { what: "", set: |url| Box::pin(async { Ok(url) }) }];

const fn by_time(figure: &'static str, of: usize) -> Share {
    Share { figure, of, by: |speed| speed.pairs_per_s }
}

const PLAIN: Pairs = Pairs {
    sides: &[],
    settings: NO_SETTING,
    flavours: &[MultiThread],
    tasks: 1,
    one_thread: false,
    shares: &[],
    targets: &[],
    warm_up: 0,
    same: |_| Ok(()),
    notes: &[],
};

pub(crate) const SQLITE: Pairs = Pairs {
    sides: &[
        Side { what: "floor: bare rusqlite, same statements", open: sqlite::same },
        Side { what: "floor: bare rusqlite, ticket row only", open: sqlite::lean },
        Side { what: "SQLite store alone", open: store_alone },
        Side { what: "whole stack on SQLite", open: stack },
        Side { what: "whole stack on memory", open: stack_on_memory },
    ],
    flavours: &[CurrentThread, MultiThread],
    shares: &[by_time("of_floor", 0)],
    targets: &[Target {
        what: "share of the same-statements floor",
        side: 3,
        share: 0,
        least: 0.8,
    }],
    notes: &[sqlite::SAME, sqlite::LEAN],
    ..PLAIN
};

fn stack_on_memory(at: At) -> Boxed<Ready> {
    Box::pin(async move { stack_of(keeper_over(Keeper::builder(), Memory::new()).await?, &at) })
}

pub(crate) const REDIS: Pairs = Pairs {
    sides: &[
        Side { what: "floor: two bare EVALSHA, same scripts", open: redis::scripts },
        Side { what: "floor: SET NX PX and compare-delete", open: redis::plain },
        Side { what: "Redis store alone", open: store_alone },
        STACK,
        Side { what: "rslock", open: redis::peer },
    ],
    flavours: &[CurrentThread, MultiThread],
    one_thread: true,
    shares: &[
        by_time("of_scripts", 0),
        by_time("of_plain", 1),
        Share { figure: "cpu_of_plain", of: 1, by: |s| 1.0 / (s.cpu_us + s.server_cpu_us) },
    ],
    targets: &[
        Target { what: "share of the bare scripts", side: 3, share: 0, least: 0.8 },
        Target { what: "share of the plain key", side: 3, share: 1, least: 0.65 },
    ],
    same: redis::ensure_same,
    notes: &[
        "cpu_of_plain: the same share by the processor time of client and server together, which other programs \
         disturb less than the clock on the wall",
        "each task has a name of its own; all use one connection",
    ],
    ..PLAIN
};

pub(crate) const REDIS_TASKS: Pairs = Pairs {
    tasks: 64,
    targets: &[Target {
        what: "share of the bare scripts at 64 tasks",
        side: 3,
        share: 0,
        least: 0.6,
    }],
    ..REDIS
};

const SQL: Pairs = Pairs {
    flavours: &[CurrentThread, MultiThread],
    shares: &[by_time("of_floor", 0)],
    targets: &[Target { what: "share of the floor: whole stack", side: 1, share: 0, least: 0.8 }],
    ..PLAIN
};

pub(crate) const POSTGRES: Pairs = Pairs {
    sides: &[Side { what: SQL_FLOOR, open: postgres::floor }, STACK],
    settings: &[
        Setting { what: "synchronous_commit on", set: |url| Box::pin(async { Ok(url) }) },
        Setting {
            what: "synchronous_commit off",
            set: |url| Box::pin(postgres::without_waiting(url)),
        },
    ],
    notes: postgres::STATEMENTS,
    ..SQL
};

/// The log goes to the disk with every commit, or once a second.
const FLUSH: &[Setting] = &[
    Setting { what: "flush_log_at_trx_commit 1", set: |url| Box::pin(mysql::flush(url, 1)) },
    Setting { what: "flush_log_at_trx_commit 0", set: |url| Box::pin(mysql::flush(url, 0)) },
];
const SQL_FLOOR: &str = "floor: upsert and update";

pub(crate) const MARIADB: Pairs = Pairs {
    sides: &[Side { what: SQL_FLOOR, open: mysql::mariadb }, STACK],
    settings: FLUSH,
    notes: &[mysql::TAKE_MARIADB, mysql::FREE],
    ..SQL
};

pub(crate) const MYSQL: Pairs = Pairs {
    sides: &[Side { what: SQL_FLOOR, open: mysql::mysql }, STACK],
    settings: FLUSH,
    notes: &[mysql::TAKE_MYSQL, mysql::FREE],
    ..SQL
};

/// Two processes and two requests stand between the library and the store.
pub(crate) const SERVICE: Pairs = Pairs {
    sides: &[
        Side { what: "whole stack on SQLite", open: stack },
        Side { what: "whole stack through the service on SQLite", open: stack_through },
    ],
    shares: &[by_time("of_direct", 0)],
    ..PLAIN
};

const OF_BARE: &[Share] = &[by_time("of_bare", 0)];

pub(crate) const ETCD: Pairs = Pairs {
    sides: &[Side { what: "floor: put if absent, delete", open: etcd::pair }, STACK],
    shares: OF_BARE,
    targets: &[Target { what: "share of the bare pair", side: 1, share: 0, least: 0.9 }],
    ..PLAIN
};

pub(crate) const ZOOKEEPER: Pairs = Pairs {
    sides: &[
        Side { what: "floor: create, delete", open: zookeeper::pair },
        // A lock must also know which other tickets there are.
        Side { what: "floor: create and list, delete", open: zookeeper::pair_with_list },
        STACK,
    ],
    shares: OF_BARE,
    targets: &[Target { what: "share of the bare pair", side: 2, share: 0, least: 0.9 }],
    // A server in Java gets faster in its first seconds, and the side measured later would profit.
    warm_up: 2,
    ..PLAIN
};

/// The server answers from memory, so nothing hides what the list and the client cost, nor what other programs do.
pub(crate) const ZOOKEEPER_UNSYNCED: Pairs = Pairs {
    targets: &[],
    notes: &["no target: the server does not sync its log, and runs differ by more than a tenth"],
    ..ZOOKEEPER
};

/// What is measured in one go: all sides, in turns on one runtime.
type Variant = (&'static Setting, Flavour);

impl Pairs {
    pub(crate) fn run(&'static self, run: &Run<'_>, report: &mut Report) -> Result<()> {
        (self.same)(&run.source.site()?.url())?;
        let settings = self.settings.iter();
        let variants: Vec<Variant> =
            settings.flat_map(|setting| self.flavours.iter().map(move |f| (setting, *f))).collect();
        for _ in 0..self.warm_up {
            self.measure(run, variants[0])?;
        }
        let rounds =
            Rounds::run(run.plan.rounds, &variants, |variant| self.measure(run, *variant))?;
        for (i, variant) in variants.iter().enumerate() {
            self.tell(report, *variant, &rounds, i);
        }
        self.notes.iter().for_each(|note| report.note(*note));
        Ok(())
    }

    fn measure(&'static self, run: &Run<'_>, (setting, flavour): Variant) -> Result<Vec<Slices>> {
        let sites = self.sides.iter().map(|_| run.source.site()).collect::<Result<Vec<Site>>>()?;
        let urls: Vec<String> = sites.iter().map(Site::url).collect();
        let server = self.one_thread.then(|| run.source.server()).flatten();
        let (tasks, time) = (self.tasks, run.plan.round());
        flavour.run(async move {
            let mut sides = Vec::new();
            for (side, url) in self.sides.iter().zip(urls) {
                let url = (setting.set)(url).await?;
                sides.push((side.open)(At { url, tasks }).await?);
            }
            in_turns(sides, time, server).await
        })
    }

    fn tell(
        &self,
        report: &mut Report,
        (setting, flavour): Variant,
        rounds: &Rounds<Vec<Slices>>,
        i: usize,
    ) {
        let mut with = String::new();
        if !setting.what.is_empty() {
            with = format!(", {}", setting.what);
        }
        if self.flavours.len() > 1 {
            with = format!("{with}, {}", flavour.word());
        }
        let share = |side: usize, share: &Share| {
            rounds.median(i, |sides| sides[side].ratio(&sides[share.of], share.by))
        };
        for (at, side) in self.sides.iter().enumerate() {
            let middle = |figure: fn(&Speed) -> f64| rounds.median(i, |r| r[at].median(figure));
            let mut figures = vec![("pairs_per_s", middle(|speed| speed.pairs_per_s))];
            figures.extend(self.shares.iter().map(|s| (s.figure, share(at, s))));
            figures.push(("cpu_us", middle(|speed| speed.cpu_us)));
            if self.one_thread {
                figures.push(("server_cpu_us", middle(|speed| speed.server_cpu_us)));
            }
            report.row(format!("{}{with}", side.what), &figures);
        }
        for target in self.targets {
            let value = share(target.side, &self.shares[target.share]);
            report.at_least(format!("{}{with}", target.what), target.least, value);
        }
    }
}
