//! The tables and procedures in the database: making them, and knowing them again.

use super::{
    KIND,
    connection::{Alone, Link},
    error, reply, rights,
};
use crate::{
    api::retry::jittered,
    error::{ErrorKind, StoreError},
    store::{StoreId, StoreResult},
};
use mysql_async::Row;
use std::time::Duration;

/// The version of what is in the `.sql` files. A change there is a new number here, and where a table changes
/// a step in `upgrade.sql`. A procedure that takes or answers something else than before gets another name, so
/// that processes which stay connected through an upgrade go on with what they know.
pub(super) const LAYOUT: i64 = 5;

/// The prefix that stands in the `.sql` files.
const WRITTEN: &str = "lk_";

/// The first file, and one statement, come before those that may change what is there.
const META: &str = include_str!("meta.sql");
const UPGRADE: &str = include_str!("upgrade.sql");
/// What users' transactions call comes first: MySQL keeps a procedure as it is for as long as a transaction
/// lives that has called it, and the others must not be made anew before that one can be.
const FILES: [&str; 5] = [
    include_str!("tables.sql"),
    include_str!("user.sql"),
    include_str!("parts.sql"),
    include_str!("lines.sql"),
    include_str!("sessions.sql"),
];
/// The procedures of `upgrade.sql`, which go when it is done.
const HELPERS: [&str; 4] = ["refuse_newer", "upgrade_do", "upgrade_first", "upgrade"];

/// For how long one process waits for another that is making the tables.
const MAKING: Duration = Duration::from_secs(30);
/// For how long one statement of it may take beyond that.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the server may refuse a statement because a transaction keeps a table or a procedure as it is. While
/// the statement waits for that transaction the server lets nobody else near, renewals among them: so each
/// attempt is short, and a long pause follows. All attempts together take less time than `MAKING`.
const REFUSALS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(5);
/// For how long the server waits for tables and procedures, and for rows. MySQL cannot wait for less than a second.
const BRIEFLY: &str = "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 5";
/// What is said if the turn does not come.
const BUSY: &str = "another process is making the tables and does not come to an end";

/// A text about our tables, with the prefix of the URL in it.
pub(super) fn named(prefix: &str, sql: &str) -> String {
    sql.replace(WRITTEN, &format!("{prefix}_"))
}

