//! The file itself: creating it, recognising it, and refusing other programs' files.

use super::{KIND, error::failure, line};
use crate::{
    clock::{self, Moment},
    error::{ErrorKind, StoreError},
    store::{STRAY_MAX, StoreId, StoreResult},
    sync::Mutex,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rusqlite::{Connection, OpenFlags, config::DbConfig, params};
use rustix::fs::FlockOperation;
use std::{
    fs::File,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// "LKpr", in the header of each of our files.
const APPLICATION_ID: i32 = 0x4c4b_7072;
/// Raised when the schema changes.
const SCHEMA_VERSION: i32 = 1;
/// A line is short, and every commit writes whole pages: 20 to 50 % faster than with 4,096 bytes.
const PAGE_SIZE: i32 = 1024;
/// The log is truncated to this size when it starts anew.
const LOG_SIZE: i64 = 8 << 20;
/// The files that SQLite keeps beside the database: its log and the log's index.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];
/// For how long connecting waits for other processes. A transaction never waits.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// How often to open a file that is replaced meanwhile.
const OPENINGS_MAX: u32 = 10;

/// What is not percent-encoded in a URI's path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

fn misconfigured(what: String) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
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
    let folder = folder.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => {
            let what = format!("cannot enter folder {}", folder.display());
            StoreError::not_applied(KIND, ErrorKind::Denied, what).because(e)
        }
        _ => misconfigured(format!("cannot use folder {}; create it first", folder.display()))
            .because(e),
    })?;
    refuse_network(&folder)?;
    // A symbolic link leads to another folder, where the log and the doorbells are.
    let path = folder.join(file);
    match path.canonicalize() {
        Ok(real) if real != path => {
            refuse_network(real.parent().unwrap_or(&folder))?;
            Ok(real)
        }
        _ => Ok(path),
    }
}

/// On another machine's disk SQLite's locks are no locks: the log's index is shared memory of one machine.
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
    // On some machines the number is signed: only its 32 bits count.
    kind_of(magic as u32)
}

#[cfg(not(target_os = "linux"))]
fn network_kind(_: &Path) -> Option<&'static str> {
    None
}

/// The network file systems among the types that `statfs` tells.
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
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        0x1983_0326 => "BeeGFS",
        0x786f_4256 => "VirtualBox shared folder",
        _ => return None,
    })
}

/// Opens the file, or creates it.
pub(super) fn open(path: &Path) -> StoreResult<Connection> {
    if !is_ours(path)? {
        create(path)?;
    }
    connect(path).map_err(|e| failure(e, "cannot open the file"))
}

/// Calls `open`, and says which files it has opened. It does not tell itself, so what lies there is looked
/// at before and after. If that is not the same, as when another process replaces the file or when the log
/// is made, `open` is called again.
pub(super) fn open_in_place<T>(
    path: &Path,
    open: impl Fn() -> StoreResult<T>,
) -> StoreResult<(T, Identity)> {
    let mut before = Identity::of(path);
    for _ in 0..OPENINGS_MAX {
        refuse_another_log(path)?;
        let opened = open()?;
        let after = Identity::of(path);
        refuse_another_log(path)?;
        if before == after {
            return Ok((opened, after));
        }
        before = after;
    }
    let what = format!("{} is removed or replaced again and again", path.display());
    Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
}

/// Within a process SQLite gives all connections to one database the same index of the log. If a handle was
/// cut off from its log and is still open, a new one would use the removed index with another log.
fn refuse_another_log(path: &Path) -> StoreResult<()> {
    let open = OPEN.lock();
    let identity = Identity::of(path);
    let conflicts = |files: Arc<Files>| files.identity.has_another_log_than(identity);
    if !open.iter().filter_map(Weak::upgrade).any(conflicts) {
        return Ok(());
    }
    let what = format!(
        "the log of {} was removed or replaced while a keeper of this process was connected to it; \
         drop that keeper and its guards, then connect again",
        path.display()
    );
    Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
}

