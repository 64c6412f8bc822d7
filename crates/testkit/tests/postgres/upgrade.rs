//! A schema is brought up to date while locks in it are held, waited for and passed on.

use crate::support::{HASTY, User, code};
use lockkeeper::{
    Keeper, Name,
    store::{Store as _, migration},
};
use servers::{POSTGRES, Running};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use testkit::{
    raw_session::RawSession,
    world::{eventually, soon},
};

testkit::tests! {
    [HASTY] =>
        an_upgrade_from_the_first_layout_under_load_loses_nothing,
        of_many_that_connect_after_an_upgrade_one_runs_the_script,
        the_printed_script_is_run_alone_and_takes_no_layout_back;
    [POSTGRES] =>
        a_client_that_stays_connected_during_an_upgrade_goes_on;
}

/// The schema as its first layout made it.
const LAYOUT_1: &str = include_str!("layout1.sql");

/// What programs of the first layout go on with during the upgrade, and until they end: they have it
/// prepared, so its answers must not change either.
const RENEW: &str =
    "SELECT (o_version IS NOT NULL)::int::bigint FROM (SELECT * FROM lockkeeper.lk_renew($1)) r";
const TRY: &str = "SELECT o_fence FROM (SELECT * FROM lockkeeper.lk_enter($1, $2, $3, 1, 1, false, '', \
                   NULL, 100)) e WHERE o_what = 'granted'";
const LEAVE: &str = "SELECT o_what FROM lockkeeper.lk_leave($1, $2, $3, 0, 0)";

/// Programs of the first layout that are at work.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    pairs: AtomicUsize,
    /// The last fence of every name.
    last: Mutex<HashMap<String, i64>>,
}

