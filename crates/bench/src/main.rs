//! Benchmarks of lockkeeper beside the bare floors of its stores.
//!
//! Variants are interleaved inside one run and compared round by round, because a small or shared
//! machine changes its speed from second to second; the median of the per-round ratios is steadier
//! than any absolute number. `bench --list` shows what can be measured.

mod args;
mod benches;
mod child;
mod flavour;
mod floor;
mod http_client;
mod machine;
mod meter;
mod pair;
mod report;
mod rounds;
mod service;
mod source;
mod stats;

use anyhow::{Context, Result};
use args::{Args, Call};
use clap::Parser as _;
use report::Report;
use std::process::ExitCode;

/// The exit code when a target was missed and the caller asked for a check.
const MISSED: u8 = 1;

fn main() -> ExitCode {
    match Args::parse().call() {
        Call::List => {
            list();
            ExitCode::SUCCESS
        }
        Call::Role(role) => told(role.play().map(|()| true)),
        Call::Measure(plan) => told(measure(&plan)),
    }
}

/// The exit code for a run: `true` if nothing that matters was missed.
fn told(done: Result<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(MISSED),
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for bench in benches::ALL {
        println!("{:13}  {}", bench.name, bench.what);
    }
}

fn measure(plan: &args::Plan) -> Result<bool> {
    let before = machine::Machine::look(plan)?;
    if let Some(pin) = plan.pin {
        machine::pin(pin)?;
    }
    if !plan.json {
        println!("{before}");
    }
    let mut reports = Vec::new();
    for bench in &plan.benches {
        let report = bench.run(plan).with_context(|| format!("{} failed", bench.name))?;
        if !plan.json {
            println!("\n{report}");
        }
        reports.push(report);
    }
    if plan.json {
        println!("{:#}", report::document(&before, &reports));
    }
    Ok(!plan.check || reports.iter().all(Report::met))
}
