//! The statements that the store sends, with the prefix of the URL in them.

use super::{schema::with_prefix, watch::FindGrants};

/// The server's clock, in microseconds since 1970. Our connections are in UTC.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Takes a free lock: all that decides is in the gate's row. The fence comes back as the id of the last
/// insert; without one the row was not as it should be.
const ENTER_FIRST: &str = "UPDATE lk_gate SET last = LAST_INSERT_ID(GREATEST(last + 1, {now})), \
     fence = last, id = ?, session = ?, weight = ?, capacity = ?, note = ?, note_edit = 0, \
     cell_edit = 0 WHERE name = ? AND fence = 0 AND crowd = 0 AND {now} < ?";

/// Releases a lock without waiters, of a name that this process releases often. A row that is found is changed, so
/// it does not matter how the server counts rows.
const LEAVE_FIRST: &str = "UPDATE lk_gate SET fence = 0 \
     WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0";

/// The same for any other name: takes the session out of its index, see `hot_names`.
const LEAVE_FIRST_RARE: &str = "UPDATE lk_gate SET fence = 0, session = '' \
     WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0";

/// Whether a grant is held, in the gate or behind it.
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
    pub(super) leave_first_rare: String,
    pub(super) enter: LineCall,
    pub(super) leave: LineCall,
    pub(super) poll: String,
    pub(super) own_tickets: String,
    pub(super) find_grants: FindGrants,
    pub(super) edit: LineCall,
    pub(super) evict: LineCall,
    pub(super) check: String,
    pub(super) read: String,
}

impl Statements {
    pub(super) fn new(prefix: &str, server: Server) -> Self {
        let sql = |text: &str| with_prefix(prefix, &text.replace("{now}", NOW));
        let call = |text: &str| format!("{}CALL {}", server.wait_clause(), sql(text));
        let line_call = |text: &str| LineCall(call(text));
        Self {
            open: call("lk_open(?, ?, ?, ?, ?, ?)"),
            renew: call("lk_renew(?)"),
            close: call("lk_close(?, ?)"),
            sweep: call("lk_sweep(?, ?, ?)"),
            enter_first: sql(ENTER_FIRST),
            leave_first: sql(LEAVE_FIRST),
            leave_first_rare: sql(LEAVE_FIRST_RARE),
            enter: line_call("lk_enter(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
            leave: line_call("lk_leave(?, ?, ?, ?, ?, ?)"),
            poll: call("lk_poll(?, ?)"),
            own_tickets: sql("SELECT name, id, fence FROM lk_ticket WHERE session = ? UNION ALL \
                 SELECT name, id, fence FROM lk_gate WHERE session = ? AND fence > 0"),
            find_grants: FindGrants::new(prefix),
            edit: line_call("lk_edit(?, ?, ?, ?, ?, ?, ?)"),
            evict: line_call("lk_evict(?, ?, ?)"),
            check: sql(CHECK),
            read: sql("SELECT bytes, fence FROM lk_cell WHERE name = ?"),
        }
    }
}

/// A call that locks the row of its line. Its last parameter says whether it waits up to a second for that row, or
/// is refused at once.
pub(super) struct LineCall(pub(super) String);

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

    /// Lets a statement wait for a row, which our connections do not do otherwise (`connection::GREETING`). All
    /// procedures need it: MariaDB ends a transaction that may not wait and has skipped a locked row with
    /// error 1180.
    fn wait_clause(self) -> &'static str {
        match self {
            Self::Mariadb => "SET STATEMENT innodb_lock_wait_timeout = 1 FOR ",
            Self::Mysql => "",
        }
    }
}
