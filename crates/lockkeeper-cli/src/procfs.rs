//! What the kernel tells about processes that are not our children.

use nix::unistd::Pid;
use std::{fs, path::Path};

/// A process, as `/proc/NUMBER/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Who started it, or has taken it over.
    pub(crate) parent: Pid,
    group: Pid,
    dead: bool,
}

/// What is known about a process; nothing where there is no such file system.
pub(crate) fn stat(process: Pid) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// `NUMBER (NAME) STATE PARENT GROUP …`, where the name may contain anything.
fn parse(stat: &str) -> Option<Stat> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
    Some(Stat { parent: number()?, group: number()?, dead })
}

/// Does a process live in this group? Where /proc cannot tell, yes.
pub(crate) fn is_alive(group: Pid) -> bool {
    // In a PID namespace without a `/proc` of its own the numbers there are others than ours.
    if fs::read_link("/proc/self").is_ok_and(|it| it != Path::new(&Pid::this().to_string())) {
        return true;
    }
    let Ok(entries) = fs::read_dir("/proc") else { return true };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut processes = names.filter_map(|name| name.parse().ok()).map(Pid::from_raw);
    processes.any(|process| stat(process).is_some_and(|s| s.group == group && !s.dead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let (parent, group) = (Pid::from_raw(7), Pid::from_raw(42));
        let alive = Some(Stat { parent, group, dead: false });
        assert_eq!(parse("43 (sh) S 7 42 42 0 -1"), alive);
        assert_eq!(parse("43 (a) Z 1 2 (b)) R 7 42 42 0 -1"), alive);
        assert_eq!(parse("43 (sh) Z 7 42 42"), Some(Stat { parent, group, dead: true }));
        assert_eq!(parse("43 (sh) S 7"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn we_live_in_our_own_group() {
        assert!(is_alive(nix::unistd::getpgrp()));
        let parent = stat(nix::unistd::getpid()).map(|stat| stat.parent);
        assert_eq!(parent, Some(nix::unistd::getppid()));
    }
}
