//! What these tests share: servers, keepers, and a client beside the library.

use lockkeeper::{Guard, Keeper, Renew};
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use servers::Running;
use std::{collections::HashMap, sync::Arc, time::Duration};
use testkit::{
    fault_store::{FaultStore, Op},
    live,
    world::eventually,
};

pub(crate) use testkit::live::waiter;

pub(crate) const TTL: Duration = Duration::from_secs(2);

pub(crate) async fn keeper(server: &Running) -> Keeper {
    keeper_for(server, TTL).await
}

pub(crate) async fn keeper_for(server: &Running, ttl: Duration) -> Keeper {
    live::keeper(server, ttl).await
}

/// A lock that one keeper holds and another waits for.
pub(crate) async fn held_and_awaited(server: &Running) -> (Guard, live::Waiter) {
    live::held_and_awaited(server, TTL).await
}

/// A keeper that renews every second, with sessions that outlive a test, and the fault store that shows its requests.
pub(crate) async fn with_fault_store(url: &str) -> (Keeper, Arc<FaultStore>) {
    let renew = Renew { interval: Some(Duration::from_secs(1)), ..Renew::DEFAULT };
    let direct = Keeper::connect(url).await.expect("the server answers");
    let faults = FaultStore::over(direct.store().clone());
    let builder = Keeper::builder().ttl(Duration::from_secs(120)).renew(renew);
    (builder.over(faults.store()).expect("the options make sense"), faults)
}

/// Waits until the tickets have been compared for the first time, as they always are after the first renewal,
/// and renewed since: what is noticed later, the data has told.
pub(crate) async fn compared(faults: &FaultStore) {
    eventually("all tickets are compared", async || faults.count(Op::PollAll) > 0).await;
    let before = faults.count(Op::Renew);
    eventually("two more renewals", async || faults.count(Op::Renew) >= before + 2).await;
}

/// A connection of the client beside the library. Its default of half a second for an answer would be short for a
/// machine that runs many tests.
pub(crate) async fn connection(port: u16) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
    let client = redis::Client::open(("127.0.0.1", port))?;
    client.get_multiplexed_async_connection_with_config(&patient).await
}

/// A client beside the library, to see what the library did.
pub(crate) struct Witness(MultiplexedConnection);

impl Witness {
    pub(crate) async fn of(server: &Running) -> Self {
        Self::at(server.ports()[0]).await
    }

    /// A client of the server at this port.
    pub(crate) async fn at(port: u16) -> Self {
        Self::try_at(port).await.expect("the server answers")
    }

    pub(crate) async fn try_at(port: u16) -> redis::RedisResult<Self> {
        Ok(Self(connection(port).await?))
    }

    pub(crate) async fn command(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        let () = command.arg(&words[1..]).query_async(&mut self.0).await.expect("an answer");
    }

    /// Whether the server does as it is told.
    pub(crate) async fn accepts(&mut self, words: &[&str]) -> bool {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async::<()>(&mut self.0).await.is_ok()
    }

    pub(crate) async fn text(&mut self, words: &[&str]) -> String {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.0).await.expect("a text")
    }

    pub(crate) async fn texts(&mut self, words: &[&str]) -> Vec<String> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.0).await.expect("texts")
    }

    pub(crate) async fn number(&mut self, words: &[&str]) -> i64 {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.0).await.expect("a number")
    }

    /// A section of what the server says about itself.
    pub(crate) async fn info(&mut self, section: &str) -> String {
        self.try_info(section).await.expect("an answer")
    }

    pub(crate) async fn try_info(&mut self, section: &str) -> redis::RedisResult<String> {
        redis::cmd("INFO").arg(section).query_async(&mut self.0).await
    }

    /// How many seconds after it ran the last enter would still have had an effect, by the log of
    /// slow commands.
    pub(crate) async fn patience_of_an_enter(&mut self) -> i64 {
        let mut get = redis::cmd("SLOWLOG");
        type Entry = (u64, i64, u64, Vec<String>, String, String);
        let log: Vec<Entry> =
            get.arg("GET").arg(100).query_async(&mut self.0).await.expect("an answer");
        let of_an_enter = |(_, ran_at, _, words, _, _): &Entry| {
            // EVALSHA, the script and the number of keys; six keys, and the eighth argument.
            let [_, _, keys, rest @ ..] = &words[..] else { return None };
            let deadline: i64 = rest.get(6 + 7)?.parse().ok()?;
            (keys == "6" && rest.len() == 16).then(|| deadline / 1_000_000 - ran_at)
        };
        log.iter().find_map(of_an_enter).expect("there was an enter")
    }

    /// How often each command was called since the last reset.
    pub(crate) async fn calls(&mut self) -> HashMap<String, u64> {
        self.info("commandstats").await.lines().filter_map(call).collect()
    }

    /// How many connections the server has.
    pub(crate) async fn clients(&mut self) -> usize {
        let mut list = redis::cmd("CLIENT");
        let list: String = list.arg("LIST").query_async(&mut self.0).await.expect("an answer");
        list.lines().count()
    }

    /// Scripts sent by clients, and messages sent by scripts.
    pub(crate) async fn scripts_and_messages(&mut self) -> (u64, u64) {
        let calls = self.calls().await;
        let of = |command: &str| calls.get(command).copied().unwrap_or(0);
        (of("evalsha") + of("eval"), of("publish"))
    }

    pub(crate) async fn count(&mut self, command: &str) -> u64 {
        self.calls().await.get(command).copied().unwrap_or(0)
    }
}

/// `cmdstat_evalsha:calls=2,usec=…`
fn call(line: &str) -> Option<(String, u64)> {
    let (command, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let calls = stats.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
    Some((command.to_owned(), calls))
}
