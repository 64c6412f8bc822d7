//! Traps that a lock in SQL can fall into, each with the way out of it.

use crate::support::{CODED, User, code, keeper, refusals};
use lockkeeper::{Error, Keeper, Loss};
use servers::{POSTGRES, Running};
use std::{sync::Arc, time::Duration};
use testkit::world::{eventually, soon};
use tokio_postgres::types::ToSql;

testkit::tests! {
    [POSTGRES] =>
        an_enter_that_waited_for_the_row_sees_the_earlier_tickets,
        a_session_that_expires_while_it_waits_for_the_row_is_over,
        the_dead_stay_dead,
        a_session_whose_renewal_is_about_to_commit_is_not_dead,
        an_enter_that_was_given_up_while_it_waited_leaves_nothing,
        a_leave_overlooks_no_enter_that_is_about_to_commit,
        the_sweep_takes_the_dead_and_leaves_what_was_checked,
        the_schema_is_made_once_however_many_come,
        an_upgrade_of_functions_alone_waits_for_no_transaction,
        a_client_that_never_waits_sweeps_too,
        a_mark_against_late_copies_outlives_the_sweep,
        a_sweep_goes_on_where_another_has_stopped,
        a_sweep_notifies_the_tickets_that_it_granted,
        a_live_session_keeps_its_place_in_line,
        an_enter_without_a_session_leaves_no_ticket,
        no_number_is_less_than_one_that_a_line_remembers,
        a_lock_of_a_session_that_was_just_ended_is_free;
    [CODED] =>
        a_strict_default_isolation_changes_nothing;
}

/// A user that has a session `\x01` of this many milliseconds, in a schema that a keeper has made.
async fn session(server: &Running, ttl_ms: i64) -> User {
    keeper(server).await.close().await;
    let user = User::of(server).await;
    user.run(&format!(
        "DELETE FROM lockkeeper.lk_session; \
         SELECT lockkeeper.lk_open('\\x01', {ttl_ms} * 1000, 0, 'c', 'h', 1, 'p')"
    ))
    .await;
    user
}

const ENTER: &str = "SELECT o_what FROM lockkeeper.lk_enter('a', '\\x02', '\\x01', 1, 1, true, '', \
                     NULL, 100)";

/// A statement that waits for a row sees the data as they were before, unless it looks again: two who
/// come to a locked line at once must not both be granted.
async fn an_enter_that_waited_for_the_row_sees_the_earlier_tickets(server: Running) {
    let user = session(&server, 60_000).await;
    for round in 0..10 {
        let name = format!("n{round}");
        user.run(&format!(
            "SELECT lockkeeper.lk_enter('{name}', '\\x09', '\\x01', 1, 1, true, '', NULL, 100);
             SELECT lockkeeper.lk_leave('{name}', '\\x09', '\\x01', 0, 0);
             BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = '{name}' FOR UPDATE"
        ))
        .await;
        let mut tasks = Vec::new();
        for ticket in 1..=3 {
            let (other, name) = (User::of(&server).await, name.clone());
            tasks.push(tokio::spawn(async move {
                let sql = format!(
                    "SELECT (o_what = 'granted')::int::bigint FROM lockkeeper.lk_enter('{name}', \
                     '\\x0{ticket}', '\\x01', 1, 1, true, '', NULL, 100)"
                );
                loop {
                    match other.query_one(&sql, &[]).await {
                        Ok(row) => return row.get::<_, i64>(0),
                        Err(e) => assert_eq!(code(&e), "55P03"),
                    }
                }
            }));
        }
        blocked(&user, 3).await;
        user.run("COMMIT").await;
        let mut granted = 0;
        for task in tasks {
            granted += soon("an answer", task).await.expect("no panic");
        }
        assert_eq!(granted, 1, "round {round}");
    }
}

async fn blocked(user: &User, clients: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually("they wait for the row", async || user.number(sql).await >= clients).await;
}

