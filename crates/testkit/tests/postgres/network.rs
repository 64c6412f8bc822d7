//! What becomes of locks when the way to the server is bad: connections that hang, hosts that are
//! silent, answers that are lost. The way shows as a port of its own, so it has to be said that it is
//! no pooler.

use crate::support::{GERMAN, STANDBY, TTL, User, keeper};
use lockkeeper::{Error, Keeper, Outcome, Renew};
use servers::{FaultProxy, POSTGRES, Running};
use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    time::Duration,
};
use testkit::world::{eventually, soon};

testkit::tests! {
    [POSTGRES] =>
        connections_that_hang_are_left,
        a_connection_that_hangs_under_a_renewal_costs_no_session,
        what_may_have_been_done_is_never_called_undone,
        a_host_that_is_silent_hides_no_other,
        callers_do_not_queue_for_a_server_that_is_silent,
        a_dropped_keeper_leaves_no_connection,
        blocked_lines_behind_a_pooler_end_no_session,
        a_connection_that_only_reads_from_now_on_is_left,
        an_emptied_database_is_made_anew;
    [(POSTGRES, STANDBY)] =>
        the_host_that_can_write_is_found,
        a_client_of_a_replica_is_served_again_by_the_primary;
    [GERMAN] =>
        a_refusal_in_another_language_is_no_broken_connection;
    [()] =>
        a_first_connection_that_fails_for_the_moment_is_told_so;
}

const SHORT: Duration = Duration::from_secs(1);

fn url(server: &Running, port: u16) -> String {
    let there = server.url().replace(&server.ports()[0].to_string(), &port.to_string());
    format!("{there}?pooler=false")
}

/// The renewals' connection is cut off like the others and carries nothing but renewals that are each
/// given up soon: it must be left all the same.
async fn connections_that_hang_are_left(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let keeper = Keeper::builder().ttl(SHORT).connect(&url(&server, proxy.port())).await;
    let keeper = keeper.expect("the server answers");
    let _before = keeper.lock("a").await.expect("free");
    let user = User::of(&server).await;
    let renewed = "SELECT count(*) FROM pg_stat_activity \
                   WHERE query LIKE '%lk_renew($1%' AND pid <> pg_backend_pid()";
    eventually("a renewal", async || user.number(renewed).await == 1).await;
    proxy.silence();
    eventually("a lock that lasts", async || {
        let Ok(guard) = keeper.lock("b").wait(TTL * 5).await else { return false };
        tokio::time::timeout(SHORT * 3, guard.lost()).await.is_err()
    })
    .await;
}

/// One renewal without an answer is enough to leave its connection: with a short TTL there is time for
/// two or three.
async fn a_connection_that_hangs_under_a_renewal_costs_no_session(server: Running) {
    let (proxy, user) =
        (FaultProxy::to(server.ports()[0]).expect("a proxy"), User::of(&server).await);
    let renew = Renew {
        interval: Some(SHORT),
        attempt_timeout: Some(SHORT * 3 / 10),
        retry_pause: Some(SHORT * 6 / 10),
    };
    let keeper = Keeper::builder().ttl(SHORT * 3).renew(renew);
    let keeper = keeper.connect(&url(&server, proxy.port())).await.expect("the server answers");
    let held = keeper.lock("a").await.expect("free");
    let ends = "SELECT lockkeeper.lk_micros(expires) FROM lockkeeper.lk_session";
    let renewed = async |before| {
        let what = "a renewal";
        eventually(what, async || !held.is_held() || user.number(ends).await > before).await;
    };
    renewed(user.number(ends).await).await;
    proxy.silence();
    renewed(user.number(ends).await).await;
    assert!(held.is_held(), "{:?}", held.health());
}

