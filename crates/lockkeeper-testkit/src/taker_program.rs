//! The `taker` program: takes locks in a process of its own, so that it can be stopped and killed.
//!
//! `taker URL TTL_MS LOCK_DELAY_MS`, then commands on standard input, answers on standard output:
//!
//! | command | answer |
//! |---|---|
//! | `take NAME`, `share NAME` | `granted FENCE` when its turn comes |
//! | `try NAME` | `granted FENCE` or `busy` |
//! | `release` | `released`, or `lost WHY` |
//! | `append PATH VALUE` | `appended true` or `appended false`, with the last grant's fence |
//! | `count NAME PATH TIMES` | `counted` after so many rounds of take, read, write, release |
//! | `sign NAME PATH TIMES MARK` | `signed` after so many such rounds, each of which adds the mark |
//! | `crowd NAME SIZE` | `granted FENCE` whenever it is the turn of one of so many keepers |
//! | `drop` | nothing: the guard is dropped |
//!
//! It says `ready` first, and `lost WHY` when a lock is lost. It ends with its input.

use crate::ledger;
use anyhow::{Context as _, Result, bail};
use lockkeeper::{Acquire, Guard, Keeper, Loss, store::AnyStore};
use std::{env, io::BufRead as _, path::Path, thread, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};

/// The `main` of a `taker` program: `open` opens a handle to the store that the URL names. The module
/// [`taker`](crate::taker) speaks with it.
///
/// # Errors
/// Wrong arguments, an unknown command, and those of the store.
#[expect(clippy::future_not_send, reason = "the main of a program awaits it, on its own thread")]
pub async fn serve(open: impl AsyncFn(&str) -> Result<AnyStore>) -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [url, ttl, lock_delay] = args.as_slice() else {
        bail!("usage: taker URL TTL_MS LOCK_DELAY_MS");
    };
    let ms = |text: &str| anyhow::Ok(Duration::from_millis(text.parse()?));
    let (ttl, lock_delay) = (ms(ttl)?, ms(lock_delay)?);
    let connect = async || {
        let builder = Keeper::builder().ttl(ttl).lock_delay(lock_delay);
        anyhow::Ok(builder.over(open(url).await?)?)
    };
    let (crowd, keepers) = (JoinSet::new(), Vec::new());
    let mut taker = Taker { keeper: connect().await?, crowd, keepers, guard: None, fence: 0 };
    let mut commands = commands();
    println!("ready");
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => taker.obey(&command, &connect).await.context(command)?,
                None => return Ok(()),
            },
            Some(guard) = taker.crowd.join_next() => taker.granted(guard??),
            why = lost(taker.guard.as_ref()) => {
                println!("lost {}", why.word());
                taker.guard = None;
            }
        }
    }
}

/// The lines of standard input. A thread reads them, for reading them blocks.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, commands) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    commands
}

async fn lost(guard: Option<&Guard>) -> Loss {
    match guard {
        Some(guard) => guard.lost().await,
        None => std::future::pending().await,
    }
}

struct Taker {
    keeper: Keeper,
    crowd: JoinSet<lockkeeper::Result<Guard>>,
    /// The keepers of the crowd: a dropped keeper closes its session.
    keepers: Vec<Keeper>,
    guard: Option<Guard>,
    fence: u64,
}

impl Taker {
    #[expect(clippy::future_not_send, reason = "as `serve`, which awaits it")]
    async fn obey(
        &mut self,
        command: &str,
        connect: &impl AsyncFn() -> Result<Keeper>,
    ) -> Result<()> {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["take", name] => self.take(self.keeper.lock(name)).await,
            ["share", name] => self.take(self.keeper.rwlock(name).read()).await,
            ["try", name] => self.try_now(name).await,
            ["release"] => self.release().await,
            ["append", path, value] => self.append(Path::new(path), value),
            ["count", name, path, times] => self.count(name, Path::new(path), times.parse()?).await,
            ["sign", name, path, times, mark] => {
                self.sign(name, Path::new(path), times.parse()?, mark).await
            }
            // The waiters of one keeper share a place in a line, so each of these has a keeper of its own.
            ["crowd", name, size] => {
                for _ in 0..size.parse::<u32>()? {
                    let keeper = connect().await?;
                    self.crowd.spawn(keeper.lock(name).into_future());
                    self.keepers.push(keeper);
                }
                Ok(())
            }
            ["drop"] => {
                self.guard = None;
                Ok(())
            }
            _ => bail!("an unknown command"),
        }
    }

    async fn take(&mut self, lock: Acquire) -> Result<()> {
        let guard = lock.await?;
        self.granted(guard);
        Ok(())
    }

    async fn try_now(&mut self, name: &str) -> Result<()> {
        match self.keeper.lock(name).try_now().await? {
            Some(guard) => self.granted(guard),
            None => println!("busy"),
        }
        Ok(())
    }

    fn granted(&mut self, guard: Guard) {
        println!("granted {}", guard.fence());
        self.fence = guard.fence();
        self.guard = Some(guard);
    }

    async fn release(&mut self) -> Result<()> {
        let guard = self.guard.take().context("nothing is held")?;
        match guard.release().await {
            Ok(()) => println!("released"),
            Err(lockkeeper::Error::Lost { why, .. }) => println!("lost {}", why.word()),
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    fn append(&self, path: &Path, value: &str) -> Result<()> {
        let accepted = ledger::append(path, self.fence, value)?;
        println!("appended {accepted}");
        Ok(())
    }

    /// Adds to a number in a file that checks nothing: only the lock keeps it right.
    async fn count(&self, name: &str, path: &Path, times: u32) -> Result<()> {
        for _ in 0..times {
            let guard = self.keeper.lock(name).await?;
            let number: u64 = std::fs::read_to_string(path)?.trim().parse()?;
            tokio::task::yield_now().await;
            std::fs::write(path, (number + 1).to_string())?;
            guard.release().await?;
        }
        println!("counted");
        Ok(())
    }

    /// As `count`, but the file shows which processes were there, and in which order. Contends, as clients do
    /// that know no lines.
    async fn sign(&self, name: &str, path: &Path, times: u32, mark: &str) -> Result<()> {
        for _ in 0..times {
            let guard = self.keeper.lock(name).unfair().await?;
            let signed = std::fs::read_to_string(path)?;
            tokio::task::yield_now().await;
            std::fs::write(path, signed + mark)?;
            guard.release().await?;
            // Time for the others: without a line, the last one is often the next.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        println!("signed");
        Ok(())
    }
}
