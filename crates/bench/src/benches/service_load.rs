//! What a healthy client of the service notices of a crowd: clients that send a byte a second, and clients that wait.

use super::service::pair;
use crate::{
    args::Plan,
    child::{Child, Role, Shift, ready, say},
    flavour::Flavour,
    http_client::{Caller, Client, JSON, some_id},
    machine::{cpu_time_of_all, now, resident_kib_of},
    report::Report,
    service::{Running, more_files},
    source::LockFile,
    stats::{figure, max, median, percentile},
};
use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::sleep,
};

/// How many send one byte of their headers a second, and in a smoke run.
const SLOW: (usize, usize) = (1_000, 20);
/// How many wait by a long poll, each in a session of its own, and in a smoke run.
const WAITERS: (usize, usize) = (2_000, 40);
/// How many wait in one line.
const LINE: usize = 20;
/// The pause of the healthy client between two pairs.
const PAUSE: Duration = Duration::from_millis(2);
/// How many times as long the slowest request of a hundred may take.
const TIMES: f64 = 2.0;
/// The memory that the service may have with the crowd.
const RESIDENT_MIB: f64 = 256.0;
/// How long it may take until all wait.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let file = LockFile::within(&plan.folder)?;
    let service = Running::service(&file.url())?.pinned(plan)?;
    let address = service.address.clone();
    let crowd = Crowd {
        address: address.clone(),
        slow: plan.scaled(SLOW.0, SLOW.1),
        waiters: plan.scaled(WAITERS.0, WAITERS.1),
    };
    let (slow, waiters) = (crowd.slow, crowd.waiters);
    let measure = || {
        let cpu = cpu_time_of_all(service.pid())?;
        let took_ms = Flavour::CurrentThread.run(healthy(address.clone(), plan.time))?;
        let cpu = cpu_time_of_all(service.pid())?.saturating_sub(cpu);
        let share = cpu.as_secs_f64() / plan.time.as_secs_f64();
        anyhow::Ok((took_ms, 1000.0 * share, mib(&service)?))
    };
    let idle = measure()?;
    let mut child = Child::start(&Role::Crowd(crowd))?;
    child.tell(Shift::of(Duration::ZERO))?;
    child.hear::<()>()?;
    Flavour::CurrentThread.run(all_wait(address.clone(), waiters))?;
    child.tell(Shift::of(plan.time))?;
    let crowded = measure()?;
    let there: There = child.hear()?;
    drop(child);
    Flavour::CurrentThread.run(all_wait(address.clone(), 0))?;
    let gone = mib(&service)?;
    for (what, (took_ms, cpu_ms, resident)) in
        [("a healthy client alone", &idle), ("the same beside the crowd", &crowded)]
    {
        report.row(
            what,
            &[
                ("p50_ms", median(took_ms)),
                ("p99_ms", percentile(took_ms, 99)),
                ("max_ms", max(took_ms)),
                ("requests", figure(took_ms.len() as u64)),
                ("cpu_ms_per_s", *cpu_ms),
                ("rss_mib", *resident),
            ],
        );
    }
    report.row("when the crowd is gone", &[("rss_mib", gone)]);
    let connections = figure((slow + waiters) as u64);
    let each_kib = (crowded.2 - idle.2) * 1024.0 / connections;
    report.note(format!(
        "the crowd: {slow} clients that send a byte of their headers a second, and {waiters} that wait by a long poll, \
         {LINE} in each line, each in a session of its own; the service on SQLite; {each_kib:.1} KiB for each of the crowd"
    ));
    let times = percentile(&crowded.0, 99) / percentile(&idle.0, 99);
    report.below("p99 of the healthy client, times that when it is alone", TIMES, times);
    report.below("rss_mib beside the crowd", RESIDENT_MIB, crowded.2);
    let still = figure((there.slow + there.waiters) as u64);
    report.exactly("of the crowd still there at the end", connections, still);
    Ok(())
}

/// Takes and releases a lock of its own again and again; says how long each request took, in ms.
async fn healthy(address: String, time: Duration) -> Result<Vec<f64>> {
    let mut caller = Caller::open(&address).await?;
    let mut took_ms = Vec::new();
    for _ in 0..16 {
        pair(&mut caller, "healthy").await?;
    }
    let end = now() + time;
    while now() < end {
        took_ms.extend(pair(&mut caller, "healthy").await?);
        sleep(PAUSE).await;
    }
    Ok(took_ms)
}

