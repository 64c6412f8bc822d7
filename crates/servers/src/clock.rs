//! Wall clocks that can be moved, each for one process alone.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What takes the place of the C library's clocks.
const SOURCE: &str = include_str!("clock.c");

/// Compiles the library into this folder. The compiler is there: SQLite, which everything here is
/// tested beside, is built with it too.
pub(crate) fn compile(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    fs::write(&source, SOURCE)?;
    let output = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .output()
        .context("a clock that can be moved needs a C compiler (the package gcc)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cc does not compile clock.c: {said}");
    Ok(library)
}

/// The clock of one process, which outlives its restarts.
#[derive(Debug)]
pub(crate) struct Clock {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Clock {
    /// A clock that shows the right time until it is moved.
    pub(crate) fn new(library: &Path, path: PathBuf) -> Result<Self> {
        let file = File::options().create(true).truncate(true).write(true).open(&path)?;
        let clock = Self { library: library.to_owned(), path, file };
        clock.set(0)?;
        Ok(clock)
    }

    /// What a process has to be given so that it goes by this clock.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        [
            ("LD_PRELOAD".into(), self.library.clone().into()),
            ("SERVERS_CLOCK".into(), self.path.clone().into()),
        ]
    }

    /// From now on it shows so many seconds more than the right time.
    pub(crate) fn set(&self, seconds: i64) -> Result<()> {
        Ok(self.file.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    /// What `date` says by this clock, less what we say.
    fn difference(clock: &Clock) -> i64 {
        let output = Command::new("date").arg("+%s").envs(clock.environment()).output().unwrap();
        let theirs: i64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        theirs - i64::try_from(ours.as_secs()).unwrap()
    }

    #[test]
    fn a_clock_goes_forward_and_back_for_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let library = compile(folder.path()).unwrap();
        let clock = Clock::new(&library, folder.path().join("a.clock")).unwrap();
        // A second border, or a slow machine, may lie between the two readings.
        assert!((-30..=0).contains(&difference(&clock)));
        clock.set(1_000).unwrap();
        assert!((970..=1_000).contains(&difference(&clock)));
        clock.set(-1_000).unwrap();
        assert!((-1_030..=-1_000).contains(&difference(&clock)));
    }
}
