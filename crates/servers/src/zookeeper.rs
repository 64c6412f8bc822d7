//! ZooKeeper, alone and as an ensemble of three.
//!
//! Ticks are short, so that sessions end soon after their time, and sessions may be as long as a
//! test likes. Writes go to disk but are not synced: what a killed process has written stays, and
//! the power is not cut.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::certificates;
use crate::fault_proxy::FaultProxy;
use crate::recipe::{Process, Recipe, Sandbox};
use crate::root::NEWEST;
use crate::running::Running;

/// How many members an ensemble has.
const MEMBERS: usize = 3;

/// The server's own archive, which names all others that it needs.
const ARCHIVE: &str = "zookeeper.jar";
/// Where its words go; without it the log is empty.
const LOGGER: &str = "slf4j-simple.jar";
/// Needed for TLS; Debian's archive forgets to name it.
const NETTY: &str = "netty-codec.jar";
const FOLDER: &str = "/usr/share/java";
/// What is written is not synced.
const UNSYNCED: &str = "-Dzookeeper.forceSync=no";

/// How long a server may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// A single ZooKeeper server.
///
/// Its only node is `zookeeper`.
pub const ZOOKEEPER: Recipe = Recipe {
    name: "zookeeper",
    packages: &["zookeeper", "default-jre-headless"],
    programs: &["java", ARCHIVE, LOGGER, NETTY],
    folders: &[FOLDER],
    root: None,
    newest: Some(NEWEST),
    ports: 1,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(60),
    processes: |sandbox| Ok(vec![server(sandbox, "zookeeper", 0, "")?]),
    form: None,
    url: |sandbox| format!("zookeeper://{}", hosts(&sandbox.ports)),
};

/// An ensemble of three servers, of which any two go on without the third.
///
/// Its nodes are `zookeeper-1`, `zookeeper-2` and `zookeeper-3`, in the order of the URL. The first
/// three ports are the clients', the next three are for what leader and followers tell each other,
/// and the last three are for elections.
pub const ZOOKEEPER_ENSEMBLE: Recipe = Recipe {
    name: "zookeeper-ensemble",
    ports: 3 * MEMBERS,
    processes: |sandbox| {
        let member = |index: usize| {
            let name = format!("zookeeper-{}", index + 1);
            server(sandbox, &name, index, &members(sandbox))
        };
        (0..MEMBERS).map(member).collect()
    },
    form: Some(form),
    url: |sandbox| format!("zookeeper://{}", hosts(&sandbox.ports[..MEMBERS])),
    ..ZOOKEEPER
};

/// A single server that also speaks TLS, and wants a certificate of its clients.
///
/// The URL leads to its second port, where it does. In its folder are `ca.pem`, `client.pem` and
/// `client.key` for clients that may come in, and `stranger.pem` for clients that may not.
pub const ZOOKEEPER_TLS: Recipe = Recipe {
    name: "zookeeper-tls",
    ports: 2,
    processes: |sandbox| {
        certificates::write(&sandbox.folder)?;
        let [certificate, key] =
            ["server.pem", "server.key"].map(|file| fs::read_to_string(sandbox.folder.join(file)));
        fs::write(sandbox.folder.join("both.pem"), certificate? + &key?)?;
        let settings = format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             secureClientPort={}\n\
             ssl.keyStore.location=both.pem\n\
             ssl.keyStore.type=PEM\n\
             ssl.trustStore.location=ca.pem\n\
             ssl.trustStore.type=PEM\n",
            sandbox.ports[1]
        );
        Ok(vec![server(sandbox, "zookeeper", 0, &settings)?])
    },
    url: |sandbox| {
        let file = |name: &str| format!("{}/{name}", sandbox.folder.display());
        let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
        let hosts = hosts(&sandbox.ports[1..]);
        format!("zookeeper://{hosts}?tls_ca={ca}&tls_cert={certificate}&tls_key={key}")
    },
    ..ZOOKEEPER
};

/// A single server that grants no sessions longer than six seconds, and removes containers soon after
/// they have become empty.
pub const ZOOKEEPER_BRIEF: Recipe = Recipe {
    name: "zookeeper-brief",
    processes: |sandbox| {
        let mut server = server(sandbox, "zookeeper", 0, "maxSessionTimeout=6000\n")?;
        server.args.insert(0, "-Dznode.container.checkIntervalMs=500".into());
        Ok(vec![server])
    },
    ..ZOOKEEPER
};

/// A single server that syncs what it writes before it answers, as servers do unless they are told otherwise.
pub const ZOOKEEPER_SYNCED: Recipe = Recipe {
    name: "zookeeper-synced",
    processes: |sandbox| {
        let mut server = server(sandbox, "zookeeper", 0, "")?;
        server.args.retain(|arg| arg != UNSYNCED);
        Ok(vec![server])
    },
    ..ZOOKEEPER
};

/// The part of the configuration in which all members are named.
fn members(sandbox: &Sandbox) -> String {
    let line = |index: usize| {
        let (peers, elections) =
            (sandbox.ports[MEMBERS + index], sandbox.ports[2 * MEMBERS + index]);
        format!("server.{}=127.0.0.1:{peers}:{elections}\n", index + 1)
    };
    (0..MEMBERS).map(line).collect()
}