/// Waits until the service says that so many wait.
async fn all_wait(address: String, count: usize) -> Result<()> {
    let mut client = Client::connect(&address).await?;
    let until = now() + PATIENCE;
    loop {
        let answer = client.ask("GET /metrics", "", "").await?;
        let text = std::str::from_utf8(answer.body)?;
        let line = text.lines().find_map(|line| line.strip_prefix(WAITING_METRIC));
        let waiting: f64 = line.context("the service counts its waiters")?.trim().parse()?;
        if waiting == figure(count as u64) {
            return Ok(());
        }
        ensure!(now() < until, "{waiting} wait at the service, not {count}");
        sleep(Duration::from_millis(50)).await;
    }
}

const WAITING_METRIC: &str = "lockkeeper_waiters ";

fn mib(service: &Running) -> Result<f64> {
    Ok(figure(resident_kib_of(service.pid())?) / 1024.0)
}

/// Many clients in one process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Crowd {
    address: String,
    slow: usize,
    waiters: usize,
}

/// How many of the crowd were neither sent away nor answered.
#[derive(Serialize, Deserialize)]
struct There {
    slow: usize,
    waiters: usize,
}

impl Crowd {
    pub(crate) fn play(self) -> Result<()> {
        more_files()?;
        let there = Flavour::CurrentThread.run(self.stand())?;
        say(&there)
    }

    /// All come at once, and stay until the shift is over.
    async fn stand(self) -> Result<There> {
        ready()?;
        let mut slow = JoinSet::new();
        for _ in 0..self.slow {
            slow.spawn(trickle(TcpStream::connect(&self.address).await?));
        }
        let mut holders = Vec::new();
        for line in 0..self.waiters.div_ceil(LINE) {
            let mut holder = Caller::open(&self.address).await?;
            holder.take(&format!("line-{line}"), &some_id()).await?;
            holders.push(holder);
        }
        let mut coming: JoinSet<Result<Waiter>> = JoinSet::new();
        for i in 0..self.waiters {
            coming.spawn(Waiter::come(self.address.clone(), format!("line-{}", i / LINE)));
        }
        let mut waiters = JoinSet::new();
        while let Some(waiter) = coming.join_next().await {
            waiters.spawn(waiter??.wait(WAIT_MS));
        }
        let shift = ready()?;
        shift.begin().await;
        sleep(shift.length()).await;
        while slow.try_join_next().is_some() {}
        while waiters.try_join_next().is_some() {}
        Ok(There { slow: slow.len(), waiters: waiters.len() })
    }
}

/// The longest wait that the service allows.
const WAIT_MS: u64 = 60_000;

/// A client that asks for a lock with one request that also opens its session.
struct Waiter {
    client: Client,
    name: String,
    secret: String,
    ticket: String,
}

impl Waiter {
    /// Is in line when this returns.
    async fn come(address: String, name: String) -> Result<Self> {
        let client = Client::connect(&address).await?;
        let waiter = Self { client, name, secret: some_id(), ticket: some_id() };
        let (waiter, status) = waiter.ask(1).await?;
        ensure!(status == 202, "a client that should wait was answered {status}");
        Ok(waiter)
    }

    async fn wait(self, wait_ms: u64) -> Result<()> {
        self.ask(wait_ms).await.map(drop)
    }

    async fn ask(mut self, wait_ms: u64) -> Result<(Self, u16)> {
        let (secret, ticket) = (&self.secret, &self.ticket);
        let body = format!(r#"{{"secret":"{secret}","ticket":"{ticket}","wait_ms":{wait_ms}}}"#);
        let line = format!("POST /v1/locks/{}", self.name);
        let status = self.client.ask(&line, JSON, &body).await?.status;
        Ok((self, status))
    }
}

/// Sends one byte of a long header a second, until the service hangs up.
async fn trickle(mut stream: TcpStream) -> Result<()> {
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: ").await?;
    loop {
        tokio::select! {
            _ = stream.read_u8() => return Ok(()),
            () = sleep(Duration::from_secs(1)) => stream.write_all(b"x").await?,
        }
    }
}