/// One more connection to a file that is ours.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let c = Connection::open_with_flags(path, flags)?;
    c.busy_timeout(CONNECT_PATIENCE)?;
    // Checkpoints make fsyncs, so they happen on a thread of their own.
    c.pragma_update(None, "wal_autocheckpoint", 0)?;
    c.pragma_update(None, "synchronous", "NORMAL")?;
    c.pragma_update(None, "journal_size_limit", LOG_SIZE)?;
    c.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    c.set_prepared_statement_cache_capacity(64);
    Ok(c)
}

/// `false` if there is no file yet; an error, and the file untouched, if it is not ours.
fn is_ours(path: &Path) -> StoreResult<bool> {
    match std::fs::metadata(path) {
        Ok(it) if it.is_dir() => {
            return Err(misconfigured(format!("{} is a folder, not a file", path.display())));
        }
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(unreadable(path, e)),
    }
    // Read through SQLite, because closing another file descriptor of the file would drop this process's
    // POSIX locks on it. `immutable` takes no lock and makes no companion files.
    let uri = format!("file:{}?immutable=1", utf8_percent_encode(&path.to_string_lossy(), ENCODED));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let id = Connection::open_with_flags(uri, flags)
        .and_then(|c| c.pragma_query_value(None, "application_id", |r| r.get::<_, i32>(0)));
    let foreign = match id {
        Ok(APPLICATION_ID) => return Ok(true),
        Ok(_) => "it is another program's database",
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            "it is no SQLite file"
        }
        Err(e) => return Err(failure(e, &format!("cannot read {}", path.display()))),
    };
    Err(misconfigured(format!(
        "{} is not a file of locks: {foreign}; it was left untouched, use another path",
        path.display()
    )))
}

fn unreadable(path: &Path, e: std::io::Error) -> StoreError {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Misconfigured,
    };
    StoreError::not_applied(KIND, kind, format!("cannot read {}", path.display())).because(e)
}

/// Creates the file under a temporary name and links it into place, so that no process sees half of it.
fn create(path: &Path) -> StoreResult<()> {
    let failed = |what: &str| format!("cannot create {}: {what}", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    let draft = folder.join(format!(".lockkeeper-{:016x}.tmp", rand::random::<u64>()));
    let made = draft_at(&draft).map_err(|e| failure(e, &failed("making it")));
    let shared = made.and_then(|()| {
        share(&draft, folder).map_err(|e| misconfigured(failed("sharing it")).because(e))
    });
    let named = shared.and_then(|()| match link(&draft, path, folder) {
        // Another process was faster: its file will do, if it is one of locks.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => is_ours(path).map(drop),
        Err(e) => Err(misconfigured(failed("naming it")).because(e)),
        Ok(()) => Ok(()),
    });
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(beside(&draft, suffix));
    }
    named
}

/// In a folder that a group shares (set-group-id and writable by the group) the file is the group's to read
/// and write, also if the creator's umask says otherwise. SQLite gives the log and its index the mode of
/// the file.
fn share(file: &Path, folder: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(folder)?.permissions().mode();
    if mode & 0o2020 != 0o2020 {
        return Ok(());
    }
    let mut permissions = std::fs::metadata(file)?.permissions();
    permissions.set_mode(permissions.mode() | 0o060);
    std::fs::set_permissions(file, permissions)
}

/// Links the draft into place, after removing the log of an earlier file of that name: SQLite would replay
/// it into ours.
///
/// A lock on the folder admits one process at a time. Otherwise a slower process would take the log of the
/// faster one's file, which is already in use, for that of an earlier file.
fn link(draft: &Path, path: &Path, folder: &Path) -> io::Result<()> {
    let folder = File::open(folder)?;
    let mut waited = Duration::ZERO;
    while let Err(e) = rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        if waited > CONNECT_PATIENCE || e != rustix::io::Errno::WOULDBLOCK {
            return Err(e.into());
        }
        clock::pause_thread(PAUSE);
        waited += PAUSE;
    }
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    for suffix in COMPANIONS {
        match std::fs::remove_file(beside(path, suffix)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    std::fs::hard_link(draft, path)
}

/// The path of a file that belongs to this one.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn draft_at(path: &Path) -> rusqlite::Result<()> {
    let c = Connection::open(path)?;
    c.pragma_update(None, "page_size", PAGE_SIZE)?;
    c.pragma_update(None, "application_id", APPLICATION_ID)?;
    c.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    c.execute_batch(include_str!("schema.sql"))?;
    let store: [u8; 8] = rand::random();
    // No boot has this id, so the first process that opens the file writes the id of its own.
    c.execute("INSERT INTO meta VALUES(1, ?1, 'none', 0)", params![store])?;
    c.pragma_update(None, "journal_mode", "WAL")?;
    c.close().map_err(|(_, e)| e)
}

