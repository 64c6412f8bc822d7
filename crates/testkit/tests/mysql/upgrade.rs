//! Tables of an older lockkeeper are brought up to date, and nothing that is in them is lost.

use crate::{
    setup::{documented, tables_by_a_user, url_for, user_with},
    support::{TTL, client, keeper, number, run, status},
};
use lockkeeper::{Keeper, Mode, store::migration};
use mysql_async::{Conn, Row, Value, params::Params, prelude::Queryable};
use servers::Running;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use testkit::world::{eventually, soon};

testkit::tests! {
    crate::SERVERS =>
        tables_of_the_oldest_layout_are_brought_up_to_date,
        an_upgrade_under_load_loses_no_lock_no_fence_and_no_cell,
        the_printed_script_brings_an_older_layout_up_to_date,
        an_old_script_changes_nothing_in_a_newer_database,
        a_process_that_lives_through_an_upgrade_goes_on_by_procedures;
}

const OLDEST: &str = include_str!("layout_1.sql");
const BEFORE: &str = include_str!("layout_3.sql");
/// So many that what else is called meanwhile does not matter.
const PAIRS: u64 = 50;
const LONG: i64 = 600_000_000;

/// A program of an older layout, as far as its statements go.
struct Old {
    conn: Conn,
    session: Vec<u8>,
    /// Layout 1 did not say whether an enter waits.
    patience: Vec<Value>,
}

/// Are the procedures just being made anew, or others in the way?
fn passes(e: &mysql_async::Error) -> bool {
    matches!(e, mysql_async::Error::Server(e) if matches!(e.code, 1205 | 1213 | 1305 | 1615 | 3572))
}

impl Old {
    async fn open(server: &Running, patience: Vec<Value>) -> Self {
        let session = rand::random::<[u8; 16]>().to_vec();
        let mut old = Self { conn: client(server).await, session, patience };
        for sql in ["SET NAMES binary", "SET time_zone = '+00:00'"] {
            old.conn.query_drop(sql).await.expect("set");
        }
        let owner = ["host".into(), Value::from(1), "old".into()];
        let times = [old.session.clone().into(), LONG.into(), 0.into()];
        old.call("CALL lk_open(?, ?, ?, ?, ?, ?)", [&times[..], &owner[..]].concat()).await;
        old
    }

    /// Sends it until it is neither in the way of others nor of the upgrade.
    async fn call(&mut self, sql: &str, params: Vec<Value>) -> Row {
        loop {
            let params = Params::Positional(params.clone());
            match self.conn.exec_first::<Row, _, _>(sql, params).await {
                Ok(row) => return row.expect("an answer"),
                Err(e) if passes(&e) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(e) => panic!("{sql}: {e}"),
            }
        }
    }

    /// Its answer: a word and the fence.
    async fn enter(&mut self, name: &str, ticket: &[u8], queue: bool) -> (String, u64) {
        let whole = Mode::Exclusive;
        let params = vec![
            name.into(),
            ticket.into(),
            self.session.clone().into(),
            whole.weight().into(),
            whole.capacity().into(),
            u8::from(queue).into(),
            i64::MAX.into(),
            10_000.into(),
            "".into(),
        ];
        let marks = vec!["?"; params.len() + self.patience.len()].join(", ");
        let params = [params, self.patience.clone()].concat();
        let row = self.call(&format!("CALL lk_enter({marks})"), params).await;
        (row.get("what").expect("a word"), row.get("fence").expect("a number"))
    }

    async fn leave(&mut self, name: &str, ticket: &[u8]) {
        let params =
            vec![name.into(), ticket.into(), self.session.clone().into(), 0.into(), 0.into()];
        let marks = vec!["?"; params.len() + self.patience.len()].join(", ");
        let params = [params, self.patience.clone()].concat();
        loop {
            let row = self.call(&format!("CALL lk_leave({marks})"), params.clone()).await;
            match row.get::<String, _>("what").expect("a word").as_str() {
                "released" => return,
                "pinned" => {}
                other => panic!("the lock was {other}"),
            }
        }
    }

    async fn renew(&mut self) {
        let session = self.session.clone();
        let row = self.call("CALL lk_renew(?)", vec![session.into()]).await;
        assert!(row.get::<bool, _>("lives").expect("a word"), "the session was lost");
    }
}

/// A keeper of a user who has the rights that the documentation names, and no others.
async fn upgraded(server: &Running) -> Keeper {
    user_with(server, "maker", &documented().join(", ")).await;
    Keeper::builder().ttl(TTL).connect(&url_for(server, "maker")).await.expect("brought up to date")
}

async fn layout(witness: &mut Conn) -> i64 {
    number(witness, "SELECT layout FROM lk_meta").await
}

