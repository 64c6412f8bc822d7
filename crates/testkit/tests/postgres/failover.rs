//! A primary that is lost to an asynchronous replica while a pooler keeps every socket open.

use crate::support::User;
use lockkeeper::{Guard, Keeper, Loss, Renew};
use servers::{FaultProxy, PGBOUNCER, POSTGRES, Recipe, Running, Sandbox};
use std::{fs, process::Command, time::Duration};
use testkit::world::{eventually, soon};

testkit::tests! {
    [FOLLOWED] =>
        a_failover_behind_a_pooler_is_noticed_though_no_socket_breaks,
        a_comparison_is_answered_by_the_server_that_renews;
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

/// A keeper whose sessions live long and are renewed often.
async fn renewing_often(url: &str) -> Keeper {
    let renew = Renew { interval: Some(Duration::from_millis(500)), ..Renew::default() };
    let keeper = Keeper::builder().ttl(Duration::from_secs(60)).renew(renew);
    keeper.connect(url).await.expect("the server answers")
}

/// The replica, when it has so many tickets; from then on the primary sends it nothing more.
async fn cut_off_replica(server: &Running, tickets: i64) -> User {
    let [before, after] = [server.ports()[0], server.ports()[2]].map(|port| format!(":{port}/"));
    let replica = User::to(&server.url().replace(&before, &after)).await;
    let made = "SELECT (to_regclass('lockkeeper.lk_standing') IS NOT NULL)::int::bigint";
    eventually("the replica has the schema", async || replica.number(made).await == 1).await;
    eventually("the replica has them", async || replica.tickets().await == tickets).await;
    replica.run("ALTER SYSTEM SET primary_conninfo = ''").await;
    replica.run("SELECT pg_reload_conf()").await;
    let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
    eventually("it is cut off", async || replica.number(receivers).await == 0).await;
    replica
}

async fn take(keeper: &Keeper, name: &str) -> Guard {
    keeper.lock(name).try_now().await.expect("an answer").expect("free")
}

/// The holder hears of the loss of a grant that the replica has missed, and a release that it has missed
/// is done again: nothing but the answers to renewals tells of the new server.
async fn a_failover_behind_a_pooler_is_noticed_though_no_socket_breaks(mut server: Running) {
    let keeper = renewing_often(server.url()).await;
    let kept = take(&keeper, "kept").await;
    let left = take(&keeper, "left").await;
    let replica = cut_off_replica(&server, 2).await;
    let missed = take(&keeper, "missed").await;
    left.release().await.expect("released");
    kept.extend(Duration::from_secs(5)).await.expect("renewed at the primary");
    assert_eq!(replica.tickets().await, 2);
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

/// A proxy leads new connections to the promoted replica and keeps those that there are at the old primary, which
/// lives on. Then the connection for renewals breaks, and it alone: what the old primary says of the tickets must
/// not count.
async fn a_comparison_is_answered_by_the_server_that_renews(server: Running) {
    let [pooler, old, new] = server.ports().try_into().expect("three ports");
    let proxy = FaultProxy::to(old).expect("a free port");
    let url = server.url().replace(&format!(":{pooler}/"), &format!(":{}/", proxy.port()));
    let keeper = renewing_often(&format!("{url}?pooler=false")).await;
    let kept = take(&keeper, "kept").await;
    let replica = cut_off_replica(&server, 1).await;
    let missed = take(&keeper, "missed").await;
    replica.run("SELECT pg_promote()").await;
    proxy.lead_to(new);
    let primary =
        User::to(&server.url().replace(&format!(":{pooler}/"), &format!(":{old}/"))).await;
    let broken = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%lk_renew%' \
                  AND pid <> pg_backend_pid()";
    eventually("no connection for renewals is left there", async || {
        primary.number(broken).await == 0
    })
    .await;
    assert_eq!(soon("the loss", missed.lost()).await, Loss::Evicted);
    assert!(kept.is_held());
    let other = Keeper::connect(&format!("{url}?pooler=false")).await.expect("the server answers");
    drop(
        soon("a second keeper's turn", other.lock("missed").into_future()).await.expect("granted"),
    );
    let later = take(&keeper, "later").await;
    assert!(other.check(&later.sequencer()).await.expect("an answer"), "taken at the new primary");
    later.release().await.expect("released");
    assert!(other.check(&kept.sequencer()).await.expect("an answer"));
    kept.release().await.expect("released");
    other.close().await;
    keeper.close().await;
}