/// The statements that make all tables and procedures, in order. The first of them refuse what is newer.
fn statements(prefix: &str) -> Vec<String> {
    let mut statements: Vec<String> = [META, UPGRADE].map(|file| parts(prefix, file)).concat();
    statements.push(format!("CALL {prefix}_refuse_newer({LAYOUT})"));
    statements.push(format!("CALL {prefix}_upgrade_first()"));
    statements.extend(FILES.iter().flat_map(|file| parts(prefix, file)));
    statements.push(format!("CALL {prefix}_upgrade()"));
    statements.extend(tidy(prefix));
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

/// The statements that take the helpers away.
fn tidy(prefix: &str) -> impl Iterator<Item = String> {
    HELPERS.into_iter().map(move |name| format!("DROP PROCEDURE IF EXISTS {prefix}_{name}"))
}

/// The statements of one file.
fn parts(prefix: &str, file: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let text = named(prefix, file);
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

/// FNV-1a of what is in the `.sql` files but for comments in lines of their own: whether it is the same text, and
/// nothing against forgery.
fn digest() -> u64 {
    let all = [META, UPGRADE].iter().chain(&FILES).flat_map(|file| parts("lk", file));
    all.flat_map(String::into_bytes).fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// All that makes the store's tables and procedures, as a script for the `mariadb` or `mysql`
/// client: for those whose programs may not create anything. The client stops at the first refusal, such as that
/// of `_turn` while another process makes the tables.
pub(super) fn script(prefix: &str) -> String {
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

/// Makes what is missing; says whose data it is.
pub(super) async fn prepare(link: &Link, prefix: &str, create: bool) -> StoreResult<StoreId> {
    let found = match link.insist(link.lines(), &meta(prefix), Vec::new()).await {
        Err(e) if error::is_missing(&e) => None,
        reply => known(&reply?.rows, prefix)?,
    };
    if let Some(id) = found {
        return Ok(id);
    }
    if !create {
        let what = format!(
            "the tables {prefix}_… are not there or not up to date, and the URL says create=false; \
             let somebody run what `lockkeeper migrate --print` prints"
        );
        return Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what));
    }
    let mut maker = link.alone(MAKING + PATIENCE).await?;
    let made = make(link, &mut maker, prefix).await;
    maker.end().await;
    made.map_err(|e| explain(e, prefix))
}

/// Makes tables and procedures, unless another process has made them while this one waited for its turn.
async fn make(link: &Link, maker: &mut Alone, prefix: &str) -> StoreResult<StoreId> {
    let turn = vec![turn(prefix).into(), MAKING.as_secs().into()];
    let got = maker.ask("SELECT COALESCE(GET_LOCK(?, ?), 0)", turn).await?;
    if !got.first().is_some_and(|row| field(row, 0).is_ok_and(|got: i64| got == 1)) {
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
    if let Err(e) = make_all(link, maker, prefix).await {
        // A connection that is broken or silent takes no more statements.
        let answered = error::code(&e).is_some();
        for statement in tidy(prefix).filter(|_| answered) {
            // A helper that stays is replaced by the next process that makes the tables.
            let _ = maker.ask(&statement, Vec::new()).await;
        }
        return Err(e);
    }
    known(&maker.ask(&meta(prefix), Vec::new()).await?, prefix)?.ok_or_else(|| {
        let what = "the tables were made and are not there";
        StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
    })
}

/// Runs the statements. One that the server refuses because a transaction is in the way is run again, after a pause
/// in which all requests that had to wait behind it get on; the pause comes after the last attempt too, because the
/// next process begins at once.
async fn make_all(link: &Link, maker: &mut Alone, prefix: &str) -> StoreResult<()> {
    let mut refusals = 0;
    for statement in statements(prefix) {
        while let Err(e) = maker.ask(&statement, Vec::new()).await {
            if !error::is_turned_back(&e) {
                return Err(e);
            }
            refusals += 1;
            // All programs wait for a procedure that is gone and not there again.
            if refusals >= REFUSALS || !statement.trim_start().starts_with("CREATE PROCEDURE") {
                link.clock().sleep(jittered(PAUSE, 3)).await;
            }
            if refusals >= REFUSALS {
                return Err(e);
            }
        }
    }
    Ok(())
}

/// All that is there: the tables of an older layout lack some of it.
fn meta(prefix: &str) -> String {
    format!("SELECT * FROM {prefix}_meta WHERE id = 1")
}

/// The identity of the data, if its layout is ours.
fn known(rows: &[Row], prefix: &str) -> StoreResult<Option<StoreId>> {
    let Some(row) = rows.first() else { return Ok(None) };
    let layout: i64 = reply::field(row, "layout")?;
    if layout > LAYOUT {
        let what = format!(
            "the tables {prefix}_… were made by a newer lockkeeper (layout {layout}, this one \
             knows {LAYOUT}); use that one, or another prefix="
        );
        return Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what));
    }
    if layout < LAYOUT {
        return Ok(None);
    }
    let script: Vec<u8> = reply::field(row, "script")?;
    if script != digest().to_be_bytes() {
        tracing::warn!(prefix, layout, "the procedures were made by another build of this layout");
    }
    let store: Vec<u8> = reply::field(row, "store")?;
    let store = <[u8; 8]>::try_from(store).map_err(|_| reply::nonsense())?;
    Ok(Some(StoreId(store)))
}

fn field<T: mysql_async::prelude::FromValue>(row: &Row, at: usize) -> StoreResult<T> {
    row.get_opt(at).and_then(Result::ok).ok_or_else(reply::nonsense)
}

/// Says which rights are needed, and that another user can make the tables; or what keeps them as they are.
fn explain(mut e: StoreError, prefix: &str) -> StoreError {
    if error::is_for_the_system(&e) {
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
        let script = script("lk");
        for statement in statements("lk") {
            assert!(script.contains(&statement));
        }
    }
}