/// Paths are relative to the sandbox's folder, where processes are started: what lies above it may
/// have a name that would have to be quoted.
fn server(sandbox: &Sandbox, name: &str, index: usize, more: &str) -> Result<Process> {
    let port = sandbox.ports[index];
    fs::create_dir_all(sandbox.folder.join(name).join("data"))?;
    fs::write(sandbox.folder.join(name).join("data/myid"), format!("{}\n", index + 1))?;
    let file = format!("{name}/zoo.cfg");
    let text = format!(
        "tickTime=200\n\
         initLimit=40\n\
         syncLimit=20\n\
         maxSessionTimeout=2000000000\n\
         maxClientCnxns=0\n\
         4lw.commands.whitelist=*\n\
         admin.enableServer=false\n\
         dataDir={name}/data\n\
         clientPortAddress=127.0.0.1\n\
         clientPort={port}\n\
         {more}"
    );
    fs::write(sandbox.folder.join(&file), text)?;
    let archives = [ARCHIVE, LOGGER, NETTY].map(|archive| format!("{FOLDER}/{archive}")).join(":");
    let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
    let flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
    // A follower that has lost its leader waits so long for its requests under way, which no member will
    // answer, before it votes for another one. The usual ten seconds are longer than most sessions.
    let drain = "-Dzookeeper.request_throttler.shutdownTimeout=500";
    let times = "-Dorg.slf4j.simpleLogger.showDateTime=true";
    let settings = [UNSYNCED, drain, times, "-cp", &archives, main, &file];
    let alone = !more.contains("server.1=");
    Ok(Process {
        name: name.to_owned(),
        program: "java",
        args: flags.iter().chain(&settings).map(Into::into).collect(),
        env: Vec::new(),
        user: None,
        // A member serves no client before it has a leader, and that takes two of them.
        ready: Box::new(move || if alone { mode(port).map(drop) } else { answers(port) }),
    })
}

fn form(sandbox: &Sandbox) -> Result<()> {
    leader(&sandbox.ports).map(drop)
}

/// Which of the members leads, if all of them serve.
fn leader(ports: &[u16]) -> Result<usize> {
    let modes = ports[..MEMBERS].iter().map(|port| mode(*port)).collect::<Result<Vec<_>>>()?;
    let leader = modes.iter().position(|mode| mode == "leader");
    leader.with_context(|| format!("no leader among {modes:?}"))
}

/// An ensemble whose members can be cut off from each other, while clients still reach all of them.
///
/// It has the nodes and the URL of [`ZOOKEEPER_ENSEMBLE`].
#[derive(Debug)]
pub struct Divided {
    /// The servers.
    pub running: Running,
    /// From each member to each other one, twice: for followers and for elections.
    proxies: Vec<(usize, FaultProxy)>,
}

/// The proxies between the members of the ensembles that are being started, by their folders: a recipe has no other place
/// for them.
static PROXIES: Mutex<BTreeMap<PathBuf, Vec<(usize, FaultProxy)>>> = Mutex::new(BTreeMap::new());

impl Divided {
    /// Starts the ensemble and the proxies between its members.
    ///
    /// # Errors
    ///
    /// As [`Recipe::start`].
    pub fn start() -> Result<Self> {
        let recipe = Recipe { processes: divided, ..ZOOKEEPER_ENSEMBLE };
        let running = recipe.start()?;
        let proxies =
            PROXIES.lock().unwrap_or_else(PoisonError::into_inner).remove(running.folder());
        Ok(Self { running, proxies: proxies.context("there are no proxies between the members")? })
    }

    /// Which member leads.
    ///
    /// # Errors
    ///
    /// While there is none, or a member does not serve.
    pub fn leader(&self) -> Result<usize> {
        leader(self.running.ports())
    }

    /// Cuts a member off from the others.
    pub fn cut_off(&self, member: usize) {
        self.proxies_of(member).for_each(FaultProxy::close);
    }

    /// Lets it reach the others again.
    pub fn mend(&self, member: usize) {
        self.proxies_of(member).for_each(FaultProxy::open);
    }

    fn proxies_of(&self, member: usize) -> impl Iterator<Item = &FaultProxy> {
        let port = |from: usize| self.running.ports()[from * MEMBERS + member];
        let own = [port(1), port(2)];
        let concerns = move |(from, proxy): &&(usize, FaultProxy)| {
            *from == member || own.contains(&proxy.leads_to())
        };
        self.proxies.iter().filter(concerns).map(|(_, proxy)| proxy)
    }
}

/// Every member is told other ports for the others: those of the proxies before them.
fn divided(sandbox: &Sandbox) -> Result<Vec<Process>> {
    let (mut proxies, mut processes) = (Vec::new(), Vec::new());
    for from in 0..MEMBERS {
        let mut members = String::new();
        for to in 0..MEMBERS {
            let mut ports = [sandbox.ports[MEMBERS + to], sandbox.ports[2 * MEMBERS + to]];
            if to != from {
                for port in &mut ports {
                    let proxy = FaultProxy::to(*port)?;
                    *port = proxy.port();
                    proxies.push((from, proxy));
                }
            }
            members.push_str(&format!("server.{}=127.0.0.1:{}:{}\n", to + 1, ports[0], ports[1]));
        }
        processes.push(server(sandbox, &format!("zookeeper-{}", from + 1), from, &members)?);
    }
    let mut all = PROXIES.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(sandbox.folder.clone(), proxies);
    Ok(processes)
}

fn answers(port: u16) -> Result<()> {
    let answer = ask(port, "ruok")?;
    ensure!(answer == "imok", "ruok was answered with {answer:?}");
    Ok(())
}

/// What a server is: `standalone`, `leader` or `follower`; an error while it is nothing yet.
fn mode(port: u16) -> Result<String> {
    let answer = ask(port, "srvr")?;
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    Ok(mode.with_context(|| format!("srvr was answered with {answer:?}"))?.to_owned())
}

/// Sends one of the four-letter words that a server answers beside its protocol.
fn ask(port: u16, word: &str) -> Result<String> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(word.as_bytes())?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Local addresses as they stand in a URL.
fn hosts(ports: &[u16]) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    hosts.join(",")
}
