//! `acquire`, `renew` and `release` on every store with a server: each verb is a process of its own.

mod support;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use servers::{
    ETCD, ETCD_CLUSTER, MARIADB, MYSQL, PGBOUNCER, POSTGRES, REDIS, REDIS_TLS, REDLOCK,
    Running as Server, VALKEY, ZOOKEEPER, ZOOKEEPER_ENSEMBLE,
};
use std::process::{Command, ExitCode, Output};
use support::{Place, Running};
use testkit::trials;

macro_rules! tests {
    ($($recipe:ident: $($test:ident),*;)*) => {
        vec![$($(trials::trial($recipe, stringify!($test), |server| $test(&mut Site::of(server))),)*)*]
    };
}

fn main() -> ExitCode {
    trials::main([tests![
        REDIS: a_ticket_holds_the_lock_between_processes,
            a_plain_string_ticket_holds_the_lock_between_processes,
            a_store_that_is_away_keeps_the_ticket;
        REDIS_TLS: a_password_is_not_in_the_ticket_file;
        VALKEY: a_ticket_holds_the_lock_between_processes;
        REDLOCK: a_ticket_of_a_majority_holds_the_lock_between_processes;
        POSTGRES: a_ticket_holds_the_lock_between_processes, a_lost_ticket_is_told;
        PGBOUNCER: a_ticket_holds_the_lock_between_processes;
        MARIADB: a_ticket_holds_the_lock_between_processes, a_lost_ticket_is_told;
        MYSQL: a_ticket_holds_the_lock_between_processes;
        ETCD: a_ticket_holds_the_lock_between_processes, a_raw_ticket_holds_the_lock_between_processes,
            a_lost_ticket_is_told;
        ETCD_CLUSTER: a_ticket_holds_the_lock_between_processes;
        ZOOKEEPER: a_ticket_holds_the_lock_between_processes,
            a_raw_ticket_holds_the_lock_between_processes, a_lost_ticket_is_told;
        ZOOKEEPER_ENSEMBLE: a_ticket_holds_the_lock_between_processes, a_lost_ticket_is_told;
    ]])
}

/// A server, and a folder for what the command needs.
struct Site {
    server: Server,
    place: Place,
}

impl Site {
    fn of(server: Server) -> Self {
        Self { server, place: Place::new() }
    }

    fn url(&self, options: &str) -> String {
        let url = self.server.url();
        match (options, url.contains('?')) {
            ("", _) => url.to_owned(),
            (options, true) => format!("{url}&{options}"),
            (options, false) => format!("{url}?{options}"),
        }
    }

    /// The command, with this store in its environment.
    fn lockkeeper(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.place.lockkeeper(arguments);
        command.env("LOCKKEEPER_STORE", url);
        command
    }

    fn output(&self, url: &str, arguments: &[&str]) -> Result<Output> {
        Ok(self.lockkeeper(url, arguments).output()?)
    }

