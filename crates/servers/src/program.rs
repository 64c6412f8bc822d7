//! Finding a program without running it.

use std::env;
use std::path::PathBuf;

/// Servers often live in `sbin`, which is not on every user's `PATH`.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/local/sbin", "/usr/sbin"];

/// The file of this name on `PATH`, in the system's folders or in `folders`, in that order.
///
/// Being executable is not asked for: a Java server is found by its archive.
pub(crate) fn find(name: &str, folders: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().chain(folders).map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs_on_the_path_and_files_in_known_folders() {
        assert!(find("sh", &[]).is_some());
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("server-of-a-test.jar");
        std::fs::write(&archive, "").unwrap();
        assert_eq!(find("server-of-a-test.jar", &[]), None);
        assert_eq!(find("server-of-a-test.jar", &[folder.path().to_str().unwrap()]), Some(archive));
    }
}
