//! Connections that fall silent, are cut while idle, or end at a server that is not the
//! right one any more.

use crate::support::{TTL, client, cut_all, keeper, number, standing, status};
use lockkeeper::{Guard, Keeper, Loss, TicketId};
use mysql_async::prelude::Queryable;
use servers::{FaultProxy, MARIADB, MYSQL, Running};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use testkit::{
    live::until_length,
    raw_session::RawSession,
    world::{eventually, soon},
};

testkit::tests! {
    [(MYSQL, MYSQL), (MARIADB, MARIADB)] =>
        a_server_that_takes_no_more_writes_is_left_for_the_one_behind_its_name;
    crate::SERVERS =>
        a_ticket_that_was_lost_behind_a_silent_connection_is_missed,
        a_silent_connection_costs_no_short_session_its_life,
        what_meets_a_connection_that_was_cut_while_idle_does_not_fail,
        a_late_copy_of_a_try_that_was_told_busy_is_granted_nothing,
        a_contender_goes_on_after_a_try_that_was_closed,
        waiters_do_not_notice_an_orderly_restart,
        an_enter_whose_answer_fails_leaves_no_orphan,
        a_ticket_that_leaves_during_a_poll_is_not_looked_for,
        fifty_sessions_that_wait_are_one_query,
        a_short_session_does_not_wait_for_what_is_swept,
        an_emptied_database_is_made_anew,
        a_later_client_makes_no_table_anew;
}

/// The server's URL through this proxy, for this user.
fn url_by(proxy: &FaultProxy, user: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{}/lockkeeper", proxy.port())
}

async fn through_a_proxy(server: &Running, ttl: Duration) -> (FaultProxy, Keeper) {
    let proxy = FaultProxy::to(server.ports()[0]).expect("a proxy");
    let url = url_by(&proxy, "root");
    (proxy, Keeper::builder().ttl(ttl).connect(&url).await.expect("the server answers"))
}

/// A user who may not write to a server that is read-only.
async fn plain_user(server: &Running) {
    let mut root = client(server).await;
    for host in ["%", "localhost"] {
        let user = format!("plain@'{host}' IDENTIFIED BY 'secret'");
        root.query_drop(format!("CREATE USER {user}")).await.expect("made");
        let grant = format!("GRANT ALL ON lockkeeper.* TO plain@'{host}'");
        root.query_drop(grant).await.expect("granted");
    }
}

/// A planned failover: the old primary lives on and takes no writes, its name leads to another.
async fn a_server_that_takes_no_more_writes_is_left_for_the_one_behind_its_name(
    (old, new): (Running, Running),
) {
    for server in [&old, &new] {
        plain_user(server).await;
    }
    let proxy = FaultProxy::to(old.ports()[0]).expect("a proxy");
    let keeper = Keeper::builder().ttl(TTL).connect(&url_by(&proxy, "plain:secret")).await;
    let keeper = keeper.expect("connected");
    let held = keeper.lock("a").await.expect("free");
    client(&old).await.query_drop("SET GLOBAL read_only = 1").await.expect("done");
    proxy.lead_to(new.ports()[0]);
    // The new server has never heard of the session.
    assert!(matches!(soon("the loss", held.lost()).await, Loss::SessionGone | Loss::Expired));
    let again = soon("a lock of the new server", keeper.lock("a").into_future()).await;
    let again = again.expect("free");
    assert!(again.fence() > held.fence());
    assert_eq!(number(&mut client(&new).await, "SELECT COUNT(*) FROM lk_session").await, 1);
    keeper.close().await;
}

/// What a failover to a replica without the latest data does: the session is there, the ticket is not.
async fn a_ticket_that_was_lost_behind_a_silent_connection_is_missed(server: Running) {
    let (proxy, keeper) = through_a_proxy(&server, TTL).await;
    let (gone, kept) = (keeper.lock("a").await.expect("free"), keeper.lock("b").await.expect("b"));
    // The connections are checked once, so that only the silence can make them be checked again.
    until_renewed(&gone).await;
    proxy.silence();
    let mut other = client(&server).await;
    other.query_drop("UPDATE lk_gate SET fence = 0 WHERE name = 'a'").await.expect("lost");
    assert_eq!(soon("the loss", gone.lost()).await, Loss::Evicted);
    assert!(kept.is_held());
    keeper.close().await;
}