/// The answer to an enter is lost, and then the server cannot be reached: the client cannot know what was done.
async fn what_may_have_been_done_is_never_called_undone(server: Running) {
    let user = User::of(&server).await;
    let proxy = FaultProxy::to(server.ports()[0]).expect("a port");
    let url = url(&server, proxy.port());
    let keeper = Keeper::builder().ttl(Duration::from_secs(60)).connect(&url).await;
    let keeper = keeper.expect("the server answers");
    // Until every statement is prepared: to prepare one is a question of its own, whose answer would be held.
    for _ in 0..5 {
        keeper.lock("a").await.expect("free").release().await.expect("released");
    }
    proxy.hold_answers();
    let enter = tokio::spawn(async move { (keeper.lock("a").try_now().await, keeper) });
    eventually("the ticket", async || user.tickets().await == 1).await;
    drop(proxy);
    let (refused, _keeper) = soon("an error", enter).await.expect("no panic");
    match refused {
        Err(Error::Store(e)) => assert_eq!(e.outcome, Outcome::Unknown, "{e}"),
        other => panic!("no error of the store: {other:?}"),
    }
}

async fn a_host_that_is_silent_hides_no_other(server: Running) {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let here = format!("127.0.0.1:{}", server.ports()[0]);
    let both = format!("{},{here}", silent.local_addr().expect("an address"));
    let keeper = Keeper::connect(&server.url().replace(&here, &both)).await;
    let keeper = keeper.expect("the second host answers");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}

async fn the_host_that_can_write_is_found((server, standby): (Running, Running)) {
    let [here, there] = [&server, &standby].map(|s| format!("127.0.0.1:{}", s.ports()[0]));
    let both = server.url().replace(&here, &format!("{there},{here}"));
    let keeper = Keeper::connect(&both).await.expect("one of them can write");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    assert_eq!(User::of(&server).await.number("SELECT count(*) FROM lockkeeper.lk_line").await, 1);
    keeper.close().await;
    let e = Keeper::connect(standby.url()).await.expect_err("a replica alone").to_string();
    assert!(e.contains("replica"), "{e}");
}

/// What fails for one fails for all who have waited for it.
async fn callers_do_not_queue_for_a_server_that_is_silent(server: Running) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a port");
    let url = url(&server, proxy.port());
    let keeper = Keeper::builder().ttl(Duration::from_secs(600)).connect(&url).await;
    let keeper = keeper.expect("the server answers");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    proxy.close();
    proxy.sever();
    let asking: Vec<_> = (0..40)
        .map(|at| {
            let keeper = keeper.clone();
            tokio::spawn(async move { keeper.lock(format!("{at}")).try_now().await.map(drop) })
        })
        .collect();
    for asked in asking {
        soon("an answer", asked).await.expect("no panic").expect_err("no server is there");
    }
}

async fn a_dropped_keeper_leaves_no_connection(server: Running) {
    let user = User::of(&server).await;
    for _ in 0..3 {
        let keeper = keeper(&server).await;
        keeper.lock("a").await.expect("free").release().await.expect("released");
        keeper.close().await;
    }
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    eventually("all are gone", async || user.number(sql).await == 0).await;
}

/// One request follows the other there, and each waits for a row: a renewal must not stand behind them.
async fn blocked_lines_behind_a_pooler_end_no_session(server: Running) {
    let url = format!("{}?pooler=true", server.url());
    let keeper = Keeper::builder().ttl(SHORT).connect(&url).await.expect("the server answers");
    let user = User::of(&server).await;
    let names: Vec<_> = (0..16).map(|at| format!("a{at}")).collect();
    for name in &names {
        keeper.lock(name).await.expect("free").release().await.expect("released");
    }
    let held = keeper.lock("b").await.expect("free");
    user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name LIKE 'a%' FOR UPDATE").await;
    let waiters: Vec<_> = names
        .iter()
        .map(|name| tokio::spawn(keeper.lock(name).wait(TTL * 20).into_future()))
        .collect();
    let lost = tokio::time::timeout(SHORT * 6, held.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    user.run("COMMIT").await;
    for waiter in waiters {
        drop(soon("the waiter's turn", waiter).await.expect("no panic").expect("granted"));
    }
}

/// While a failover goes on, new connections may come to a server that only reads. Such a one is left, and
/// looked for anew until the name leads to the new primary.
async fn a_client_of_a_replica_is_served_again_by_the_primary(
    (server, standby): (Running, Running),
) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let keeper = Keeper::builder().ttl(Duration::from_secs(60));
    let keeper = keeper.connect(&url(&server, proxy.port())).await.expect("the server answers");
    let held = keeper.lock("held").await.expect("free");
    proxy.lead_to(standby.ports()[0]);
    proxy.sever();
    let e = keeper.lock("a").try_now().await.expect_err("it only reads").to_string();
    assert!(e.contains("replica"), "{e}");
    proxy.lead_to(server.ports()[0]);
    let next = soon("a lock", keeper.lock("a").into_future()).await.expect("granted");
    next.release().await.expect("released");
    held.extend(TTL).await.expect("renewals have found back, too");
    held.release().await.expect("released");
}

