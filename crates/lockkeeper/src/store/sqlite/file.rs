//! The file itself: making it, knowing it again, and refusing what is not ours.

use super::KIND;
use crate::{
    error::{StoreError, Trouble},
    store::{StoreId, StoreResult},
};
use rusqlite::{Connection, OpenFlags, config::DbConfig, params};
use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    time::Duration,
};

/// "LKpr", in the header of every file of ours.
const APPLICATION_ID: i32 = 0x4c4b_7072;
/// Raised when the schema changes.
const SCHEMA_VERSION: i32 = 1;
/// Small pages: a line is short, and every commit writes whole pages. 20 to 50 % faster than 4096.
const PAGE_SIZE: i32 = 1024;
/// The log is cut back to this size when it starts anew.
const LOG_SIZE: i64 = 8 << 20;
/// While connecting, for how long to wait for others. Never while locking.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Where the header says whose file it is: the magic, and our application id.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const APPLICATION_ID_AT: usize = 68;

fn misconfigured(what: String) -> StoreError {
    StoreError::not_applied(KIND, Trouble::Misconfigured, what)
}

/// The absolute path of the file, in a folder that exists on this machine.
pub(super) fn locate(path: &str) -> StoreResult<PathBuf> {
    let path = Path::new(path);
    let file = path
        .file_name()
        .ok_or_else(|| misconfigured(format!("{} is not the path of a file", path.display())))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|e| {
        misconfigured(format!("cannot use folder {}; create it first", folder.display())).because(e)
    })?;
    refuse_network(&folder)?;
    Ok(folder.join(file))
}

/// Locks of a file on another machine's disk are not locks: the log's shared memory is local.
fn refuse_network(folder: &Path) -> StoreResult<()> {
    let Some(kind) = network_kind(folder) else { return Ok(()) };
    Err(misconfigured(format!(
        "{} is on a network file system ({kind}), where SQLite cannot lock between machines; \
         use a local folder, or a store that is made for several machines",
        folder.display()
    )))
}

#[cfg(target_os = "linux")]
fn network_kind(folder: &Path) -> Option<&'static str> {
    let magic = rustix::fs::statfs(folder).ok()?.f_type;
    kind_of(u32::try_from(magic).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn network_kind(_: &Path) -> Option<&'static str> {
    None
}

/// The network file systems among those that `statfs` names.
#[cfg(target_os = "linux")]
fn kind_of(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x517b => "SMB",
        0x564c => "NCP",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0bd0_0bd0 => "Lustre",
        0x7375_7245 => "Coda",
        0x4750_4653 => "GPFS",
        _ => return None,
    })
}

/// Makes sure that the file is there and ours, and opens it.
pub(super) fn open(path: &Path) -> StoreResult<Connection> {
    if !is_ours(path)? {
        create(path)?;
    }
    connect(path).map_err(|e| super::trouble(e, "cannot open the file"))
}

/// One more connection to a file that is ours.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let c = Connection::open_with_flags(path, flags)?;
    c.busy_timeout(CONNECT_PATIENCE)?;
    // Checkpoints fsync: they happen on the janitor's thread.
    c.pragma_update(None, "wal_autocheckpoint", 0)?;
    c.pragma_update(None, "synchronous", "NORMAL")?;
    c.pragma_update(None, "journal_size_limit", LOG_SIZE)?;
    c.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    c.set_prepared_statement_cache_capacity(64);
    Ok(c)
}

/// `false` if there is no file yet; an error, and the file untouched, if it is not ours.
fn is_ours(path: &Path) -> StoreResult<bool> {
    let mut header = [0; 100];
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(unreadable(path, e)),
    };
    if file.metadata().map_err(|e| unreadable(path, e))?.is_dir() {
        return Err(misconfigured(format!("{} is a folder, not a file", path.display())));
    }
    let foreign = match file.read_exact(&mut header) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => "it is no SQLite file",
        Err(e) => return Err(unreadable(path, e)),
        Ok(()) if header[..16] != *MAGIC => "it is no SQLite file",
        Ok(()) if header[APPLICATION_ID_AT..][..4] != APPLICATION_ID.to_be_bytes() => {
            "it is another program's database"
        }
        Ok(()) => return Ok(true),
    };
    Err(misconfigured(format!(
        "{} is not a file of locks: {foreign}; it was left untouched, use another path",
        path.display()
    )))
}

fn unreadable(path: &Path, e: std::io::Error) -> StoreError {
    let trouble = match e.kind() {
        ErrorKind::PermissionDenied => Trouble::Denied,
        _ => Trouble::Misconfigured,
    };
    StoreError::not_applied(KIND, trouble, format!("cannot read {}", path.display())).because(e)
}