/// Others that use the same connection have more patience with it than a short session has.
async fn a_silent_connection_costs_no_short_session_its_life(server: Running) {
    let (proxy, keeper) = through_a_proxy(&server, Duration::from_secs(3)).await;
    let held = keeper.lock("a").await.expect("free");
    let slow = keeper.lock("b").lease(Duration::from_secs(40)).await.expect("free");
    let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut openers = tokio::task::JoinSet::new();
    for opener in 0..4 {
        let (keeper, stop, opened) = (keeper.clone(), Arc::clone(&stop), Arc::clone(&opened));
        openers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let lock = keeper.lock(format!("c{opener}")).lease(Duration::from_secs(30));
                drop(lock.await.expect("free"));
                opened.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for _ in 0..3 {
        let before = opened.load(Ordering::Relaxed);
        eventually("locks", async || opened.load(Ordering::Relaxed) > before + 4).await;
        proxy.silence();
        eventually("renewals", async || held.extend(TTL / 2).await.is_ok()).await;
        assert!(held.is_held() && slow.is_held());
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(opener) = soon("the end", openers.join_next()).await {
        opener.expect("no panic");
    }
    assert!(keeper.check(&held.sequencer()).await.expect("an answer"));
    keeper.close().await;
}

async fn what_meets_a_connection_that_was_cut_while_idle_does_not_fail(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").await.expect("free");
    let other = two.lock("b").await.expect("free");
    let sequencer = held.sequencer();
    for round in 0..2 {
        cut_all(&server).await;
        assert!(one.lock("a").try_now().await.expect("an answer").is_none());
        cut_all(&server).await;
        drop(one.lock(format!("c{round}")).try_now().await.expect("an answer").expect("free"));
        cut_all(&server).await;
        assert!(one.check(&sequencer).await.expect("an answer"));
        cut_all(&server).await;
        assert!(one.get("a").await.expect("an answer").is_some());
        cut_all(&server).await;
        held.write(b"value".to_vec()).await.expect("written");
        cut_all(&server).await;
        assert!(one.read("a").await.expect("an answer").is_some());
        cut_all(&server).await;
        let leased = one.lock(format!("d{round}")).lease(TTL).try_now().await;
        leased.expect("an answer").expect("free").release().await.expect("released");
    }
    cut_all(&server).await;
    assert!(one.evict("b", other.ticket()).await.expect("an answer"));
    cut_all(&server).await;
    held.release().await.expect("released");
}

/// A try whose first copy got no answer is closed, lest that copy be granted the lock when it comes at last.
async fn a_late_copy_of_a_try_that_was_told_busy_is_granted_nothing(server: Running) {
    let (one, two) = (live_for_long(&server).await, live_for_long(&server).await);
    let held = one.lock("a").await.expect("free");
    two.lock("b").await.expect("free").release().await.expect("released");
    cut_all(&server).await;
    assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    held.release().await.expect("released");
    let mut late = client(&server).await;
    let copy = "UPDATE lk_gate g JOIN lk_closed c SET g.last = g.last + 1, g.fence = g.last, \
         g.id = c.ticket, g.session = c.session WHERE g.name = 'a' AND g.fence = 0 AND g.crowd = 0";
    late.query_drop(copy).await.expect("an answer");
    assert_eq!(number(&mut late, "SELECT COUNT(*) FROM lk_closed").await, 1);
    assert_eq!(standing(&mut late).await, 0);
    // And it can be had as ever.
    drop(soon("the lock", two.lock("a").unfair().into_future()).await.expect("free"));
    one.close().await;
    two.close().await;
}

/// One who goes on trying comes with another ticket.
async fn a_contender_goes_on_after_a_try_that_was_closed(server: Running) {
    let (one, two) = (live_for_long(&server).await, live_for_long(&server).await);
    let held = one.lock("a").await.expect("free");
    two.lock("b").await.expect("free").release().await.expect("released");
    cut_all(&server).await;
    let next = tokio::spawn(two.lock("a").unfair().into_future());
    let mut witness = client(&server).await;
    let closed = "SELECT COUNT(*) FROM lk_closed";
    eventually("a try is closed", async || number(&mut witness, closed).await == 1).await;
    held.release().await.expect("released");
    drop(soon("its turn", next).await.expect("no panic").expect("granted"));
    one.close().await;
    two.close().await;
}

/// A shutdown in good order tells every client, those too that are just connecting.
async fn waiters_do_not_notice_an_orderly_restart(mut server: Running) {
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let keeper = live_for_long(&server).await;
        let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        workers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = keeper.lock(format!("name {}", worker % 3)).await.expect("a lock");
                guard.release().await.expect("released");
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            keeper.close().await;
        });
    }
    for _ in 0..2 {
        let before = rounds.load(Ordering::Relaxed);
        eventually("locks", async || rounds.load(Ordering::Relaxed) > before + 50).await;
        server.stop().expect("stopped");
        server.restart().expect("restarted");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(worker) = soon("the end of a worker", workers.join_next()).await {
        worker.expect("no error was seen");
    }
    assert_eq!(standing(&mut client(&server).await).await, 0);
}

