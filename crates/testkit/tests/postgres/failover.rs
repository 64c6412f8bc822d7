//! A primary that is lost to an asynchronous replica while a pooler keeps every socket open.

use crate::support::User;
use lockkeeper::{Guard, Keeper, Loss, Renew};
use servers::{PGBOUNCER, POSTGRES, Recipe, Running, Sandbox};
use std::{fs, process::Command, time::Duration};
use testkit::world::{eventually, soon};

testkit::tests! {
    [FOLLOWED] =>
        a_failover_behind_a_pooler_is_noticed_though_no_socket_breaks;
}

/// pgbouncer before a primary that a replica follows asynchronously.
const FOLLOWED: Recipe = Recipe {
    ports: 3,
    processes: |sandbox| {
        let ports = sandbox.ports[..2].to_vec();
        let mut processes = (PGBOUNCER.processes)(&Sandbox { ports, ..sandbox.clone() })?;
        let folder = sandbox.folder.join("replica");
        fs::create_dir(&folder)?;
        let own = Sandbox { folder, ports: vec![sandbox.ports[2]], ..sandbox.clone() };
        let mut replica = (POSTGRES.processes)(&own)?.remove(0);
        replica.name = "replica".into();
        replica.program = "sh";
        let [primary, port] = [sandbox.ports[1], sandbox.ports[2]];
        let script = format!(
            "cd replica; PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1); \
             until rm -rf data; pg_basebackup -h 127.0.0.1 -p {primary} -U postgres -D data -R \
             -c fast -N; do sleep 0.1; done; \
             exec postgres -D data -c port={port} -c listen_addresses=127.0.0.1 \
             -c unix_socket_directories= -c max_connections=400"
        );
        replica.args = vec!["-c".into(), script.into()];
        processes.push(replica);
        Ok(processes)
    },
    ..PGBOUNCER
};

/// Lets pgbouncer lead to another server. No client's connection breaks.
fn lead_to(server: &mut Running, port: u16) {
    let file = server.folder().join("pgbouncer.ini");
    let text = fs::read_to_string(&file).expect("the file is there");
    let before = format!("port={} ", server.ports()[1]);
    assert!(text.contains(&before), "{text}");
    fs::write(&file, text.replace(&before, &format!("port={port} "))).expect("written");
    let pid = server.nodes()[0].pid().expect("pgbouncer runs");
    let told = Command::new("kill").args(["-HUP", &pid.to_string()]).status();
    assert!(told.expect("a program that every machine has").success());
}

async fn take(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).try_now().await.expect("an answer").expect("free")
}

/// The holder hears of the loss of a grant that the replica has missed, and a release that it has missed
/// is done again: nothing but the answers to renewals tells of the new server.
async fn a_failover_behind_a_pooler_is_noticed_though_no_socket_breaks(mut server: Running) {
    let renew = Renew { interval: Some(Duration::from_millis(500)), ..Renew::default() };
    let keeper = Keeper::builder().ttl(Duration::from_secs(60)).renew(renew);
    let keeper = keeper.connect(server.url()).await.expect("the server answers");
    let kept = take(&keeper, "kept").await;
    let left = take(&keeper, "left").await;
    let [before, after] = [server.ports()[0], server.ports()[2]].map(|port| format!(":{port}/"));
    let replica = User::to(&server.url().replace(&before, &after)).await;
    let made = "SELECT (to_regclass('lockkeeper.lk_standing') IS NOT NULL)::int::bigint";
    eventually("the replica has the schema", async || replica.number(made).await == 1).await;
    let has_all = "SELECT count(*) FROM lockkeeper.lk_standing";
    eventually("the replica has both", async || replica.number(has_all).await == 2).await;
    replica.run("ALTER SYSTEM SET primary_conninfo = ''").await;
    replica.run("SELECT pg_reload_conf()").await;
    let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
    eventually("it is cut off", async || replica.number(receivers).await == 0).await;
    let missed = take(&keeper, "missed").await;
    left.release().await.expect("released");
    kept.extend(Duration::from_secs(5)).await.expect("renewed at the primary");
    assert_eq!(replica.number(has_all).await, 2);
    replica.run("SELECT pg_promote()").await;
    let port = server.ports()[2];
    lead_to(&mut server, port);
    assert_eq!(soon("the loss", missed.lost()).await, Loss::Evicted);
    assert!(!missed.is_held() && kept.is_held());
    let other = Keeper::connect(server.url()).await.expect("the server answers");
    let next = soon("a second keeper's turn", other.lock("missed").into_future());
    drop(next.await.expect("granted"));
    let next = soon("what was left comes free again", other.lock("left").into_future());
    drop(next.await.expect("granted"));
    assert!(keeper.check(&kept.sequencer()).await.expect("an answer"));
    kept.release().await.expect("released");
    other.close().await;
    keeper.close().await;
}