    fn json(&self, url: &str, arguments: &[&str]) -> Result<Value> {
        let output = self.output(url, &[arguments, &["--json"]].concat())?;
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn a_ticket_holds_the_lock_between_processes(site: &mut Site) -> Result<()> {
    holds(site, &site.url(""), "30s")
}

fn a_plain_string_ticket_holds_the_lock_between_processes(site: &mut Site) -> Result<()> {
    holds(site, &site.url("compat=string"), "30s")
}

fn a_raw_ticket_holds_the_lock_between_processes(site: &mut Site) -> Result<()> {
    holds(site, &site.url("raw=true"), "30s")
}

/// Servers that may have forgotten a lock have no vote for `max_ttl`.
fn a_ticket_of_a_majority_holds_the_lock_between_processes(site: &mut Site) -> Result<()> {
    holds(site, &site.url("max_ttl=10s"), "10s")
}

fn holds(site: &Site, url: &str, ttl: &str) -> Result<()> {
    let acquire =
        ["acquire", "a", "--file", "t.ticket", "--ttl", ttl, "--label", "import", "-w", "60"];
    let acquired = site.json(url, &acquire)?;
    let listed = site.json(url, &["ls"])?;
    let holder = &listed["locks"][0]["holders"][0];
    ensure!(holder.is_object(), "{listed}");
    // Locks that other libraries understand have no room for more than their names.
    if !url.contains("compat=") && !url.contains("raw=") {
        ensure!(holder["label"] == "import", "{listed}");
        ensure!(holder["owner"]["pid"] == std::process::id(), "held by the script: {listed}");
    }
    for _ in 0..2 {
        let renewed = site.json(url, &["renew", "t.ticket"])?;
        ensure!(renewed["fence"] == acquired["fence"], "{renewed}");
        let busy = site
            .output(url, &["run", "-n", "--ttl", "3s", "--kill-after", "0.5", "a", "--", "true"])?;
        ensure!(busy.status.code() == Some(75), "{busy:?}");
    }
    let next = [
        "run",
        "--ttl",
        "3s",
        "--kill-after",
        "0.5",
        "a",
        "--",
        "sh",
        "-c",
        "echo \"$LOCKKEEPER_FENCE\"",
    ];
    let mut next = Running::start(&mut site.lockkeeper(url, &next));
    let released = site.json(url, &["release", "t.ticket"])?;
    ensure!(released["released"] == true, "{released}");
    let fence = next.line();
    ensure!(next.code() == 0, "{}", next.stderr());
    if let Some(before) = acquired["fence"].as_u64() {
        ensure!(fence.parse::<u64>()? > before, "{fence} after {before}");
    }
    let again = site.output(url, &["release", "t.ticket"])?;
    ensure!(again.status.success() && stderr(&again).contains("no ticket file"), "{again:?}");
    Ok(())
}

fn a_lost_ticket_is_told(site: &mut Site) -> Result<()> {
    let url = site.url("");
    site.json(&url, &["acquire", "a", "--file", "t.ticket", "--ttl", "2s"])?;
    // Granted when the ticket's session has ended.
    let next = site.output(&url, &["run", "--kill-after", "0.5", "a", "--", "true"])?;
    ensure!(next.status.success(), "{next:?}");
    for verb in ["renew", "release"] {
        let lost = site.output(&url, &[verb, "t.ticket"])?;
        ensure!(lost.status.code() == Some(79), "{verb}: {lost:?}");
        ensure!(stderr(&lost).contains("`a` was lost"), "{lost:?}");
    }
    ensure!(!site.place.path("t.ticket").exists());
    Ok(())
}

fn a_store_that_is_away_keeps_the_ticket(site: &mut Site) -> Result<()> {
    let url = site.url("");
    site.json(&url, &["acquire", "a", "--file", "t.ticket", "--ttl", "10m"])?;
    site.server.freeze()?;
    for verb in ["renew", "release"] {
        let away = site.output(&url, &[verb, "-w", "0.1", "t.ticket"])?;
        ensure!(away.status.code() == Some(69), "{verb}: {away:?}");
        ensure!(verb == "renew" || stderr(&away).contains("run it again"), "{away:?}");
        ensure!(site.place.path("t.ticket").exists());
    }
    // A store that comes back in time is waited for.
    let mut release =
        Running::start(&mut site.lockkeeper(&url, &["release", "-w", "60", "t.ticket"]));
    site.server.thaw()?;
    ensure!(release.code() == 0, "{}", release.stderr());
    ensure!(site.json(&url, &["ls"])?["locks"] == serde_json::json!([]));
    Ok(())
}

fn a_password_is_not_in_the_ticket_file(site: &mut Site) -> Result<()> {
    let url = site.url("");
    site.json(&url, &["acquire", "a", "--file", "t.ticket"])?;
    let text = std::fs::read_to_string(site.place.path("t.ticket"))?;
    ensure!(text.contains("rediss://lockkeeper@127.0.0.1:") && !text.contains("sesame"), "{text}");
    let mut without = site.lockkeeper(&url, &["release", "t.ticket"]);
    let without = without.env_remove("LOCKKEEPER_STORE").output()?;
    ensure!(without.status.code() == Some(77), "{without:?}");
    let said = stderr(&without);
    let hint = said.lines().find(|line| line.contains("hint: ")).context("a hint")?;
    ensure!(hint.contains("LOCKKEEPER_STORE"), "{said}");
    site.json(&url, &["release", "t.ticket"])?;
    Ok(())
}
