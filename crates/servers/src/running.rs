//! A server that runs in this program's care.

use std::path::Path;
use std::{fs, io};

use anyhow::{Result, anyhow};
use tempfile::TempDir;

use crate::clock;
use crate::detached::Detached;
use crate::node::Node;
use crate::poll::poll;
use crate::ports;
use crate::recipe::{Recipe, Sandbox};
use crate::spawn::Lifetime;

/// How often a start is tried before its failure counts.
const ATTEMPTS: usize = 3;

/// A server that was started from a [`Recipe`], with all its processes.
///
/// Dropping it stops the server and removes its folder.
#[derive(Debug)]
pub struct Running {
    recipe: Recipe,
    sandbox: Sandbox,
    url: String,
    nodes: Vec<Node>,
    /// Removed after the last process has ended, because fields are dropped after `drop`.
    _folder: Option<TempDir>,
}

impl Recipe {
    /// Starts the server in a folder and on ports of its own, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// If the server is not installed, ends at once, or is not ready in time. The error shows the
    /// end of the server's log.
    pub fn start(&self) -> Result<Running> {
        self.start_in_a_folder(|_| Ok(()))
    }

    /// Starts the server as [`start`](Self::start) does, with a wall clock of its own for every
    /// process, to be moved by [`Node::set_clock`].
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and if there is no C compiler.
    pub fn start_with_clocks(&self) -> Result<Running> {
        self.start_in_a_folder(|running| {
            let library = clock::compile(running.folder())?;
            running.each(|node| node.go_by_a_clock(&library))
        })
    }

    /// Starts the server as [`start`](Self::start) does, with these arguments after those of every
    /// process.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with_args(&self, args: &[&str]) -> Result<Running> {
        self.start_in_a_folder(|running| {
            running.each(|node| {
                node.add_args(args);
                Ok(())
            })
        })
    }

    fn start_in_a_folder(&self, prepare: impl Fn(&mut Running) -> Result<()>) -> Result<Running> {
        retry_lost_ports(|| {
            let folder = TempDir::with_prefix(format!("lockkeeper-{}-", self.name))?;
            let sandbox = Sandbox::with_free_ports(folder.path(), self)?;
            let mut running = Running::new(self, sandbox, Lifetime::WithUs, Some(folder))?;
            prepare(&mut running)?;
            running.launch()
        })
    }

    /// Starts the server in `folder`, which is emptied first, as a process that outlives this one.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and if `folder` cannot be written.
    pub fn start_detached(&self, folder: &Path) -> Result<Detached> {
        let running = retry_lost_ports(|| {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
            fs::create_dir_all(folder)?;
            let sandbox = Sandbox::with_free_ports(folder, self)?;
            Running::new(self, sandbox, Lifetime::Detached, None)?.launch()
        })?;
        running.detach()
    }
}

/// A port can be lost between our choice and the server's bind, and then the server ends. Other
/// reasons to end look the same from outside and cost only the time of a few vain attempts.
fn retry_lost_ports(launch: impl Fn() -> Result<Running>) -> Result<Running> {
    for _ in 1..ATTEMPTS {
        let mut running = match launch() {
            Err(error) if is_taken(&error) => continue,
            launched => launched?,
        };
        match running.wait_ready() {
            Err(_) if running.has_lost_a_node() => {}
            outcome => return outcome.map(|()| running),
        }
    }
    let mut running = launch()?;
    running.wait_ready().map(|()| running)
}

/// Some ports are ours to bind, before any process starts.
fn is_taken(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::AddrInUse)
}

impl Sandbox {
    fn with_free_ports(folder: &Path, recipe: &Recipe) -> Result<Self> {
        let ports = ports::free(recipe.ports)?;
        Ok(Self { folder: folder.to_owned(), ports, root: recipe.place() })
    }
}

