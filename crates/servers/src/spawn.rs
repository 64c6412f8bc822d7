//! Starting a child process that ends with us, or one that stays.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;

use anyhow::{Context, Result};
use nix::unistd::geteuid;

use crate::program;
use crate::recipe::Sandbox;

/// What becomes of a child when this program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// It is killed, on Linux even if this program is killed itself.
    WithUs,
    /// It stays.
    Detached,
}

/// A command for `program` that will have the wanted lifetime.
///
/// The kernel can send a signal to a child whose parent has died, but asking for it between fork
/// and exec is unsafe code. util-linux's `setpriv` asks for it and then becomes the program, under
/// the same process id.
///
/// It also becomes another user on the way, if one is given and we are root, and enters the sandbox's
/// root before that, if there is one.
pub(crate) fn command(
    sandbox: &Sandbox,
    program: &Path,
    lifetime: Lifetime,
    user: Option<&str>,
) -> Command {
    let mut options: Vec<String> = Vec::new();
    if let Some(user) = user.filter(|_| geteuid().is_root()) {
        options.extend([format!("--reuid={user}"), format!("--regid={user}")]);
        options.push("--init-groups".to_owned());
    }
    if lifetime == Lifetime::WithUs && *SETPRIV {
        options.extend(["--pdeathsig", "KILL"].map(str::to_owned));
    }
    let Some(root) = sandbox.root else {
        if options.is_empty() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(options).arg(program);
        return command;
    };
    let mut command = root.command(Some(&sandbox.folder));
    if !options.is_empty() {
        command.arg("setpriv").args(options);
    }
    command.arg(program);
    command
}

/// Whether there is a `setpriv` that knows the option; BusyBox has one that does not.
pub(crate) static SETPRIV: LazyLock<bool> = LazyLock::new(|| {
    program::find("setpriv", &[]).is_some()
        && Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
});

type Job = (Command, SyncSender<io::Result<Child>>);

/// For the kernel the parent is a thread, not a process: a server started by a test's own thread
/// would die with that test, even if others share it. So one thread, which lives as long as the
/// program, starts them all.
static PARENT: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = mpsc::channel::<Job>();
    thread::spawn(move || {
        for (mut command, reply) in jobs {
            // The other side waits for this reply, so it can only fail after a panic there.
            let _ = reply.send(command.spawn());
        }
    });
    sender
});

/// Starts the command on the thread that outlives all tests.
pub(crate) fn spawn(command: Command) -> Result<Child> {
    let (reply, child) = mpsc::sync_channel(1);
    let gone = "the thread that starts servers is gone";
    PARENT.send((command, reply)).ok().context(gone)?;
    Ok(child.recv().context(gone)??)
}
