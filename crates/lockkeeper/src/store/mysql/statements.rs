//! What is sent, with the prefix of the URL in it.

use super::{schema, watch::Granted};

/// The server's clock, in microseconds since 1970. Our connections are in UTC.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Takes a lock in whose line nobody stands: all that decides is in the gate's row. The fence comes
/// back as the id of the last insert; without one the row was not as it should be.
const ENTER_FIRST: &str = "UPDATE lk_gate SET last = LAST_INSERT_ID(GREATEST(last + 1, {now})), \
     fence = last, id = ?, session = ?, weight = ?, capacity = ?, note = ?, note_edit = 0, \
     cell_edit = 0 WHERE name = ? AND fence = 0 AND crowd = 0 AND {now} < ?";

/// Releases a lock for which nobody waits. A row that is found is changed, so it does not matter
/// how rows are counted.
const LEAVE_FIRST: &str = "UPDATE lk_gate SET fence = 0 \
     WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0";

/// The same for a name that this process rarely uses. The session must not be found by its index for as long as
/// the name is remembered, or every renewal would walk over all that it has ever locked.
const LEAVE_RARE: &str = "UPDATE lk_gate SET fence = 0, session = '' \
     WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0";

/// A grant that somebody claims to have, in the gate or behind it.
const CHECK: &str = "SELECT COUNT(*) AS held FROM (\
     SELECT id, session, fence, weight, capacity FROM lk_gate WHERE name = ? AND fence > 0 \
     UNION ALL SELECT id, session, fence, weight, capacity FROM lk_ticket \
     WHERE name = ? AND id = ? AND fence > 0) t JOIN lk_session s ON s.id = t.session \
     WHERE t.id = ? AND t.fence = ? AND t.weight = ? AND t.capacity = ? AND s.dead_at > {now}";

pub(super) struct Statements {
    pub(super) open: String,
    pub(super) renew: String,
    pub(super) close: String,
    pub(super) sweep: String,
    pub(super) enter_first: String,
    pub(super) leave_first: String,
    pub(super) leave_rare: String,
    pub(super) enter: Patient,
    pub(super) leave: Patient,
    pub(super) poll: String,
    pub(super) all: String,
    pub(super) granted: Granted,
    pub(super) edit: Patient,
    pub(super) evict: Patient,
    pub(super) check: String,
    pub(super) read: String,
}

impl Statements {
    pub(super) fn new(prefix: &str, server: Server) -> Self {
        let sql = |text: &str| schema::named(prefix, &text.replace("{now}", NOW));
        let call = |text: &str| format!("{}CALL {}", server.patiently(), sql(text));
        let patient = |text: &str| Patient(call(text));
        Self {
            open: call("lk_open(?, ?, ?, ?, ?, ?)"),
            renew: call("lk_renew(?)"),
            close: call("lk_close(?, ?)"),
            sweep: call("lk_sweep(?, ?, ?)"),
            enter_first: sql(ENTER_FIRST),
            leave_first: sql(LEAVE_FIRST),
            leave_rare: sql(LEAVE_RARE),
            enter: patient("lk_enter(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
            leave: patient("lk_leave(?, ?, ?, ?, ?, ?)"),
            poll: call("lk_poll(?, ?)"),
            all: sql("SELECT name, id, fence FROM lk_ticket WHERE session = ? UNION ALL \
                 SELECT name, id, fence FROM lk_gate WHERE session = ? AND fence > 0"),
            granted: Granted::new(prefix),
            edit: patient("lk_edit(?, ?, ?, ?, ?, ?, ?)"),
            evict: patient("lk_evict(?, ?, ?)"),
            check: sql(CHECK),
            read: sql("SELECT bytes, fence FROM lk_cell WHERE name = ?"),
        }
    }
}

/// A statement whose last parameter says whether it waits a second for a line that somebody has, or is refused
/// at once.
pub(super) struct Patient(pub(super) String);

/// Which of the two a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Mariadb,
    Mysql,
}

impl Server {
    pub(super) fn of(version: &str) -> Self {
        if version.contains("MariaDB") { Self::Mariadb } else { Self::Mysql }
    }

    /// What gives a statement time to wait for a row. All procedures need it: MariaDB ends a transaction that
    /// may not wait and has skipped a locked row with error 1180.
    fn patiently(self) -> &'static str {
        match self {
            // Our connections do not wait for rows otherwise, see `connection::GREETING`.
            Self::Mariadb => "SET STATEMENT innodb_lock_wait_timeout = 1 FOR ",
            Self::Mysql => "",
        }
    }
}
