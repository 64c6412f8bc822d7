//! `run` warns once per store and day of what lets two hold one lock; `doctor` tells the rest.
//!
//! A file in the state folder is touched when a store has been looked at. While it is younger than a day the
//! store is not asked. Otherwise the questions are sent when the command has run for a moment, so that neither the
//! grant nor the command waits for the answers, and a short run does not pay for a second connection; if the command
//! ends first, the next run asks.

use crate::{event::Voice, output::printable, store};
use lockkeeper::{Advice, Keeper, Severity, Store as _};
use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash as _, Hasher as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// For how long the command runs before the store is asked.
const SETTLED: Duration = Duration::from_millis(100);
/// For how long the store may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A look at the store that ends with this value.
#[derive(Debug)]
pub(crate) struct Look(Option<JoinHandle<()>>);

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Looks at the store in the background, unless it was looked at within a day or there is no place to note that.
pub(crate) fn look(keeper: &Keeper, url: &str, voice: Voice) -> Look {
    // Nothing about a file that could be opened lets two hold one lock.
    if voice.quiet || keeper.store().scheme() == "sqlite" {
        return Look(None);
    }
    let Some(stamp) = stamp(url) else { return Look(None) };
    let url = url.to_owned();
    Look(Some(tokio::spawn(async move {
        // On threads of their own: a file system that hangs must not hold up a renewal.
        let first = stamp.clone();
        sleep(SETTLED).await;
        if spawn_blocking(move || is_fresh(&first)).await.unwrap_or(true) {
            return;
        }
        let advice = timeout(ANSWER_MAX, ask(&url)).await;
        // Another process may have looked meanwhile. Without a note of it every run would warn.
        let noted = spawn_blocking(move || !is_fresh(&stamp) && touch(&stamp)).await;
        if !noted.unwrap_or(false) {
            return;
        }
        for advice in advice.ok().and_then(Result::ok).unwrap_or_default() {
            if advice.severity == Severity::Exclusion {
                let advice = printable(&advice.to_string());
                voice.warn(&format!("{advice} (said once a day; lockkeeper doctor tells more)"));
            }
        }
    })))
}

/// Asks over a connection of its own: a question that is broken off must not cost the run its connection, over which
/// it releases.
async fn ask(url: &str) -> lockkeeper::Result<Vec<Advice>> {
    let keeper = Keeper::connect(url).await?;
    let advice = keeper.advice().await;
    keeper.close().await;
    advice
}

/// The file that is touched for this store. Its name shows nothing of the URL.
fn stamp(url: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    store::without_secrets(url).hash(&mut hasher);
    let folder = store::own_folder().ok()?;
    Some(folder.join(format!("looked-at-{:016x}", hasher.finish())))
}

fn is_fresh(stamp: &Path) -> bool {
    let touched = fs::metadata(stamp).and_then(|file| file.modified());
    // A time to come is none: the clock was wrong.
    touched.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < DAY))
}

fn touch(stamp: &Path) -> bool {
    let folder = stamp.parent().unwrap_or(Path::new("/"));
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| fs::write(stamp, "")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_holds_for_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = folder.path().join("a").join("b");
        assert!(!is_fresh(&stamp) && touch(&stamp) && is_fresh(&stamp));
        let set =
            |at| fs::File::options().write(true).open(&stamp).unwrap().set_modified(at).unwrap();
        set(SystemTime::now() - DAY);
        assert!(!is_fresh(&stamp), "a day has passed");
        set(SystemTime::now() + DAY);
        assert!(!is_fresh(&stamp), "the clock was wrong");
        assert!(touch(&stamp) && is_fresh(&stamp));
    }

    #[test]
    fn stores_are_told_apart_and_passwords_do_not_count() {
        let of = |url| stamp(url).and_then(|stamp| stamp.file_name().map(ToOwned::to_owned));
        assert_eq!(of("redis://:a@host"), of("redis://:b@host"));
        assert_ne!(of("redis://:a@host"), of("redis://:a@other"));
    }
}
