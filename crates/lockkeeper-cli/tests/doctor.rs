//! `doctor` and `bench` on real servers, healthy and ill, and the warning that `run` gives once a day.

mod support;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use servers::{
    ETCD, MARIADB, PGBOUNCER, POSTGRES, REDIS, REDIS_CLUSTER, REDIS_DURABLE, REDIS_TLS, REDLOCK,
    Running as Server, ZOOKEEPER,
};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};
use support::{Place, Running, eventually};
use testkit::trials::{self, Fixture, Trial, WithArgs};

/// Redis that throws keys away when its memory is full.
const EVICTING: WithArgs =
    WithArgs(REDIS, &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
const HASTY_POSTGRES: WithArgs = WithArgs(POSTGRES, &["-c", "synchronous_commit=off"]);
const WATCHFUL_POSTGRES: WithArgs =
    WithArgs(POSTGRES, &["-c", "lockkeeper.old_snapshot_seconds=1"]);
const HASTY_MARIADB: WithArgs = WithArgs(MARIADB, &["--innodb-flush-log-at-trx-commit=0"]);
/// 100 MB. Its file grows by 16 MB at a time.
const SMALL_ETCD: WithArgs = WithArgs(ETCD, &["--quota-backend-bytes=104857600"]);

macro_rules! tests {
    ($fixture:expr => $($test:ident),* $(,)?) => {
        vec![$(on($fixture, stringify!($test), $test)),*]
    };
}

fn on<F: Fixture>(fixture: F, name: &str, test: fn(&mut F::Ready, &Place) -> Result<()>) -> Trial {
    let name = match fixture.variant() {
        "alone" => name.to_owned(),
        variant => format!("{name}::{variant}"),
    };
    trials::trial(fixture, name, move |mut ready| test(&mut ready, &Place::new()))
}

fn main() -> ExitCode {
    trials::main([
        tests![() =>
            a_file_is_fine_and_nothing_is_left_behind,
            each_line_has_a_level_and_what_is_wrong_a_remedy,
            a_folder_that_cannot_be_written_is_told,
            a_server_that_is_not_there_is_told_in_time,
            a_silent_server_is_given_up_in_time,
            a_url_that_makes_no_sense_is_a_matter_of_configuration,
            a_file_is_measured,
        ],
        tests![REDIS_DURABLE => a_healthy_server_is_fine, a_frozen_server_is_given_up_in_time],
        tests![POSTGRES =>
            a_healthy_server_is_fine,
            a_frozen_server_is_given_up_in_time,
            no_row_is_left_behind,
            a_server_is_measured,
        ],
        tests![MARIADB =>
            a_healthy_server_is_fine,
            a_frozen_server_is_given_up_in_time,
            a_wrong_password_is_denied,
        ],
        tests![ZOOKEEPER => a_healthy_server_is_fine, a_frozen_server_is_given_up_in_time],
        tests![ETCD =>
            an_etcd_is_fine_but_for_its_version,
            a_frozen_server_is_given_up_in_time,
            a_history_without_compaction_is_told,
        ],
        tests![REDLOCK => a_majority_is_fine],
        tests![REDIS =>
            a_server_without_an_append_only_file_is_told,
            a_replica_is_told,
            a_run_does_not_warn_of_less_than_broken_exclusion,
            a_server_is_measured,
        ],
        tests![REDIS_TLS => a_wrong_password_is_denied],
        tests![REDIS_CLUSTER => a_cluster_is_told],
        tests![EVICTING =>
            eviction_is_unsafe,
            a_run_warns_of_broken_exclusion_once_a_day,
            a_quiet_run_does_not_warn,
        ],
        tests![HASTY_POSTGRES => a_commit_that_is_not_on_disk_is_told],
        tests![PGBOUNCER => a_pooler_is_told],
        tests![WATCHFUL_POSTGRES => an_old_snapshot_is_told],
        tests![HASTY_MARIADB => a_log_that_is_not_flushed_is_told],
        tests![SMALL_ETCD => a_file_that_is_nearly_full_is_told],
    ])
}

/// What `doctor --json` says.
struct Said {
    code: i32,
    json: Value,
    took: Duration,
}

impl Said {
    fn of(place: &Place, url: &str, flags: &[&str]) -> Result<Self> {
        Self::by(place.lockkeeper(&[&["doctor", "--json", url], flags].concat()))
    }

    fn by(mut doctor: Command) -> Result<Self> {
        let began = Instant::now();
        let output = doctor.output()?;
        let json = serde_json::from_slice(&output.stdout);
        let json = json.with_context(|| format!("{output:?}"))?;
        let code = output.status.code().context("a code")?;
        Ok(Self { code, json, took: began.elapsed() })
    }

    fn checks(&self) -> impl Iterator<Item = (&str, &str)> {
        let checks = self.json["checks"].as_array().map_or(&[][..], Vec::as_slice);
        checks.iter().map(|c| (c["code"].as_str().unwrap_or(""), c["level"].as_str().unwrap_or("")))
    }

    /// The level of this check; nothing if it is not there.
    fn level(&self, code: &str) -> Option<&str> {
        self.checks().find(|(of, _)| *of == code).map(|(_, level)| level)
    }

    fn flags(&self, code: &str, level: &str) -> Result<()> {
        ensure!(self.level(code) == Some(level), "{code} is not {level}: {:#}", self.json);
        let mut check = self.json["checks"].as_array().into_iter().flatten();
        let check = check.find(|check| check["code"] == code).context("a check")?;
        ensure!(check["remedy"].is_string(), "no remedy: {check}");
        ensure!(self.json["exit_code"] == self.code, "{} {:#}", self.code, self.json);
        Ok(())
    }
}

/// Nothing is wrong, a real lock was taken and handed over, and it is gone.
fn is_fine(place: &Place, url: &str) -> Result<()> {
    let said = Said::of(place, url, &[])?;
    ensure!(said.code == 0 && said.json["verdict"] == "fine", "{:#}", said.json);
    tried_a_lock(&said)?;
    nothing_is_left(place, url)
}

fn tried_a_lock(said: &Said) -> Result<()> {
    for code in ["connect", "lock", "terms", "hand-over"] {
        ensure!(said.level(code) == Some("ok"), "{code}: {:#}", said.json);
    }
    for figure in ["connect_us", "round_trip_us", "acquire_us", "renew_us", "hand_over_us"] {
        ensure!(said.json["figures"][figure].is_u64(), "{figure}: {:#}", said.json);
    }
    Ok(())
}

fn nothing_is_left(place: &Place, url: &str) -> Result<()> {
    let output = place.lockkeeper(&["ls", "--json", "--store", url]).output()?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(json["locks"] == serde_json::json!([]), "{json}");
    Ok(())
}

fn a_file_is_fine_and_nothing_is_left_behind(_: &mut (), place: &Place) -> Result<()> {
    is_fine(place, &place.url())?;
    let said = Said::by(place.lockkeeper(&["doctor", "--json"]))?;
    ensure!(said.code == 0 && said.json["scheme"] == "sqlite", "{:#}", said.json);
    let can = said.json["capabilities"].as_array().context("capabilities")?;
    ensure!(can.contains(&"fair".into()) && !can.contains(&"survives_failover".into()), "{can:?}");
    Ok(())
}

fn each_line_has_a_level_and_what_is_wrong_a_remedy(_: &mut (), place: &Place) -> Result<()> {
    let text = place.stdout(&["doctor"]);
    let (last, lines) = text
        .lines()
        .collect::<Vec<_>>()
        .split_last()
        .map(|(l, r)| (*l, r.to_vec()))
        .context("lines")?;
    ensure!(lines.len() > 4 && last.ends_with(": fine"), "{text}");
    for line in lines {
        let level = line.split_whitespace().next().unwrap_or_default();
        ensure!(["ok", "note"].contains(&level), "{line}");
    }
    let output = place.lockkeeper(&["doctor", &closed_port("redis://")?]).output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.code() == Some(3) && text.starts_with("failed   unreachable"), "{text}");
    ensure!(text.lines().next().is_some_and(|line| line.contains(" → ")), "{text}");
    Ok(())
}

