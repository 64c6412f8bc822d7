//! The stores of the library. Their servers are started when the first case asks for them, ended with the program.

use crate::{etcd, live::Server, redlock, zookeeper};
use lockkeeper::Capabilities;
use lockkeeper_testkit::{Case, Dataset, Subject};
use servers::{Recipe, Running};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    sync::Arc,
    time::Duration,
};

/// Every store of the library, with all servers on which it is held to the suite.
#[must_use]
pub fn all() -> Vec<Subject> {
    let mut all = vec![Subject::memory(), sqlite()];
    all.extend(redis());
    all.extend(postgres());
    all.extend(mysql());
    all.extend(etcd());
    all.extend(zookeeper());
    all
}

/// The embedded store, each time in a file of its own.
#[must_use]
pub fn sqlite() -> Subject {
    let can = Capabilities {
        durable: true,
        renewal_shows_tickets: true,
        waiters_end_at_ttl: true,
        ..Capabilities::LINES
    };
    let dataset = || async {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        Ok(Dataset::url(url).keep(folder))
    };
    Subject::new("sqlite", can, dataset).leaves_at_once().across_processes()
}

/// Redis in every topology, and Valkey.
#[must_use]
pub fn redis() -> Vec<Subject> {
    let can = Capabilities {
        durable: true,
        renewal_shows_tickets: true,
        waiters_end_at_ttl: true,
        ..Capabilities::LINES
    };
    let of = |recipe| subject(recipe, can, "prefix=lk:", &[]).across_processes();
    let can = Capabilities {
        fenced: true,
        durable: true,
        survives_failover: true,
        renewal_shows_tickets: true,
        ..Capabilities::NONE
    };
    // The longest times that the suite asks for are a day and a day.
    let of_redlock = subject(servers::REDLOCK, can, "prefix=lk:", &[("max_ttl", "49h")]);
    let with = |subject: Subject, cases: Vec<Case>| cases.into_iter().fold(subject, Subject::case);
    vec![
        with(of(servers::REDIS), redlock::plain_cases()),
        of(servers::REDIS_TLS),
        of(servers::REDIS_SENTINEL),
        of(servers::REDIS_CLUSTER).sharded(),
        of(servers::VALKEY),
        with(of_redlock.across_processes().sharded(), redlock::own_cases()),
    ]
}

/// PostgreSQL, alone and behind pgbouncer, where no waiter is woken.
#[must_use]
pub fn postgres() -> Vec<Subject> {
    let can = Capabilities {
        durable: true,
        renewal_shows_tickets: true,
        waiters_end_at_ttl: true,
        ..Capabilities::LINES
    };
    vec![
        subject(servers::POSTGRES, can, "schema=", &[]).across_processes(),
        subject(servers::PGBOUNCER, Capabilities { wakes: false, ..can }, "schema=", &[])
            .across_processes(),
    ]
}

/// MariaDB, and MySQL itself.
#[must_use]
pub fn mysql() -> Vec<Subject> {
    let can = Capabilities {
        durable: true,
        renewal_shows_tickets: true,
        waiters_end_at_ttl: true,
        ..Capabilities::LINES
    };
    let of = |recipe| subject(recipe, can, "prefix=", &[]).across_processes();
    vec![of(servers::MARIADB), of(servers::MYSQL)]
}

/// etcd, alone and as a cluster. A lease of etcd lives for two seconds at least.
#[must_use]
pub fn etcd() -> Vec<Subject> {
    let of = |recipe, survives_failover| {
        let can = Capabilities {
            durable: true,
            survives_failover,
            renewal_shows_tickets: true,
            ..Capabilities::LINES
        };
        subject(recipe, can, "prefix=", &[]).across_processes().short_ttl(Duration::from_secs(2))
    };
    let cluster = of(servers::ETCD_CLUSTER, true);
    vec![of(servers::ETCD, false), etcd::own_cases().into_iter().fold(cluster, Subject::case)]
}

/// ZooKeeper, alone and as an ensemble.
#[must_use]
pub fn zookeeper() -> Vec<Subject> {
    let can = Capabilities {
        at_least: false,
        sessions_shared: false,
        durable: true,
        renewal_shows_tickets: true,
        ..Capabilities::LINES
    };
    let of =
        |recipe, can| subject(recipe, can, "prefix=", &[]).across_processes().notes_no_grants();
    let three = Capabilities { survives_failover: true, ..can };
    // Three servers agree upon every step, which half a second is too short for on a busy machine.
    let ensemble = of(servers::ZOOKEEPER_ENSEMBLE, three).short_ttl(Duration::from_secs(1));
    let ensemble = zookeeper::own_cases().into_iter().fold(ensemble, Subject::case);
    vec![of(servers::ZOOKEEPER, can), ensemble]
}

/// A store of one server, which all cases share; each has a prefix or schema of its own, which begins so.
fn subject(
    recipe: Recipe,
    can: Capabilities,
    space: &'static str,
    options: &'static [(&'static str, &'static str)],
) -> Subject {
    let server = Arc::new(Server::of(recipe));
    let subject = Subject::new(recipe.name, can, move || {
        let server = Arc::clone(&server);
        async move {
            let url = tokio::task::spawn_blocking(move || url(&server, recipe)).await??;
            let mark = if url.contains('?') { '&' } else { '?' };
            let mut url = format!("{url}{mark}{space}t{:016x}", rand::random::<u64>());
            for (option, value) in options {
                url.push_str(&format!("&{option}={value}"));
            }
            Ok(Dataset::url(url))
        }
    });
    match recipe.obstacle() {
        Some(obstacle) => subject.unavailable(obstacle),
        None => subject,
    }
}

fn url(server: &Server, recipe: Recipe) -> anyhow::Result<String> {
    let is_redlock = recipe.name == servers::REDLOCK.name;
    let running =
        server.prepared(|running| if is_redlock { give_votes(running) } else { Ok(()) })?;
    Ok(running.url().to_owned())
}

/// Gives the nodes of Redlock their votes. New nodes have none until it is certain that they have forgotten nothing; these
/// have not, for they were made here.
///
/// # Errors
/// If a node does not answer.
pub fn give_votes(running: &Running) -> anyhow::Result<()> {
    for port in running.ports() {
        let mut node = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
        node.write_all(b"SET lockkeeper:redlock:boot 0\r\n")?;
        let mut answer = [0; 5];
        node.read_exact(&mut answer)?;
        anyhow::ensure!(&answer == b"+OK\r\n", "the node answers {}", answer.escape_ascii());
    }
    Ok(())
}
