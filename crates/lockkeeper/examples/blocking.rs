//! Two programs without async code take turns. Run it twice at the same time, and kill one of them while it
//! works: the other goes on after 3 s.
//!
//! `cargo run --example blocking -- sqlite:/tmp/turns.db`

use lockkeeper::{Keeper, Result, blocking};
use std::{thread::sleep, time::Duration};

fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://turns".to_owned());
    let builder = Keeper::builder().ttl(Duration::from_secs(3));
    let keeper = blocking::Keeper::connect_with(builder, &url)?;
    for turn in 1..=3 {
        let lock = keeper.lock("turns").label(format!("turn {turn}"));
        let waiting = |wait: &lockkeeper::Wait| println!("{} ahead of us", wait.ahead);
        lock.on_wait(waiting).run(|guard| {
            println!("turn {turn} with fence {}", guard.fence());
            // Longer than the TTL: the keeper's own thread renews.
            sleep(Duration::from_secs(4));
        })?;
    }
    Ok(())
}