/// Root may write everywhere but on what is mounted read-only.
fn a_folder_that_cannot_be_written_is_told(_: &mut (), place: &Place) -> Result<()> {
    let folder = place.path("closed");
    fs::create_dir(&folder)?;
    let url = format!("sqlite:{}/locks.db", folder.display());
    let said = if nix::unistd::geteuid().is_root() {
        let mounted = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && exec \"$0\" doctor --json \"$2\"";
        let doctor = place.lockkeeper(&[]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", mounted]);
        command.arg(doctor.get_program()).arg(&folder).arg(&url);
        command.env("HOME", place.path("")).stdin(Stdio::null());
        Said::by(command)?
    } else {
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555))?;
        Said::of(place, &url, &[])?
    };
    said.flags("not-writable", "failed")?;
    ensure!(said.code == 3, "{:#}", said.json);
    let text = said.json.to_string();
    ensure!(text.contains("closed/locks.db"), "{text}");
    Ok(())
}

/// The URL of a port at which no server listens.
fn closed_port(scheme: &str) -> Result<String> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    Ok(format!("{scheme}127.0.0.1:{port}"))
}

/// Each kind of server, without its path.
const SCHEMES: [(&str, &str); 5] = [
    ("redis://", ""),
    ("postgres://postgres@", "/postgres"),
    ("mysql://root@", "/lockkeeper"),
    ("etcd://", ""),
    ("zookeeper://", ""),
];

