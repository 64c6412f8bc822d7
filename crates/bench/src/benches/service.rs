//! Lock and release by bare HTTP requests, beside a bare axum program whose answers are as long.

use crate::{
    args::Plan,
    flavour::Flavour,
    http_client::{Caller, Sizes, some_id},
    machine::now,
    report::Report,
    rounds::Rounds,
    service::Running,
    source::LockFile,
    stats::{figure, millis_between, percentile},
};
use anyhow::Result;
use lockkeeper::store::clock::Moment;
use std::time::Duration;
use tokio::task::JoinSet;

/// How many clients ask at once, each on a connection of its own.
const CLIENTS: [usize; 2] = [1, 16];
/// What the service must reach of the echo, in requests and in the slowest of a hundred.
const LEAST: f64 = 0.5;

/// A server that is asked.
struct Side {
    what: &'static str,
    server: Running,
    is_echo: bool,
}

/// What one side did in one round.
struct Speed {
    requests_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let file = LockFile::within(&plan.folder)?;
    let memory = Running::service("memory://service")?.pinned(plan)?;
    let sqlite = Running::service(&file.url())?.pinned(plan)?;
    let sizes = Flavour::CurrentThread.run(sizes(memory.address.clone()))?;
    let side = |what, server| Side { what, server, is_echo: false };
    let sides = [
        Side {
            what: "floor: bare axum, same sizes",
            server: Running::echo(sizes)?.pinned(plan)?,
            is_echo: true,
        },
        side("service on memory", memory),
        side("service on SQLite", sqlite),
    ];
    let variants: Vec<(&Side, usize)> =
        CLIENTS.iter().flat_map(|clients| sides.iter().map(|side| (side, *clients))).collect();
    let rounds = Rounds::run(plan.rounds, &variants, |(side, clients)| {
        let (address, is_echo) = (side.server.address.clone(), side.is_echo);
        Flavour::CurrentThread.run(ask(address, is_echo, *clients, plan.round()))
    })?;
    for (i, (side, clients)) in variants.iter().enumerate() {
        let floor = i - i % sides.len();
        let noun = if *clients == 1 { "client" } else { "clients" };
        let of_floor = rounds.ratio(i, floor, |speed| speed.requests_per_s);
        let p99_of_floor = rounds.ratio(floor, i, |speed| speed.p99_ms);
        report.row(
            format!("{}, {clients} {noun}", side.what),
            &[
                ("requests_per_s", rounds.median(i, |speed| speed.requests_per_s)),
                ("of_floor", of_floor),
                ("p50_ms", rounds.median(i, |speed| speed.p50_ms)),
                ("p99_ms", rounds.median(i, |speed| speed.p99_ms)),
                ("p99_of_floor", p99_of_floor),
            ],
        );
        if !side.is_echo {
            let with = format!("{}, {clients} {noun}", side.what);
            report.at_least(format!("share of the floor's requests/s: {with}"), LEAST, of_floor);
            report.at_least(format!("share of the floor's p99: {with}"), LEAST, p99_of_floor);
        }
    }
    let Sizes { take, leave } = sizes;
    report.note(format!(
        "a client takes a lock of its own and releases it, on one connection; the answers have {take} and {leave} \
         bytes, and so has the floor's; all clients share one thread, each server has as many as there are cores"
    ));
    Ok(())
}

/// How long the service's answers are.
async fn sizes(address: String) -> Result<Sizes> {
    let (mut caller, ticket) = (Caller::open(&address).await?, some_id());
    let take = caller.take("service-0", &ticket).await?;
    let leave = caller.leave("service-0", &ticket).await?;
    Ok(Sizes { take, leave })
}

/// Has so many clients ask for so long.
async fn ask(address: String, is_echo: bool, clients: usize, time: Duration) -> Result<Speed> {
    let mut callers = Vec::new();
    for i in 0..clients {
        let mut caller = match is_echo {
            true => Caller::of_echo(&address).await?,
            false => Caller::open(&address).await?,
        };
        let name = format!("service-{i}");
        pair(&mut caller, &name).await?;
        callers.push((caller, name));
    }
    let began = now();
    let end = began + time;
    let mut tasks: JoinSet<Result<Vec<f64>>> =
        callers.into_iter().map(|(caller, name)| until(end, caller, name)).collect();
    let mut took_ms = Vec::new();
    while let Some(done) = tasks.join_next().await {
        took_ms.extend(done??);
    }
    let all = now().saturating_since(began).as_secs_f64();
    Ok(Speed {
        requests_per_s: figure(took_ms.len() as u64) / all,
        p50_ms: percentile(&took_ms, 50),
        p99_ms: percentile(&took_ms, 99),
    })
}

async fn until(end: Moment, mut caller: Caller, name: String) -> Result<Vec<f64>> {
    let mut took_ms = Vec::new();
    while now() < end {
        took_ms.extend(pair(&mut caller, &name).await?);
    }
    Ok(took_ms)
}

/// Takes a free lock and releases it; says how long each of the two requests took, in ms.
pub(super) async fn pair(caller: &mut Caller, name: &str) -> Result<[f64; 2]> {
    let ticket = some_id();
    let began = now();
    caller.take(name, &ticket).await?;
    let taken = now();
    caller.leave(name, &ticket).await?;
    Ok([millis_between(began, taken), millis_between(taken, now())])
}
