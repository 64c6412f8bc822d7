//! Where the figures were measured, and what a process can read about itself.

use crate::args::{Pin, Plan};
use anyhow::{Context, Result};
use lockkeeper::store::clock::{Clock, Moment};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::resource::{UsageWho, getrusage},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{fmt, fs, thread::available_parallelism, time::Duration};

/// The state of the machine at the beginning of a run.
pub(crate) struct Machine {
    cores: usize,
    /// Averages over one, five and fifteen minutes. Above zero, others work here too.
    load: String,
    pinned: Option<Pin>,
    file_system: String,
    kernel: String,
    quick: bool,
    rounds: u32,
    time: Duration,
}

impl Machine {
    pub(crate) fn look(plan: &Plan) -> Result<Self> {
        let load = fs::read_to_string("/proc/loadavg").context("cannot read the load")?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            cores: available_parallelism()?.get(),
            load: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            pinned: plan.pin,
            file_system: file_system(&plan.folder)?,
            kernel: kernel.trim().to_owned(),
            quick: plan.quick,
            rounds: plan.rounds,
            time: plan.time,
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "load": self.load,
            "pinned": self.pinned.map(|pin| format!("{pin:?}").to_lowercase()),
            "file_system": self.file_system,
            "kernel": self.kernel,
            "optimised": !cfg!(debug_assertions),
            "quick": self.quick,
            "rounds": self.rounds,
            "seconds": self.time.as_secs_f64(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, load, file_system, kernel, rounds, time, .. } = self;
        let pinned = match self.pinned {
            None => "not pinned",
            Some(Pin::One) => "all pinned to one core",
            Some(Pin::Apart) => "servers pinned to one core and all else to another",
        };
        writeln!(f, "{cores} cores, {pinned}, load {load}, {file_system}, Linux {kernel}")?;
        write!(f, "{time:?} per variant in {rounds} interleaved rounds; medians over the rounds")?;
        if cfg!(debug_assertions) {
            write!(f, "\nnot optimised: the figures mean nothing")?;
        }
        if self.quick {
            write!(f, "\na smoke run: the figures mean nothing")?;
        }
        Ok(())
    }
}

/// The kind of file system that holds the folder: an fsync is free on some and dear on others.
fn file_system(folder: &std::path::Path) -> Result<String> {
    let folder = folder.canonicalize().context("cannot use the folder for the files")?;
    let mounts = fs::read_to_string("/proc/mounts").context("cannot read the mounts")?;
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?.to_owned(), words.next()?.to_owned());
        folder.starts_with(&point).then_some((point.len(), kind))
    };
    let deepest = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length);
    Ok(deepest.map_or_else(|| "unknown file system".to_owned(), |(_, kind)| kind))
}

/// The core of a server that stands apart, and the core of everything else.
pub(crate) const SERVER_CORE: usize = 0;
const OTHER_CORE: usize = 1;

/// Has this process and its children to come run where they should.
pub(crate) fn pin(pin: Pin) -> Result<()> {
    let core = match pin {
        Pin::One => SERVER_CORE,
        Pin::Apart => OTHER_CORE,
    };
    pin_to(Pid::from_raw(0), core)
}

/// Has another process run on one core, with all its threads.
pub(crate) fn pin_process(pid: u32, core: usize) -> Result<()> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = thread?.file_name().to_string_lossy().parse()?;
        pin_to(Pid::from_raw(id), core)?;
    }
    Ok(())
}

fn pin_to(pid: Pid, core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(pid, &cores).with_context(|| format!("cannot pin to core {core}"))
}

/// Now, on a clock that all processes of the machine share.
pub(crate) fn now() -> Moment {
    Clock::system().now()
}

/// The processor time that this process has used, all threads together.
pub(crate) fn cpu_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |t: nix::sys::time::TimeVal| {
        Duration::from_secs(t.tv_sec().unsigned_abs())
            + Duration::from_micros(t.tv_usec().unsigned_abs())
    };
    Ok(micros(usage.user_time()) + micros(usage.system_time()))
}

/// The processor time that another process has used on its first thread: a Redis server does all
/// its work there.
pub(crate) fn cpu_time_of(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanos = stat.split(' ').next().context("the kernel does not count processor time")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

/// The processor time that another process has used, all threads together, in steps of 10 ms.
pub(crate) fn cpu_time_of_all(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// The memory of this process that is resident, in KiB.
pub(crate) fn resident_kib() -> Result<u64> {
    resident_kib_of(std::process::id())
}

/// The same of another process.
pub(crate) fn resident_kib_of(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.and_then(|line| line.split_whitespace().next());
    Ok(figure.context("the kernel does not say how much memory is resident")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_read_its_own_figures() {
        assert!(resident_kib().unwrap() > 100);
        let before = cpu_time().unwrap();
        let until = now() + Duration::from_millis(30);
        while now() < until {}
        assert!(cpu_time().unwrap() > before);
        assert!(cpu_time_of(std::process::id()).is_ok());
    }
}
