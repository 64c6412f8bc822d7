//! Builds the test programs and runs several of them at once: together they wait three times as long as they work.

use std::{
    collections::VecDeque,
    env, fs,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::workspace;

/// The programs that run longest. They start first, so that the others fill the time beside them.
const LONGEST: &[&str] = &[
    "conformance",
    "mysql",
    "redis",
    "postgres",
    "outage",
    "etcd",
    "mutants",
    "exclusion_stores",
    "stores",
    "doctor",
    "zookeeper",
    "ticket_stores",
];

/// Something to run: a test program, or cargo for the examples in the documentation.
pub(crate) struct Program {
    name: String,
    path: PathBuf,
    args: Vec<String>,
    /// Where cargo would run it: the folder of its package.
    folder: PathBuf,
}

/// How a program ended.
struct End {
    name: String,
    took: Duration,
    passed: bool,
}

/// Builds all test programs; none if the build fails, which cargo has said by then.
pub(crate) fn build() -> Result<Option<Vec<Program>>> {
    let args = "test --workspace --all-features --no-run --message-format=json-render-diagnostics";
    let mut cargo = Command::new(workspace::cargo_path())
        .args(args.split(' '))
        .current_dir(workspace::root())
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be run")?;
    let messages = cargo.stdout.take().context("cargo's messages are piped")?;
    let mut programs = Vec::new();
    for line in BufReader::new(messages).lines() {
        let message: Value = serde_json::from_str(&line?).context("cargo speaks JSON")?;
        programs.extend(program(&message));
    }
    if !cargo.wait()?.success() {
        return Ok(None);
    }
    ensure!(!programs.is_empty(), "cargo has built no test program");
    programs.push(documentation());
    let rank = |program: &Program| LONGEST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| rank(program).unwrap_or(LONGEST.len()));
    Ok(Some(programs))
}

/// The test program that a message of cargo tells of.
fn program(message: &Value) -> Option<Program> {
    let is_test = message["profile"]["test"].as_bool()?;
    let path = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let name = message["target"]["name"].as_str()?;
    Some(Program {
        name: name.to_owned(),
        path: path.into(),
        args: Vec::new(),
        folder: folder.into(),
    })
}

fn documentation() -> Program {
    let args = "test --workspace --all-features --no-fail-fast --doc";
    Program {
        name: "the documentation's examples".to_owned(),
        path: workspace::cargo_path(),
        args: args.split(' ').map(str::to_owned).collect(),
        folder: workspace::root(),
    }
}

/// Runs all programs, so many at once, with what they write in this folder, and prints it when they have ended.
/// Says whether all passed.
pub(crate) fn run(programs: Vec<Program>, at_once: usize, logs: &Path) -> Result<bool> {
    fs::create_dir_all(logs)?;
    let queue = Mutex::new(programs.into_iter().enumerate().collect::<VecDeque<_>>());
    let ends = Mutex::new(Vec::new());
    let next = || lock(&queue).pop_front();
    thread::scope(|scope| {
        let work = || {
            while let Some((number, program)) = next() {
                let log = logs.join(format!("{number}.log"));
                let end = program.run(&log)?;
                // Held while it prints, so that no program's words stand between another's.
                let mut ends = lock(&ends);
                print(&program, &end, &log)?;
                ends.push(end);
            }
            anyhow::Ok(())
        };
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(summary(&lock(&ends)))
}

impl Program {
    fn run(&self, log: &Path) -> Result<End> {
        let file = File::create(log)?;
        let begun = Instant::now();
        let status = Command::new(&self.path)
            .args(&self.args)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stderr(file.try_clone()?)
            .stdout(file)
            .status()
            .with_context(|| format!("{} cannot be run", self.path.display()))?;
        Ok(End { name: self.name.clone(), took: begun.elapsed(), passed: status.success() })
    }
}

fn print(program: &Program, end: &End, log: &Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n     Ran {} ({}), {:.1?}", end.name, program.path.display(), end.took)?;
    std::io::copy(&mut File::open(log)?, &mut out)?;
    Ok(out.flush()?)
}

/// Prints how long each program took and which failed. Says whether all passed.
fn summary(ends: &[End]) -> bool {
    println!();
    for End { name, took, passed } in ends {
        let word = if *passed { "ok" } else { "FAILED" };
        println!("xtask: {:>6} s  {word:<6} {name}", took.as_secs());
    }
    ends.iter().all(|end| end.passed)
}

/// How many programs run at once: as many as there are processors, and at least two, unless the environment says
/// another number.
pub(crate) fn at_once() -> Result<usize> {
    const VARIABLE: &str = "LOCKKEEPER_TEST_PROGRAMS";
    let Some(number) = env::var_os(VARIABLE) else {
        return Ok(thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4)));
    };
    let number = number.to_str().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    number.with_context(|| format!("{VARIABLE} must be a number from 1"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shell(name: &str, script: &str) -> Program {
        let args = vec!["-c".to_owned(), script.to_owned()];
        Program { name: name.to_owned(), path: "sh".into(), args, folder: workspace::root() }
    }

    #[test]
    fn one_failure_among_many_programs_is_told_and_stops_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let ran = folder.path().join("ran");
        let touch = format!("touch {}", ran.display());
        let logs = folder.path();
        assert!(!run(vec![shell("fails", "exit 3"), shell("passes", &touch)], 1, logs).unwrap());
        assert!(ran.exists());
        assert!(run(vec![shell("passes", "true"), shell("passes too", "true")], 2, logs).unwrap());
    }

    #[test]
    fn only_what_cargo_built_as_a_test_is_run() {
        let message = |test: bool, executable: Value| {
            json!({
                "reason": "compiler-artifact", "manifest_path": "/w/a/Cargo.toml",
                "target": { "name": "a" }, "profile": { "test": test }, "executable": executable,
            })
        };
        let program_of = |message: Value| program(&message).map(|p| (p.path, p.folder));
        let test = program_of(message(true, json!("/w/target/a-1")));
        assert_eq!(test, Some(("/w/target/a-1".into(), "/w/a".into())));
        assert_eq!(program_of(message(false, json!("/w/target/a"))), None);
        assert_eq!(program_of(message(true, Value::Null)), None);
        assert_eq!(program_of(json!({ "reason": "build-finished", "success": true })), None);
    }
}