/// `now()` stands still in a transaction. The clock is read behind the wait, so a session that has
/// expired meanwhile is granted nothing.
async fn a_session_that_expires_while_it_waits_for_the_row_is_over(server: Running) {
    let other = Arc::new(User::of(&server).await);
    eventually("a wait shorter than the patience", async || {
        let user = session(&server, 60).await;
        user.run(
            "INSERT INTO lockkeeper.lk_line(name, last, capacity, weight, note)
               VALUES ('a', 1, 1, 1, '') ON CONFLICT DO NOTHING;
             BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = 'a' FOR UPDATE",
        )
        .await;
        let asked = Arc::clone(&other);
        let enter = tokio::spawn(async move { asked.query_one(ENTER, &[]).await.map(drop) });
        let expired =
            "SELECT count(*) FROM lockkeeper.lk_session WHERE expires < clock_timestamp()";
        eventually("the session's end", async || user.number(expired).await == 1).await;
        user.run("COMMIT").await;
        let e = enter.await.expect("no panic").expect_err("the session is over");
        // The wait may have been too long on a slow machine, or have begun too late.
        assert!(["LK101", "55P03"].contains(&code(&e).as_str()), "{e:?}");
        code(&e) == "LK101"
    })
    .await;
}

/// A grant that rests on an expiry ends that session in the same transaction: a renewal that was a
/// little too late waits for it, and finds the session over.
async fn the_dead_stay_dead(server: Running) {
    let user = session(&server, 50).await;
    user.run(ENTER).await;
    let expired = "SELECT count(*) FROM lockkeeper.lk_session WHERE expires < clock_timestamp()";
    eventually("the session's end", async || user.number(expired).await == 1).await;
    user.run(
        "SELECT lockkeeper.lk_open('\\x10', 60000000, 0, 'c', 'h', 1, 'p');
         BEGIN; SELECT lockkeeper.lk_enter('a', '\\x11', '\\x10', 1, 1, false, '', NULL, 100)",
    )
    .await;
    let late = User::of(&server).await;
    let renewal = tokio::spawn(async move {
        // As if it had read the clock in time.
        let sql = "UPDATE lockkeeper.lk_session SET expires = clock_timestamp() + ttl \
                   WHERE id = '\\x01' AND expires > clock_timestamp() - interval '1 hour'";
        late.execute(sql, &[]).await.expect("an update")
    });
    blocked(&user, 1).await;
    user.run("COMMIT").await;
    assert_eq!(soon("the renewal", renewal).await.expect("no panic"), 0);
}

/// A renewal has changed its session's row and is about to commit. Others still see the old end of the
/// session: it counts for nothing.
async fn a_session_whose_renewal_is_about_to_commit_is_not_dead(server: Running) {
    let other = User::of(&server).await;
    let mut user = session(&server, 500).await;
    eventually("a renewal in time", async || {
        user = session(&server, 500).await;
        user.run(ENTER).await;
        let renew = "SELECT (o_version IS NOT NULL)::int::bigint FROM lockkeeper.lk_renew('\\x01')";
        other.run("ROLLBACK; BEGIN").await;
        other.number(renew).await == 1
    })
    .await;
    let expired = "SELECT count(*) FROM lockkeeper.lk_session \
                   WHERE id = '\\x01' AND expires < clock_timestamp()";
    eventually("the end that others see", async || user.number(expired).await == 1).await;
    user.run("SELECT lockkeeper.lk_open('\\x10', 60000000, 0, 'c', 'h', 1, 'p')").await;
    let tries = [
        "SELECT count(*) FROM lockkeeper.lk_enter('a', '\\x11', '\\x10', 1, 1, false, '', NULL, 100) \
          WHERE o_what = 'granted'",
        "SELECT coalesce(lockkeeper.lk_try_lock('a'), 0)",
    ];
    for sql in tries {
        assert_eq!(user.number(sql).await, 0, "{sql}");
    }
    other.run("COMMIT").await;
    let lives =
        "SELECT count(*) FROM lockkeeper.lk_session WHERE id = '\\x01' AND expires > '-infinity'";
    assert_eq!(user.number(lives).await, 1);
}

