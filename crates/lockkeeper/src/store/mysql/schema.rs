//! The tables and procedures in the database: finding them, making them, bringing them up to date.

use super::{
    KIND,
    connection::{Connections, Dedicated},
    error, reply, rights,
};
use crate::{
    api::retry::jittered,
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{
        StoreId, StoreResult,
        common::{layout, repeat::Repeat},
    },
};
use mysql_async::Row;
use std::time::Duration;

/// The number of the layout that the `.sql` files make. It grows with every change there; a changed table also needs
/// a step in `upgrade.sql`. A procedure that takes or answers something else than before gets another name, so
/// that processes which stay connected through an upgrade go on with what they know.
pub(super) const LAYOUT: i64 = 5;

/// The prefix that stands in the `.sql` files.
const WRITTEN: &str = "lk_";

/// These come before what may change existing tables: the table that has the layout, and the upgrade's helpers.
const META: &str = include_str!("meta.sql");
const UPGRADE: &str = include_str!("upgrade.sql");
/// What users' transactions call comes before our own procedures: MySQL keeps a procedure as it is for as long as a
/// transaction lives that has called it, and ours must not be replaced before that one can be.
const FILES: [&str; 5] = [
    include_str!("tables.sql"),
    include_str!("user.sql"),
    include_str!("parts.sql"),
    include_str!("lines.sql"),
    include_str!("sessions.sql"),
];
/// The procedures of `upgrade.sql`, which are dropped when the upgrade is done.
const HELPERS: [&str; 4] = ["refuse_newer", "upgrade_do", "upgrade_first", "upgrade"];

/// For how long one process waits for another that is making the tables.
const MAKING: Duration = Duration::from_secs(30);
/// For how long one statement of it may take beyond that.
const STATEMENT: Duration = Duration::from_secs(10);
/// How often the server may refuse a statement because a transaction keeps a table or a procedure as it is. While
/// the statement waits for that transaction the server lets no other request near, not even renewals: so each
/// attempt is short, and a long pause follows. All attempts together take less time than `MAKING`.
const REFUSALS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(5);
/// For how long the server waits for tables and procedures, and for rows. MySQL cannot wait for less than a second.
const BRIEFLY: &str = "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 5";
/// The error if another process does not finish making the tables.
const BUSY: &str = "another process is making the tables and does not come to an end";

/// The text with the prefix of the URL in the names of tables and procedures.
pub(super) fn with_prefix(prefix: &str, sql: &str) -> String {
    sql.replace(WRITTEN, &format!("{prefix}_"))
}

/// The statements that make all tables and procedures, in order. The first of them refuse a newer layout.
fn statements(prefix: &str) -> Vec<String> {
    let mut statements: Vec<String> = [META, UPGRADE].map(|file| parts(prefix, file)).concat();
    statements.push(format!("CALL {prefix}_refuse_newer({LAYOUT})"));
    statements.push(format!("CALL {prefix}_upgrade_first()"));
    statements.extend(FILES.iter().flat_map(|file| parts(prefix, file)));
    statements.push(format!("CALL {prefix}_upgrade()"));
    statements.extend(drop_helpers(prefix));
    statements.push(format!(
        "INSERT IGNORE INTO {prefix}_meta(id, layout, store) \
         VALUES (1, 0, UNHEX(LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 16)))"
    ));
    statements.push(format!(
        "UPDATE {prefix}_meta SET script = UNHEX('{:016x}'), layout = {LAYOUT} \
         WHERE id = 1 AND layout <= {LAYOUT}",
        digest()
    ));
    statements
}

fn drop_helpers(prefix: &str) -> impl Iterator<Item = String> {
    HELPERS.into_iter().map(move |name| format!("DROP PROCEDURE IF EXISTS {prefix}_{name}"))
}

