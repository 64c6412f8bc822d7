//! A file that checks fences, for several processes.

use std::{
    fs::File,
    io::{Error, ErrorKind, Read as _, Result, Write as _},
    path::Path,
};

/// Appends an entry on behalf of a grant; says whether it was accepted. An entry with a lower fence
/// than one before is refused, so the file never goes back in time.
///
/// # Errors
/// Those of the file.
pub fn append(path: &Path, fence: u64, value: &str) -> Result<bool> {
    let mut file = open(path)?;
    let highest = entries(&mut file)?.iter().map(|(fence, _)| *fence).max().unwrap_or(0);
    if fence < highest {
        return Ok(false);
    }
    writeln!(file, "{fence} {value}")?;
    Ok(true)
}

/// All entries that were accepted, in order.
///
/// # Errors
/// Those of the file.
pub fn read(path: &Path) -> Result<Vec<(u64, String)>> {
    entries(&mut open(path)?)
}

/// The file, to oneself: check and append must be one step.
fn open(path: &Path) -> Result<File> {
    let file = File::options().read(true).append(true).create(true).open(path)?;
    file.lock()?;
    Ok(file)
}

fn entries(file: &mut File) -> Result<Vec<(u64, String)>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let entry = |line: &str| {
        let (fence, value) = line.split_once(' ')?;
        Some((fence.parse().ok()?, value.to_owned()))
    };
    let garbled = || Error::new(ErrorKind::InvalidData, "not a ledger");
    text.lines().map(|line| entry(line).ok_or_else(garbled)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_fence_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        assert!(append(&path, 5, "one").unwrap());
        assert!(append(&path, 7, "two words").unwrap());
        assert!(!append(&path, 6, "late").unwrap());
        let entries = [(5, "one".to_owned()), (7, "two words".to_owned())];
        assert_eq!(read(&path).unwrap(), entries);
    }
}
