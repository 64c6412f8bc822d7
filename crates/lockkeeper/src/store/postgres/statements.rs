//! The statements that the store sends: calls of the functions in the database, and the plain statements that
//! take and release a free lock without them.

use crate::{model::line::LINE_MAX, store::common::decode};
use tokio_postgres::types::Type;

/// One statement, with the types of its arguments.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) sql: String,
    pub(super) types: &'static [Type],
}

macro_rules! statements {
    ($($name:ident: $sql:expr, [$($type:ident),*];)*) => {
        /// All statements, for one schema.
        pub(super) struct Statements {
            $(pub(super) $name: Call,)*
        }

        impl Statements {
            /// `schema` is quoted already.
            pub(super) fn new(schema: &str) -> Self {
                Self {
                    $($name: Call {
                        name: stringify!($name),
                        sql: compact($sql, schema),
                        types: &[$(Type::$type),*],
                    },)*
                }
            }
        }
    };
}

/// The statement for one schema, on one line.
fn compact(sql: &str, schema: &str) -> String {
    let line =
        decode::compact(sql).replace("{first}", &decode::compact(include_str!("enter_first.sql")));
    line.replace("{most}", &LINE_MAX.to_string()).replace("lockkeeper.", &format!("{schema}."))
}

statements! {
    // Neither needs to be on disk when it answers: the first grant puts the session's opening there with its own commit, and
    // a close that a crash of the server forgets is a session that expires.
    open: "SELECT o.* FROM set_config('synchronous_commit', 'off', true), \
                  lockkeeper.lk_open($1, $2, $3, $4, $5, $6, $7) o",
        [BYTEA, INT8, INT8, TEXT, TEXT, INT8, TEXT];
    renew: "SELECT * FROM lockkeeper.lk_renew($1, $2)", [BYTEA, TEXT_ARRAY];
    close: "SELECT lockkeeper.lk_close($1) FROM set_config('synchronous_commit', 'off', true)", [BYTEA];
    clear: "SELECT * FROM lockkeeper.lk_clear($1, $2, $3)", [BYTEA, TEXT_ARRAY, INT4];
    sweep: "SELECT * FROM lockkeeper.lk_sweep($1, $2)", [INT8, INT4];
    enter_first: include_str!("enter_first.sql"),
        [TEXT, BYTEA, BYTEA, INT4, INT4, BOOL, BYTEA, INT8];
    enter: include_str!("enter.sql"),
        [TEXT, BYTEA, BYTEA, INT4, INT4, BOOL, BYTEA, INT8];
    enter_by_function: "SELECT NULL::bigint AS o_fence, \
                   lockkeeper.lk_enter($1, $2, $3, $4, $5, $6, $7, $8, {most}) AS o_else",
        [TEXT, BYTEA, BYTEA, INT4, INT4, BOOL, BYTEA, INT8];
    enter_briefly: "SELECT NULL::bigint AS o_fence, CASE WHEN lockkeeper.lk_hurry() THEN \
                     lockkeeper.lk_enter($1, $2, $3, $4, $5, $6, $7, $8, {most}) END AS o_else",
        [TEXT, BYTEA, BYTEA, INT4, INT4, BOOL, BYTEA, INT8];
    leave_first: include_str!("leave_first.sql"), [TEXT, BYTEA, BYTEA];
    leave: "SELECT lockkeeper.lk_leave($1, $2, $3, $4, $5) AS o_else",
        [TEXT, BYTEA, BYTEA, INT8, INT8];
    poll: "SELECT lockkeeper.lk_poll($1, $2, $3)", [BYTEA, TEXT_ARRAY, BYTEA_ARRAY];
    own_tickets: "SELECT name, id FROM lockkeeper.lk_ticket WHERE session = $1 UNION ALL \
          SELECT name, id FROM lockkeeper.lk_line WHERE session = $1 AND id IS NOT NULL", [BYTEA];
    own_tickets_in: "SELECT name, id FROM lockkeeper.lk_ticket WHERE session = $1 UNION ALL \
             SELECT name, id FROM lockkeeper.lk_line \
             WHERE name = ANY ($2) AND session = $1 AND id IS NOT NULL", [BYTEA, TEXT_ARRAY];
    warm: "SELECT lockkeeper.lk_warm()", [];
    settle: "SELECT lockkeeper.lk_stand($1, $2, $3)", [TEXT, BYTEA, BYTEA];
    evict: "SELECT * FROM lockkeeper.lk_evict($1, $2)", [TEXT, BYTEA];
    set_label: "SELECT lockkeeper.lk_annotate($1, $2, $3, $4, $5)",
        [TEXT, BYTEA, BYTEA, INT8, BYTEA];
    write: "SELECT lockkeeper.lk_write($1, $2, $3, $4, $5)", [TEXT, BYTEA, BYTEA, INT8, BYTEA];
    write_under: include_str!("write_under.sql"), [TEXT, BYTEA, INT8, INT4, INT4, BYTEA];
    check: "SELECT lockkeeper.lk_check($1, $2, $3, $4, $5)", [TEXT, BYTEA, INT8, INT4, INT4];
    read: "SELECT bytes, fence FROM lockkeeper.lk_cell WHERE name = $1", [TEXT];
    list: "SELECT * FROM lockkeeper.lk_look($1, $2, $3, $4)", [TEXT, TEXT, TEXT, INT4];
    notify: "SELECT pg_notify(channel, message) FROM unnest($1, $2) AS news(channel, message)",
        [TEXT_ARRAY, TEXT_ARRAY];
    history: "SELECT lockkeeper.lk_history()", [];
    clock: "SELECT lockkeeper.lk_micros(clock_timestamp())", [];
    facts: include_str!("facts.sql"), [];
    server: "SELECT current_setting('server_version_num') AS version, \
             current_setting('server_encoding') AS encoding", [];
    rights: include_str!("rights.sql"), [TEXT];
    // All that is asked of a server on which nothing is to be made.
    start: "SELECT current_setting('server_version_num') AS version, \
                   current_setting('server_encoding') AS encoding, \
                   lockkeeper.lk_micros(clock_timestamp()) AS now, \
                   layout, store, to_jsonb(m) ->> 'digest' AS digest FROM lockkeeper.lk_meta m", [];
    meta: "SELECT layout, store, to_jsonb(m) ->> 'digest' AS digest FROM lockkeeper.lk_meta m", [];
}