impl Load {
    /// Takes one of four names after the other, and leaves it.
    async fn work(self: Arc<Self>, user: User, worker: u8) {
        let session = &[worker][..];
        let open =
            format!("SELECT lockkeeper.lk_open('\\x{worker:02x}', 60000000, 0, 'c', 'h', 1, 'p')");
        user.run(&open).await;
        let [renew, enter, leave] = [RENEW, TRY, LEAVE].map(|sql| user.prepare(sql));
        let [renew, enter, leave] =
            [renew.await, enter.await, leave.await].map(|s| s.expect("known"));
        for at in 0_u32.. {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let (name, ticket) = (format!("name {}", at % 4), at.to_be_bytes());
            let alive: i64 = user.query_one(&renew, &[&session]).await.expect("renewed").get(0);
            assert_eq!(alive, 1, "the session lives");
            let granted = match user.query_opt(&enter, &[&name, &&ticket[..], &session]).await {
                Ok(granted) => granted,
                Err(e) => {
                    assert_eq!(code(&e), "55P03", "{e}");
                    continue;
                }
            };
            let Some(fence) = granted.map(|row| row.get::<_, i64>(0)) else { continue };
            let before = self.last.lock().expect("no panic").insert(name.clone(), fence);
            assert!(before.is_none_or(|before| before < fence), "{before:?}, then {fence}");
            loop {
                match user.query_one(&leave, &[&name, &&ticket[..], &session]).await {
                    Ok(row) => break assert_eq!(row.get::<_, &str>(0), "released"),
                    Err(e) => assert_eq!(code(&e), "55P03", "{e}"),
                }
            }
            self.pairs.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn goes_on(&self) {
        let before = self.pairs.load(Ordering::Relaxed);
        eventually("locks are taken", async || self.pairs.load(Ordering::Relaxed) > before + 50)
            .await;
    }
}

async fn an_upgrade_from_the_first_layout_under_load_loses_nothing(server: Running) {
    let user = User::of(&server).await;
    user.run(LAYOUT_1).await;
    user.run(
        "SELECT lockkeeper.lk_open('\\xa0', 600000000, 0, 'c', 'h', 1, 'p'); \
         SELECT lockkeeper.lk_enter('held', '\\xa1', '\\xa0', 1 << 30, 1 << 30, true, 'note', NULL, 100); \
         SELECT lockkeeper.lk_enter('held', '\\xa2', '\\xa0', 1 << 30, 1 << 30, true, '', NULL, 100); \
         SELECT lockkeeper.lk_enter('held', '\\xa3', '\\xa0', 1 << 30, 1 << 30, true, '', NULL, 100); \
         SELECT lockkeeper.lk_write('held', '\\xa1', '\\xa0', 1, 'value')",
    )
    .await;
    let stands = "SELECT string_agg(concat_ws(' ', name, seq, id, fence), ', ' ORDER BY seq) \
                  FROM lockkeeper.lk_standing WHERE name = 'held'";
    let before: String = user.query_one(stands, &[]).await.expect("a row").get(0);
    let (load, mut work) = (Arc::<Load>::default(), Vec::new());
    for worker in 1..=4 {
        work.push(tokio::spawn(Arc::clone(&load).work(User::of(&server).await, worker)));
    }
    load.goes_on().await;
    let keeper = soon("a keeper", Keeper::connect(server.url())).await.expect("connected");
    assert!(user.number("SELECT layout::bigint FROM lockkeeper.lk_meta").await > 1);
    load.goes_on().await;
    let after: String = user.query_one(stands, &[]).await.expect("a row").get(0);
    assert_eq!(before, after, "who held and who waited");
    let held = Name::new("held").expect("a good name");
    let cell = keeper.store().read(held).await.expect("an answer").expect("a value");
    assert_eq!(cell.bytes, b"value");
    assert!(keeper.lock("held").try_now().await.expect("an answer").is_none());
    load.over.store(true, Ordering::Relaxed);
    for worker in work {
        soon("the worker's end", worker).await.expect("no panic");
    }
    let last = load.last.lock().expect("no panic").clone();
    assert_eq!(last.len(), 4);
    for (name, last) in last {
        let guard = keeper.lock(&name).await.expect("free");
        assert!(guard.fence() > last.cast_unsigned(), "{name}");
        guard.release().await.expect("released");
    }
    let leave = "SELECT lockkeeper.lk_leave('held', '\\xa1', '\\xa0', 0, 0)";
    user.run(leave).await;
    let next =
        "SELECT count(*) FROM lockkeeper.lk_standing WHERE id = '\\xa2' AND fence IS NOT NULL";
    assert_eq!(user.number(next).await, 1, "the next one in line has its turn");
    keeper.close().await;
}

/// As a later version might: the function answers with one column more, and the layout is raised.
async fn change(server: &Running, function: &str) {
    let sql = format!(
        "DO $do$ DECLARE def text; BEGIN \
           SELECT pg_get_functiondef(p.oid) INTO STRICT def FROM pg_proc p \
            WHERE p.proname = '{function}' AND p.pronamespace = 'lockkeeper'::regnamespace; \
           EXECUTE (SELECT format('DROP FUNCTION %s', p.oid::regprocedure) FROM pg_proc p \
            WHERE p.proname = '{function}' AND p.pronamespace = 'lockkeeper'::regnamespace); \
           EXECUTE replace(def, 'OUT o_news text[]', 'OUT o_news text[], OUT o_later integer'); \
           UPDATE lockkeeper.lk_meta SET layout = layout + 1; \
         END $do$"
    );
    User::of(server).await.run(&sql).await;
}

async fn a_client_that_stays_connected_during_an_upgrade_goes_on(server: Running) {
    let keeper = Keeper::builder().ttl(Duration::from_secs(3)).connect(server.url()).await;
    let keeper = keeper.expect("the server answers");
    let (held, raw) =
        (keeper.lock("held").await.expect("free"), RawSession::open(keeper.store()).await);
    let evict = async || {
        let taken = raw.take("a").await;
        keeper.store().evict(taken.name, taken.ticket).await.expect("an answer")
    };
    assert!(evict().await);
    let user = User::of(&server).await;
    let ours = "SELECT coalesce(sum(pid), 0)::bigint FROM pg_stat_activity \
                WHERE application_name = 'lockkeeper'";
    let before = user.number(ours).await;
    change(&server, "lk_evict").await;
    assert!(evict().await, "what was prepared before is prepared again");
    eventually("other connections", async || {
        assert!(held.is_held(), "{:?}", held.health());
        user.number(ours).await != before
    })
    .await;
    assert!(evict().await);
    held.release().await.expect("released");
    keeper.close().await;
}

/// What keeps all others from making the schema, for as long as the transaction lasts.
const ALONE: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('lockkeeper schema lockkeeper', 0))";

async fn of_many_that_connect_after_an_upgrade_one_runs_the_script(server: Running) {
    let (user, other) = (User::of(&server).await, User::of(&server).await);
    user.run(LAYOUT_1).await;
    user.run(
        "CREATE TABLE runs(); \
         CREATE FUNCTION run() RETURNS trigger LANGUAGE plpgsql AS \
           'BEGIN INSERT INTO public.runs DEFAULT VALUES; RETURN NULL; END'; \
         CREATE TRIGGER run AFTER UPDATE OF layout ON lockkeeper.lk_meta \
           FOR EACH ROW EXECUTE FUNCTION run()",
    )
    .await;
    other.run("BEGIN").await;
    other.run(ALONE).await;
    let connect = || {
        let url = server.url().to_owned();
        tokio::spawn(async move { Keeper::connect(&url).await })
    };
    let connecting = Vec::from_iter((0..6).map(|_| connect()));
    let at_it = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
                 AND application_name = 'lockkeeper' \
                 AND (query LIKE '%lockkeeper schema%' OR query = 'ROLLBACK')";
    eventually("they find the older layout", async || user.number(at_it).await >= 4).await;
    other.run("COMMIT").await;
    for connected in connecting {
        let keeper = soon("a keeper", connected).await.expect("no panic").expect("connected");
        keeper.close().await;
    }
    assert_eq!(user.number("SELECT count(*) FROM runs").await, 1);
}

/// It is run beside programs that connect meanwhile, and perhaps long after it was printed.
async fn the_printed_script_is_run_alone_and_takes_no_layout_back(server: Running) {
    let script = migration(server.url()).expect("a script");
    let (user, other) = (User::of(&server).await, User::of(&server).await);
    user.run(&script).await;
    other.run("BEGIN").await;
    other.run(ALONE).await;
    let refused = user.batch_execute(&script).await.expect_err("others make the schema");
    assert_eq!(code(&refused), "55P03", "{refused}");
    user.run("ROLLBACK").await;
    other.run("COMMIT").await;
    user.run(&script).await;
    user.run("UPDATE lockkeeper.lk_meta SET layout = 999").await;
    let refused = user.batch_execute(&script).await.expect_err("a newer layout").to_string();
    assert!(!refused.is_empty());
    user.run("ROLLBACK").await;
    assert_eq!(user.number("SELECT layout::bigint FROM lockkeeper.lk_meta").await, 999);
}
