//! A file of locks for several users of one machine. Root plays the users; elsewhere there is but one.

mod support;

use nix::unistd::Uid;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use support::{Place, Running};

/// Users and a group without names.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;
const STRANGER: u32 = 61_003;
const GROUP: u32 = 61_100;

/// A folder of a group.
struct Site {
    place: Place,
    program: PathBuf,
}

impl Site {
    /// None if we may not become other users.
    fn new(mode: u32) -> Option<Self> {
        if !Uid::effective().is_root() {
            eprintln!("not tested: only root can become other users");
            return None;
        }
        let place = Place::new();
        set_mode(&place.path(""), 0o755);
        fs::create_dir(place.path("shared")).unwrap();
        chown(place.path("shared"), Some(ALICE), Some(GROUP)).unwrap();
        set_mode(&place.path("shared"), mode);
        // Where the program is built other users may not look.
        let program = place.path("lockkeeper");
        fs::copy(env!("CARGO_BIN_EXE_lockkeeper"), &program).unwrap();
        set_mode(&program, 0o755);
        Some(Self { place, program })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path("shared").join(name)
    }

    /// The command, as it is for this user with the umask 022. All but the stranger are in the group.
    fn lockkeeper(&self, user: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
        match user {
            STRANGER => command.arg("--clear-groups"),
            _ => command.arg(format!("--groups={GROUP}")),
        };
        command
            .args(["sh", "-c", "umask 022; exec \"$@\"", "sh"])
            .arg(&self.program)
            .args(arguments);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let store = format!("sqlite:{}", self.path("locks.db").display());
        command.env("LOCKKEEPER_STORE", store).current_dir("/").stdin(Stdio::null());
        command
    }

    fn output(&self, user: u32, arguments: &[&str]) -> Output {
        self.lockkeeper(user, arguments).output().unwrap()
    }

    fn run(&self, user: u32) -> Output {
        self.output(user, &["run", "-n", "a", "--", "echo", "ran"])
    }

    fn hold(&self, user: u32) -> Running {
        let script = "echo in; read _ || :";
        let mut holder =
            Running::start(&mut self.lockkeeper(user, &["run", "a", "--", "sh", "-c", script]));
        assert_eq!(holder.line(), "in", "{}", holder.stderr());
        holder
    }

    /// The user is refused, and gives what is said about it.
    fn refused(&self, user: u32) -> String {
        let output = self.run(user);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(77), "{said}");
        assert!(output.stdout.is_empty(), "{said}");
        said
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn users_of_a_group_share_a_file_whatever_their_umask() {
    let Some(site) = Site::new(0o2770) else { return };
    let mut alice = site.hold(ALICE);
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let metadata = fs::metadata(site.path(name)).unwrap();
        let shown = format!("{name}: {:o}", metadata.mode());
        assert_eq!((metadata.gid(), metadata.mode() & 0o060), (GROUP, 0o060), "{shown}");
    }
    assert_eq!(site.run(BOB).status.code(), Some(75), "alice holds it");
    let mut bob = Running::start(&mut site.lockkeeper(BOB, &["run", "a", "--", "echo", "ran"]));
    let listing = || {
        let output = site.output(BOB, &["show", "--json", "a"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    support::eventually(|| {
        listing()["locks"][0]["waiters"].as_array().is_some_and(|w| w.len() == 1)
    });
    assert!(alice.end().success());
    assert_eq!(bob.line(), "ran");
    assert!(bob.wait().success());
    // The log and its index outlive their makers, and are made anew by the next user.
    for name in ["locks.db-wal", "locks.db-shm"] {
        let _ = fs::remove_file(site.path(name));
    }
    assert!(site.run(BOB).status.success());
    assert!(site.run(ALICE).status.success());
    let said = site.refused(STRANGER);
    assert!(said.contains("hint: ") && said.contains("shared"), "{said}");
}

#[test]
fn without_a_shared_folder_the_umask_decides_and_the_hint_says_what_to_do() {
    // Bob may make files in the folder, but the file stays Alice's.
    let Some(site) = Site::new(0o770) else { return };
    assert!(site.run(ALICE).status.success());
    assert_eq!(mode(&site.path("locks.db")), 0o644);
    let said = site.refused(BOB);
    let file = site.path("locks.db");
    assert!(said.contains(&format!("hint: {} belongs to ", file.display())), "{said}");
    assert!(said.contains("(mode 0644)") && said.contains("may not read and write it"), "{said}");
    assert!(said.contains("chgrp GROUP") && said.contains("chmod 660"), "{said}");
    // What the hint says helps.
    for entry in fs::read_dir(site.place.path("shared")).unwrap() {
        let path = entry.unwrap().path();
        chown(&path, None, Some(GROUP)).unwrap();
        set_mode(&path, 0o660);
    }
    set_mode(&site.place.path("shared"), 0o2770);
    assert!(site.run(BOB).status.success());
    assert!(site.run(ALICE).status.success());
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let Some(site) = Site::new(0o2770) else { return };
    assert!(site.run(ALICE).status.success());
    for name in ["locks.db-wal", "locks.db-shm"] {
        let _ = fs::remove_file(site.path(name));
    }
    // The log cannot be made.
    set_mode(&site.place.path("shared"), 0o2750);
    let said = site.refused(BOB);
    let folder = site.place.path("shared");
    assert!(said.contains(&format!("hint: {} belongs to ", folder.display())), "{said}");
    assert!(said.contains("may not use this folder") && said.contains("chmod 2770"), "{said}");
    // Nor can the file itself.
    fs::remove_file(site.path("locks.db")).unwrap();
    let said = site.refused(BOB);
    assert!(said.contains("may not use this folder"), "{said}");
}

#[test]
fn a_user_who_is_not_in_the_group_is_told_to_join() {
    let Some(site) = Site::new(0o2771) else { return };
    assert!(site.run(ALICE).status.success());
    let said = site.refused(STRANGER);
    assert!(said.contains("join the group: usermod -aG"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_entered_is_named() {
    let Some(site) = Site::new(0o2770) else { return };
    assert!(site.run(ALICE).status.success());
    set_mode(&site.place.path(""), 0o700);
    // The program lies there, too.
    let elsewhere = Place::new();
    set_mode(&elsewhere.path(""), 0o755);
    let program = elsewhere.path("lockkeeper");
    fs::copy(&site.program, &program).unwrap();
    set_mode(&program, 0o755);
    let site = Site { program, place: site.place };
    let said = site.refused(BOB);
    let closed = site.place.path("").display().to_string();
    let closed = closed.trim_end_matches('/');
    assert!(said.contains(&format!("hint: {closed} belongs to ")), "{said}");
}

#[test]
fn a_file_that_can_only_be_read_can_be_listed_and_not_locked() {
    let Some(site) = Site::new(0o2770) else { return };
    let mut alice = site.hold(ALICE);
    set_mode(&site.place.path("shared"), 0o2775);
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        set_mode(&site.path(name), 0o664);
    }
    let output = site.output(STRANGER, &["ls"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && said.contains("exclusive"), "{said}");
    assert!(site.refused(STRANGER).contains("may not"));
    assert!(alice.end().success());
}
