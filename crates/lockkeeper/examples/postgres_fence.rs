//! A holder is paused past its lease, another takes the lock and writes; then the first wakes up and
//! wants to write, too. The check in its own transaction refuses it.
//!
//! `cargo run --features postgres --example postgres_fence -- postgres://postgres@127.0.0.1/postgres`

use lockkeeper::{
    Keeper,
    store::postgres::{fence_check, lock_in},
};
use std::{error::Error, time::Duration};
use tokio_postgres::{Client, NoTls};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS fence_example(id int PRIMARY KEY, amount int); \
                     INSERT INTO fence_example VALUES (1, 100) \
                     ON CONFLICT (id) DO UPDATE SET amount = 100";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("say the URL of a database")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(TABLE).await?;
    let keeper = Keeper::connect(&url).await?;

    // A lease is not renewed, as if its holder stood still.
    let paused = keeper.lock("account/1").lease(Duration::from_millis(500)).await?;
    println!("the first holder has fence {}", paused.fence());
    let next = keeper.lock("account/1").await?;
    println!("the next holder has fence {}", next.fence());

    println!("the next writes:  {}", outcome(write(&mut client, &next.sequencer(), 90).await));
    println!("the first writes: {}", outcome(write(&mut client, &paused.sequencer(), 0).await));
    next.release().await?;

    // The other way: the lock is the transaction's own.
    let tx = client.transaction().await?;
    lock_in(&tx, "account/1", Duration::from_secs(5)).await?;
    let amount: i32 = tx.query_one("SELECT amount FROM fence_example", &[]).await?.get(0);
    println!("the amount is {amount}");
    tx.commit().await?;
    keeper.close().await;
    Ok(())
}

/// Writes, and checks in the same transaction that the lock is still held.
async fn write(
    client: &mut Client,
    sequencer: &lockkeeper::Sequencer,
    amount: i32,
) -> Result<(), Box<dyn Error>> {
    let tx = client.transaction().await?;
    tx.execute("UPDATE fence_example SET amount = $1", &[&amount]).await?;
    fence_check(&tx, sequencer).await?;
    tx.commit().await?;
    Ok(())
}

fn outcome(result: Result<(), Box<dyn Error>>) -> String {
    result.map_or_else(|e| format!("refused, {e}"), |()| "done".to_owned())
}