/// The plain statement that takes a free lock, and the one that does all.
const FIRST: &str = include_str!("../../../lockkeeper/src/store/postgres/enter_first.sql");
const WHOLE: &str = include_str!("../../../lockkeeper/src/store/postgres/enter.sql");

/// An enter waits for its row, and meanwhile is given up: the leave that says so was faster. What the
/// statement reads beside the row is older than that, so the row must tell.
async fn an_enter_that_was_given_up_while_it_waited_leaves_nothing(server: Running) {
    let user = session(&server, 60_000).await;
    let other = Arc::new(User::of(&server).await);
    let whole = WHOLE.replace("{first}", FIRST).replace("{most}", "100");
    for (name, proxy) in [("a", FIRST.to_owned()), ("b", whole)] {
        user.run(&format!(
            "INSERT INTO lockkeeper.lk_line(name, last, capacity, weight, note)
               VALUES ('{name}', 1, 1, 1, '')",
        ))
        .await;
        eventually("a wait shorter than the patience", async || {
            user.run(&format!(
                "BEGIN; SELECT * FROM lockkeeper.lk_line WHERE name = '{name}' FOR UPDATE"
            ))
            .await;
            let (asked, proxy) = (Arc::clone(&other), proxy.clone());
            let enter = tokio::spawn(async move {
                let (ticket, session, note) = (&b"\x02"[..], &b"\x01"[..], &b""[..]);
                let values: [&(dyn ToSql + Sync); 8] =
                    [&name, &ticket, &session, &1, &1, &true, &note, &i64::MAX];
                asked.query(&proxy, &values).await.map(|rows| rows.len())
            });
            blocked(&user, 1).await;
            user.run(&format!(
                "SELECT lockkeeper.lk_leave('{name}', '\\x02', '\\x01', 0, 60000000); COMMIT"
            ))
            .await;
            match enter.await.expect("no panic") {
                Ok(granted) => {
                    assert_eq!((granted, name), (0, "a"), "it was closed");
                    true
                }
                Err(e) => {
                    assert!(["LK102", "55P03"].contains(&code(&e).as_str()), "{e:?}");
                    code(&e) == "LK102"
                }
            }
        })
        .await;
        assert_eq!(user.tickets().await, 0);
    }
}

/// An enter has made its line and is about to commit. Who gives it up must not overlook it.
async fn a_leave_overlooks_no_enter_that_is_about_to_commit(server: Running) {
    let user = session(&server, 60_000).await;
    user.run(&format!("BEGIN; {ENTER}")).await;
    let other = User::of(&server).await;
    other.run("SET lock_timeout = '200ms'").await;
    let leave = "SELECT o_what FROM lockkeeper.lk_leave('a', '\\x02', '\\x01', 0, 60000000)";
    let e = other.query_one(leave, &[]).await.expect_err("it has to wait");
    assert_eq!(code(&e), "55P03");
    user.run("COMMIT").await;
    let what: String = other.query_one(leave, &[]).await.expect("an answer").get(0);
    assert_eq!(what, "released");
}

/// A sweep, however short a time ago the last one was.
fn sweep(idle_us: i64, most: u32) -> String {
    format!(
        "UPDATE lockkeeper.lk_meta SET swept = '-infinity'; \
         SELECT o_news FROM lockkeeper.lk_sweep({idle_us}, {most})"
    )
}