/// The files that a connection has open: device and inode of the database, its log and the log's index.
/// While a connection is open none of them changes. If one does, other processes lock in other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity([Option<(u64, u64)>; 3]);

impl Identity {
    /// Of the files that are there now.
    pub(super) fn of(path: &Path) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let inode = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let [log, index] = COMPANIONS.map(|suffix| inode(&beside(path, suffix)));
        Self([inode(path), log, index])
    }

    /// The same database, with another log or another index.
    fn has_another_log_than(self, other: Self) -> bool {
        self.0[0].is_some() && self.0[0] == other.0[0] && self != other
    }
}

/// The files of all handles of this process.
static OPEN: Mutex<Vec<Weak<Files>>> = Mutex::new(Vec::new());

/// The files that a handle has open.
pub(super) struct Files {
    pub(super) path: PathBuf,
    identity: Identity,
    /// They were once seen to be removed or replaced.
    were_cut_off: AtomicBool,
}

impl Files {
    pub(super) fn new(path: PathBuf, identity: Identity) -> Arc<Self> {
        let files = Arc::new(Self { path, identity, were_cut_off: false.into() });
        let mut open = OPEN.lock();
        open.retain(|files| files.strong_count() > 0);
        open.push(Arc::downgrade(&files));
        files
    }

    /// Has the file, its log or the log's index been removed or replaced? Then other processes lock in
    /// another file, and nothing that the handle holds is worth anything.
    pub(super) fn are_cut_off(&self) -> bool {
        let cut_off = Identity::of(&self.path) != self.identity;
        self.were_cut_off.fetch_or(cut_off, Ordering::Relaxed);
        cut_off
    }

    /// May the log be carried over into the database? Not if the log or its index was removed: then other
    /// processes have a new log for the same database, and no lock of theirs keeps our old pages out of it.
    /// Nor if the files came back: in between, the database may have changed.
    pub(super) fn may_checkpoint(&self) -> bool {
        !self.are_cut_off() && !self.were_cut_off.load(Ordering::Relaxed)
    }
}

/// Reads the identity of the data. If the file was last used in another boot of the machine, its times are
/// adapted to this one.
pub(super) fn identify(c: &Connection, now: Moment) -> StoreResult<StoreId> {
    let failed = |e| failure(e, "cannot read the file");
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
    let boot = boot()?;
    if then != boot {
        adopt(c, &boot, now).map_err(failed)?;
    }
    Ok(StoreId(store))
}

/// Gives every session that lived in another boot one more TTL, as if it were renewed now.
///
/// After a real reboot this costs the successors one TTL. But some containers are told a boot id of their
/// own while they run beside others. Then those sessions live, and must not be ended.
fn adopt(c: &Connection, boot: &str, now: Moment) -> rusqlite::Result<()> {
    let now = line::micros(now);
    c.execute_batch("BEGIN IMMEDIATE")?;
    let fresh = c.execute("UPDATE meta SET boot = ?1 WHERE id = 1 AND boot <> ?1", [boot])?;
    if fresh > 0 {
        let sessions = "UPDATE session SET expires = ?1 + ttl, dead_at = ?1 + ttl + delay \
             WHERE expires > 0";
        c.execute(sessions, [now])?;
        c.execute("UPDATE ticket SET hold_until = ?1 WHERE hold_until IS NOT NULL", [now])?;
        c.execute("UPDATE closed SET until = ?1", [line::micros_after(now, STRAY_MAX)])?;
    }
    c.execute_batch("COMMIT")
}