fn a_server_that_is_not_there_is_told_in_time(_: &mut (), place: &Place) -> Result<()> {
    for (scheme, path) in SCHEMES {
        let said = Said::of(place, &format!("{}{path}", closed_port(scheme)?), &[])?;
        ensure!(said.code == 3, "{scheme}: {:#}", said.json);
        said.flags("unreachable", "failed")?;
        ensure!(said.took < Duration::from_secs(20), "{scheme} took {:?}", said.took);
    }
    Ok(())
}

/// Connections are made, and nothing is ever answered.
fn a_silent_server_is_given_up_in_time(_: &mut (), place: &Place) -> Result<()> {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = silent.local_addr()?;
    for (scheme, path) in SCHEMES {
        let said = Said::of(place, &format!("{scheme}{address}{path}"), &["--timeout", "2s"])?;
        is_given_up(&said).with_context(|| scheme.to_owned())?;
    }
    Ok(())
}

fn is_given_up(said: &Said) -> Result<()> {
    ensure!(said.code == 3 && said.json["verdict"] == "failed", "{:#}", said.json);
    let level = said.level("silent").or(said.level("unreachable"));
    ensure!(level == Some("failed"), "{:#}", said.json);
    ensure!(said.took < Duration::from_secs(20), "took {:?}", said.took);
    Ok(())
}

fn a_frozen_server_is_given_up_in_time(server: &mut Server, place: &Place) -> Result<()> {
    server.freeze()?;
    let said = Said::of(place, server.url(), &["--timeout", "2s"]);
    server.thaw()?;
    is_given_up(&said?)
}

fn a_url_that_makes_no_sense_is_a_matter_of_configuration(_: &mut (), place: &Place) -> Result<()> {
    for url in ["nonsense://a", "memory://a", "redis://host?tll=3s"] {
        let output = place.lockkeeper(&["doctor", url]).output()?;
        ensure!(output.status.code() == Some(78), "{url}: {output:?}");
        ensure!(output.stdout.is_empty() && !output.stderr.is_empty(), "{url}: {output:?}");
    }
    Ok(())
}

fn a_healthy_server_is_fine(server: &mut Server, place: &Place) -> Result<()> {
    is_fine(place, server.url())
}