/// What has ended is swept away, and what a checked fence keeps is not.
async fn the_sweep_takes_the_dead_and_leaves_what_was_checked(server: Running) {
    let user = session(&server, 300).await;
    let enter = |name: &str, ticket: u8, keep_us: u32| {
        format!(
            "SELECT lockkeeper.lk_enter('{name}', '\\x0{ticket}', '\\x01', 1, 2, true, '', NULL, 9);
             SELECT lockkeeper.lk_leave('{name}', '\\x0{ticket}', '\\x01', {keep_us}, 0)
              WHERE {keep_us} > 0;"
        )
    };
    // Both tickets of a hold outlive their session, one of them behind the first of its line.
    user.run(&(enter("held", 2, 1000) + &enter("held", 3, 1000))).await;
    user.run(&(enter("dead", 4, 0) + &enter("checked", 5, 0))).await;
    let other = User::of(&server).await;
    other
        .run(
            "BEGIN; SELECT lockkeeper.lk_fence_check(name, id, fence)
                      FROM lockkeeper.lk_line WHERE name = 'checked'",
        )
        .await;
    let sweep = async || {
        user.run(&sweep(-1_000_000, 100)).await;
        user.number("SELECT count(*) FROM lockkeeper.lk_line").await
            + user.number("SELECT count(*) FROM lockkeeper.lk_ticket").await
    };
    eventually("only what was checked is left", async || sweep().await == 1).await;
    assert_eq!(user.tickets().await, 1);
    other.run("COMMIT").await;
    eventually("nothing is left", async || sweep().await == 0).await;
}

/// A user's default isolation must not become ours.
async fn a_strict_default_isolation_changes_nothing(server: Running) {
    let user = User::of(&server).await;
    user.run("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'").await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let keeper = keeper(&server).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                keeper.lock("a").await.expect("granted").release().await.expect("released");
            }
            keeper.close().await;
        }));
    }
    for task in tasks {
        soon("the worker's end", task).await.expect("no error");
    }
    assert_eq!(refusals(&server, &["40001", "40P01"]), 0, "not even one that is repeated");
}

/// Many who come at once to a database without the tables make them once.
async fn the_schema_is_made_once_however_many_come(server: Running) {
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let url = server.url().to_owned();
        tasks.push(tokio::spawn(async move { Keeper::connect(&url).await }));
    }
    let mut ids = Vec::new();
    for task in tasks {
        let keeper = soon("a keeper", task).await.expect("no panic").expect("connected");
        ids.push(keeper.lock("a").await.expect("granted").sequencer().store());
        keeper.close().await;
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let newer = User::of(&server).await;
    newer.run("UPDATE lockkeeper.lk_meta SET layout = layout + 1").await;
    let e = Keeper::connect(server.url()).await.expect_err("refused").to_string();
    assert!(e.contains("newer version"), "{e}");
    newer.run("DROP SCHEMA lockkeeper CASCADE").await;
    let e = Keeper::connect(&format!("{}?create=false", server.url())).await.expect_err("refused");
    assert!(e.to_string().contains("migrate --print"), "{e}");
}

/// A user's transaction has looked at everything and goes on. What an upgrade does not change it does not
/// wait for, nor does another session wait for it.
async fn an_upgrade_of_functions_alone_waits_for_no_transaction(server: Running) {
    Keeper::connect(server.url()).await.expect("connected").close().await;
    let user = User::of(&server).await;
    user.run("UPDATE lockkeeper.lk_meta SET layout = 2").await;
    user.run(
        "BEGIN; SELECT count(*) FROM lockkeeper.lk_standing; \
         DELETE FROM lockkeeper.lk_ticket; DELETE FROM lockkeeper.lk_closed; \
         DELETE FROM lockkeeper.lk_evicted",
    )
    .await;
    let keeper = soon("a keeper", Keeper::connect(server.url())).await.expect("connected");
    assert!(user.number("SELECT layout::bigint FROM lockkeeper.lk_meta").await > 2);
    user.run("COMMIT").await;
    keeper.close().await;
}