/// A primary that became a replica keeps its connections: the first refusal is reason enough to leave it.
/// Here a setting makes it so, from which new connections are free.
async fn a_connection_that_only_reads_from_now_on_is_left(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("held").await.expect("free");
    let all = "SELECT coalesce(sum(pid), 0)::bigint FROM pg_stat_activity \
               WHERE application_name = 'lockkeeper'";
    eventually("a renewal", async || held.extend(SHORT).await.is_ok()).await;
    user.run("ALTER ROLE postgres SET default_transaction_read_only = off").await;
    user.run("ALTER SYSTEM SET default_transaction_read_only = on").await;
    let before = user.number(all).await;
    user.number("SELECT pg_reload_conf()::int::bigint").await;
    eventually("other connections", async || {
        let guard = keeper.lock("a").await.expect("the user need not know");
        guard.release().await.expect("released");
        user.number(all).await != before
    })
    .await;
    soon("both can write", async {
        while held.extend(SHORT).await.is_err() {
            assert!(held.is_held(), "{:?}", held.health());
        }
    })
    .await;
}

/// Another database behind the same URL: what was locked is lost, and locking goes on.
async fn an_emptied_database_is_made_anew(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let held = keeper.lock("a").await.expect("free");
    let before = held.sequencer();
    user.run("DROP SCHEMA lockkeeper CASCADE").await;
    soon("the loss", held.lost()).await;
    let again = soon("a lock", keeper.lock("a").into_future()).await.expect("free");
    assert!(again.fence() > held.fence());
    assert!(keeper.check(&again.sequencer()).await.expect("an answer"));
    assert!(!keeper.check(&before).await.expect("an answer"));
    let check = format!("SELECT lockkeeper.lk_fence_check('{}')", again.sequencer());
    user.run(&check).await;
    keeper.close().await;
}

/// Errors are known by their codes and by a field of its own that says how bad they are, in whatever language
/// the server speaks: one that it only refuses with costs no client its connection.
async fn a_refusal_in_another_language_is_no_broken_connection(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    let e = user.batch_execute("SELECT 1/0").await.expect_err("refused");
    let severity = e.as_db_error().map_or("", |e| e.severity());
    if severity == "ERROR" {
        return eprintln!("ignored: the server's translations are not installed");
    }
    assert_eq!(severity, "FEHLER");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let all = "SELECT coalesce(sum(pid), 0)::bigint FROM pg_stat_activity \
               WHERE application_name = 'lockkeeper'";
    let before = user.number(all).await;
    user.run("BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE").await;
    assert!(keeper.lock("a").unfair().try_now().await.expect("an answer").is_none());
    user.run("COMMIT").await;
    assert_eq!(user.number(all).await, before);
}

/// What a server says that is starting up, shutting down or out of connections.
fn refusing(code: &'static str) -> u16 {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for client in server.incoming() {
            let Ok(mut client) = client else { return };
            let fields = format!("SFATAL\0VFATAL\0C{code}\0Mnot now\0\0");
            let length = u32::try_from(fields.len() + 4).expect("it is short").to_be_bytes();
            let mut hello = [0; 1024];
            let _ = client.read(&mut hello);
            let _ = client.write_all(&[b"E", &length[..], fields.as_bytes()].concat());
        }
    });
    port
}

/// So that a caller with patience can come again: nothing was done, and trying again can help.
async fn a_first_connection_that_fails_for_the_moment_is_told_so(_: ()) {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closed_port = closed.local_addr().expect("an address").port();
    drop(closed);
    let codes = ["57P03", "57P01", "53300", "08006"];
    let ports = codes.map(refusing);
    for port in ports.into_iter().chain([closed_port]) {
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        match Keeper::connect(&url).await {
            Err(Error::Store(e)) => {
                assert!(e.is_transient(), "{e}");
                assert_eq!(e.outcome, Outcome::NotApplied, "{e}");
            }
            other => panic!("{other:?}"),
        }
    }
}
