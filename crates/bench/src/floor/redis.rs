//! The bare floors under the Redis store.
//!
//! All use the library's own client crate, one multiplexed RESP3 connection as the library has it,
//! and prepared keys. [`Scripts`] sends the library's two scripts with the library's arguments; what
//! the library adds (ids, clocks, sessions, the gate, futures) is the difference. [`Plain`] is the
//! lock that most programs write for themselves.

use crate::{
    flavour::Flavour,
    pair::{At, Boxed, Pair, Ready, open},
    source::keeper,
};
use anyhow::{Result, ensure};
use lockkeeper::store::SessionId;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ProtocolVersion, Script, aio::MultiplexedConnection,
};
use rslock::LockManager;
use std::time::Duration;

const COMMON: &str = include_str!("../../../lockkeeper/src/store/redis/common.lua");
const ENTER: &str = include_str!("../../../lockkeeper/src/store/redis/enter.lua");
const LEAVE: &str = include_str!("../../../lockkeeper/src/store/redis/leave.lua");
/// Deletes a key if it still has our value.
const COMPARE_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const PLAIN_CAPACITY: u32 = lockkeeper::store::PLAIN_CAPACITY;
/// On the server's clock, in microseconds: never.
const DEADLINE: i64 = 1 << 52;
/// The line by which the floor is compared with the library.
const SAME: &str = "same";
/// The longest line that the library allows.
const LINE_MAX: u32 = 100_000;
const PLAIN_TTL_MS: u32 = 15_000;
/// As in the library: the timer behind it is part of the price of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// How this program speaks with the server when it does not use the library.
pub(crate) fn client(url: &str) -> Result<Client> {
    let info = redis::IntoConnectionInfo::into_connection_info(url)?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(Client::open(info.set_redis_settings(settings))?)
}

pub(crate) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(REQUEST))
}

pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    Ok(client(url)?.get_multiplexed_async_connection_with_config(&config()).await?)
}

/// The text of a script as the library sends it.
fn script(own: &str) -> Script {
    let (first, rest) = own.split_once("-- common.lua\n").unwrap_or(("", own));
    let lines = [first, COMMON, rest].into_iter().flat_map(str::lines);
    let code: Vec<&str> = lines.filter(|line| !line.trim_start().starts_with("--")).collect();
    Script::new(&code.join("\n"))
}

/// The library's scripts, for a session that is open.
struct Scripts {
    wire: MultiplexedConnection,
    name: String,
    session: String,
    /// What stands before the name and the ticket in a request: the command, the hash, the keys.
    enter: Cmd,
    leave: Cmd,
    last: u128,
}

impl Scripts {
    fn over(wire: MultiplexedConnection, session: SessionId, name: &str) -> Self {
        let bucket = ["e", "s", "n", "o"].map(|kind| format!("lk:{{0}}:{kind}"));
        let line = ["z", "t"].map(|kind| format!("lk:{{0}}:{kind}:{name}"));
        let (closed, session) = ("lk:{0}:x", u128::from_be_bytes(session.to_bytes()));
        let mut enter = redis::cmd("EVALSHA");
        enter.arg(script(ENTER).get_hash()).arg(6).arg(&bucket).arg(&line).arg(name);
        let mut leave = redis::cmd("EVALSHA");
        leave.arg(script(LEAVE).get_hash()).arg(7).arg(&bucket).arg(&line).arg(closed).arg(name);
        Self {
            wire,
            name: name.to_owned(),
            session: format!("{session:032x}"),
            enter,
            leave,
            last: 0,
        }
    }

    fn enter(&self, ticket: &str) -> Cmd {
        let mut enter = self.enter.clone();
        enter.arg(ticket).arg(&self.session).arg(0).arg(PLAIN_CAPACITY).arg(PLAIN_CAPACITY).arg(1);
        enter.arg(DEADLINE).arg(LINE_MAX).arg("");
        enter
    }

    fn leave(&self, ticket: &str) -> Cmd {
        let mut leave = self.leave.clone();
        leave.arg(ticket).arg(&self.session).arg(0).arg(0);
        leave
    }
}

/// Fails if a pair of the floor does not send the server what a pair of the library sends.
pub(crate) fn ensure_same(url: &str) -> Result<()> {
    let mut monitor = client(url)?.get_connection()?;
    monitor.set_read_timeout(Some(REQUEST))?;
    redis::cmd("MONITOR").exec(&mut monitor)?;
    let url = url.to_owned();
    Flavour::CurrentThread.run(async move {
        let (keeper, wire) = (keeper(&url).await?, connect(&url).await?);
        let mut floor = Scripts::over(wire, open(keeper.store()).await?, SAME);
        keeper.lock(SAME).await?.release().await?;
        floor.pair().await?;
        keeper.close().await;
        Ok(())
    })?;
    let mut sent = Vec::new();
    while sent.len() < 4 {
        let line: String = redis::from_redis_value(monitor.recv_response()?)?;
        sent.extend(shape(&line));
    }
    let (library, floor) = sent.split_at(2);
    ensure!(library == floor, "the library sends {library:?}, the floor {floor:?}");
    Ok(())
}

