//! What there is to know about one kind of server.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use nix::unistd::User;

use crate::program;
use crate::root::Root;

/// How one store is installed, started, probed and stopped.
///
/// A recipe may start several processes: three etcd nodes or a Redis with its sentinels are one
/// recipe and one [`Running`](crate::Running), with one URL.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// The word for this store on command lines and in `LOCKKEEPER_REQUIRE`.
    pub name: &'static str,
    /// The Debian packages that bring it.
    pub packages: &'static [&'static str],
    /// The files that must be found before it can start: programs, or a Java archive.
    pub programs: &'static [&'static str],
    /// Where those files may lie besides `PATH`.
    pub folders: &'static [&'static str],
    /// The root from which it always comes; `None` if it is the machine's own.
    pub root: Option<Root>,
    /// The root from which the newest version comes, where [`VERSIONS`](Self::VERSIONS) asks for that.
    pub newest: Option<Root>,
    /// How many local ports it needs.
    pub ports: usize,
    /// The signal that makes it end in good order.
    pub stop: Signal,
    /// How long a process may take from its start to its first good answer, and all of them from
    /// there to the whole.
    pub ready_within: Duration,
    /// Prepares the sandbox (configuration files, an empty database) and names the processes to
    /// start there. All are started before the first one is probed, since some become ready only
    /// together.
    pub processes: fn(&Sandbox) -> Result<Vec<Process>>,
    /// Makes one whole of the processes, such as a cluster, once each of them answers. Asked again
    /// and again until it agrees, and again after every restart of the whole, so it does only what
    /// is still missing. The error says what that is. `None` if there is nothing to do.
    pub form: Option<fn(&Sandbox) -> Result<()>>,
    /// The URL that reaches all of it, as a user would write it.
    pub url: fn(&Sandbox) -> String,
}

impl Recipe {
    /// The environment variable that moves every server to its newest version if it is `newest`.
    pub const VERSIONS: &str = "LOCKKEEPER_SERVERS";

    /// Whether everything it needs is on this machine.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.obstacle().is_none()
    }

    /// The first of its programs that is nowhere to be found.
    #[must_use]
    pub fn first_missing(&self) -> Option<&'static str> {
        let is_missing = |name: &&str| find(self.place(), name, self.folders).is_none();
        self.programs.iter().copied().find(is_missing)
    }

    /// Why it cannot be started on this machine, in a few words; `None` if it can.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        let missing = self.first_missing().map(|name| format!("{name} is not installed"));
        let forbidden = || self.place().and_then(|_| Root::check_usable().err());
        missing.or_else(|| forbidden().map(|error| error.to_string()))
    }

    /// The root from which it is started; `None` for the machine itself.
    #[must_use]
    pub fn place(&self) -> Option<Root> {
        let newest = || env::var_os(Self::VERSIONS).is_some_and(|versions| versions == "newest");
        self.root.or_else(|| self.newest.filter(|_| newest()))
    }
}

/// The file of this name on the machine, or inside a root.
fn find(root: Option<Root>, name: &str, folders: &[&str]) -> Option<PathBuf> {
    match root {
        Some(root) => root.find(name, folders),
        None => program::find(name, folders),
    }
}

/// The folder and the ports that belong to one running server alone.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// An empty folder at first; data, configuration and logs go here.
    pub folder: PathBuf,
    /// As many free ports of 127.0.0.1 as the recipe asked for.
    pub ports: Vec<u16>,
    /// The root from which the processes are started; `None` for the machine itself.
    pub root: Option<Root>,
}

impl Sandbox {
    /// The program of this name, where the processes are started.
    pub(crate) fn find(&self, name: &str, folders: &[&str]) -> Result<PathBuf> {
        find(self.root, name, folders).with_context(|| format!("{name} is not installed"))
    }

    /// The ids of a user and its group, where the processes are started.
    pub(crate) fn user(&self, name: &str) -> Result<(u32, u32)> {
        if let Some(root) = self.root {
            return root.user(name);
        }
        let user = User::from_name(name)?.with_context(|| format!("there is no user {name}"))?;
        Ok((user.uid.as_raw(), user.gid.as_raw()))
    }
}

/// Answers whether a server can be used; the error says what is still amiss.
pub type Probe = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// One process of a recipe.
pub struct Process {
    /// Names its log file, `NAME.log` in the sandbox's folder.
    pub name: String,
    /// The program, looked for on `PATH` and in the recipe's folders. It must stay in the
    /// foreground.
    pub program: &'static str,
    /// The program's arguments.
    pub args: Vec<OsString>,
    /// Environment variables besides those of this program, and stronger than them.
    ///
    /// A recipe made from another one can add some, for example to load a library first:
    ///
    /// ```
    /// use servers::{REDIS, Recipe};
    ///
    /// const SHIFTED: Recipe = Recipe {
    ///     processes: |sandbox| {
    ///         let mut processes = (REDIS.processes)(sandbox)?;
    ///         for process in &mut processes {
    ///             let library = sandbox.folder.join("clock.so");
    ///             process.env.push(("LD_PRELOAD".into(), library.into()));
    ///         }
    ///         Ok(processes)
    ///     },
    ///     ..REDIS
    /// };
    /// ```
    pub env: Vec<(OsString, OsString)>,
    /// The user to run as if we are root: some servers refuse to be root. The folder must be theirs.
    pub user: Option<&'static str>,
    /// Whether this process answers, seen alone; asked again and again until it agrees.
    pub ready: Probe,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("name", &self.name)
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &self.env)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}