/// The id of this boot of the machine.
#[cfg(target_os = "linux")]
fn boot() -> StoreResult<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    match std::fs::read_to_string(path) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(e) => Err(misconfigured(format!(
            "cannot read {path}, and without it times from before a reboot look like times of now"
        ))
        .because(e)),
    }
}

/// Other systems have no boot ids. After a reboot, sessions from before it can seem to live for as long as
/// the machine had been up.
#[cfg(not(target_os = "linux"))]
fn boot() -> StoreResult<String> {
    Ok(String::new())
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
    fn a_file_in_a_folder_of_a_group_is_the_group_s() {
        let folder = tempfile::tempdir().unwrap();
        let made_in = |folder_mode, umask_left| {
            let mode = std::fs::Permissions::from_mode;
            std::fs::set_permissions(folder.path(), mode(folder_mode)).unwrap();
            let file = folder.path().join(format!("{folder_mode:o}"));
            File::create(&file).unwrap();
            std::fs::set_permissions(&file, mode(umask_left)).unwrap();
            share(&file, folder.path()).unwrap();
            std::fs::metadata(file).unwrap().permissions().mode() & 0o777
        };
        assert_eq!(made_in(0o2770, 0o600), 0o660);
        assert_eq!(made_in(0o2775, 0o644), 0o664, "other users get no more than they had");
        for not_shared in [0o2755, 0o770, 0o700] {
            assert_eq!(made_in(not_shared, 0o600), 0o600, "{not_shared:o}");
        }
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
            assert_eq!(e.kind, ErrorKind::Misconfigured);
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
        let e = open(&path).and_then(|c| identify(&c, Moment::from_millis(1))).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
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
            let open = || identify(&open(&path).unwrap(), Moment::from_millis(1)).unwrap();
            let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }

    #[test]
    fn a_file_that_is_replaced_while_it_is_opened_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let now = Moment::from_millis(1);
        let other = std::cell::OnceCell::new();
        let reopen = || {
            let c = open(&path)?;
            identify(&c, now)?;
            if other.get().is_none() {
                for suffix in ["", "-wal", "-shm"] {
                    std::fs::remove_file(beside(&path, suffix)).unwrap();
                }
                let c = open(&path)?;
                identify(&c, now)?;
                other.set(c).unwrap();
            }
            Ok(c)
        };
        let (c, identity) = open_in_place(&path, reopen).unwrap();
        assert_eq!(identity, Identity::of(&path));
        other.get().unwrap().execute("UPDATE meta SET last = 7", []).unwrap();
        let last: i64 = c.query_row("SELECT last FROM meta", [], |r| r.get(0)).unwrap();
        assert_eq!(last, 7, "another file was opened");
    }

    #[test]
    fn another_boot_gives_sessions_one_more_ttl_and_keeps_cells_and_fences() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        let c = open(&path).unwrap();
        let now = Moment::from_millis(5);
        identify(&c, now).unwrap();
        c.execute_batch(
            "INSERT INTO session VALUES(x'01', 1000, 10, 1 << 60, 1 << 60, 0, '', 'h', 1, 'p');
             INSERT INTO session VALUES(x'02', 1000, 10, 0, 0, 0, '', 'h', 1, 'p');
             INSERT INTO cell VALUES('a', x'03', 7);
             UPDATE meta SET last = 7, boot = 'another';",
        )
        .unwrap();
        identify(&c, now).unwrap();
        let one = |sql: &str| -> i64 { c.query_row(sql, [], |r| r.get(0)).unwrap() };
        assert_eq!(one("SELECT expires FROM session WHERE id = x'01'"), 6_000);
        assert_eq!(one("SELECT dead_at FROM session WHERE id = x'01'"), 6_010);
        assert_eq!(one("SELECT dead_at FROM session WHERE id = x'02'"), 0, "the dead stay dead");
        assert_eq!((one("SELECT count(*) FROM cell"), one("SELECT last FROM meta")), (1, 7));
        c.execute("UPDATE session SET expires = 1 WHERE id = x'01'", []).unwrap();
        identify(&c, now).unwrap();
        assert_eq!(one("SELECT expires FROM session WHERE id = x'01'"), 1, "only once");
    }
}
