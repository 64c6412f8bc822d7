//! A primary, its replica and three sentinels.

use anyhow::Result;
use servers::{REDIS_SENTINEL, Running};

use crate::support::{
    ask, connect, hear, names, say, say_in_vain, stop_and_look_around, wait_until,
};

const PRIMARY: usize = 0;
const REPLICA: usize = 1;
const SENTINELS: [usize; 3] = [2, 3, 4];

pub(crate) fn parts() -> Result<()> {
    let mut all = REDIS_SENTINEL.start()?;
    let ports = all.ports().to_vec();
    let hosts = SENTINELS.map(|node| format!("127.0.0.1:{}", ports[node]));
    assert_eq!(all.url(), format!("redis+sentinel://{}/mymaster", hosts.join(",")));
    let expected = ["primary", "replica", "sentinel-1", "sentinel-2", "sentinel-3"];
    assert_eq!(names(&mut all), expected);
    assert!(role(&all, PRIMARY).contains("role:master"));
    assert!(role(&all, REPLICA).contains("master_link_status:up"));
    assert!(SENTINELS.iter().all(|sentinel| names_primary(&all, *sentinel, PRIMARY)));

    let mut client = connect(ports[PRIMARY])?;
    assert_eq!(say(&mut client, "SET colour blue")?, "+OK\r\n");
    assert_eq!(say(&mut client, "WAIT 1 0")?, ":1\r\n");
    assert_eq!(ask(ports[REPLICA], "GET colour")?, "$4\r\nblue\r\n");

    let mut reader = connect(ports[REPLICA])?;
    all.nodes()[REPLICA].freeze()?;
    say_in_vain(&mut reader, "PING")?;
    assert_eq!(say(&mut client, "SET colour red")?, "+OK\r\n");
    all.nodes()[REPLICA].thaw()?;
    assert_eq!(hear(&mut reader)?, "+PONG\r\n");

    for node in [REPLICA, SENTINELS[0]] {
        all.nodes()[node].kill()?;
        assert!(connect(ports[node]).is_err());
        assert_eq!(all.pids().len(), 4);
        all.nodes()[node].restart()?;
    }
    assert!(names_primary(&all, SENTINELS[0], PRIMARY), "it has kept what it knew");
    all.restart()?;
    assert_eq!(ask(ports[REPLICA], "GET colour")?, "$3\r\nred\r\n");

    stop_and_look_around(all)
}

pub(crate) fn failover() -> Result<()> {
    let mut all = REDIS_SENTINEL.start()?;
    all.nodes()[PRIMARY].kill()?;
    wait_until("all sentinels name the replica", || {
        SENTINELS.iter().all(|sentinel| names_primary(&all, *sentinel, REPLICA))
    });
    let replica = all.ports()[REPLICA];
    assert!(role(&all, REPLICA).contains("role:master"));
    assert_eq!(ask(replica, "SET colour blue")?, "+OK\r\n");

    all.restart()?;
    assert!(role(&all, PRIMARY).contains("role:slave"), "the old primary follows the new one");
    assert_eq!(ask(all.ports()[PRIMARY], "GET colour")?, "$4\r\nblue\r\n");

    all.kill()?;
    all.restart()?;
    assert!(role(&all, REPLICA).contains("role:master"), "a new role outlasts a restart");
    assert_eq!(ask(replica, "GET colour")?, "$-1\r\n", "nothing is kept on disk");
    stop_and_look_around(all)
}

pub(crate) fn power_cut() -> Result<()> {
    let mut all = REDIS_SENTINEL.start()?;
    all.kill()?;
    assert!(all.pids().is_empty());
    all.restart()?;
    assert!(role(&all, PRIMARY).contains("role:master"));
    assert!(SENTINELS.iter().all(|sentinel| names_primary(&all, *sentinel, PRIMARY)));
    stop_and_look_around(all)
}

fn role(all: &Running, node: usize) -> String {
    ask(all.ports()[node], "INFO replication").unwrap_or_default()
}

fn names_primary(all: &Running, sentinel: usize, node: usize) -> bool {
    let address = ask(all.ports()[sentinel], "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster");
    address.is_ok_and(|address| address.contains(&format!("\r\n{}\r\n", all.ports()[node])))
}
