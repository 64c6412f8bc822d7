//! What `acquire`, `renew` and `release` share: reaching the lock of a ticket file, and saying until when it
//! is held.

use crate::{
    cli::Common,
    duration, exit_code,
    failure::Failure,
    output,
    patience::{ANSWER_MIN, Patience, silent},
    store,
    ticket_file::TicketFile,
};
use anyhow::anyhow;
use jiff::Timestamp;
use lockkeeper::{
    Detached, Error, Guard, Keeper, Loss, Terms,
    store::clock::{Clock, Moment},
};
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// For how long a store is waited for that cannot be reached, if nothing else is said.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(30);
/// For how long a release may take.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(5);
/// For how long closing may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The pause between two attempts to reach the lock, or its file.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// Ends what is left of the keeper's sessions.
pub(crate) async fn close(keeper: &Keeper) {
    let _ = timeout(CLOSE_MAX, keeper.close()).await;
}

/// What became of an attempt to reach the lock.
pub(crate) enum Reached {
    Held(Keeper, Guard),
    /// The store has it no more.
    Lost(Loss),
}

/// Connects to the file's store and takes the lock over. A store that does not answer is tried for so long.
pub(crate) async fn reach(
    file: &TicketFile,
    common: &Common,
    wait: Option<Duration>,
) -> Result<Reached, Failure> {
    let (wait, began) = (wait.unwrap_or(CONNECT_MAX), Instant::now());
    let patience = Patience { impatient: wait.is_zero(), wait: Some(wait) };
    tokio::select! {
        reached = try_to_reach(file, common, wait, began) => reached,
        () = patience.over(began, ANSWER_MIN) => Err(silent(began)),
    }
}

async fn try_to_reach(
    file: &TicketFile,
    common: &Common,
    wait: Duration,
    began: Instant,
) -> Result<Reached, Failure> {
    let said = common.store.as_deref().filter(|url| !url.is_empty());
    // The file has the URL without a password, and the settings may know that.
    let is_the_file_s = |url: &&str| store::without_secrets(url) == file.contents.store_url;
    let said = said.or(common.settings_store.as_deref().filter(is_the_file_s));
    let url = match said {
        Some(url) => store::url(Some(url))?,
        None => file.contents.store_url.clone(),
    };
    let detached = file.contents.detached()?;
    let connecting = Keeper::builder().connect_wait(wait).connect(&url).await;
    let keeper = connecting.map_err(|e| explain(e, file, said.is_some()))?;
    loop {
        match keeper.attach(&detached).await {
            Ok(guard) => return Ok(Reached::Held(keeper, guard)),
            Err(Error::Lost { why, .. }) => return Ok(Reached::Lost(why)),
            Err(Error::Store(e)) if e.is_transient() && began.elapsed() + PAUSE < wait => {
                sleep(PAUSE).await;
            }
            Err(e) => return Err(explain(e, file, said.is_some())),
        }
    }
}

/// Adds what the file has to do with the error.
fn explain(error: Error, file: &TicketFile, said: bool) -> Failure {
    let wanted = output::printable(&file.contents.store_url);
    match error {
        e @ Error::OtherStore { .. } => {
            let what = anyhow!(e).context(format!("the ticket is for the store {wanted}"));
            let failure = Failure::new(exit_code::CONFIGURATION, what);
            failure.hint(
                "check --store or LOCKKEEPER_STORE; without them the ticket file's own is used",
            )
        }
        e => {
            let is_denied = exit_code::of(&e) == exit_code::DENIED;
            let failure = Failure::from(e);
            match is_denied && !said {
                true => failure.hint(
                    "a ticket file has the URL of its store without the password: name the store \
                     with LOCKKEEPER_STORE",
                ),
                false => failure,
            }
        }
    }
}

/// The lock was lost, and the script with the ticket must not go on.
pub(crate) fn lost(file: &TicketFile, why: Loss) -> Failure {
    let name = output::printable(&file.contents.name);
    Failure::new(exit_code::LOCK_LOST, anyhow!("`{name}` was lost: {why}"))
}

/// Until when a lock is held. However long it takes to say so, what is said is not too late.
pub(crate) struct Held {
    clock: Clock,
    at: Moment,
    wall: Timestamp,
    remaining: Duration,
}

impl Held {
    pub(crate) fn of(guard: &Guard) -> Self {
        let clock = Clock::system();
        let (at, wall) = (clock.now(), Timestamp::now());
        Self { clock, at, wall, remaining: guard.remaining() }
    }

    /// For how long it is held from now on.
    fn left(&self) -> Duration {
        self.remaining.saturating_sub(self.clock.now().saturating_since(self.at))
    }

    pub(crate) fn renew_by(&self) -> Timestamp {
        self.wall.checked_add(self.remaining).unwrap_or(self.wall)
    }
}

/// A lock that was granted.
pub(crate) struct Granted<'a> {
    pub(crate) detached: &'a Detached,
    pub(crate) terms: Terms,
    pub(crate) held: Held,
    /// Of the ticket file.
    pub(crate) path: &'a Path,
}

impl Granted<'_> {
    fn fence(&self) -> Option<u64> {
        Some(self.detached.fence()).filter(|fence| *fence != 0)
    }

    /// Lines that a shell can evaluate.
    pub(crate) fn shell(&self) -> String {
        let path = self.path.to_string_lossy();
        let mut lines = vec![
            ("TICKET_FILE", quoted(&path)),
            ("NAME", quoted(self.detached.name().as_str())),
            ("SEQUENCER", quoted(&self.detached.sequencer().to_string())),
            ("RENEW_BY", self.held.renew_by().as_second().to_string()),
        ];
        lines.extend(self.fence().map(|fence| ("FENCE", fence.to_string())));
        lines.iter().map(|(name, value)| format!("LOCKKEEPER_{name}={value}\n")).collect()
    }

    pub(crate) fn json(&self, waited: Duration) -> serde_json::Result<String> {
        let mut answer = held_json(self.detached, &self.held);
        answer["file"] = json!(self.path.to_string_lossy());
        answer["sequencer"] = json!(self.detached.sequencer().to_string());
        answer["waited_ms"] = json!(duration::ms(waited));
        answer["ttl_ms"] = json!(duration::ms(self.terms.ttl));
        answer["lock_delay_ms"] = json!(duration::ms(self.terms.lock_delay));
        output::json_answer(answer)
    }
}

/// Which lock is held, and until when.
pub(crate) fn held_json(detached: &Detached, held: &Held) -> Value {
    json!({
        "name": detached.name().as_str(),
        "fence": Some(detached.fence()).filter(|fence| *fence != 0),
        "renew_by": format!("{:.3}", held.renew_by()),
        "ends_in_ms": duration::ms(held.left()),
    })
}

/// A word for a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_every_value_as_one_word() {
        for text in ["a b", "it's $HOME `id` \\", "", "锁\"*"] {
            let mut echo = std::process::Command::new("sh");
            let echo = echo.arg("-c").arg(format!("printf %s {}", quoted(text))).output().unwrap();
            assert_eq!(String::from_utf8(echo.stdout).unwrap(), text);
        }
    }
}
