//! MariaDB, and MySQL itself.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::certificates;
use crate::recipe::{Process, Recipe, Sandbox};
use crate::root::{NEWEST, NEWEST_MARIADB};
use crate::spawn::{Lifetime, command};

/// The database that is there from the start.
const DATABASE: &str = "lockkeeper";

/// A single MariaDB server that has every commit on disk before it answers.
///
/// Its only node is `mariadb`; its user is `root`, without a password.
pub const MARIADB: Recipe = Recipe {
    name: "mariadb",
    packages: &["mariadb-server"],
    programs: &["mariadbd", "mariadb-install-db"],
    folders: &[],
    root: None,
    newest: Some(NEWEST_MARIADB),
    ports: 1,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(60),
    processes: |sandbox| Ok(vec![mariadb(sandbox, "")?]),
    form: None,
    url: |sandbox| format!("mysql://root@127.0.0.1:{}/{DATABASE}", sandbox.ports[0]),
};

/// A single server of MySQL itself, with its usual settings: every commit is on disk, in the binary log
/// too, before it answers.
///
/// Its only node is `mysql`; its user is `root`, without a password.
pub const MYSQL: Recipe = Recipe {
    name: "mysql",
    packages: &["mysql-server"],
    programs: &["mysqld"],
    root: Some(NEWEST),
    newest: None,
    processes: |sandbox| Ok(vec![mysql(sandbox, "")?]),
    ..MARIADB
};

/// The password of the user `lockkeeper`.
const PASSWORD: &str = "open sesame";

/// A single MariaDB server with TLS, and a user `lockkeeper` who must come with a password and a
/// certificate; `root` needs neither.
///
/// Its only node is `mariadb`. The sandbox's folder holds `ca.pem`; `client.pem` and `client.key`; and
/// `stranger.pem`, another authority, which has signed nothing.
pub const MARIADB_TLS: Recipe = Recipe {
    name: "mariadb-tls",
    processes: |sandbox| Ok(vec![with_tls(sandbox, mariadb(sandbox, &tls_users())?)?]),
    url: tls_url,
    ..MARIADB
};

/// As [`MARIADB_TLS`], with MySQL itself; its only node is `mysql`.
pub const MYSQL_TLS: Recipe = Recipe {
    name: "mysql-tls",
    processes: |sandbox| Ok(vec![with_tls(sandbox, mysql(sandbox, &tls_users())?)?]),
    url: tls_url,
    ..MYSQL
};

fn tls_users() -> String {
    let mut init = String::new();
    for host in ["%", "localhost"] {
        let user = format!("lockkeeper@'{host}'");
        init += &format!(
            "CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{PASSWORD}' REQUIRE X509;\n\
             GRANT ALL ON {DATABASE}.* TO {user};\n"
        );
    }
    init
}

fn with_tls(sandbox: &Sandbox, mut process: Process) -> Result<Process> {
    certificates::write(&sandbox.folder)?;
    for (setting, file) in [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")] {
        let file = sandbox.folder.join(file);
        process.args.push(format!("--ssl-{setting}={}", file.display()).into());
    }
    Ok(process)
}

fn tls_url(sandbox: &Sandbox) -> String {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let file = |name: &str| encoded(&sandbox.folder.join(name).to_string_lossy());
    format!(
        "mysql://lockkeeper:{}@127.0.0.1:{}/{DATABASE}?tls_ca={}&tls_cert={}&tls_key={}",
        encoded(PASSWORD),
        sandbox.ports[0],
        file("ca.pem"),
        file("client.pem"),
        file("client.key"),
    )
}

/// A MariaDB server that runs these statements when it starts.
fn mariadb(sandbox: &Sandbox, init: &str) -> Result<Process> {
    // Other servers may be at the same in the common folder, under the same names.
    let tmpdir = format!("TMPDIR={}", sandbox.folder.display());
    let make = ["--auth-root-authentication-method=normal", "--skip-test-db"];
    install(sandbox, "env", &[&tmpdir, "mariadb-install-db"], &make)?;
    server(sandbox, "mariadb", "mariadbd", init, &[])
}

/// A server of MySQL itself that runs these statements when it starts.
fn mysql(sandbox: &Sandbox, init: &str) -> Result<Process> {
    install(sandbox, "mysqld", &[], &["--initialize-insecure", "--innodb-redo-log-capacity=16M"])?;
    // Its second protocol would need a port of its own.
    server(sandbox, "mysql", "mysqld", init, &["--mysqlx=OFF"])
}

/// A server that runs these statements when it starts.
fn server(
    sandbox: &Sandbox,
    name: &str,
    program: &'static str,
    init: &str,
    more: &[&str],
) -> Result<Process> {
    let init = format!("CREATE DATABASE IF NOT EXISTS {DATABASE};\n{init}");
    fs::write(sandbox.folder.join("init.sql"), init)?;
    let port = sandbox.ports[0];
    let args = [
        // Before all others, or it is not understood.
        "--no-defaults".to_owned(),
        format!("--user={}", user()?),
        format!("--datadir={}", sandbox.folder.join("data").display()),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--socket={}", sandbox.folder.join("socket").display()),
        format!("--pid-file={}", sandbox.folder.join("pid").display()),
        format!("--tmpdir={}", sandbox.folder.display()),
        format!("--init-file={}", sandbox.folder.join("init.sql").display()),
        "--max-connections=500".to_owned(),
        "--innodb-buffer-pool-size=64M".to_owned(),
    ];
    let more = more.iter().map(|&option| option.to_owned());
    Ok(Process {
        name: name.to_owned(),
        program,
        args: args.into_iter().chain(more).map(Into::into).collect(),
        env: Vec::new(),
        user: None,
        ready: Box::new(move || greets(port)),
    })
}

/// The server runs as the user of this process; it refuses to be root unless it is told by name.
fn user() -> Result<String> {
    let user = User::from_uid(geteuid())?.context("this process's user has no name")?;
    Ok(user.name)
}

/// Makes an empty database with this program, unless there is one.
fn install(sandbox: &Sandbox, program: &str, words: &[&str], options: &[&str]) -> Result<()> {
    let data = sandbox.folder.join("data");
    if data.exists() {
        return Ok(());
    }
    let made = command(sandbox, &sandbox.find(program, &[])?, Lifetime::WithUs, None)
        .args(words)
        .arg("--no-defaults")
        .arg(format!("--user={}", user()?))
        .arg(format!("--datadir={}", data.display()))
        .args(options)
        .current_dir(&sandbox.folder)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "making an empty database failed: {said}");
    Ok(())
}

/// A server that is ready greets every client: a packet of version 10 of its protocol. One that has
/// too many connections answers with an error packet.
fn greets(port: u16) -> Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut greeting = [0; 5];
    server.read_exact(&mut greeting)?;
    ensure!(greeting[4] == 10, "the greeting begins with {greeting:?}");
    Ok(())
}
