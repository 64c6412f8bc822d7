//! `lockkeeper doctor`: is this store, as it is set up, one to trust locks to?

mod promises;
mod trial;
mod verdict;

use crate::{
    cli::Common,
    duration,
    failure::Failure,
    handover::{Trouble, micros, short, within},
    output,
    run::End,
    secrets, store,
};
use clap::Args;
use lockkeeper::{Capabilities, Error, Keeper, Store as _};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::json;
use std::{
    io,
    time::{Duration, Instant},
};
use tokio::{signal::ctrl_c, time::timeout};
use verdict::{Level, Verdict};

/// For how long closing may take: what it does not end ends with its TTL.
pub(crate) const CLOSE_MAX: Duration = Duration::from_secs(2);

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper doctor                               the store of LOCKKEEPER_STORE, or the user's file
  lockkeeper doctor redis://cache.example.org     another one
  lockkeeper doctor --json | jq .verdict          for a monitor

Exit codes:
  0   fine, perhaps with notes
  1   warnings: a promise is weaker than it could be, locks are slow, or may soon be refused
  2   unsafe: two can hold one lock
  3   failed: the store cannot be reached or used";

/// The flags of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The store [default: that of --store]
    pub(crate) store: Option<String>,

    /// How long each step may take: connecting, the checks, the lock
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::bounded)]
    timeout: Duration,
}

/// How long things took.
#[derive(Debug, Default, Serialize)]
struct Figures {
    connect_us: Option<u64>,
    round_trip_us: Option<u64>,
    acquire_us: Option<u64>,
    renew_us: Option<u64>,
    hand_over_us: Option<u64>,
}

/// What was found.
struct Report {
    url: String,
    limit: Duration,
    scheme: Option<&'static str>,
    can: Option<Capabilities>,
    figures: Figures,
    verdicts: Vec<Verdict>,
    /// To be closed at the end, also of an examination that was broken off.
    keepers: Vec<Keeper>,
}

/// Looks at the store.
pub(crate) async fn doctor(args: &Doctor, common: &Common) -> Result<End, Failure> {
    let url = store::url(common.store.as_deref())?;
    let mut report = Report {
        url: store::without_secrets(&url),
        limit: args.timeout,
        scheme: None,
        can: None,
        figures: Figures::default(),
        verdicts: Vec::new(),
        keepers: Vec::new(),
    };
    let examined = tokio::select! {
        examined = report.examine(&url) => Some(examined),
        _ = ctrl_c() => None,
    };
    for keeper in &report.keepers {
        let _ = timeout(CLOSE_MAX, keeper.close()).await;
    }
    let Some(examined) = examined else { return Ok(End::Signal(Signal::SIGINT as i32)) };
    examined?;
    let text = if common.json { report.json()? } else { report.text(common.quiet) };
    let text = String::from_utf8_lossy(&secrets::hide(text.into_bytes())).into_owned();
    Ok(End::Code(match output::answer(&text) {
        0 => report.worst().exit_code(),
        code => code,
    }))
}

impl Report {
    /// Adds to the verdicts. An error is a URL that makes no sense: there is nothing to look at.
    async fn examine(&mut self, url: &str) -> Result<(), Failure> {
        let Some(keeper) = self.connect(url).await? else { return Ok(()) };
        let advice = match within(self.limit, keeper.advice()).await {
            Ok(advice) => advice,
            Err(trouble) => {
                self.failed("checks", trouble);
                return Ok(());
            }
        };
        self.verdicts.extend(promises::of(keeper.capabilities(), &advice));
        if advice.is_empty() {
            self.verdicts.push(Verdict::ok("set-up", "nothing in it can hurt locks"));
        }
        self.verdicts.extend(advice.iter().map(Verdict::of_advice));
        if let Some(other) = self.connect(url).await? {
            self.try_a_lock(&keeper, &other).await;
        }
        Ok(())
    }

    /// Connects; the first connection is told of.
    async fn connect(&mut self, url: &str) -> Result<Option<Keeper>, Failure> {
        let began = Instant::now();
        match within(self.limit, Keeper::connect(url)).await {
            Ok(keeper) => {
                if self.scheme.is_none() {
                    let took = began.elapsed();
                    self.figures.connect_us = Some(micros(took));
                    self.scheme = Some(keeper.store().scheme());
                    self.can = Some(keeper.capabilities());
                    let what = format!("{} answered within {}", self.url, short(took));
                    self.verdicts.push(Verdict::ok("connect", what));
                }
                self.keepers.push(keeper.clone());
                Ok(Some(keeper))
            }
            Err(Trouble::Store(e @ Error::Url(_))) => Err(e.into()),
            Err(trouble) => {
                self.failed("connect", trouble);
                Ok(None)
            }
        }
    }

    fn failed(&mut self, step: &str, trouble: Trouble) {
        self.verdicts.push(Verdict::of_trouble(step, trouble, self.limit));
    }

    fn worst(&self) -> Level {
        self.verdicts.iter().map(|verdict| verdict.level).max().unwrap_or(Level::Ok)
    }

    fn text(&self, quiet: bool) -> String {
        let told = |verdict: &&Verdict| !quiet || verdict.level > Level::Note;
        let width = output::terminal_width(io::stdout());
        let line = |verdict: &Verdict| match width {
            Some(width) => verdict.lines(width),
            None => verdict.line(),
        };
        let mut text: String = self.verdicts.iter().filter(told).map(line).collect();
        if !quiet {
            text += &format!("{}: {}\n", output::printable(&self.url), self.worst().overall());
        }
        text
    }

    fn json(&self) -> Result<String, Failure> {
        let can = self.can.map(|can| promises::names(&can));
        output::json_answer(json!({
            "store": self.url,
            "scheme": self.scheme,
            "verdict": self.worst().overall(),
            "exit_code": self.worst().exit_code(),
            "capabilities": can,
            "figures": self.figures,
            "checks": self.verdicts,
        }))
        .map_err(Failure::bug)
    }
}