/// Programs that never wait for a lock, and those that live too shortly to renew anything, clear away too.
async fn a_client_that_never_waits_sweeps_too(server: Running) {
    let (user, ttl) = (User::of(&server).await, Duration::from_millis(500));
    let keeper = testkit::live::keeper(&server, ttl).await;
    let _held = keeper.lock("a").await.expect("free");
    let dead = "SELECT count(*) FROM lockkeeper.lk_session WHERE id = '\\x07'";
    let die = "INSERT INTO lockkeeper.lk_session SELECT '\\x07', ttl, lock_delay, now() - interval '5 min', \
         now() - interval '5 min', channel, host, pid, program FROM lockkeeper.lk_session LIMIT 1";
    user.run(die).await;
    eventually("a renewal has swept", async || user.number(dead).await == 0).await;
    user.run(die).await;
    user.run("UPDATE lockkeeper.lk_meta SET swept = '-infinity'").await;
    keeper.close().await;
    assert_eq!(user.number(dead).await, 0, "closing has swept");
}

/// A line that has not been used for a day is forgotten, but not as long as a closed ticket may come to it.
async fn a_mark_against_late_copies_outlives_the_sweep(server: Running) {
    let user = session(&server, 60_000).await;
    let enter = "SELECT lockkeeper.lk_enter('old', '\\x02', '\\x01', 1, 1, true, '', NULL, 9)";
    let leave =
        |stray: u32| format!("SELECT lockkeeper.lk_leave('old', '\\x02', '\\x01', 0, {stray})");
    user.run(enter).await;
    user.run(&leave(0)).await;
    user.run("UPDATE lockkeeper.lk_line SET last = 1, fence = 1").await;
    user.run(&leave(60_000_000)).await;
    user.run(&sweep(1_000_000, 100)).await;
    assert_eq!(user.number("SELECT count(*) FROM lockkeeper.lk_line").await, 1);
    user.run("UPDATE lockkeeper.lk_line SET closing = '-infinity'").await;
    user.run(&sweep(1_000_000, 100)).await;
    assert_eq!(user.number("SELECT count(*) FROM lockkeeper.lk_line").await, 0);
}

/// Programs come and go, and each sweeps for a moment: the names at the end must have their turn, too.
async fn a_sweep_goes_on_where_another_has_stopped(server: Running) {
    let user = session(&server, 60_000).await;
    user.run(
        "INSERT INTO lockkeeper.lk_line(name, last, capacity, weight, note)
         VALUES ('a', 9000000000000000, 1, 1, ''), ('b', 1, 1, 1, ''), ('c', 1, 1, 1, '')",
    )
    .await;
    for left in [3, 2, 1] {
        User::of(&server).await.run(&sweep(1_000_000, 1)).await;
        assert_eq!(user.number("SELECT count(*) FROM lockkeeper.lk_line").await, left);
    }
}

/// A sweep that takes a hold away whose time has passed may grant the lock to the next in line.
async fn a_sweep_notifies_the_tickets_that_it_granted(server: Running) {
    let user = session(&server, 60_000).await;
    for ticket in 2..=4 {
        user.run(&format!(
            "SELECT lockkeeper.lk_enter('a', '\\x0{ticket}', '\\x01', 1, 2, true, '', NULL, 9)"
        ))
        .await;
    }
    user.run("SELECT lockkeeper.lk_leave('a', '\\x03', '\\x01', 1, 0)").await;
    let sql = sweep(1_000_000, 100);
    let (again, sweep) = sql.split_once(';').expect("two statements");
    user.run(again).await;
    let told: Vec<String> = user.query_one(sweep, &[]).await.expect("an answer").get(0);
    assert_eq!(told[..2], ["c", "04"], "{told:?}");
}

/// Who sweeps has found a session dead, and a renewal was faster.
async fn a_live_session_keeps_its_place_in_line(server: Running) {
    let user = session(&server, 60_000).await;
    user.run(ENTER).await;
    user.run(&ENTER.replace("x02", "x03")).await;
    let waiting = "SELECT count(*) FROM lockkeeper.lk_ticket";
    for (end, left) in [("", 1), ("SELECT lockkeeper.lk_close('\\x01')", 0)] {
        user.run(end).await;
        user.run("SELECT lockkeeper.lk_clear('\\x01', '{}', 64)").await;
        assert_eq!(user.number(waiting).await, left, "{end}");
    }
}