/// A node that has just started has no vote before its quarantine is over.
fn a_majority_is_fine(server: &mut Server, place: &Place) -> Result<()> {
    let url = format!("{}?max_ttl=2s&ttl=1s&lock_delay=500ms", server.url());
    is_fine(place, &url)?;
    is_measured(place, &url)
}

fn an_etcd_is_fine_but_for_its_version(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    tried_a_lock(&said)?;
    let ill = said.checks().filter(|(_, level)| !["ok", "note"].contains(level));
    let ill: Vec<&str> = ill.map(|(code, _)| code).collect();
    let code = match ill[..] {
        [] => 0,
        ["lease-bugs"] => 2,
        _ => anyhow::bail!("{:#}", said.json),
    };
    ensure!(said.code == code, "{:#}", said.json);
    let version = http(server, "GET", "/version", "")?;
    let is_old = version.contains(r#""etcdserver":"3.4."#);
    ensure!(said.level("end-of-life").is_some() == is_old, "{version}: {:#}", said.json);
    if version.contains(r#""etcdserver":"3.4.23"#) {
        said.flags("lease-bugs", "unsafe")?;
    }
    nothing_is_left(place, server.url())
}

/// But for what the store remembers of every name and of sessions that have ended.
fn no_row_is_left_behind(server: &mut Server, place: &Place) -> Result<()> {
    for _ in 0..2 {
        is_fine(place, server.url())?;
    }
    let rows = "SELECT (SELECT count(*) FROM lockkeeper.lk_ticket) \
                + (SELECT count(*) FROM lockkeeper.lk_session WHERE expires > '-infinity') \
                + (SELECT count(*) FROM lockkeeper.lk_line WHERE id IS NOT NULL) \
                + (SELECT count(*) - 1 FROM lockkeeper.lk_line)";
    let left = with_postgres(server.url(), async |client| {
        Ok(client.query_one(rows, &[]).await?.get::<_, i64>(0))
    })?;
    ensure!(left == 0, "{left} rows");
    Ok(())
}

fn with_postgres<T>(
    url: &str,
    work: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T>,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        work(&client).await
    })
}

fn a_server_without_an_append_only_file_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    said.flags("no-aof", "warning")?;
    ensure!(said.code == 1 && said.json["verdict"] == "warnings", "{:#}", said.json);
    tried_a_lock(&said)?;
    nothing_is_left(place, server.url())
}

fn a_replica_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let port = server.ports()[0].to_string();
    let replica = REDIS.start_with_args(&["--replicaof", "127.0.0.1", &port])?;
    let said = Said::of(place, replica.url(), &[])?;
    said.flags("replica", "failed")?;
    ensure!(said.code == 3, "{:#}", said.json);
    eventually(|| {
        Said::of(place, server.url(), &[])
            .is_ok_and(|said| said.level("async-replicas") == Some("warning"))
    });
    // When it has the identity of the data it can be connected to, and says itself what it is.
    eventually(|| {
        Said::of(place, replica.url(), &[])
            .is_ok_and(|said| said.level("replica") == Some("warning"))
    });
    let said = Said::of(place, replica.url(), &[])?;
    said.flags("replica", "warning")?;
    ensure!(said.code == 3, "no lock can be taken: {:#}", said.json);
    Ok(())
}

fn a_cluster_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    said.flags("cluster", "warning")?;
    ensure!(said.code == 1, "{:#}", said.json);
    tried_a_lock(&said)
}

fn eviction_is_unsafe(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    said.flags("eviction", "unsafe")?;
    ensure!(said.code == 2 && said.json["verdict"] == "unsafe", "{:#}", said.json);
    Ok(())
}

fn a_commit_that_is_not_on_disk_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    said.flags("synchronous-commit", "warning")?;
    ensure!(said.code == 1, "{:#}", said.json);
    Ok(())
}

fn a_pooler_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    said.flags("pooler", "warning")?;
    ensure!(said.code == 1, "{:#}", said.json);
    Ok(())
}

