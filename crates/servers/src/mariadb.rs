//! MariaDB 10.6 or newer, which stands for MySQL too.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::certificates;
use crate::program;
use crate::recipe::{Process, Recipe, Site};

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
    ports: 1,
    stop: Signal::SIGTERM,
    ready_within: Duration::from_secs(60),
    processes: |site| Ok(vec![server(site, "")?]),
    form: None,
    url: |site| format!("mysql://root@127.0.0.1:{}/{DATABASE}", site.ports[0]),
};

/// The password of the user `lockkeeper`.
const PASSWORD: &str = "open sesame";

/// A single MariaDB server with TLS, and a user `lockkeeper` who must come with a password and a
/// certificate; `root` needs neither.
///
/// Its only node is `mariadb`. The site's folder holds `ca.pem`; `client.pem` and `client.key`; and
/// `stranger.pem`, another authority, which has signed nothing.
pub const MARIADB_TLS: Recipe = Recipe {
    name: "mariadb-tls",
    processes: |site| {
        certificates::write(&site.folder)?;
        let mut init = String::new();
        for host in ["%", "localhost"] {
            let user = format!("lockkeeper@'{host}'");
            init += &format!(
                "CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{PASSWORD}' REQUIRE X509;\n\
                 GRANT ALL ON {DATABASE}.* TO {user};\n"
            );
        }
        let mut process = server(site, &init)?;
        for (setting, file) in [("ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")] {
            let file = site.folder.join(file);
            process.args.push(format!("--ssl-{setting}={}", file.display()).into());
        }
        Ok(vec![process])
    },
    url: |site| {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let file = |name: &str| encoded(&site.folder.join(name).to_string_lossy());
        format!(
            "mysql://lockkeeper:{}@127.0.0.1:{}/{DATABASE}?tls_ca={}&tls_cert={}&tls_key={}",
            encoded(PASSWORD),
            site.ports[0],
            file("ca.pem"),
            file("client.pem"),
            file("client.key"),
        )
    },
    ..MARIADB
};

/// A server that runs these statements when it starts.
fn server(site: &Site, init: &str) -> Result<Process> {
    install(site)?;
    let init = format!("CREATE DATABASE IF NOT EXISTS {DATABASE};\n{init}");
    fs::write(site.folder.join("init.sql"), init)?;
    let port = site.ports[0];
    let args = vec![
        // Before all others, or it is not understood.
        "--no-defaults".to_owned(),
        format!("--user={}", user()?),
        format!("--datadir={}", site.folder.join("data").display()),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--socket={}", site.folder.join("socket").display()),
        format!("--pid-file={}", site.folder.join("pid").display()),
        format!("--tmpdir={}", site.folder.display()),
        format!("--init-file={}", site.folder.join("init.sql").display()),
        "--max-connections=500".to_owned(),
        "--innodb-buffer-pool-size=64M".to_owned(),
    ];
    Ok(Process {
        name: "mariadb".to_owned(),
        program: "mariadbd",
        args: args.into_iter().map(Into::into).collect(),
        env: Vec::new(),
        user: None,
        ready: Box::new(move || greets(port)),
    })
}

/// The server runs as whoever we are; it refuses to be root unless it is told by name.
fn user() -> Result<String> {
    let user = User::from_uid(geteuid())?.context("this process's user has no name")?;
    Ok(user.name)
}

/// Makes an empty database.
fn install(site: &Site) -> Result<()> {
    let data = site.folder.join("data");
    if data.exists() {
        return Ok(());
    }
    let program = program::find("mariadb-install-db", &[]).context("mariadb-install-db")?;
    let made = Command::new(program)
        .arg("--no-defaults")
        .arg(format!("--user={}", user()?))
        .arg(format!("--datadir={}", data.display()))
        // Others may be at the same in the common folder, under the same names.
        .env("TMPDIR", &site.folder)
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .stdin(Stdio::null())
        .output()
        .context("mariadb-install-db cannot be run")?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "mariadb-install-db failed: {said}");
    Ok(())
}

/// A server that is ready greets whoever comes: a packet of version 10 of its protocol. One that has
/// too many connections answers with an error packet.
fn greets(port: u16) -> Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    server.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut greeting = [0; 5];
    server.read_exact(&mut greeting)?;
    ensure!(greeting[4] == 10, "the greeting begins with {greeting:?}");
    Ok(())
}
