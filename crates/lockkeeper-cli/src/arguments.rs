//! The words of the command line.
//!
//! Every user of the machine can read them (`ps`), so a password should not stand there. If one does,
//! lockkeeper starts itself again with the same process id and without the password, about a millisecond after
//! its start. The words as they were given travel in a file in memory.

use crate::{
    secrets::{hide as without_passwords, is_secret},
    shim,
};
use nix::{sys::prctl, unistd::close};
use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    sync::OnceLock,
};

static WORDS: OnceLock<Words> = OnceLock::new();

struct Words {
    given: Vec<OsString>,
    hidden: bool,
}

/// The words as they were given.
pub(crate) fn words() -> &'static [OsString] {
    &get().given
}

/// Were there passwords among them that `ps` does not show now?
pub(crate) fn are_hidden() -> bool {
    get().hidden
}

fn get() -> &'static Words {
    WORDS.get_or_init(|| {
        let seen: Vec<OsString> = env::args_os().collect();
        let given = handed_over(&seen);
        let hidden = given.is_some();
        Words { given: given.unwrap_or(seen), hidden }
    })
}

/// Starts lockkeeper again if there is a password in its command line. If that fails, all goes on as it is, and
/// [`are_hidden`] says so.
pub(crate) fn hide() {
    let secret = |word: &OsString| is_secret(&word.to_string_lossy());
    if !are_hidden() && words().iter().any(secret) {
        let _ = start_again(words());
    }
}

/// Returns only if it fails.
fn start_again(words: &[OsString]) -> io::Result<()> {
    // Inherited by what we become, so not closed on exec.
    let mut file = File::from(memfd_create("arguments", MemfdFlags::empty())?);
    let given: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    // No word has a NUL in it.
    file.write_all(&given.join(&0))?;
    let mut seen =
        words.iter().map(|word| OsString::from_vec(without_passwords(word.as_bytes().to_vec())));
    let descriptor = file.as_raw_fd().to_string();
    let start: Vec<OsString> = seen
        .next()
        .into_iter()
        .chain([shim::ARGUMENTS.into(), descriptor.into()])
        .chain(seen)
        .collect();
    Err(shim::start_again(&start))
}

/// The words that lockkeeper handed over to itself, if it did. What the command inherits must not have them,
/// so the file is closed.
fn handed_over(seen: &[OsString]) -> Option<Vec<OsString>> {
    let [_, mark, descriptor, ..] = seen else { return None };
    let descriptor: i32 = descriptor.to_str().filter(|_| mark == shim::ARGUMENTS)?.parse().ok()?;
    let given = fs::read(format!("/proc/self/fd/{descriptor}")).ok()?;
    let _ = close(descriptor);
    // Otherwise `pkill lockkeeper` would look for `exe`.
    let _ = prctl::set_name(c"lockkeeper");
    Some(given.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect())
}
