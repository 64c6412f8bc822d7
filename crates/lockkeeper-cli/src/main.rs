//! The lockkeeper command: locks for shells.
//!
//! [`cli`] has every flag, [`run`] the main verb, [`exit_code`] what the codes mean.
//!
//! The command is for Linux. A port to macOS needs another way to do what these do: the parent-death signal
//! in `lockkeeper_spawn`, `/proc/self/exe` in [`shim`], [`procfs`], `/proc/self/status` in [`signals`], `signalfd` in
//! [`suspend`], and the process's name in [`supervisor`]. All the rest is Unix.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command needs Linux: the parent-death signal ends what it runs with it (docs/cli.md); \
     the library runs on any Unix"
);

mod acquire;
mod answer;
mod arguments;
mod bench;
mod cell;
mod check;
mod child;
mod cli;
mod complete;
mod config;
mod daily;
mod doctor;
mod duration;
mod elect;
mod event;
mod evict;
mod exit_code;
mod failure;
mod grant;
mod handover;
mod held;
mod hold;
mod jeopardy;
mod listing;
mod ls;
mod man;
mod migrate;
mod nested;
mod orphans;
mod output;
mod patience;
mod place;
mod procfs;
mod release;
mod renew;
mod run;
mod run_alone;
mod secrets;
mod serve;
mod sharing;
mod shim;
mod show;
mod signals;
mod signature;
mod stderr;
mod store;
mod supervisor;
mod suspend;
mod terminal;
mod ticket;
mod ticket_file;
mod token;
mod waiting;
mod watch;

use cli::{Cli, Color, Verb};
use failure::Failure;
use run::End;
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    env,
    panic::{self, PanicHookInfo, catch_unwind},
    process::ExitCode,
    time::Duration,
};
use tracing_subscriber::filter::LevelFilter;

/// For how long work in the background may hold up our end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    panic::set_hook(Box::new(report_panic));
    secrets::learn();
    let code = shim::work(env::args_os()).or_else(complete::work).unwrap_or_else(|| {
        arguments::hide();
        // A panic has been reported by the time it gets here.
        catch_unwind(command).unwrap_or_else(|_| ExitCode::from(exit_code::BUG))
    });
    stderr::flush(stderr::EXIT_MAX);
    code
}

/// Reports a panic without blocking: the default hook would wait for a reader of stderr before the
/// command is ended.
fn report_panic(panic: &PanicHookInfo<'_>) {
    let trace = Backtrace::capture();
    let trace = match trace.status() {
        BacktraceStatus::Captured => format!("\n{trace}"),
        _ => String::new(),
    };
    let what = anyhow::anyhow!("a fault of lockkeeper: {panic}{trace}");
    Failure::new(exit_code::BUG, what).report(stderr::speaks_json());
}

fn command() -> ExitCode {
    let mut cli = match cli::parse() {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    set_up(&cli);
    match config::apply(&mut cli).and_then(|()| work(&cli)) {
        Ok(end) => end.exit(),
        Err(failure) => {
            let failure = failure.about(cli.common.store.as_deref());
            ExitCode::from(failure.report(cli.common.json))
        }
    }
}

fn set_up(cli: &Cli) {
    let common = &cli.common;
    let color = match common.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    color.write_global();
    let level = match common.verbose {
        // The log of a service is read when something went wrong.
        0 if matches!(cli.verb, Verb::Serve(_)) && !common.quiet => LevelFilter::INFO,
        0 => LevelFilter::OFF,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    if common.json {
        stderr::speak_json();
    }
    if level == LevelFilter::OFF {
        return;
    }
    let subscriber = tracing_subscriber::fmt().with_max_level(level);
    let subscriber = subscriber.with_ansi(output::has_colors()).with_target(false);
    subscriber.log_internal_errors(false).with_writer(|| stderr::Log).init();
}

fn work(cli: &Cli) -> Result<End, Failure> {
    let mut builder = match &cli.verb {
        Verb::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        // All on this one thread: the command dies with the thread that started it.
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(Failure::bug)?;
    let end = runtime.block_on(verb(cli));
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    end
}

async fn verb(cli: &Cli) -> Result<End, Failure> {
    let answer = match &cli.verb {
        Verb::Run(args) => return run::run(args, &cli.common).await,
        Verb::Acquire(args) => return acquire::acquire(args, &cli.common).await,
        Verb::Renew(args) => return renew::renew(args, &cli.common).await,
        Verb::Release(args) => return release::release(args, &cli.common).await,
        Verb::Check(args) => return check::check(args, &cli.common).await,
        Verb::Held(args) => return held::held(args, &cli.common).await,
        Verb::Evict(args) => return evict::evict(args, &cli.common).await,
        Verb::Cell(what) => return cell::cell(what, &cli.common).await,
        Verb::Token(what) => return token::token(what, &cli.common),
        Verb::Serve(args) => return serve::serve(args, &cli.common).await,
        Verb::Elect(args) => return elect::elect(args, &cli.common).await,
        Verb::Watch(args) => return watch::watch(args, &cli.common).await,
        Verb::Ls { watch: true, prefix } => {
            return watch::watch(&watch::Args::of(prefix), &cli.common).await;
        }
        Verb::Ls { prefix, .. } => ls::ls(prefix, &cli.common).await?,
        Verb::Show { name } => show::show(name, &cli.common).await?,
        Verb::Migrate { print } => migrate::migrate(*print, &cli.common).await?,
        Verb::Doctor(args) => return doctor::doctor(args, &cli.common).await,
        Verb::Bench(args) => return bench::bench(args, &cli.common).await,
        Verb::Completions { shell } => complete::script(*shell)?,
        Verb::Man { page, into } => man::man(page.as_deref(), into.as_deref())?,
    };
    Ok(End::Code(output::answer(&answer)))
}
