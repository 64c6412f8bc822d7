//! Servers, keepers, and a client beside the library to see what it did.

use lockkeeper::{Guard, Keeper};
use servers::{POSTGRES, Recipe, Running};
use std::{ops::Deref, time::Duration};
use testkit::{live, trials::WithArgs};
use tokio_postgres::{Client, NoTls, Transaction};

pub(crate) use testkit::live::until_length;

pub(crate) const TTL: Duration = Duration::from_secs(2);

/// A server that writes every statement to its log.
pub(crate) const TALKATIVE: WithArgs = WithArgs(POSTGRES, &["-c", "log_statement=all"]);

/// A server that answers before a commit is on disk: for tests with very many of them.
pub(crate) const HASTY: WithArgs = WithArgs(POSTGRES, &["-c", "synchronous_commit=off"]);

/// A server that takes itself for the replica of one that it never hears of.
pub(crate) const STANDBY: Recipe = Recipe {
    processes: |sandbox| {
        let processes = (POSTGRES.processes)(sandbox)?;
        std::fs::write(sandbox.folder.join("data/standby.signal"), "")?;
        Ok(processes)
    },
    ..POSTGRES
};

/// A server that speaks German, if its translations are installed. The locale must not be plain `C`.
pub(crate) const GERMAN: Recipe = Recipe {
    processes: |sandbox| {
        let mut processes = (POSTGRES.processes)(sandbox)?;
        processes[0].args.extend(["-c".into(), "lc_messages=C.UTF-8".into()]);
        processes[0].env.push(("LANGUAGE".into(), "de".into()));
        Ok(processes)
    },
    ..POSTGRES
};

/// A server whose log has the code of every error.
pub(crate) const CODED: WithArgs =
    WithArgs(POSTGRES, &["-c", "synchronous_commit=off", "-c", "log_line_prefix=%e "]);

/// How often the server has refused something with one of these codes.
pub(crate) fn refusals(server: &Running, codes: &[&str]) -> usize {
    let log = std::fs::read(server.folder().join("postgres.log")).expect("the server has a log");
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| codes.iter().any(|code| line.starts_with(code))).count()
}

pub(crate) async fn keeper(server: &Running) -> Keeper {
    live::keeper(server, TTL).await
}

/// A lock that one keeper holds and another waits for.
pub(crate) async fn held_and_awaited(server: &Running) -> (Guard, live::Waiter) {
    live::held_and_awaited(server, TTL).await
}

/// A connection of a user's own.
pub(crate) struct User(Client);

impl User {
    pub(crate) async fn of(server: &Running) -> Self {
        Self::to(server.url()).await
    }

    pub(crate) async fn to(url: &str) -> Self {
        let (client, connection) =
            tokio_postgres::connect(url, NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        Self(client)
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.0.batch_execute(sql).await.expect("a statement");
    }

    /// The one number that a statement answers with.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.0.query_one(sql, &[]).await.expect("a row").get(0)
    }

    pub(crate) async fn transaction(&mut self) -> Transaction<'_> {
        self.0.transaction().await.expect("a transaction")
    }

    /// How many tickets there are, wherever they stand.
    pub(crate) async fn tickets(&self) -> i64 {
        self.number("SELECT count(*) FROM lockkeeper.lk_standing").await
    }
}

impl Deref for User {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.0
    }
}

/// The code of an error that a statement ended with.
pub(crate) fn code(e: &tokio_postgres::Error) -> String {
    e.code().map(|code| code.code().to_owned()).unwrap_or_default()
}
