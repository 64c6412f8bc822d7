//! The rights of files with secrets.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

const READ_BY_ALL: u32 = 0o004;
const WRITTEN_BY_ALL: u32 = 0o002;

fn mode(path: &Path) -> Result<u32, String> {
    let meta = fs::metadata(path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    Ok(if meta.is_file() { meta.permissions().mode() & 0o777 } else { 0 })
}

/// For files with secrets.
pub(crate) fn refuse_readable_by_all(path: &Path) -> Result<(), String> {
    match mode(path)? & READ_BY_ALL {
        0 => Ok(()),
        _ => {
            Err(format!("all users of this machine may read {0}: chmod o-rwx {0}", path.display()))
        }
    }
}

/// For files that say who may do what.
pub(crate) fn refuse_writable_by_all(path: &Path) -> Result<(), String> {
    match mode(path)? & WRITTEN_BY_ALL {
        0 => Ok(()),
        _ => {
            Err(format!("all users of this machine may change {0}: chmod o-w {0}", path.display()))
        }
    }
}

/// Hashes are no secrets, but the principals' names and rights need not be read by all users.
pub(crate) fn is_readable_by_all(path: &Path) -> bool {
    mode(path).is_ok_and(|mode| mode & READ_BY_ALL != 0)
}
