//! What in the servers' set-up can hurt locks, and what to do about it.

use super::client::Ensemble;
use crate::store::{Advice, Severity, common::join};
use std::{io, time::Duration};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// For how long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The oldest version that can list the nodes of a session.
const OLDEST: (u32, u32) = (3, 6);

/// What a server answers to `srvr`, a word of four letters instead of the protocol. A server can be
/// configured not to answer it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fact {
    version: (u32, u32),
    /// `standalone`, `leader`, `follower` or `observer`.
    pub(super) mode: String,
}

/// The facts about the servers that answer.
pub(super) async fn facts(ensemble: &Ensemble) -> Vec<Fact> {
    let asks = 0..ensemble.servers.len();
    let asks = asks.map(|at| crate::clock::timeout(ANSWER_TIMEOUT, ask(ensemble, at)));
    let answers = join::all(asks).await;
    answers.into_iter().filter_map(|answer| fact(&answer.ok()?.ok()?)).collect()
}

async fn ask(ensemble: &Ensemble, at: usize) -> io::Result<String> {
    let mut stream = ensemble.dial(at, ANSWER_TIMEOUT).await?;
    stream.write_all(b"srvr").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn fact(text: &str) -> Option<Fact> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let mut numbers = field("Zookeeper version: ")?.split(['.', '-']).map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Fact { version, mode: field("Mode: ")?.trim().to_owned() })
}

pub(super) fn of(facts: &[Fact], ensemble: &Ensemble) -> Vec<Advice> {
    let servers = ensemble.servers.len();
    let all = [old(facts), alone(facts), partial(facts, servers), silent(facts, servers)];
    all.into_iter().flatten().collect()
}

/// A server that does not answer may be down, or may not be allowed to say how it is.
fn silent(facts: &[Fact], servers: usize) -> Option<Advice> {
    let silent = servers - facts.len().min(servers);
    (silent > 0).then(|| {
        Advice::new(
            "silent-servers",
            Severity::Information,
            format!("{silent} of {servers} servers of the URL do not say how they are"),
            "they may be down, or may not be allowed to answer to `srvr`: nothing more is known of them",
            "start them, or set 4lw.commands.whitelist=srvr",
        )
    })
}

fn old(facts: &[Fact]) -> Option<Advice> {
    let (major, minor) = facts.iter().map(|fact| fact.version).min().filter(|v| *v < OLDEST)?;
    Some(Advice::new(
        "old-version",
        Severity::Availability,
        format!("a server has version {major}.{minor}"),
        "locks cannot be renewed there, and are lost",
        "use ZooKeeper 3.6 or newer",
    ))
}

fn alone(facts: &[Fact]) -> Option<Advice> {
    facts.iter().any(|fact| fact.mode == "standalone").then(|| {
        Advice::new(
            "standalone",
            Severity::Information,
            "the server stands alone",
            "when it is down no lock can be taken, renewed or released",
            "run three servers or five",
        )
    })
}

fn partial(facts: &[Fact], servers: usize) -> Option<Advice> {
    let one_of_many = facts.iter().any(|fact| fact.mode != "standalone") && servers == 1;
    one_of_many.then(|| {
        Advice::new(
            "one-of-ensemble",
            Severity::Availability,
            "the URL names one server of an ensemble",
            "when that server is down, locks are lost although the others go on",
            "name them all, as in zookeeper://a,b,c",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_answer_is_understood() {
        let text = "Zookeeper version: 3.8.0-1, built on 2022-11-11\nLatency: 0\nMode: follower\n";
        let known = fact(text).unwrap();
        assert_eq!(known, Fact { version: (3, 8), mode: "follower".into() });
        assert_eq!(fact("srvr is not executed because it is not in the whitelist."), None);
    }

    #[test]
    fn each_danger_is_named_and_a_safe_set_up_gets_no_advice() {
        let is = |minor, mode: &str| Fact { version: (3, minor), mode: mode.into() };
        let good = [is(8, "leader"), is(8, "follower"), is(8, "follower")];
        assert!(old(&good).is_none() && alone(&good).is_none() && partial(&good, 3).is_none());
        assert!(old(&[is(8, "leader"), is(4, "follower")]).is_some());
        assert!(alone(&[is(8, "standalone")]).is_some());
        assert!(silent(&good, 3).is_none() && silent(&good[..1], 3).is_some());
        assert!(partial(&good[..1], 1).is_some() && partial(&[is(8, "standalone")], 1).is_none());
    }
}