/// So that a restart on a busy machine ends no session.
async fn live_for_long(server: &Running) -> Keeper {
    testkit::live::keeper(server, Duration::from_secs(60)).await
}

/// Waits until a renewal has been answered: what remains grows from one glance to the next. A renewal need not give
/// more than an earlier one has given.
async fn until_renewed(guard: &Guard) {
    let mut last = guard.remaining();
    eventually("a renewal", async || {
        let now = guard.remaining();
        now > std::mem::replace(&mut last, now)
    })
    .await;
}

/// The server can fail after it has committed, while it puts the answer together.
async fn an_enter_whose_answer_fails_leaves_no_orphan(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let held = one.lock("a").await.expect("free");
    let other = two.lock("b").await.expect("free");
    // The first renewal checks all tickets; none after it does so without a reason.
    for _ in 0..2 {
        until_renewed(&other).await;
    }
    let mut root = client(&server).await;
    let made: Option<mysql_async::Row> =
        root.query_first("SHOW CREATE PROCEDURE lk_answer_wait").await.expect("an answer");
    let made: String = made.and_then(|mut row| row.take("Create Procedure")).expect("its text");
    let (head, _) = made.split_once("BEGIN").expect("its body");
    let broken = format!("{head} SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no answer'");
    for (text, works) in [(broken, false), (made, true)] {
        root.query_drop("DROP PROCEDURE lk_answer_wait").await.expect("dropped");
        root.query_drop(text).await.expect("made");
        let waiting = two.lock("a").wait(Duration::from_millis(100)).into_future();
        let e = soon("an answer", waiting).await.expect_err("it is held");
        assert_eq!(e.is_not_acquired(), works, "{e}");
    }
    until_length(&one, "a", 1).await;
    assert!(other.is_held());
    held.release().await.expect("released");
    one.close().await;
    two.close().await;
}

/// A ticket that has left must not be looked for, or the server is asked for ever.
async fn a_ticket_that_leaves_during_a_poll_is_not_looked_for(server: Running) {
    let (proxy, keeper) = through_a_proxy(&server, Duration::from_secs(600)).await;
    let store = keeper.store().clone();
    let (one, two) = (RawSession::open(&store).await, RawSession::open(&store).await);
    let _held = one.queue("a").await;
    let (ticket, _) = two.queue("a").await;
    // Two connections that know both statements: neither needs an answer before it can ask.
    let stranger = TicketId::random();
    tokio::join!(two.stand("a", ticket), two.stand("a", ticket));
    tokio::join!(two.leave("a", stranger), two.leave("a", stranger));
    let hints = tokio::spawn({
        let (store, session) = (store.clone(), two.session);
        async move { lockkeeper::Store::hints(&store, session, Arc::new(Deaf)).await }
    });
    let mut witness = client(&server).await;
    let looks = status(&mut witness, "Com_stmt_execute").await + 3;
    eventually("looks", async || status(&mut witness, "Com_stmt_execute").await > looks).await;
    proxy.hold_answers();
    let before = status(&mut witness, "Com_call_procedure").await;
    let poll = tokio::spawn({
        let two = two.clone();
        async move { two.stand("a", ticket).await }
    });
    eventually("the poll has arrived", async || {
        status(&mut witness, "Com_call_procedure").await > before
    })
    .await;
    let leave = tokio::spawn({
        let two = two.clone();
        async move { two.leave("a", ticket).await }
    });
    until_length(&crate::support::keeper(&server).await, "a", 1).await;
    proxy.open();
    soon("the poll's answer", poll).await.expect("no panic");
    soon("the leave's answer", leave).await.expect("no panic");
    eventually("no request comes", async || {
        let before = status(&mut witness, "Com_stmt_execute").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        status(&mut witness, "Com_stmt_execute").await == before
    })
    .await;
    hints.abort();
}

struct Deaf;

impl lockkeeper::store::Hints for Deaf {
    fn granted(&self, _: TicketId, _: u64) {}
    fn ended(&self, _: TicketId) {}
    fn freed(&self, _: &lockkeeper::Name) {}
    fn recheck(&self, _: Option<TicketId>) {}
}

