//! What the tests share: a store of their own, processes that end with the test, and waiting for
//! conditions.

#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod proxied;
pub(crate) mod pty;

use assert_cmd::assert::{Assert, OutputAssertExt as _};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{
    fs,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Long enough for the slowest machine: reached only when something is broken.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A folder with a store that belongs to one test.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// The command, with this store.
    pub(crate) fn lockkeeper(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        let ours = ["CONFIG", "STORE_FILE", "PASSWORD_FILE", "QUIET", "TTL", "COMPLETE"];
        for variable in ours.map(|name| format!("LOCKKEEPER_{name}")) {
            command.env_remove(variable);
        }
        for variable in ["NO_COLOR", "CLICOLOR_FORCE", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
            command.env_remove(variable);
        }
        command.env("LOCKKEEPER_STORE", self.url()).env("HOME", self.folder.path());
        command.current_dir(self.folder.path()).args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs to the end.
    pub(crate) fn assert(&self, arguments: &[&str]) -> Assert {
        self.lockkeeper(arguments).assert()
    }

    /// What the command prints.
    pub(crate) fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.assert(arguments).success().get_output().clone();
        String::from_utf8(output.stdout).expect("UTF-8 on stdout")
    }

    /// Starts in the background, with pipes on all sides.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::start(&mut self.lockkeeper(arguments))
    }

    /// A shell script under the lock.
    pub(crate) fn start_script(&self, flags: &[&str], name: &str, script: &str) -> Running {
        let tail = [name, "--", "sh", "-c", script];
        self.start(&[&["run"], flags, &tail].concat())
    }

    /// Takes the lock, says the fence, and holds it until its stdin gets a line or ends.
    pub(crate) fn hold(&self, flags: &[&str], name: &str) -> (Running, u64) {
        let mut holder = self.start_script(flags, name, "echo $LOCKKEEPER_FENCE; read _ || :");
        let fence = holder.line().parse().expect("a fence");
        (holder, fence)
    }

    /// The lock as `show --json` has it; null if nobody is there.
    pub(crate) fn show(&self, name: &str) -> Value {
        let text = self.stdout(&["show", "--json", name]);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        json["locks"].get(0).cloned().unwrap_or(Value::Null)
    }

    pub(crate) fn count(&self, name: &str, who: &str) -> usize {
        self.show(name)[who].as_array().map_or(0, Vec::len)
    }

    /// Takes the lock that every writer of the store's file needs, for as long as the answer lives. The store
    /// must have been used by a process that is still there.
    pub(crate) fn lock_file(&self) -> fs::File {
        const WAL_WRITE_LOCK: libc::off_t = 120;
        let shared = fs::File::options().read(true).write(true).open(self.path("locks.db-shm"));
        let shared = shared.expect("a store in use");
        let lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: WAL_WRITE_LOCK,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(&shared, FcntlArg::F_SETLKW(&lock)).expect("the lock");
        shared
    }

    /// Waits until so many stand in line behind the holders.
    pub(crate) fn await_waiters(&self, name: &str, waiters: usize) {
        eventually(|| self.count(name, "waiters") == waiters);
    }
}

/// A process that ends with the test.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: Receiver<Vec<u8>>,
    /// What has been read and not yet been asked for.
    ahead: Vec<u8>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts a command whose stdout, and what else the test needs, has been set to a pipe.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("a process");
        let stdin = child.stdin.take();
        let stdout = read(child.stdout.take().expect("piped"));
        Self { child, stdin, stdout, ahead: Vec::new() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a small number"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a live process");
    }

    /// The next line of stdout; empty at its end.
    pub(crate) fn line(&mut self) -> String {
        self.up_to("\n").trim_end().to_owned()
    }

    /// What comes on stdout up to and with this text; all that is left if the text does not come.
    pub(crate) fn up_to(&mut self, text: &str) -> String {
        let found = loop {
            let found = self.ahead.windows(text.len()).position(|w| w == text.as_bytes());
            if let Some(at) = found {
                break at + text.len();
            }
            match self.stdout.recv_timeout(DEADLINE) {
                Ok(more) => self.ahead.extend(more),
                Err(RecvTimeoutError::Disconnected) => break self.ahead.len(),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no {text:?} in {:?}", String::from_utf8_lossy(&self.ahead))
                }
            }
        };
        let rest = self.ahead.split_off(found);
        let read = std::mem::replace(&mut self.ahead, rest);
        String::from_utf8(read).expect("UTF-8 on stdout")
    }

    /// The next line of stdout, which says the number of a process.
    pub(crate) fn pid_line(&mut self) -> Pid {
        let line = self.line();
        Pid::from_raw(line.parse().unwrap_or_else(|_| panic!("no number: {line:?}")))
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.stdin.as_mut().expect("open").write_all(text.as_bytes()).expect("a reader");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    /// Closes stdin and waits for the end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.stdin = None;
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually(|| self.has_ended());
        self.child.wait().expect("a child of ours")
    }

    /// The code it ends with, as a shell would say it.
    pub(crate) fn code(&mut self) -> i32 {
        let status = self.wait();
        status.code().or_else(|| status.signal().map(|n| 128 + n)).expect("an end")
    }

    /// Its stderr, to be read while it runs.
    pub(crate) fn take_stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("piped")
    }

    /// All that it has said on stderr. To be called after the end.
    pub(crate) fn stderr(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut text).expect("UTF-8 on stderr");
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads on a thread of its own, so that a test can stop waiting.
fn read(mut from: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if sender.send(buffer[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A pipe that is full. It stays so as long as the reader is not read from.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&writer, FcntlArg::F_GETFL).unwrap());
    fcntl(&writer, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    for piece in [&[b'x'; 4096][..], b"x"] {
        while writer.write(piece).is_ok() {}
        assert_eq!(Errno::last(), Errno::EAGAIN);
    }
    fcntl(&writer, FcntlArg::F_SETFL(flags)).unwrap();
    (reader, writer)
}

/// Waits for a condition.
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < DEADLINE, "waited in vain");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Does this process run? One that nobody has reaped yet does not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Ends the holder's ticket by force, from outside.
pub(crate) fn evict_holder(place: &Place, name: &str) {
    let ticket = place.show(name)["holders"][0]["ticket"].as_str().expect("a holder").to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let keeper = lockkeeper::Keeper::connect(&place.url()).await.expect("the store");
        let ticket = ticket.parse().expect("a ticket id");
        assert!(keeper.evict(name, ticket).await.expect("an answer"));
    });
}