/// The statements of one file.
fn parts(prefix: &str, file: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let text = with_prefix(prefix, file);
    let code = text.lines().filter(|line| !line.starts_with("--") && *line != "DELIMITER //");
    let code: Vec<&str> = code.collect();
    let parts = code.split(|line| *line == "//").map(|lines| lines.join("\n"));
    for statement in parts.filter(|s| !s.trim().is_empty()) {
        if let Some(rest) = statement.trim_start().strip_prefix("CREATE PROCEDURE ") {
            let name = rest.split('(').next().unwrap_or_default();
            statements.push(format!("DROP PROCEDURE IF EXISTS {name}"));
        }
        statements.push(statement);
    }
    statements
}

/// A digest of the statements in the `.sql` files. Comments in lines of their own do not count.
fn digest() -> u64 {
    let all = [META, UPGRADE].iter().chain(&FILES).flat_map(|file| parts("lk", file));
    layout::digest(all.flat_map(String::into_bytes))
}

/// The same as a script for the `mariadb` or `mysql` client, where programs may not create anything. The
/// client stops at the first refusal, such as that of `_turn` while another process makes the tables.
pub(super) fn printed(prefix: &str) -> String {
    let mut all = vec![
        format!("DROP PROCEDURE IF EXISTS {prefix}_turn"),
        format!(
            "CREATE PROCEDURE {prefix}_turn(p_got INT)\nSQL SECURITY INVOKER\n\
             IF COALESCE(p_got, 0) <> 1 THEN\n  \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{BUSY}';\nEND IF"
        ),
        format!("CALL {prefix}_turn(GET_LOCK('{}', {}))", turn(prefix), MAKING.as_secs()),
    ];
    all.extend(statements(prefix));
    all.push(format!("DROP PROCEDURE IF EXISTS {prefix}_turn"));
    let all = all.join("\n//\n");
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES';\n{BRIEFLY};\n\
         DELIMITER //\n{all}\n//\nDELIMITER ;\n"
    )
}

/// The name of the server's lock under which the tables are made.
fn turn(prefix: &str) -> String {
    format!("lockkeeper making {prefix}")
}

/// Finds the tables and procedures, or makes them if `create` allows; returns the identity of their data.
pub(super) async fn ensure(
    connections: &Connections,
    clock: &Clock,
    prefix: &str,
    create: bool,
) -> StoreResult<StoreId> {
    let (pool, sql) = (&connections.requests, meta(prefix));
    let found = match connections.call(pool, &sql, Vec::new(), Repeat::Always).await {
        Err(e) if error::is_missing(&e) => None,
        rows => known(&rows?, prefix)?,
    };
    if let Some(id) = found {
        return Ok(id);
    }
    if !create {
        return Err(layout::refuse_missing(KIND, &format!("the tables {prefix}_… are")));
    }
    let mut maker = connections.dedicated(MAKING + STATEMENT).await?;
    let made = make(clock, &mut maker, prefix).await;
    maker.end().await;
    made.map_err(|e| explain(e, prefix))
}

/// Makes tables and procedures, unless another process makes them while this one waits for its turn.
async fn make(clock: &Clock, maker: &mut Dedicated, prefix: &str) -> StoreResult<StoreId> {
    let turn = vec![turn(prefix).into(), MAKING.as_secs().into()];
    let got = maker.ask("SELECT COALESCE(GET_LOCK(?, ?), 0)", turn).await?;
    if got.first().and_then(|row| row.get_opt(0)?.ok()) != Some(1_i64) {
        return Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, BUSY));
    }
    match maker.ask(&meta(prefix), Vec::new()).await {
        Err(e) if error::is_missing(&e) => {}
        rows => {
            if let Some(id) = known(&rows?, prefix)? {
                return Ok(id);
            }
        }
    }
    maker.ask(BRIEFLY, Vec::new()).await?;
    if let Err(e) = make_all(clock, maker, prefix).await {
        // A connection that is broken or silent takes no more statements.
        let answered = error::code(&e).is_some();
        for statement in drop_helpers(prefix).filter(|_| answered) {
            // The next process that makes the tables replaces a helper that stays.
            let _ = maker.ask(&statement, Vec::new()).await;
        }
        return Err(e);
    }
    known(&maker.ask(&meta(prefix), Vec::new()).await?, prefix)?.ok_or_else(|| {
        let what = "the tables were made and are not there";
        StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
    })
}

