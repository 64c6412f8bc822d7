//! What Linux tells about a process under `/proc`. Elsewhere every answer is "nothing known".

use std::fs;
use std::path::Path;

/// The program's name without its folder, as the process shows it.
///
/// A finished process that its parent has not waited for shows none.
pub(crate) fn program(pid: u32) -> Option<String> {
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    program_of(&String::from_utf8_lossy(&command_line))
}

/// Redis replaces its arguments by one text with spaces in it, hence both separators.
fn program_of(command_line: &str) -> Option<String> {
    let first = command_line.split(['\0', ' ']).next()?;
    let name = Path::new(first).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

/// When the process was started, in clock ticks since boot: with the pid, its identity.
pub(crate) fn started(pid: u32) -> Option<u64> {
    started_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn started_of(stat: &str) -> Option<u64> {
    fields(stat).nth(19)?.parse().ok()
}

/// Whether every thread has come to a halt. The signal that stops a process returns before its
/// threads have noticed, and until then they may still answer a client.
pub(crate) fn is_stopped(pid: u32) -> Option<bool> {
    let mut stopped = true;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that has ended meanwhile does nothing either.
        let Ok(stat) = fs::read_to_string(thread.ok()?.path().join("stat")) else { continue };
        // So does one that has ended, and whose parent is stopped and cannot reap it.
        stopped &= matches!(fields(&stat).next()?, "T" | "Z" | "X");
    }
    Some(stopped)
}

/// Its children, their children and so on. PostgreSQL's are in process groups of their own, so a
/// signal to the group of the first does not reach them.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children(pid);
    let mut at = 0;
    while let Some(child) = found.get(at).copied() {
        found.extend(children(child));
        at += 1;
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|l| l.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The fields after the program's name, which itself may contain spaces and parentheses.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(')').next().unwrap_or_default().split_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_program_of_plain_and_of_rewritten_command_lines() {
        assert_eq!(program_of("/usr/bin/java\0-cp\0x.jar\0").as_deref(), Some("java"));
        assert_eq!(
            program_of("/usr/bin/redis-server 127.0.0.1:6379\0\0").as_deref(),
            Some("redis-server")
        );
        assert_eq!(program_of(""), None);
    }

    #[test]
    fn a_program_with_an_odd_name_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0";
        assert_eq!(fields(stat).next(), Some("S"));
        assert_eq!(started_of(stat), Some(4242));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn knows_this_very_process() {
        let pid = std::process::id();
        assert!(program(pid).is_some_and(|name| name.starts_with("servers-")));
        assert!(started(pid).is_some_and(|ticks| ticks > 0));
        assert_eq!(is_stopped(pid), Some(false));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn finds_the_children_of_children() {
        let script = "sleep 1000 & wait";
        let mut shell =
            std::process::Command::new("setsid").args(["sh", "-c", script]).spawn().unwrap();
        let found = crate::poll::poll(std::time::Duration::from_secs(30), || {
            let ours = descendants(std::process::id());
            let sleep = ours.into_iter().find(|p| program(*p).as_deref() == Some("sleep"))?;
            Some(sleep)
        });
        let sleep = found.expect("the shell's child is found");
        nix::sys::signal::kill(crate::node::raw(sleep), nix::sys::signal::Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
    }
}