/// The server is told to count a snapshot as old after a second instead of an hour.
fn an_old_snapshot_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let is_told = || -> Result<bool> {
        Ok(Said::of(place, server.url(), &[])?.level("old-snapshot").is_some())
    };
    ensure!(!is_told()?);
    with_postgres(server.url(), async |client| {
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await?;
        eventually(|| is_told().unwrap_or(false));
        Said::of(place, server.url(), &[])?.flags("old-snapshot", "warning")?;
        client.batch_execute("COMMIT").await?;
        Ok(())
    })?;
    ensure!(!is_told()?);
    Ok(())
}

fn a_log_that_is_not_flushed_is_told(server: &mut Server, place: &Place) -> Result<()> {
    let said = Said::of(place, server.url(), &[])?;
    said.flags("innodb-flush", "warning")?;
    ensure!(said.code == 1, "{:#}", said.json);
    Ok(())
}

fn a_wrong_password_is_denied(server: &mut Server, place: &Place) -> Result<()> {
    let url = server.url().replace("open%20sesame", "hunter2").replace("root@", "root:hunter2@");
    let said = Said::of(place, &url, &[])?;
    said.flags("denied", "failed")?;
    ensure!(said.code == 3 && !said.json.to_string().contains("hunter2"), "{:#}", said.json);
    Ok(())
}

/// Asks a member of etcd over HTTP.
fn http(server: &Server, method: &str, path: &str, body: &str) -> Result<String> {
    let mut member = TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0]))?;
    member.set_read_timeout(Some(support::DEADLINE))?;
    let length = body.len();
    write!(member, "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    member.read_to_string(&mut answer)?;
    ensure!(answer.contains(" 200 OK"), "{answer}");
    Ok(answer)
}

