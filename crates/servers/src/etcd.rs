//! etcd: one member, or three that make a cluster.

mod newer;
mod parted;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::recipe::{Process, Recipe, Sandbox};
use crate::root::NEWEST;

pub use newer::{ETCD_NEWER, ETCD_NEWER_PARTED};
pub use parted::{ETCD_PARTED, cut_off, rejoin};

const MEMBERS: usize = 3;

/// How long a member may take to say how it is.
const HEALTH_WITHIN: Duration = Duration::from_secs(2);

/// A single member, with its data on disk.
///
/// Its only node is `etcd-1`. Its ports are the clients' and the members' one.
pub const ETCD: Recipe = Recipe {
    name: "etcd",
    packages: &["etcd-server", "etcd-client"],
    programs: &["etcd", "etcdctl"],
    folders: &[],
    root: None,
    newest: Some(NEWEST),
    ports: 2,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(60),
    processes: |sandbox| Ok(members(sandbox, 1)),
    form: None,
    url: |sandbox| url(sandbox, 1),
};

/// A cluster of three members.
///
/// Its nodes are `etcd-1`, `etcd-2` and `etcd-3`, in the order of the URL. The ports are theirs for
/// clients in the same order, and after them theirs for each other.
pub const ETCD_CLUSTER: Recipe = Recipe {
    name: "etcd-cluster",
    ports: 2 * MEMBERS,
    processes: |sandbox| Ok(members(sandbox, MEMBERS)),
    url: |sandbox| url(sandbox, MEMBERS),
    ..ETCD
};

/// A single member that refuses clients without a certificate.
///
/// Its only node is `etcd-1`. Its ports are the clients', the members', and one that tells without TLS
/// how it is. Below the sandbox's folder lie `ca.pem`, `client.pem`, `client.key`, and `stranger.pem`,
/// another authority, which has signed nothing.
pub const ETCD_TLS: Recipe = Recipe {
    name: "etcd-tls",
    ports: 3,
    processes: |sandbox| {
        crate::certificates::write(&sandbox.folder)?;
        let [clients, peers, health] = sandbox.ports[..] else {
            unreachable!("three were asked for")
        };
        let cluster = format!("{}={}", name(0), address(peers));
        let mut member = process(0, clients, peers, &cluster);
        let https = format!("https://127.0.0.1:{clients}");
        let more = [
            ("--listen-client-urls", https.as_str()),
            ("--advertise-client-urls", &https),
            ("--listen-metrics-urls", &address(health)),
            ("--cert-file", "server.pem"),
            ("--key-file", "server.key"),
            ("--trusted-ca-file", "ca.pem"),
            ("--client-cert-auth", "true"),
        ];
        // The last of several values counts.
        member.args.extend(more.map(|(option, value)| format!("{option}={value}").into()));
        member.ready = Box::new(move || is_healthy(health));
        Ok(vec![member])
    },
    url: |sandbox| {
        let file = |name: &str| sandbox.folder.join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
        format!("{}?tls_ca={ca}&tls_cert={cert}&tls_key={key}", url(sandbox, 1))
    },
    ..ETCD
};

fn url(sandbox: &Sandbox, members: usize) -> String {
    let hosts: Vec<String> =
        sandbox.ports[..members].iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}", hosts.join(","))
}

fn members(sandbox: &Sandbox, count: usize) -> Vec<Process> {
    let mut cluster = String::new();
    for member in 0..count {
        let comma = if member > 0 { "," } else { "" };
        let _ =
            write!(cluster, "{comma}{}={}", name(member), address(sandbox.ports[count + member]));
    }
    (0..count)
        .map(|member| {
            process(member, sandbox.ports[member], sandbox.ports[count + member], &cluster)
        })
        .collect()
}

fn name(member: usize) -> String {
    format!("etcd-{}", member + 1)
}

fn address(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn process(member: usize, port: u16, peer: u16, cluster: &str) -> Process {
    let (clients, peers) = (address(port), address(peer));
    let options = [
        ("--name", name(member)),
        ("--data-dir", name(member)),
        ("--listen-client-urls", clients.clone()),
        ("--advertise-client-urls", clients),
        ("--listen-peer-urls", peers.clone()),
        ("--initial-advertise-peer-urls", peers),
        ("--initial-cluster", cluster.to_owned()),
        ("--logger", "zap".to_owned()),
    ];
    let args = options.into_iter().flat_map(|(option, value)| [option.into(), value.into()]);
    Process {
        name: name(member),
        program: "etcd",
        args: args.collect::<Vec<OsString>>(),
        env: Vec::new(),
        user: None,
        ready: Box::new(move || is_healthy(port)),
    }
}

/// A member is healthy when it knows of a leader.
fn is_healthy(port: u16) -> Result<()> {
    let mut member = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    member.set_read_timeout(Some(HEALTH_WITHIN))?;
    member.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    member.read_to_string(&mut answer)?;
    ensure!(answer.contains("\"health\":\"true\""), "the member says {answer:?}");
    Ok(())
}