/// A script's call for the line that is compared, as the monitor shows it, without what differs from
/// call to call: ids and moments.
fn shape(line: &str) -> Option<Vec<String>> {
    let (_, call) = line.split_once(" \"EVALSHA\" ")?;
    let words = call.split(' ').map(|word| match word.trim_matches('"') {
        id if id.len() == 32 => "(id)".to_owned(),
        moment if moment.len() == 16 && moment.parse::<u64>().is_ok() => "(moment)".to_owned(),
        word => word.to_owned(),
    });
    let words: Vec<String> = words.collect();
    words.iter().any(|word| word == SAME).then_some(words)
}

impl Pair for Scripts {
    async fn pair(&mut self) -> Result<()> {
        self.last += 1;
        let ticket = format!("{:032x}", self.last);
        let entered: (String, u64) = self.enter(&ticket).query_async(&mut self.wire).await?;
        ensure!(entered.0 == "granted", "{} is {}", self.name, entered.0);
        let left: String = self.leave(&ticket).query_async(&mut self.wire).await?;
        ensure!(left == "released", "{} is {left}", self.name);
        Ok(())
    }
}

/// One key with an expiry: `SET NX PX`, and a delete if it is still ours.
struct Plain {
    wire: MultiplexedConnection,
    key: String,
    delete: Script,
    last: u128,
}

impl Plain {
    /// The server must know the script already: see [`Plain::load`].
    fn over(wire: MultiplexedConnection, name: &str) -> Self {
        let (key, delete) = (format!("plain:{name}"), Script::new(COMPARE_DELETE));
        Self { wire, key, delete, last: 0 }
    }

    async fn load(wire: &mut MultiplexedConnection) -> Result<()> {
        Script::new(COMPARE_DELETE).load_async(wire).await?;
        Ok(())
    }
}

impl Pair for Plain {
    async fn pair(&mut self) -> Result<()> {
        self.last += 1;
        let value = format!("{:032x}", self.last);
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&value).arg("NX").arg("PX").arg(PLAIN_TTL_MS);
        let taken: Option<String> = set.query_async(&mut self.wire).await?;
        ensure!(taken.is_some(), "{} is taken", self.key);
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(self.delete.get_hash()).arg(1).arg(&self.key).arg(&value);
        let deleted: u32 = delete.query_async(&mut self.wire).await?;
        ensure!(deleted == 1, "{} is gone", self.key);
        Ok(())
    }
}

struct Peer {
    manager: LockManager,
    name: String,
}

impl Pair for Peer {
    async fn pair(&mut self) -> Result<()> {
        let lock = self.manager.acquire(self.name.as_str(), lockkeeper::TTL_DEFAULT).await?;
        lock.release().await;
        Ok(())
    }
}

pub(crate) fn scripts(at: At) -> Boxed<Ready> {
    Box::pin(async move {
        let (keeper, wire) = (keeper(&at.url).await?, connect(&at.url).await?);
        let session = open(keeper.store()).await?;
        let pairs = at.pairs(|name| Scripts::over(wire.clone(), session, name.as_str()))?;
        Ok(Ready { pairs, keeper: Some(keeper) })
    })
}

pub(crate) fn plain(at: At) -> Boxed<Ready> {
    Box::pin(async move {
        let mut wire = connect(&at.url).await?;
        Plain::load(&mut wire).await?;
        let pairs = at.pairs(|name| Plain::over(wire.clone(), name.as_str()))?;
        Ok(Ready { pairs, keeper: None })
    })
}

pub(crate) fn peer(at: At) -> Boxed<Ready> {
    Box::pin(async move {
        let manager = LockManager::new(vec![at.url.as_str()]);
        let pairs = at.pairs(|name| Peer { manager: manager.clone(), name: name.to_string() })?;
        Ok(Ready { pairs, keeper: None })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_differ_by_more_than_ids_and_moments() {
        let call = |id: &str, weight| {
            format!(r#"1.5 [0 127.0.0.1:1] "EVALSHA" "ab" "1" "same" "{id}" "{weight}""#)
        };
        let (one, two) = ("0".repeat(32), "1".repeat(32));
        assert_eq!(shape(&call(&one, 1)), shape(&call(&two, 1)));
        assert_ne!(shape(&call(&one, 1)), shape(&call(&one, 2)));
        assert_eq!(shape(r#"1.5 [0 lua] "HGET" "same" "a""#), None);
    }
}
