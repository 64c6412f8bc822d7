//! What is read from files and read again when they change.

use std::{
    fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

/// A value from files. Cheap to read; it stays as it was when the files become unusable.
pub(crate) struct LiveFile<T> {
    paths: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    value: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
}

/// What was found at the last look.
struct Seen {
    stamps: Vec<Option<Stamp>>,
    /// Why the files could not be read then. They are tried again at every look, for the cause may lie elsewhere.
    failure: Option<String>,
}

/// By what a changed file is known.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl<T> LiveFile<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// What `read` says.
    pub(crate) fn open(
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // Looked at first: a change while they are read is seen as one.
        let seen = Seen { stamps: stamps(&paths), failure: None };
        let value = RwLock::new(Arc::new(read()?));
        Ok(Self { paths, read: Box::new(read), value, seen: Mutex::new(seen) })
    }

    /// The value as it was read last.
    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again if they have changed or could not be read before, or in any case. `None` if there is
    /// nothing new; an error leaves the value as it was, and is said once.
    pub(crate) fn refresh(&self, in_any_case: bool) -> Option<Result<(), String>> {
        let now = stamps(&self.paths);
        // Held while the files are read, so that no older value follows a newer one.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = seen.stamps != now || in_any_case;
        if !is_new && seen.failure.is_none() {
            return None;
        }
        seen.stamps = now;
        match (self.read)() {
            Ok(value) => {
                seen.failure = None;
                *self.value.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
                Some(Ok(()))
            }
            Err(e) => {
                let before = seen.failure.replace(e.clone());
                (is_new || before.as_ref() != Some(&e)).then_some(Err(e))
            }
        }
    }

    /// The files, for messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.paths.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    }
}

impl<T> fmt::Debug for LiveFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveFile({})", self.names())
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some(Stamp { inode: meta.ino(), size: meta.len(), changed })
    };
    paths.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_broken_file_leaves_the_value_and_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        fs::write(&path, "1").unwrap();
        let read = {
            let path = path.clone();
            move || {
                let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
                text.parse::<u32>().map_err(|e| e.to_string())
            }
        };
        let live = LiveFile::open(vec![path.clone()], read).unwrap();
        assert_eq!((*live.get(), live.refresh(false)), (1, None));
        fs::write(&path, "22").unwrap();
        assert_eq!((live.refresh(false), *live.get()), (Some(Ok(())), 22));
        fs::write(&path, "three").unwrap();
        assert!(live.refresh(false).unwrap().is_err() && live.refresh(false).is_none());
        fs::remove_file(&path).unwrap();
        assert!(live.refresh(false).unwrap().is_err() && *live.get() == 22);
        assert!(live.refresh(true).unwrap().is_err(), "in any case");
    }

    #[test]
    fn a_read_that_fails_is_tried_again_although_the_file_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, "before").unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let read = {
            let (path, fails) = (path.clone(), Arc::clone(&fails));
            move || match fails.load(Ordering::Relaxed) {
                true => Err("too many open files".to_owned()),
                false => fs::read_to_string(&path).map_err(|e| e.to_string()),
            }
        };
        let live = LiveFile::open(vec![path.clone()], read).unwrap();
        fails.store(true, Ordering::Relaxed);
        fs::write(&path, "a line less").unwrap();
        assert!(live.refresh(false).unwrap().is_err());
        assert_eq!(live.refresh(false), None, "it is said once");
        fails.store(false, Ordering::Relaxed);
        assert_eq!(live.refresh(false), Some(Ok(())));
        assert_eq!((live.get().as_str(), live.refresh(false)), ("a line less", None));
    }
}