/// A holder and a waiter of the oldest layout, and a cell.
async fn tables_of_the_oldest_layout_are_brought_up_to_date(server: Running) {
    tables_by_a_user(&server, OLDEST).await;
    let mut old = Old::open(&server, Vec::new()).await;
    let (holder, waiter) = ([1; 16], [2; 16]);
    let (granted, fence) = old.enter("a", &holder, true).await;
    assert_eq!(granted, "granted");
    assert_eq!(old.enter("a", &waiter, true).await.0, "queued");
    let cell = format!("INSERT INTO lk_cell(name, bytes, fence) VALUES ('a', 'kept', {fence})");
    old.conn.query_drop(cell).await.expect("written");

    let keeper = upgraded(&server).await;
    assert!(layout(&mut old.conn).await > 3);
    let line = keeper.get("a").await.expect("an answer").expect("there");
    let fences: Vec<_> = line.tickets.iter().map(|ticket| ticket.fence).collect();
    assert_eq!(fences, [Some(fence), None]);
    assert_eq!(keeper.read("a").await.expect("an answer").expect("a cell").bytes, b"kept");
    assert!(keeper.lock("a").try_now().await.expect("an answer").is_none());
    old.renew().await;
    // A process of now is of now: it says how long it waits.
    old.patience = vec![0.into()];
    old.leave("a", &holder).await;
    let (granted, next) = old.enter("a", &waiter, true).await;
    assert!(granted == "granted" && next > fence, "{granted} {next} after {fence}");
    old.leave("a", &waiter).await;
    let third = soon("its turn", keeper.lock("a").into_future()).await.expect("free");
    assert!(third.fence() > next);
    keeper.close().await;
}

/// Programs of the layout before hold, lock and release all the time, and go on with their statements.
async fn an_upgrade_under_load_loses_no_lock_no_fence_and_no_cell(server: Running) {
    tables_by_a_user(&server, BEFORE).await;
    let mut holder = Old::open(&server, vec![0.into()]).await;
    let (_, held) = holder.enter("held", &[1; 16], true).await;
    let cell = "INSERT INTO lk_cell(name, bytes, fence) VALUES ('held', 'kept', 1)";
    holder.conn.query_drop(cell).await.expect("written");
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let mut old = Old::open(&server, vec![0.into()]).await;
        let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
        workers.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let ticket: [u8; 16] = rand::random();
                let (what, fence) = old.enter("busy", &ticket, false).await;
                if what != "granted" {
                    continue;
                }
                assert!(!inside.swap(true, Ordering::SeqCst), "two have it");
                assert!(last.swap(fence, Ordering::SeqCst) < fence, "a fence went back");
                old.renew().await;
                inside.store(false, Ordering::SeqCst);
                old.leave("busy", &ticket).await;
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    let goes_on = async || {
        let before = rounds.load(Ordering::SeqCst);
        eventually("locks are taken", async || rounds.load(Ordering::SeqCst) > before + 20).await;
    };
    goes_on().await;
    let keeper = upgraded(&server).await;
    assert!(layout(&mut holder.conn).await > 3);
    goes_on().await;
    holder.renew().await;
    assert!(keeper.lock("held").try_now().await.expect("an answer").is_none());
    assert_eq!(keeper.read("held").await.expect("an answer").expect("a cell").bytes, b"kept");
    let busy = soon("its turn", keeper.lock("busy").into_future()).await.expect("free");
    assert!(busy.fence() > last.load(Ordering::SeqCst));
    busy.release().await.expect("released");
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        soon("its end", worker).await.expect("all was well");
    }
    holder.leave("held", &[1; 16]).await;
    let next = soon("its turn", keeper.lock("held").into_future()).await.expect("free");
    assert!(next.fence() > held);
    keeper.close().await;
}

/// An administrator brings the tables up to date, for programs that may make none.
async fn the_printed_script_brings_an_older_layout_up_to_date(server: Running) {
    run(&server, BEFORE).expect("made");
    let url = format!("{}?create=false", server.url());
    let e = Keeper::connect(&url).await.expect_err("too old").to_string();
    assert!(e.contains("migrate --print"), "{e}");
    run(&server, &migration(&url).expect("a script")).expect("it runs");
    let keeper = Keeper::connect(&url).await.expect("connected");
    keeper.lock("a").await.expect("free").release().await.expect("released");
    keeper.close().await;
}

async fn an_old_script_changes_nothing_in_a_newer_database(server: Running) {
    let script = migration(server.url()).expect("a script");
    run(&server, &script).expect("it runs");
    run(&server, &script).expect("and again");
    let mut root = client(&server).await;
    root.query_drop("UPDATE lk_meta SET layout = 999").await.expect("done");
    let made = "SELECT UNIX_TIMESTAMP(MAX(created)) FROM information_schema.routines \
         WHERE routine_schema = 'lockkeeper' AND routine_name = 'lk_enter'";
    let before = number(&mut root, made).await;
    let clock = "SELECT UNIX_TIMESTAMP()";
    eventually("a second passes", async || number(&mut root, clock).await > before + 1).await;
    let mut root = client(&server).await;
    let refusal = run(&server, &script).expect_err("refused");
    assert!(refusal.contains("newer lockkeeper"), "{refusal}");
    assert_eq!(layout(&mut root).await, 999);
    assert_eq!(number(&mut root, made).await, before, "the procedures of before");
}

/// What it sends by itself may not know all that the newer tables have, so it lets the procedures decide.
async fn a_process_that_lives_through_an_upgrade_goes_on_by_procedures(server: Running) {
    let keeper = keeper(&server).await;
    let held = keeper.lock("held").await.expect("free");
    let mut root = client(&server).await;
    let pair = async || keeper.lock("a").await.expect("free").release().await.expect("released");
    root.query_drop("UPDATE lk_meta SET layout = 999").await.expect("done");
    eventually("pairs are two calls", async || {
        let before = status(&mut root, "Com_call_procedure").await;
        for _ in 0..PAIRS {
            pair().await;
        }
        status(&mut root, "Com_call_procedure").await >= before + 2 * PAIRS
    })
    .await;
    held.extend(TTL / 3).await.expect("still held");
    keeper.close().await;
}