/// Makes the file under another name and then gives it its own, so that nobody ever sees half of it.
fn create(path: &Path) -> StoreResult<()> {
    let failed = |what: &str| format!("cannot create {}: {what}", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    let draft = folder.join(format!(".lockkeeper-{:016x}.tmp", rand::random::<u64>()));
    let made = draft_at(&draft).map_err(|e| super::trouble(e, &failed("making it")));
    let named = made.and_then(|()| match std::fs::hard_link(&draft, path) {
        // Somebody else was faster: theirs is as good as ours, if it is one.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => is_ours(path).map(drop),
        Err(e) => Err(misconfigured(failed("naming it")).because(e)),
        Ok(()) => Ok(()),
    });
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut leftover = draft.clone().into_os_string();
        leftover.push(suffix);
        let _ = std::fs::remove_file(leftover);
    }
    named
}

fn draft_at(path: &Path) -> rusqlite::Result<()> {
    let c = Connection::open(path)?;
    c.pragma_update(None, "page_size", PAGE_SIZE)?;
    c.pragma_update(None, "application_id", APPLICATION_ID)?;
    c.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    c.execute_batch(include_str!("schema.sql"))?;
    let store: [u8; 8] = rand::random();
    c.execute("INSERT INTO meta VALUES(1, ?1, ?2, 0)", params![store, boot()])?;
    c.pragma_update(None, "journal_mode", "WAL")?;
    c.close().map_err(|(_, e)| e)
}

/// Which file a path leads to: device and inode.
pub(super) fn inode(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Reads what the file is. After a reboot ends all sessions: their times mean nothing any more.
pub(super) fn identify(c: &Connection) -> StoreResult<StoreId> {
    let failed = |e| super::trouble(e, "cannot read the file");
    let version: i32 = c.pragma_query_value(None, "user_version", |r| r.get(0)).map_err(failed)?;
    if version != SCHEMA_VERSION {
        return Err(misconfigured(format!(
            "the file has schema version {version}, and this program knows {SCHEMA_VERSION}; \
             use the same version of lockkeeper everywhere, or another file"
        )));
    }
    let sql = "SELECT store, boot FROM meta WHERE id = 1";
    let (store, then): ([u8; 8], String) =
        c.query_row(sql, [], |r| Ok((r.get(0)?, r.get(1)?))).map_err(failed)?;
    if then != boot() {
        after_reboot(c).map_err(failed)?;
    }
    Ok(StoreId(store))
}

fn after_reboot(c: &Connection) -> rusqlite::Result<()> {
    c.execute_batch("BEGIN IMMEDIATE")?;
    let fresh = c.execute("UPDATE meta SET boot = ?1 WHERE id = 1 AND boot <> ?1", [boot()])?;
    if fresh > 0 {
        c.execute_batch("DELETE FROM ticket; DELETE FROM session; DELETE FROM closed;")?;
    }
    c.execute_batch("COMMIT")
}

/// Which boot of the machine this is.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn network_file_systems_are_known_by_their_magic() {
        assert_eq!(kind_of(0x6969), Some("NFS"));
        assert_eq!(kind_of(0xff53_4d42), Some("CIFS"));
        assert_eq!(kind_of(0xef53), None, "ext4 is local");
        assert_eq!(network_kind(Path::new("/proc")), None);
    }

    #[test]
    fn a_foreign_file_is_refused_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("notes.txt");
        std::fs::write(&text, "shopping list, long enough to be longer than a header".repeat(4))
            .unwrap();
        let database = folder.path().join("other.db");
        Connection::open(&database).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
        for path in [&text, &database] {
            let before = std::fs::read(path).unwrap();
            let e = open(path).unwrap_err();
            assert_eq!(e.trouble, Trouble::Misconfigured);
            assert!(e.to_string().contains("left untouched"), "{e}");
            assert_eq!(std::fs::read(path).unwrap(), before);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_corrupt_file_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        drop(open(&path).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100..].fill(0x5a);
        std::fs::write(&path, &bytes).unwrap();
        let e = open(&path).and_then(|c| identify(&c)).unwrap_err();
        assert_eq!(e.trouble, Trouble::Corrupt, "{e}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let e = locate("no-such-folder/locks.db").unwrap_err().to_string();
        assert!(e.contains("no-such-folder") && e.contains("create it"), "{e}");
    }

    #[test]
    fn many_at_once_make_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let ids: Vec<StoreId> = std::thread::scope(|scope| {
            let open = || identify(&open(&path).unwrap()).unwrap();
            let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }

    #[test]
    fn a_reboot_ends_all_sessions_and_keeps_cells_and_fences() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let c = open(&path).unwrap();
        c.execute_batch(
            "INSERT INTO session VALUES(x'01', 1, 0, 1 << 60, 1 << 60, 0, '', 'h', 1, 'p');
             INSERT INTO ticket(name, seq, id, session, weight, capacity, fence, entered, note)
               VALUES('a', 7, x'02', x'01', 1, 1, 7, 0, x'');
             INSERT INTO cell VALUES('a', x'03', 7);
             UPDATE meta SET last = 7, boot = 'another';",
        )
        .unwrap();
        identify(&c).unwrap();
        let count = |table| -> i64 {
            c.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| r.get(0)).unwrap()
        };
        assert_eq!((count("session"), count("ticket"), count("cell")), (0, 0, 1));
        let last: i64 = c.query_row("SELECT last FROM meta", [], |r| r.get(0)).unwrap();
        assert_eq!(last, 7);
    }
}
