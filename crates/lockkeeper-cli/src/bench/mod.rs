//! `lockkeeper bench`: rough figures of one store, in a few seconds.
//!
//! One client on this machine measures, so the figures say how long a user of the store waits from here. They do
//! not say what the store can do for many clients at once.

mod samples;

use crate::{
    cli::Common,
    doctor::CLOSE_MAX,
    duration, exit_code,
    failure::Failure,
    handover::{Trouble, hand_over, lock, own_name, within},
    output,
    run::End,
    store,
};
use clap::Args;
use lockkeeper::Keeper;
use nix::sys::signal::Signal;
use samples::Samples;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::{signal::ctrl_c, time::timeout};

/// How long one step may take before the store counts as silent.
const LIMIT: Duration = Duration::from_secs(10);

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper bench                          the store of LOCKKEEPER_STORE, or the user's file
  lockkeeper bench --seconds 10 etcd://a    another one, for longer
  lockkeeper bench --json                   for programs

The figures are rough: one client, on this machine, beside whatever else runs on both sides.";

/// The flags of `bench`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// The store [default: that of --store]
    pub(crate) store: Option<String>,

    /// For how long to measure
    #[arg(long, value_name = "TIME", default_value = "3", value_parser = duration::bounded)]
    seconds: Duration,
}

/// Measures, and tells.
pub(crate) async fn bench(args: &Bench, common: &Common) -> Result<End, Failure> {
    let url = store::url(common.store.as_deref())?;
    let (one, two) = (connect(&url).await?, connect(&url).await?);
    let measured = tokio::select! {
        measured = measure(&one, &two, args.seconds) => Some(measured),
        _ = ctrl_c() => None,
    };
    for keeper in [&one, &two] {
        let _ = timeout(CLOSE_MAX, keeper.close()).await;
    }
    let Some(measured) = measured else { return Ok(End::Signal(Signal::SIGINT as i32)) };
    let (measured, url) = (measured.map_err(failure)?, store::without_secrets(&url));
    let text = if common.json {
        let measured: Vec<_> = measured.iter().map(Samples::json).collect();
        let answer = json!({ "store": url, "measured": measured });
        output::json_answer(answer).map_err(Failure::bug)?
    } else {
        let seconds = duration::flag(args.seconds);
        let head = format!("{}, one client, {seconds}: rough figures\n", output::printable(&url));
        head + &measured.iter().map(Samples::text).collect::<String>()
    };
    Ok(End::Code(output::answer(&text)))
}

async fn connect(url: &str) -> Result<Keeper, Failure> {
    within(LIMIT, Keeper::connect(url)).await.map_err(failure)
}

fn failure(trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Store(e) => e.into(),
        Trouble::Late => {
            let what = anyhow::anyhow!("the store did not answer within {LIMIT:?}");
            Failure::new(exit_code::UNAVAILABLE, what).hint("lockkeeper doctor looks into it")
        }
    }
}

async fn measure(one: &Keeper, two: &Keeper, time: Duration) -> Result<Vec<Samples>, Trouble> {
    let name = own_name("bench");
    // The session is opened before the measurement, as in a program that lives for long.
    within(LIMIT, take_and_release(one, &name)).await?;
    Ok(vec![
        pairs(one, &name, time.mul_f64(0.4)).await?,
        hand_overs(one, two, &name, time.mul_f64(0.4)).await?,
        renewals(one, &name, time.mul_f64(0.2)).await?,
    ])
}

async fn take_and_release(keeper: &Keeper, name: &str) -> lockkeeper::Result<()> {
    lock(keeper, name).wait(LIMIT).await?.release().await
}

/// A free lock, taken and released by one client again and again.
async fn pairs(keeper: &Keeper, name: &str, time: Duration) -> Result<Samples, Trouble> {
    let (began, mut samples) =
        (Instant::now(), Samples::new("acquire_release", "acquire and release"));
    while samples.is_empty() || began.elapsed() < time {
        let step = Instant::now();
        within(LIMIT, take_and_release(keeper, name)).await?;
        samples.add(step.elapsed());
    }
    Ok(samples.lasting(began.elapsed()))
}

/// A lock that goes to and fro between two clients: from the begin of a release to the other's grant.
async fn hand_overs(
    one: &Keeper,
    two: &Keeper,
    name: &str,
    time: Duration,
) -> Result<Samples, Trouble> {
    let (began, mut samples) = (Instant::now(), Samples::new("hand_over", "hand-over"));
    let mut guard = within(LIMIT, lock(one, name).wait(LIMIT).into_future()).await?;
    let mut next = [two, one].into_iter().cycle();
    while samples.is_empty() || began.elapsed() < time {
        let Some(keeper) = next.next() else { break };
        let (granted, took) = hand_over(guard, keeper, LIMIT).await?;
        guard = granted;
        samples.add(took);
    }
    let lasted = began.elapsed();
    within(LIMIT, guard.release()).await?;
    Ok(samples.lasting(lasted))
}

/// One renewal after another of a session with one lock.
async fn renewals(keeper: &Keeper, name: &str, time: Duration) -> Result<Samples, Trouble> {
    let guard = within(LIMIT, lock(keeper, name).wait(LIMIT).into_future()).await?;
    let (began, mut samples) = (Instant::now(), Samples::new("renewal", "renewal"));
    while samples.is_empty() || began.elapsed() < time {
        let step = Instant::now();
        within(LIMIT, guard.extend(Duration::ZERO)).await?;
        samples.add(step.elapsed());
    }
    let lasted = began.elapsed();
    within(LIMIT, guard.release()).await?;
    Ok(samples.lasting(lasted))
}