impl Running {
    fn new(
        recipe: &Recipe,
        sandbox: Sandbox,
        lifetime: Lifetime,
        folder: Option<TempDir>,
    ) -> Result<Self> {
        let url = (recipe.url)(&sandbox);
        let nodes = (recipe.processes)(&sandbox)?
            .into_iter()
            .map(|process| Node::new(recipe, &sandbox, process, lifetime))
            .collect::<Result<_>>()?;
        Ok(Self { recipe: *recipe, sandbox, url, nodes, _folder: folder })
    }

    /// Starts all processes. If one fails, the value takes the earlier ones down with it.
    fn launch(mut self) -> Result<Self> {
        self.each(Node::start)?;
        Ok(self)
    }

    /// The URL that reaches it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The folder that holds its data, configuration and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.sandbox.folder
    }

    /// Its ports on 127.0.0.1, in the recipe's order.
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        &self.sandbox.ports
    }

    /// The ids of the processes that are up.
    pub fn pids(&mut self) -> Vec<u32> {
        self.nodes.iter_mut().filter_map(Node::pid).collect()
    }

    /// Its processes one by one, in the recipe's order.
    pub fn nodes(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Stops all processes where they stand; see [`Node::freeze`].
    ///
    /// # Errors
    ///
    /// If a process is not up or does not come to a halt.
    pub fn freeze(&mut self) -> Result<()> {
        self.each(Node::freeze)
    }

    /// Lets all processes go on after [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// If a process is not up.
    pub fn thaw(&mut self) -> Result<()> {
        self.each(Node::thaw)
    }

    /// Ends all processes as a power cut would.
    ///
    /// # Errors
    ///
    /// If a signal cannot be sent.
    pub fn kill(&mut self) -> Result<()> {
        self.each(Node::kill)
    }

    /// Ends all processes in good order. The folder stays until the value is dropped.
    ///
    /// # Errors
    ///
    /// If a signal cannot be sent.
    pub fn stop(&mut self) -> Result<()> {
        self.each(Node::stop)
    }

    /// Starts the processes that are down, with the same ports and data, and waits until all are
    /// ready and make one whole again.
    ///
    /// # Errors
    ///
    /// If a process cannot be started, or it or the whole is not ready in time.
    pub fn restart(&mut self) -> Result<()> {
        self.each(|node| if node.pid().is_none() { node.start() } else { Ok(()) })?;
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        self.each(Node::wait_ready)?;
        self.wait_formed()
    }

    fn wait_formed(&mut self) -> Result<()> {
        let Some(form) = self.recipe.form else { return Ok(()) };
        let within = self.recipe.ready_within;
        let mut obstacle = String::new();
        let outcome = poll(within, || {
            let formed =
                form(&self.sandbox).map_err(|error| obstacle = format!("{error:#}")).is_ok();
            // In this order, because a process that took a port may answer in our server's place.
            let lost = self.has_lost_a_node();
            (formed || lost).then_some(!lost)
        });
        match outcome {
            Some(true) => Ok(()),
            Some(false) => Err(self.failure("lost a process before it was whole", &obstacle)),
            None => Err(self.failure(&format!("is not whole after {within:?}"), &obstacle)),
        }
    }

    fn failure(&self, what: &str, obstacle: &str) -> anyhow::Error {
        let logs: Vec<String> = self.nodes.iter().map(Node::log_end).collect();
        anyhow!("{} {what}: {obstacle}\n{}", self.recipe.name, logs.join("\n"))
    }

    fn has_lost_a_node(&mut self) -> bool {
        self.nodes.iter_mut().any(|node| node.pid().is_none())
    }

    fn each(&mut self, act: impl FnMut(&mut Node) -> Result<()>) -> Result<()> {
        self.nodes.iter_mut().try_for_each(act)
    }

    /// Writes down what is needed to find the processes again, and lets go of them.
    fn detach(mut self) -> Result<Detached> {
        let detached = Detached {
            url: self.url.clone(),
            ports: self.sandbox.ports.clone(),
            processes: self.nodes.iter_mut().filter_map(Node::mark).collect(),
        };
        detached.save(&self.sandbox.folder)?;
        self.nodes.clear();
        Ok(detached)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // No caller is left to hear of it, and one stubborn process must not save the others.
            let _ = node.stop();
        }
    }
}
