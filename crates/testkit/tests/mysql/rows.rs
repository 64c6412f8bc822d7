//! Lock fields on the rows of a table of the user's own, and two traps that such locks fall into.

use crate::support::{client, opts};
use mysql_async::{Conn, prelude::Queryable};
use servers::Running;
use std::time::Duration;
use testkit::world::eventually;

testkit::tests! {
    crate::SERVERS =>
        a_row_belongs_to_one_owner_until_its_time_is_over,
        a_row_is_not_given_to_an_owner_without_a_name,
        an_old_fence_writes_nothing,
        a_client_that_counts_found_rows_gets_no_lock_twice,
        attempts_in_the_same_moment_steal_nothing;
}

async fn table(server: &Running) -> Conn {
    // The store's first handle makes the procedures.
    lockkeeper::Keeper::connect(server.url()).await.expect("the server answers");
    let mut user = client(server).await;
    let sql = "CREATE TABLE IF NOT EXISTS job(id INT PRIMARY KEY, done INT NOT NULL DEFAULT 0, \
         lock_owner VARBINARY(255) NULL, lock_fence BIGINT NOT NULL DEFAULT 0, \
         lock_expires BIGINT NOT NULL DEFAULT 0)";
    user.query_drop(sql).await.expect("made");
    user.query_drop("INSERT IGNORE INTO job(id) VALUES (1), (2)").await.expect("written");
    user
}

async fn lock(user: &mut Conn, id: u32, owner: &str, ttl: Duration) -> i64 {
    let ttl = u64::try_from(ttl.as_millis()).expect("short");
    let sql = "CALL lk_row_lock('job', 'id', ?, ?, ?)";
    user.exec_first(sql, (id, owner, ttl)).await.expect("an answer").expect("a row")
}

async fn renew(user: &mut Conn, id: u32, fence: i64) -> i64 {
    let sql = "CALL lk_row_renew('job', 'id', ?, ?, 60000)";
    user.exec_first(sql, (id, fence)).await.expect("an answer").expect("a row")
}

async fn release(user: &mut Conn, id: u32, fence: i64) -> i64 {
    let sql = "CALL lk_row_release('job', 'id', ?, ?)";
    user.exec_first(sql, (id, fence)).await.expect("an answer").expect("a row")
}

const LONG: Duration = Duration::from_secs(60);

async fn a_row_belongs_to_one_owner_until_its_time_is_over(server: Running) {
    let mut user = table(&server).await;
    let first = lock(&mut user, 1, "one", LONG).await;
    assert!(first > 0);
    assert_eq!(lock(&mut user, 1, "two", LONG).await, 0);
    assert_eq!(lock(&mut user, 1, "one", LONG).await, first, "the same again");
    assert!(lock(&mut user, 2, "two", LONG).await > 0, "another row");
    assert_eq!(lock(&mut user, 3, "two", LONG).await, 0, "no such row");
    assert_eq!(renew(&mut user, 1, first).await, first);
    assert_eq!(release(&mut user, 1, first).await, first);
    assert_eq!(release(&mut user, 1, first).await, 0);
    let short = lock(&mut user, 1, "two", Duration::from_millis(1)).await;
    assert!(short > first);
    let mut third = 0;
    eventually("its end", async || {
        third = lock(&mut user, 1, "three", LONG).await;
        third > 0
    })
    .await;
    assert!(third > short);
    assert_eq!((renew(&mut user, 1, short).await, release(&mut user, 1, short).await), (0, 0));
}

/// The row of no session would be the row of every session.
async fn a_row_is_not_given_to_an_owner_without_a_name(server: Running) {
    let mut user = table(&server).await;
    let sql = "CALL lk_row_lock('job', 'id', 1, NULL, 60000)";
    let e = user.query_drop(sql).await.expect_err("no owner").to_string();
    assert!(e.contains("must have a name"), "{e}");
    assert!(lock(&mut user, 1, "one", LONG).await > 0, "it is still free");
}

/// The plain guard: a holder that was overtaken changes nothing.
async fn an_old_fence_writes_nothing(server: Running) {
    let mut user = table(&server).await;
    let old = lock(&mut user, 1, "one", LONG).await;
    release(&mut user, 1, old).await;
    let new = lock(&mut user, 1, "two", LONG).await;
    let write = "UPDATE job SET done = ?, lock_fence = ? WHERE id = 1 AND lock_fence <= ?";
    for (done, fence) in [(2, new), (1, old)] {
        user.exec_drop(write, (done, fence, fence)).await.expect("an answer");
    }
    let done: Option<i64> =
        user.query_first("SELECT done FROM job WHERE id = 1").await.expect("read");
    assert_eq!(done, Some(2));
}

/// Some drivers ask the server to count rows that were found and not changed. A held row must not
/// look like a fresh one to them.
async fn a_client_that_counts_found_rows_gets_no_lock_twice(server: Running) {
    drop(table(&server).await);
    let mut user = Conn::new(opts(&server).client_found_rows(true)).await.expect("connected");
    let first = lock(&mut user, 1, "one", LONG).await;
    for _ in 0..3 {
        assert_eq!(lock(&mut user, 1, "two", LONG).await, 0);
        assert_eq!(lock(&mut user, 1, "one", LONG).await, first);
    }
}

/// Two takers within one tick of the clock: what decides is the owner, not a time that happens to be
/// the same.
async fn attempts_in_the_same_moment_steal_nothing(server: Running) {
    let mut user = table(&server).await;
    let (mut stolen, mut last) = (0, 0);
    for _ in 0..500 {
        let fence = lock(&mut user, 1, "one", LONG).await;
        assert!(fence > last, "fences grow");
        stolen += u32::from(lock(&mut user, 1, "two", LONG).await > 0);
        assert_eq!(release(&mut user, 1, fence).await, fence);
        last = fence;
    }
    assert_eq!(stolen, 0);
}
