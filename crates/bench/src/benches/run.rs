//! The whole of `lockkeeper run x -- true`, from fork to reaped, beside `flock f true` and `sh -c true`.

use crate::{
    args::Plan,
    machine::now,
    report::Report,
    rounds::Rounds,
    source::{Site, Source},
    stats::{millis_between, percentile},
};
use anyhow::{Context, Result, ensure};
use servers::Recipe;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// How many times each command is run, and in a smoke run.
const RUNS: (usize, usize) = (40, 2);
/// The store is looked at once a day in the background, while the command runs. A command of this length leaves time for
/// it, so that the runs that are measured have none of it.
const LOOK_SECONDS: &str = "1";

/// How long a run may take.
enum Bound {
    /// So many times as long as flock.
    Flocks(f64),
    Millis(f64),
}

/// A store to run on, without a server in a file.
struct On {
    store: &'static str,
    server: Option<Recipe>,
    bound: Bound,
}

#[rustfmt::skip]
const STORES: &[On] = &[
    On { store: "sqlite",    server: None,                     bound: Bound::Flocks(2.5) },
    On { store: "redis",     server: Some(servers::REDIS),     bound: Bound::Flocks(4.0) },
    On { store: "etcd",      server: Some(servers::ETCD),      bound: Bound::Flocks(4.0) },
    On { store: "zookeeper", server: Some(servers::ZOOKEEPER), bound: Bound::Flocks(4.0) },
    On { store: "postgres",  server: Some(servers::POSTGRES),  bound: Bound::Millis(10.0) },
    On { store: "mariadb",   server: Some(servers::MARIADB),   bound: Bound::Millis(10.0) },
];

/// One command line.
struct Variant {
    what: String,
    words: Vec<OsString>,
    bound: Option<&'static Bound>,
}

/// The floors, by their place among the variants.
const FLOCK: usize = 1;

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("lockkeeper-bench-").tempdir_in(&plan.folder)?;
    let program = program()?;
    let lock = folder.path().join("flock").into_os_string();
    let mut variants = vec![
        variant("sh -c true", None, ["sh".into(), "-c".into(), "true".into()]),
        variant("flock f true", None, ["flock".into(), lock, "true".into()]),
        variant("lockkeeper --version", None, [program.clone().into(), "--version".into()]),
    ];
    // Both stay up until all is measured.
    let (mut sources, mut sites): (Vec<Source>, Vec<Site>) = (Vec::new(), Vec::new());
    for on in STORES {
        let source = match Source::open(on.server.as_ref(), plan)? {
            Ok(source) => source,
            Err(why) => {
                report.missed(&format!("{}: {why}", on.store));
                continue;
            }
        };
        let site = source.site()?;
        let url = site.url();
        sources.push(source);
        sites.push(site);
        let words = |command: &[&str]| {
            let begin = [program.clone().into(), "--store".into(), url.clone().into()];
            let run = ["run", "x", "--"].iter().chain(command).map(OsString::from);
            begin.into_iter().chain(run).collect::<Vec<OsString>>()
        };
        time(folder.path(), &words(&["sleep", LOOK_SECONDS]))?;
        variants.push(variant(on.store, Some(&on.bound), words(&["true"])));
    }
    let runs = u32::try_from(plan.scaled(RUNS.0, RUNS.1))?;
    let rounds = Rounds::run(runs, &variants, |variant| time(folder.path(), &variant.words))?;
    report.note(format!("{runs} runs of each, in turns; the time from fork to reaped"));
    for (at, variant) in variants.iter().enumerate() {
        let (p50, ratio) = (rounds.median(at, |ms| *ms), rounds.ratio(at, FLOCK, |ms| *ms));
        let least = percentile(rounds.of(at), 1);
        let figures = [("p50_ms", p50), ("least_ms", least), ("flocks", ratio)];
        report.row(&variant.what, &figures);
        match variant.bound {
            Some(Bound::Flocks(bound)) => {
                report.below(format!("flocks, {}", variant.what), *bound, ratio);
            }
            Some(Bound::Millis(bound)) => {
                report.below(format!("p50_ms, {}", variant.what), *bound, p50);
            }
            None => {}
        }
    }
    Ok(())
}

fn variant(
    what: &str,
    bound: Option<&'static Bound>,
    words: impl IntoIterator<Item = OsString>,
) -> Variant {
    Variant { what: what.to_owned(), words: words.into_iter().collect(), bound }
}

/// Runs the command once, and says how many milliseconds that took. It finds no settings and no state of its user.
fn time(folder: &Path, words: &[OsString]) -> Result<f64> {
    let (program, rest) = words.split_first().context("a command has a program")?;
    let mut command = Command::new(program);
    command.args(rest).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    command.env("XDG_STATE_HOME", folder).env("XDG_CONFIG_HOME", folder);
    for ours in ["LOCKKEEPER_STORE", "LOCKKEEPER_CONFIG", "LOCKKEEPER_HELD"] {
        command.env_remove(ours);
    }
    let began = now();
    let status = command.status().with_context(|| format!("cannot run {}", program.display()))?;
    let took = millis_between(began, now());
    ensure!(status.success(), "{words:?} ended with {status}");
    Ok(took)
}

/// The command, built as this program is.
fn program() -> Result<PathBuf> {
    let ours = std::env::current_exe()?;
    let folder = ours.parent().context("a program is in a folder")?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build.args(["build", "--quiet", "--package", "lockkeeper-cli"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    ensure!(build.status()?.success(), "the command cannot be built");
    Ok(folder.join("lockkeeper"))
}
