//! The statements that the store sends, with the prefix of the URL in them.

use super::{schema::with_prefix, watch::FindGrants};
use crate::store::common::decode::compact;

/// The server's clock, in microseconds since 1970. Our connections are in UTC.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

pub(super) struct Statements {
    pub(super) open: String,
    pub(super) renew: String,
    pub(super) close: String,
    pub(super) sweep: String,
    pub(super) enter_first: String,
    pub(super) leave_first: String,
    pub(super) enter: LineCall,
    pub(super) leave: LineCall,
    pub(super) poll: String,
    pub(super) own_tickets: String,
    pub(super) find_grants: FindGrants,
    pub(super) edit: LineCall,
    pub(super) evict: LineCall,
    pub(super) check: String,
    pub(super) read: String,
    pub(super) fence_check: String,
    pub(super) put_cell: String,
    pub(super) names: String,
    pub(super) list_one: String,
    pub(super) list_range: String,
}

impl Statements {
    pub(super) fn new(prefix: &str, server: Server) -> Self {
        let sql = |text: &str| with_prefix(prefix, &compact(text).replace("{now}", NOW));
        let call = |text: &str| format!("{}CALL {}", server.wait_clause(), sql(text));
        let list = |which: &str| sql(&include_str!("list.sql").replace("{which}", which));
        let line_call = |text: &str| LineCall(call(text));
        Self {
            open: call("lk_open(?, ?, ?, ?, ?, ?)"),
            renew: call("lk_renew(?)"),
            close: call("lk_close(?, ?)"),
            sweep: call("lk_sweep(?, ?, ?)"),
            enter_first: sql(include_str!("enter_first.sql")),
            leave_first: sql(include_str!("leave_first.sql")),
            enter: line_call("lk_enter(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
            leave: line_call("lk_leave(?, ?, ?, ?, ?, ?)"),
            poll: call("lk_poll(?, ?)"),
            own_tickets: sql("SELECT name, id, fence FROM lk_ticket WHERE session = ? UNION ALL \
                 SELECT name, id, fence FROM lk_gate WHERE session = ? AND fence > 0"),
            find_grants: FindGrants::new(prefix),
            edit: line_call("lk_edit(?, ?, ?, ?, ?, ?, ?)"),
            evict: line_call("lk_evict(?, ?, ?)"),
            check: sql(include_str!("check.sql")),
            read: sql("SELECT bytes, fence FROM lk_cell WHERE name = ?"),
            fence_check: sql("CALL lk_fence_check(NULL, ?, ?, ?)"),
            put_cell: sql("INSERT INTO lk_cell(name, bytes, fence) VALUES (?, ?, ?) \
                 ON DUPLICATE KEY UPDATE bytes = VALUES(bytes), fence = VALUES(fence)"),
            names: sql(include_str!("names.sql")),
            list_one: list("name = ?"),
            list_range: list("name >= ? AND name > ? AND name <= ?"),
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
