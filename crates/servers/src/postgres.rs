//! PostgreSQL, version 13 or newer, alone and behind pgbouncer.
//!
//! PostgreSQL refuses to be root; then it is the user `postgres`, whom its package brings, and the
//! sandbox's folder is made that user's.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use crate::certificates;
use crate::recipe::{Process, Recipe, Sandbox};
use crate::root::NEWEST;
use crate::spawn::{Lifetime, command};

const USER: &str = "postgres";

/// Where Debian keeps the programs, newest first.
const FOLDERS: &[&str] = &[
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/lib/postgresql/13/bin",
];

/// A single PostgreSQL server with its usual settings: every commit is on disk before it answers.
///
/// Its only node is `postgres`.
pub const POSTGRES: Recipe = Recipe {
    name: "postgres",
    packages: &["postgresql"],
    programs: &["postgres", "initdb"],
    folders: FOLDERS,
    root: None,
    newest: Some(NEWEST),
    ports: 1,
    stop: Signal::SIGINT,
    ready_within: Duration::from_secs(60),
    processes: |sandbox| Ok(vec![server(sandbox, sandbox.ports[0])?]),
    form: None,
    url: |sandbox| url(sandbox.ports[0]),
};

/// A PostgreSQL server behind pgbouncer, which lends connections out for a transaction at a time.
///
/// Its nodes are `pgbouncer` and `postgres`; the URL leads to the first.
pub const PGBOUNCER: Recipe = Recipe {
    name: "pgbouncer",
    packages: &["postgresql", "pgbouncer"],
    programs: &["postgres", "initdb", "pgbouncer"],
    ports: 2,
    // With it pgbouncer ends at once, and PostgreSQL when its last client is gone.
    stop: Signal::SIGTERM,
    processes: |sandbox| Ok(vec![bouncer(sandbox)?, server(sandbox, sandbox.ports[1])?]),
    ..POSTGRES
};

/// A PostgreSQL server that speaks TLS. Every user but `postgres` has to use it, and must show a
/// certificate that its authority has signed. The files are in the sandbox's folder, as
/// `ca.pem`, `client.pem` and `client.key`; `stranger.pem` is another authority.
pub const POSTGRES_TLS: Recipe = Recipe {
    name: "postgres-tls",
    processes: |sandbox| {
        let mut process = server(sandbox, sandbox.ports[0])?;
        certificates::write(&sandbox.folder)?;
        let data = sandbox.folder.join("data");
        for file in ["server.pem", "server.key", "ca.pem"] {
            fs::copy(sandbox.folder.join(file), data.join(file))?;
            give(sandbox, &data.join(file))?;
        }
        // The server refuses a key that others can read.
        fs::set_permissions(data.join("server.key"), fs::Permissions::from_mode(0o600))?;
        let rules = format!(
            "host all {USER} 127.0.0.1/32 trust\n\
             hostssl all all 127.0.0.1/32 trust clientcert=verify-ca\n"
        );
        fs::write(data.join("pg_hba.conf"), rules)?;
        for setting in ["ssl=on", "ssl_ca_file=ca.pem", "ssl_cert_file=server.pem"] {
            process.args.extend(["-c".into(), setting.into()]);
        }
        process.args.extend(["-c".into(), "ssl_key_file=server.key".into()]);
        Ok(vec![process])
    },
    ..POSTGRES
};

fn url(port: u16) -> String {
    format!("postgres://{USER}@127.0.0.1:{port}/postgres")
}

fn server(sandbox: &Sandbox, port: u16) -> Result<Process> {
    give(sandbox, &sandbox.folder)?;
    let initdb = sandbox.find("initdb", FOLDERS)?;
    let made = command(sandbox, &initdb, Lifetime::Detached, Some(USER))
        .args(["--pgdata=data", "--auth=trust", "--username=postgres", "--encoding=UTF8"])
        .args(["--locale=C", "--no-sync", "--no-instructions"])
        .current_dir(&sandbox.folder)
        .output()?;
    ensure!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
    let settings = [
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        "unix_socket_directories=".to_owned(),
        // Every handle of a test is a few connections, and tests run beside each other.
        "max_connections=400".to_owned(),
    ];
    let mut args: Vec<OsString> = vec!["-D".into(), "data".into()];
    args.extend(settings.into_iter().flat_map(|setting| ["-c".into(), setting.into()]));
    Ok(process("postgres", "postgres", args, port))
}

fn bouncer(sandbox: &Sandbox) -> Result<Process> {
    let [port, server] = sandbox.ports[..] else { bail!("pgbouncer needs two ports") };
    let text = format!(
        "[databases]\n\
         * = host=127.0.0.1 port={server} user={USER}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         max_client_conn = 2000\n\
         default_pool_size = 20\n\
         logfile =\n"
    );
    fs::write(sandbox.folder.join("pgbouncer.ini"), text)?;
    Ok(process("pgbouncer", "pgbouncer", vec!["pgbouncer.ini".into()], port))
}

fn process(name: &str, program: &'static str, args: Vec<OsString>, port: u16) -> Process {
    Process {
        name: name.to_owned(),
        program,
        args,
        env: Vec::new(),
        user: Some(USER),
        ready: Box::new(move || answers(port)),
    }
}

/// Makes this the server's own, if the server will not be us.
fn give(sandbox: &Sandbox, path: &Path) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = sandbox.user(USER)?;
    chown(path, Some(user), Some(group))?;
    Ok(())
}

/// Begins a conversation: the server lets us in, or says that it is not ready for it.
fn answers(port: u16) -> Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    let hello = format!("\0\u{3}\0\0user\0{USER}\0database\0postgres\0\0");
    let length = u32::try_from(hello.len() + 4)?.to_be_bytes();
    server.write_all(&[&length[..], hello.as_bytes()].concat())?;
    let mut answer = [0; 9];
    server.read_exact(&mut answer)?;
    // Authentication is over: let in.
    ensure!(answer == *b"R\0\0\0\x08\0\0\0\0", "it answers {}", answer.escape_ascii());
    Ok(())
}
