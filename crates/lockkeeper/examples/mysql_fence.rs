//! A holder is paused past its lease, another takes the lock and writes; then the first wakes up and
//! wants to write, too. The check in its own transaction refuses it.
//!
//! `cargo run --features mysql --example mysql_fence -- mysql://root@127.0.0.1/lockkeeper`

use lockkeeper::{
    Keeper, Sequencer,
    store::mysql::{fence_check, lock_in},
};
use mysql_async::{Conn, Opts, TxOpts, prelude::Queryable};
use std::{error::Error, time::Duration};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("say the URL of a database")?;
    let mut client = Conn::new(Opts::from_url(&url)?).await?;
    let table = "CREATE TABLE IF NOT EXISTS fence_example(id INT PRIMARY KEY, amount INT)";
    client.query_drop(table).await?;
    client.query_drop("REPLACE INTO fence_example VALUES (1, 100)").await?;
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
    let mut tx = client.start_transaction(TxOpts::new()).await?;
    lock_in(&mut tx, "account/1", Duration::from_secs(5)).await?;
    let amount: Option<i32> = tx.query_first("SELECT amount FROM fence_example").await?;
    println!("the amount is {}", amount.unwrap_or_default());
    tx.commit().await?;
    keeper.close().await;
    client.disconnect().await?;
    Ok(())
}

/// Writes, and checks in the same transaction that the lock is still held.
async fn write(
    client: &mut Conn,
    sequencer: &Sequencer,
    amount: i32,
) -> Result<(), Box<dyn Error>> {
    let mut tx = client.start_transaction(TxOpts::new()).await?;
    tx.exec_drop("UPDATE fence_example SET amount = ?", (amount,)).await?;
    if let Err(e) = fence_check(&mut tx, sequencer).await {
        tx.rollback().await?;
        return Err(e.into());
    }
    tx.commit().await?;
    Ok(())
}

fn outcome(result: Result<(), Box<dyn Error>>) -> String {
    result.map_or_else(|e| format!("refused, {e}"), |()| "done".to_owned())
}