fn a_file_that_is_nearly_full_is_told(server: &mut Server, place: &Place) -> Result<()> {
    ensure!(Said::of(place, server.url(), &[])?.level("nearly-full").is_none());
    // Half a megabyte, in base64.
    let value = "QUFB".repeat(170_000);
    let put = || {
        let body = format!(r#"{{"key":"eA==","value":"{value}"}}"#);
        http(server, "POST", "/v3/kv/put", &body).map(drop)
    };
    while Said::of(place, server.url(), &[])?.level("nearly-full").is_none() {
        (0..10).try_for_each(|_| put()).context("the file is full, and was never nearly full")?;
    }
    let said = Said::of(place, server.url(), &[])?;
    said.flags("nearly-full", "warning")?;
    ensure!(said.json.to_string().contains("its quota is 100 MB"), "{:#}", said.json);
    while put().is_ok() {}
    Said::of(place, server.url(), &[])?.flags("full", "failed")?;
    Ok(())
}

fn a_history_without_compaction_is_told(server: &mut Server, place: &Place) -> Result<()> {
    ensure!(Said::of(place, server.url(), &[])?.level("no-compaction").is_none(), "it is young");
    thread::scope(|scope| {
        let write = || {
            (0..1_300).try_for_each(|_| {
                http(server, "POST", "/v3/kv/put", r#"{"key":"eA==","value":"eA=="}"#).map(drop)
            })
        };
        let writers: Vec<_> = (0..8).map(|_| scope.spawn(write)).collect();
        let ended = writers.into_iter().map(|writer| writer.join().expect("no panic"));
        ended.collect::<Result<()>>()
    })?;
    Said::of(place, server.url(), &[])?.flags("no-compaction", "warning")?;
    let compacts = format!("{}?compact=1h", server.url());
    ensure!(Said::of(place, &compacts, &[])?.level("no-compaction").is_none());
    Ok(())
}

/// A command that runs until its stdin ends, and what is said on stderr.
fn held(
    place: &Place,
    url: &str,
    flags: &[&str],
) -> (Running, impl Iterator<Item = String> + use<>) {
    let arguments = [&["run"], flags, &["a", "--", "sh", "-c", "echo in; read _ || :"]].concat();
    let mut command = place.lockkeeper(&arguments);
    command.env("LOCKKEEPER_STORE", url);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn(&mut command);
    assert_eq!(running.line(), "in");
    let said = BufReader::new(running.take_stderr()).lines().map_while(Result::ok);
    (running, said)
}

/// How many stores are noted as looked at.
fn looks(place: &Place) -> usize {
    let folder = fs::read_dir(place.path(".local/state/lockkeeper"));
    let names = folder.into_iter().flatten().flatten().map(|file| file.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("looked-at-")).count()
}

fn a_run_warns_of_broken_exclusion_once_a_day(server: &mut Server, place: &Place) -> Result<()> {
    let (mut first, mut said) = held(place, server.url(), &[]);
    let line = said.next().context("a warning")?;
    ensure!(line.contains("may evict keys") && line.contains("lockkeeper doctor"), "{line}");
    ensure!(first.end().success() && looks(place) == 1);
    ensure!(said.next().is_none(), "one line");
    let (mut second, said) = held(place, server.url(), &[]);
    ensure!(second.end().success());
    let said: Vec<String> = said.collect();
    ensure!(said.is_empty(), "{said:?}");
    // Two days later, in JSON.
    let folder = place.path(".local/state/lockkeeper");
    for file in fs::read_dir(folder)? {
        let then = std::time::SystemTime::now() - Duration::from_secs(48 * 3600);
        fs::File::options().write(true).open(file?.path())?.set_modified(then)?;
    }
    let (mut third, said) = held(place, server.url(), &["--json"]);
    let warning = said
        .map(|line| serde_json::from_str::<Value>(&line))
        .find(|event| event.as_ref().is_ok_and(|event| event["event"] == "warning"));
    let warning = warning.context("a warning")??;
    ensure!(warning["message"].as_str().is_some_and(|m| m.contains("may evict")), "{warning}");
    ensure!(third.end().success());
    Ok(())
}

fn a_quiet_run_does_not_warn(server: &mut Server, place: &Place) -> Result<()> {
    let (mut run, said) = held(place, server.url(), &["-q"]);
    ensure!(run.end().success() && said.count() == 0 && looks(place) == 0);
    Ok(())
}

fn a_run_does_not_warn_of_less_than_broken_exclusion(
    server: &mut Server,
    place: &Place,
) -> Result<()> {
    let (mut run, said) = held(place, server.url(), &[]);
    eventually(|| looks(place) == 1);
    ensure!(run.end().success());
    let said: Vec<String> = said.collect();
    ensure!(said.is_empty(), "{said:?}");
    Ok(())
}

fn a_file_is_measured(_: &mut (), place: &Place) -> Result<()> {
    is_measured(place, &place.url())?;
    let text = place.stdout(&["bench", "--seconds", "0.3"]);
    for word in ["acquire and release", "hand-over", "renewal", "p99", "█", "rough"] {
        ensure!(text.contains(word), "{word}: {text}");
    }
    Ok(())
}

fn a_server_is_measured(server: &mut Server, place: &Place) -> Result<()> {
    is_measured(place, server.url())
}

fn is_measured(place: &Place, url: &str) -> Result<()> {
    let text = place.stdout(&["bench", "--json", "--seconds", "0.5", url]);
    let json: Value = serde_json::from_str(&text)?;
    let measured = json["measured"].as_array().context("figures")?;
    let names: Vec<_> = measured.iter().filter_map(|of| of["what"].as_str()).collect();
    ensure!(names == ["acquire_release", "hand_over", "renewal"], "{json:#}");
    for of in measured {
        let number = |name: &str| of[name].as_u64().unwrap_or(0);
        let buckets = of["histogram"].as_array().context("a histogram")?;
        let counted: u64 = buckets.iter().filter_map(|bucket| bucket["count"].as_u64()).sum();
        ensure!(counted == number("count") && counted > 0, "{of:#}");
        ensure!(
            number("p50_us") <= number("p99_us") && number("p99_us") <= number("max_us"),
            "{of:#}"
        );
    }
    nothing_is_left(place, url)
}