/// A session that is not there any more is told so, and nothing of it stays in the line.
async fn an_enter_without_a_session_leaves_no_ticket(server: Running) {
    let (keeper, user) = (keeper(&server).await, User::of(&server).await);
    keeper.lock("a").await.expect("free").release().await.expect("held");
    user.run("DELETE FROM lockkeeper.lk_session").await;
    let e = keeper.lock("a").try_now().await.expect_err("there is no session");
    assert!(matches!(e, Error::Lost { why: Loss::SessionGone, .. }), "{e}");
    let left = "SELECT count(*) FROM lockkeeper.lk_line WHERE id IS NOT NULL";
    assert_eq!(user.number(left).await, 0);
    assert!(keeper.lock("a").try_now().await.expect("another session").is_some());
}

/// A line remembers two numbers, that of its first ticket and that of the others. Whatever the clock says,
/// the next one is greater than both, on every way to a lock.
async fn no_number_is_less_than_one_that_a_line_remembers(server: Running) {
    let (one, two, user) = (keeper(&server).await, keeper(&server).await, User::of(&server).await);
    one.lock("a").await.expect("free").release().await.expect("held");
    let mut last = 0;
    for (round, column) in ["fence", "last"].into_iter().enumerate() {
        let ahead = 9_000_000_000_000_000 + 1_000 * u64::try_from(round).expect("small");
        user.run(&format!("UPDATE lockkeeper.lk_line SET {column} = {ahead}")).await;
        last = last.max(ahead);
        let plain = one.lock("a").await.expect("free");
        let behind = tokio::spawn(two.lock("a").into_future());
        let waiting = "SELECT others::bigint FROM lockkeeper.lk_line";
        eventually("a session waits", async || user.number(waiting).await == 1).await;
        let fence = plain.fence();
        plain.release().await.expect("held");
        let handed = soon("the turn", behind).await.expect("no panic").expect("granted");
        let number = handed.fence();
        handed.release().await.expect("held");
        user.run("BEGIN").await;
        let users = user.number("SELECT lockkeeper.lk_lock('a')").await;
        user.run("COMMIT").await;
        let users = u64::try_from(users).expect("positive");
        let numbers = [last, fence, number, users];
        assert!(numbers.is_sorted_by(|a, b| a < b), "{column}: {numbers:?}");
        last = number;
    }
}

/// The plain statement does not look at the session, which was alive a moment ago. If another session has ended it
/// since, its lock is one of the dead: the next comer takes it, and the holder is told.
async fn a_lock_of_a_session_that_was_just_ended_is_free(server: Running) {
    let (user, other) = (User::of(&server).await, keeper(&server).await);
    let ttl = Duration::from_secs(6);
    let keeper = Keeper::builder().ttl(ttl).connect(server.url()).await.expect("it answers");
    let fences = std::sync::Mutex::new(vec![0]);
    // On a slow machine the moment may be over, and the session is found to be so.
    eventually("a lock of the dead", async || {
        for _ in 0..3 {
            keeper.lock("a").await.expect("free").release().await.expect("released");
        }
        let close = "SELECT lockkeeper.lk_close(id) FROM lockkeeper.lk_session WHERE ttl = '6 s'";
        user.run(close).await;
        let guard = keeper.lock("a").await.expect("free");
        let taken = other.lock("a").try_now().await.expect("an answer");
        let Some(taken) = taken else { return false };
        soon("the holder is told", guard.lost()).await;
        fences.lock().unwrap().extend([guard.fence(), taken.fence()]);
        taken.release().await.expect("released");
        true
    })
    .await;
    assert!(fences.into_inner().unwrap().is_sorted_by(|a, b| a < b));
}
