//! The command on real servers: stores without lines, servers that are not there yet, passwords, and
//! stores that grant less than they were asked for.

#[path = "support/json_schema.rs"]
mod json_schema;
mod support;

use anyhow::{Context as _, Result, ensure};
use json_schema::Schema;
use serde_json::Value;
use servers::{ETCD, REDIS, REDIS_TLS, REDLOCK, Running as Server, ZOOKEEPER_BRIEF};
use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, ExitCode, Output, Stdio},
    time::{Duration, Instant},
};
use support::{Place, Running, pty::Pty};
use testkit::trials;

macro_rules! tests {
    ($recipe:ident: $($test:ident),* $(,)?) => {
        vec![$(trials::trial($recipe, stringify!($test), |server| $test(&mut Site::of(server)))),*]
    };
}

fn main() -> ExitCode {
    trials::main([
        tests![REDIS:
            a_store_that_starts_late_is_waited_for,
            a_store_that_is_away_ends_a_single_attempt_at_once,
            a_waiter_tells_an_outage_and_its_end_once,
            watch_tells_an_outage_and_goes_on,
            a_single_attempt_on_a_silent_store_speaks_of_no_wait,
            plain_string_locks_are_contended_for,
            a_plain_string_lock_sets_no_fence,
            a_plain_string_store_that_starts_late_is_waited_for,
            a_plain_string_store_that_never_starts_ends_the_command,
        ],
        tests![REDLOCK:
            a_majority_of_servers_is_contended_for,
            a_majority_that_starts_late_is_waited_for,
            a_majority_that_never_starts_ends_the_command,
        ],
        tests![REDIS_TLS:
            a_nested_run_finds_the_password_that_was_inherited,
            a_password_from_the_command_line_is_not_passed_on,
            a_nested_run_finds_the_password_in_the_file_that_was_inherited,
            a_nested_run_finds_the_password_file_of_a_named_store,
            a_wrong_password_is_denied,
        ],
        tests![ZOOKEEPER_BRIEF:
            kill_after_is_shortened_to_what_the_store_granted,
            a_lock_delay_that_the_store_does_not_grant_is_told,
            a_name_that_the_store_cannot_have_is_a_usage_error,
        ],
        tests![ETCD: a_store_that_grants_more_needs_no_warning],
    ])
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

    fn url(&self) -> String {
        self.server.url().to_owned()
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
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts the command, and gives the lines that it says on stderr.
fn start(command: &mut Command) -> (Running, impl Iterator<Item = String> + use<>) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn(command);
    let lines = BufReader::new(running.take_stderr()).lines().map_while(Result::ok);
    (running, lines)
}

fn a_store_that_starts_late_is_waited_for(site: &mut Site) -> Result<()> {
    is_waited_for(site, &site.url())
}

fn a_plain_string_store_that_starts_late_is_waited_for(site: &mut Site) -> Result<()> {
    is_waited_for(site, &plain(site))
}

fn a_majority_that_starts_late_is_waited_for(site: &mut Site) -> Result<()> {
    is_waited_for(site, &quick_redlock(site))
}

fn is_waited_for(site: &mut Site, url: &str) -> Result<()> {
    for (flags, patience) in [(&["-w", "90"][..], "1m30s"), (&[], "30s")] {
        site.server.kill()?;
        let run = ["run", "--kill-after", "0.5"];
        let arguments = [&run, flags, &["a", "--", "echo", "ran"]].concat();
        let (mut run, mut said) = start(&mut site.lockkeeper(url, &arguments));
        let line = said.next().context("a word about the store")?;
        ensure!(
            line.ends_with(&format!(
                "no answer from the store yet; waiting for it up to {patience}"
            )),
            "{line}"
        );
        site.server.restart()?;
        ensure!(run.line() == "ran" && run.code() == 0);
    }
    Ok(())
}

fn a_plain_string_store_that_never_starts_ends_the_command(site: &mut Site) -> Result<()> {
    is_given_up(site, &plain(site))
}

fn a_majority_that_never_starts_ends_the_command(site: &mut Site) -> Result<()> {
    is_given_up(site, &quick_redlock(site))
}

/// Without `-w` the store is waited for, but not for ever: a command with a mistyped host ends.
fn is_given_up(site: &mut Site, url: &str) -> Result<()> {
    site.server.kill()?;
    let began = Instant::now();
    let arguments = ["run", "--kill-after", "0.5", "a", "--", "echo", "ran"];
    let (mut run, said) = start(&mut site.lockkeeper(url, &arguments));
    ensure!(run.code() == 69 && run.line().is_empty());
    let (took, said) = (began.elapsed(), said.collect::<Vec<_>>().join("\n"));
    ensure!(took >= Duration::from_secs(30), "given up after {took:?}: {said}");
    ensure!(said.contains("refused") && !said.contains("still waiting"), "{said}");
    Ok(())
}

fn a_store_that_is_away_ends_a_single_attempt_at_once(site: &mut Site) -> Result<()> {
    site.server.kill()?;
    for flags in [&["-n"][..], &["-w", "0"], &["-w", "0.1"]] {
        let arguments = [&["run"], flags, &["a", "--", "echo", "ran"]].concat();
        let output = site.output(&site.url(), &arguments)?;
        ensure!(output.status.code() == Some(69) && output.stdout.is_empty(), "{output:?}");
        ensure!(stderr(&output).matches("refused").count() == 1, "{}", stderr(&output));
    }
    Ok(())
}

fn a_waiter_tells_an_outage_and_its_end_once(site: &mut Site) -> Result<()> {
    let hold = ["run", "a", "--", "sh", "-c", "echo in; read _ || :"];
    let (mut holder, _words) = start(&mut site.lockkeeper(&site.url(), &hold));
    ensure!(holder.line() == "in");
    let wait = ["run", "--ttl", "3s", "a", "--", "echo", "ran"];
    let (mut waiter, mut said) = start(&mut site.lockkeeper(&site.url(), &wait));
    let line = said.next().context("a word about the wait")?;
    ensure!(line.contains("held by"), "{line}");
    site.server.kill()?;
    let line = said.next().context("a word about the outage")?;
    ensure!(line.contains("the store has not answered for "), "{line}");
    ensure!(line.ends_with(" s; still waiting"), "{line}");
    site.server.restart()?;
    let line = said.next().context("a word about the end of the outage")?;
    ensure!(line.contains("the store answers again after "), "{line}");
    holder.end();
    ensure!(waiter.line() == "ran" && waiter.code() == 0);
    let rest: Vec<String> = said.collect();
    ensure!(rest.len() == 1 && rest[0].contains("got `a`"), "{rest:?}");
    Ok(())
}

fn watch_tells_an_outage_and_goes_on(site: &mut Site) -> Result<()> {
    let view = Pty::start(&site.lockkeeper(&site.url(), &["watch"]), 100, 24);
    view.shows("● live");
    let (mut lines, _) = start(&mut site.lockkeeper(&site.url(), &["watch", "--json"]));
    let schema = Schema::of("watch.json");
    let mut next = || -> Result<Value> {
        let event: Value = serde_json::from_str(&lines.line())?;
        schema.check(&event).map_err(anyhow::Error::msg)?;
        Ok(event)
    };
    ensure!(next()?["event"] == "snapshot");
    site.server.freeze()?;
    view.shows("▲ the store has not answered for ");
    let event = next()?;
    ensure!(event["event"] == "outage", "{event}");
    site.server.thaw()?;
    view.shows("● live");
    let event = next()?;
    ensure!(event["event"] == "answers", "{event}");
    Ok(())
}

fn a_single_attempt_on_a_silent_store_speaks_of_no_wait(site: &mut Site) -> Result<()> {
    site.server.freeze()?;
    let output = site.output(&site.url(), &["run", "-n", "a", "--", "echo", "ran"])?;
    site.server.thaw()?;
    ensure!(output.status.code() == Some(69) && output.stdout.is_empty(), "{output:?}");
    ensure!(!stderr(&output).contains("waiting"), "{}", stderr(&output));
    Ok(())
}

fn plain_string_locks_are_contended_for(site: &mut Site) -> Result<()> {
    contended_for(site, &plain(site))
}

/// Not even one that lockkeeper was started with: it belongs to another lock.
fn a_plain_string_lock_sets_no_fence(site: &mut Site) -> Result<()> {
    let plain = format!("{}?compat=string", site.url());
    for (url, fenced) in [(site.url(), true), (plain, false)] {
        let say = r#"echo "$LOCKKEEPER_NAME ${LOCKKEEPER_FENCE-none}""#;
        let arguments = ["run", "a", "--", "sh", "-c", say];
        let output = site.lockkeeper(&url, &arguments).env("LOCKKEEPER_FENCE", "7").output()?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{url}");
        let fence = said.trim_end().strip_prefix("a ").with_context(|| said.clone())?;
        ensure!(fence != "7", "the inherited fence of another lock, on {url}");
        ensure!(fence.parse::<u64>().is_ok() == fenced, "{url}: {said}");
        ensure!(fenced || fence == "none", "{url}: {said}");
    }
    Ok(())
}

fn a_majority_of_servers_is_contended_for(site: &mut Site) -> Result<()> {
    contended_for(site, &quick_redlock(site))
}

fn plain(site: &Site) -> String {
    format!("{}?compat=string", site.url())
}

/// A server that has just started has no vote for `max_ttl`.
fn quick_redlock(site: &Site) -> String {
    format!("{}?max_ttl=3s&ttl=1s&lock_delay=1s", site.url())
}

fn contended_for(site: &Site, url: &str) -> Result<()> {
    let hold = ["run", "--kill-after", "0.5", "a", "--", "sh", "-c", "echo in; read _ || :"];
    let (mut holder, _words) = start(&mut site.lockkeeper(url, &hold));
    ensure!(holder.line() == "in");
    let output = site.output(url, &["run", "-n", "--kill-after", "0.5", "a", "--", "true"])?;
    ensure!(output.status.code() == Some(75), "{output:?}");
    let wait = ["run", "--kill-after", "0.5", "a", "--", "echo", "ran"];
    let (mut waiter, mut said) = start(&mut site.lockkeeper(url, &wait));
    let line = said.next().context("a word about the wait")?;
    ensure!(line.contains("asking again and again, as this store keeps no line"), "{line}");
    ensure!(holder.end().success());
    ensure!(waiter.line() == "ran" && waiter.code() == 0);
    let rest: Vec<String> = said.collect();
    ensure!(!rest.iter().any(|line| line.contains("again and again")), "said twice: {rest:?}");
    let quiet = site.output(url, &["run", "-q", "--kill-after", "0.5", "a", "--", "true"])?;
    ensure!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    Ok(())
}

/// A command that runs lockkeeper again.
const NESTED: [&str; 7] =
    ["run", "a", "--", "sh", "-c", NESTED_SCRIPT, env!("CARGO_BIN_EXE_lockkeeper")];
const NESTED_SCRIPT: &str = "echo \"$LOCKKEEPER_STORE_URL\"; \"$0\" run -n b -- echo nested";

fn a_nested_run_finds_the_password_that_was_inherited(site: &mut Site) -> Result<()> {
    let output = site.output(&site.url(), &NESTED)?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    let (url, rest) = text.split_once('\n').context("a line")?;
    ensure!(rest == "nested\n" && url.starts_with("rediss://lockkeeper@127.0.0.1:"), "{text}");
    ensure!(!text.contains("sesame"), "{text}");
    Ok(())
}

fn a_password_from_the_command_line_is_not_passed_on(site: &mut Site) -> Result<()> {
    let url = site.url();
    let arguments = [&["--store", url.as_str()][..], &NESTED].concat();
    let output = site.place.lockkeeper(&arguments).env_remove("LOCKKEEPER_STORE").output()?;
    ensure!(output.status.code() == Some(77), "{output:?}");
    let said = stderr(&output);
    ensure!(said.contains("hint: ") && !said.contains("sesame"), "{said}");
    Ok(())
}

/// Runs lockkeeper under lockkeeper; both find the password.
fn nested_with_password(command: &mut Command) -> Result<()> {
    let output = command.args(NESTED).output()?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(text.ends_with("nested\n") && !text.contains("sesame"), "{text}");
    Ok(())
}

fn a_nested_run_finds_the_password_in_the_file_that_was_inherited(site: &mut Site) -> Result<()> {
    let file = site.place.path("url");
    fs::write(&file, site.url())?;
    let mut command = site.place.lockkeeper(&[]);
    nested_with_password(command.env_remove("LOCKKEEPER_STORE").env("LOCKKEEPER_STORE_FILE", file))
}

fn a_nested_run_finds_the_password_file_of_a_named_store(site: &mut Site) -> Result<()> {
    let url = site.url().replace(":open%20sesame@", "@");
    ensure!(url != site.url(), "the password is written in another way");
    fs::write(site.place.path("pw"), "open sesame\n")?;
    let settings = format!("[stores.prod]\nurl = \"{url}\"\npassword_file = \"pw\"\n");
    let file = site.place.path("settings.toml");
    fs::write(&file, settings)?;
    let mut command = site.place.lockkeeper(&["--store", "prod"]);
    nested_with_password(command.env_remove("LOCKKEEPER_STORE").env("LOCKKEEPER_CONFIG", file))
}

fn a_wrong_password_is_denied(site: &mut Site) -> Result<()> {
    let url = site.url().replace("open%20sesame", "hunter2");
    let output = site.output(&url, &["run", "a", "--", "echo", "ran"])?;
    ensure!(output.status.code() == Some(77) && output.stdout.is_empty(), "{output:?}");
    ensure!(!stderr(&output).contains("hunter2"), "{output:?}");
    Ok(())
}

fn kill_after_is_shortened_to_what_the_store_granted(site: &mut Site) -> Result<()> {
    // 2 s TTL and 31 s lock-delay, on a server that grants 6 s for both.
    let run = ["run", "--ttl", "2s", "--kill-after", "30s", "a", "--", "true"];
    let output = site.output(&site.url(), &run)?;
    let said = stderr(&output);
    ensure!(output.status.success(), "{output:?}");
    ensure!(said.starts_with("lockkeeper: this store keeps a lost lock closed for "), "{said}");
    ensure!(
        said.contains(", not for 31s: --kill-after is ") && said.contains(" instead of 30s"),
        "{said}"
    );
    let output = site.output(&site.url(), &[&["--json"], &run[..]].concat())?;
    let said = stderr(&output);
    let events = said.lines().map(serde_json::from_str);
    let events: Vec<serde_json::Value> = events.collect::<Result<_, _>>()?;
    ensure!(events.iter().any(|e| e["event"] == "warning"), "{said}");
    let granted = events.iter().find(|e| e["event"] == "granted").context("a grant")?;
    ensure!(granted["lock_delay_ms"].as_u64().is_some_and(|ms| ms < 6_000), "{granted}");
    Ok(())
}

fn a_lock_delay_that_the_store_does_not_grant_is_told(site: &mut Site) -> Result<()> {
    let run = ["run", "--ttl", "2s", "--kill-after", "1s", "--lock-delay", "1h", "a", "--", "true"];
    let output = site.output(&site.url(), &run)?;
    let said = stderr(&output);
    ensure!(output.status.success() && said.trim_end().ends_with(", not for 1h"), "{output:?}");
    Ok(())
}

fn a_name_that_the_store_cannot_have_is_a_usage_error(site: &mut Site) -> Result<()> {
    let url = format!("{}?raw=true", site.url());
    for name in ["a/../b", "//a", "a/"] {
        let output = site.output(&url, &["run", "-n", name, "--", "echo", "ran"])?;
        ensure!(output.status.code() == Some(64) && output.stdout.is_empty(), "{name}: {output:?}");
        ensure!(stderr(&output).contains("is no path for a lock"), "{}", stderr(&output));
    }
    Ok(())
}

fn a_store_that_grants_more_needs_no_warning(site: &mut Site) -> Result<()> {
    let run = ["run", "--ttl", "2.5", "--kill-after", "1.2", "a", "--", "true"];
    let output = site.output(&site.url(), &run)?;
    ensure!(output.status.success(), "{output:?}");
    // The server's version may be worth a warning of its own.
    ensure!(!stderr(&output).contains("kill-after"), "{output:?}");
    Ok(())
}