/// Runs the statements. One that the server refuses because of a transaction is run again, after a pause in which
/// all requests that had to wait behind it get on. The pause comes after the last attempt too, because the next
/// process begins at once.
async fn make_all(clock: &Clock, maker: &mut Dedicated, prefix: &str) -> StoreResult<()> {
    let mut refusals = 0;
    for statement in statements(prefix) {
        while let Err(e) = maker.ask(&statement, Vec::new()).await {
            if !error::is_conflict(&e) {
                return Err(e);
            }
            refusals += 1;
            // No pause between the DROP and the CREATE of a procedure: all programs wait for it.
            if refusals >= REFUSALS || !statement.trim_start().starts_with("CREATE PROCEDURE") {
                clock.sleep(jittered(PAUSE, 3)).await;
            }
            if refusals >= REFUSALS {
                return Err(e);
            }
        }
    }
    Ok(())
}

/// Reads all columns that are there: the tables of an older layout lack some.
fn meta(prefix: &str) -> String {
    format!("SELECT * FROM {prefix}_meta WHERE id = 1")
}

/// The identity of the data, if its layout is ours.
fn known(rows: &[Row], prefix: &str) -> StoreResult<Option<StoreId>> {
    let Some(row) = rows.first() else { return Ok(None) };
    let layout: i64 = reply::field(row, "layout")?;
    if layout > LAYOUT {
        let what = format!("the tables {prefix}_… were made by a newer lockkeeper");
        return Err(layout::refuse_newer(KIND, &what, layout, LAYOUT, "prefix="));
    }
    if layout < LAYOUT {
        return Ok(None);
    }
    let script: Vec<u8> = reply::field(row, "script")?;
    if script != digest().to_be_bytes() {
        tracing::warn!(prefix, layout, "the procedures were made by another build of this layout");
    }
    Ok(Some(reply::store_id(row)?))
}

/// Adds what to do about the error: which rights are needed, or what has locked the tables.
fn explain(mut e: StoreError, prefix: &str) -> StoreError {
    if error::needs_system_right(&e) {
        e.what.push_str(&format!(
            "; the procedures {prefix}_… were made by a user with SYSTEM_USER, such as root, and MySQL lets only \
             such a user change them; let one run what `lockkeeper migrate --print` prints"
        ));
    } else if e.kind == ErrorKind::Denied {
        let rights = rights::MAKING;
        e.what.push_str(&format!(
            "; to make its tables {prefix}_…, and to bring them up to date, lockkeeper needs the rights \
             {rights} on the database; or let a user who has them run what \
             `lockkeeper migrate --print` prints"
        ));
    } else if error::is_blocked(&e) {
        e.what.push_str(&format!(
            "; a transaction is open that has used {prefix}_…, which cannot be brought up to date before it ends"
        ));
    }
    e
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_database_has_the_prefix() {
        let all = statements("mine").join("\n");
        assert!(!all.contains("lk_") && all.contains("mine_ticket"));
        assert!(all.contains("DROP PROCEDURE IF EXISTS mine_enter\n"));
        assert!(!all.contains("DELIMITER") && !all.contains("//"));
    }

    /// A change of the SQL text needs another number and, where a table changes, a step in `upgrade.sql`.
    #[test]
    fn a_change_of_the_script_raises_the_layout() {
        assert_eq!((LAYOUT, format!("{:016x}", digest()).as_str()), (5, "b0b8d0586d6f7523"));
    }

    #[test]
    fn the_script_makes_all_that_the_library_makes() {
        let script = printed("lk");
        for statement in statements("lk") {
            assert!(script.contains(&statement));
        }
    }
}