/// Every lease is a session of its own; all who wait are still looked for with one query.
async fn fifty_sessions_that_wait_are_one_query(server: Running) {
    let keeper = live_for_long(&server).await;
    let mut held = Vec::new();
    let mut waiting = tokio::task::JoinSet::new();
    for i in 0..50 {
        held.push(keeper.lock(format!("name {i}")).await.expect("free"));
        let lease = Duration::from_secs(300);
        waiting.spawn(keeper.lock(format!("name {i}")).lease(lease).into_future());
    }
    let mut witness = client(&server).await;
    eventually("all wait", async || {
        number(&mut witness, "SELECT COUNT(*) FROM lk_ticket WHERE fence = 0").await == 50
    })
    .await;
    // While nothing moves there are twenty looks in a second.
    eventually("few questions", async || {
        let began = Instant::now();
        let before = status(&mut witness, "Com_stmt_execute").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let questions = status(&mut witness, "Com_stmt_execute").await - before;
        questions < 60 * (began.elapsed().as_secs() + 1)
    })
    .await;
    drop(held);
    while let Some(granted) = soon("a turn", waiting.join_next()).await {
        drop(granted.expect("no panic").expect("granted"));
    }
    keeper.close().await;
}

/// Not even what cannot be swept may keep a renewal waiting.
async fn a_short_session_does_not_wait_for_what_is_swept(server: Running) {
    let keeper = testkit::live::keeper(&server, Duration::from_millis(600)).await;
    let held = keeper.lock("a").await.expect("free");
    // Dead sessions whose lines a transaction blocks.
    let mut user = client(&server).await;
    for dead in 0..4 {
        for sql in [
            format!(
                "INSERT INTO lk_session(id, ttl, delay, expires, dead_at, sweep_at, host, pid, program) \
                 VALUES (UNHEX(LEFT(SHA2({dead}, 256), 32)), 1, 0, 1, 1, 1, '', 1, '')"
            ),
            format!("INSERT INTO lk_line(name) VALUES ('dead {dead}')"),
            format!(
                "INSERT INTO lk_ticket(name, id, session, seq, weight, capacity, entered, note) \
                 VALUES ('dead {dead}', UNHEX(LEFT(SHA2({dead}, 256), 32)), UNHEX(LEFT(SHA2({dead}, 256), 32)), 1, 1, 1, 1, '')"
            ),
        ] {
            user.query_drop(sql).await.expect("written");
        }
    }
    user.query_drop("BEGIN").await.expect("begun");
    user.query_drop("SELECT * FROM lk_line WHERE name LIKE 'dead%' FOR UPDATE").await.expect("sat");
    let mut witness = client(&server).await;
    let ends = "SELECT MAX(expires) FROM lk_session";
    let until = number(&mut witness, ends).await + 5_000_000;
    eventually("five seconds of renewals", async || {
        held.is_held() && number(&mut witness, ends).await > until || !held.is_held()
    })
    .await;
    assert!(held.is_held());
    user.query_drop("ROLLBACK").await.expect("ended");
    let dead = "SELECT COUNT(*) FROM lk_ticket WHERE name <> 'a'";
    eventually("they are swept", async || number(&mut witness, dead).await == 0).await;
    keeper.close().await;
}

/// Another database behind the same URL: what was locked is lost, and locking goes on.
async fn an_emptied_database_is_made_anew(server: Running) {
    let keeper = keeper(&server).await;
    let held = keeper.lock("a").await.expect("free");
    let before = held.sequencer();
    let mut root = client(&server).await;
    root.query_drop("DROP DATABASE lockkeeper").await.expect("dropped");
    root.query_drop("CREATE DATABASE lockkeeper").await.expect("made");
    soon("the loss", held.lost()).await;
    let again = soon("a lock", keeper.lock("a").into_future()).await.expect("free");
    assert!(again.fence() > held.fence());
    assert!(keeper.check(&again.sequencer()).await.expect("an answer"));
    assert!(!keeper.check(&before).await.expect("an answer"));
    let mut user = client(&server).await;
    user.query_drop("BEGIN").await.expect("begun");
    lockkeeper::store::mysql::fence_check(&mut user, &again.sequencer()).await.expect("held");
    drop(user);
    keeper.close().await;
}

/// All others wait for the first one, and none makes anew what is there.
async fn a_later_client_makes_no_table_anew(server: Running) {
    let mut comers = tokio::task::JoinSet::new();
    for comer in 0..8 {
        let url = server.url().to_owned();
        comers.spawn(async move {
            let keeper = Keeper::connect(&url).await.expect("connected");
            for round in 0..20 {
                let name = format!("{comer} {round}");
                drop(keeper.lock(name).try_now().await.expect("an answer").expect("free"));
            }
            keeper.close().await;
        });
    }
    while let Some(comer) = soon("the end", comers.join_next()).await {
        comer.expect("no error was seen");
    }
    let mut witness = client(&server).await;
    let there =
        "SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = 'lockkeeper'";
    let there = u64::try_from(number(&mut witness, there).await).expect("a count");
    for word in ["create", "drop"] {
        let made = status(&mut witness, &format!("Com_{word}_procedure")).await;
        // Once each, and a few that made them have gone.
        assert!(there <= made && made < 2 * there, "{word}: {made} of {there}");
    }
}
