//! The tables and procedures in the database: making them, and knowing them again.

use super::{
    KIND,
    link::{Alone, Link},
    reply, trouble,
};
use crate::{
    error::{StoreError, Trouble},
    store::{StoreId, StoreResult},
};
use mysql_async::Row;
use std::time::Duration;

/// The version of what is in the `.sql` files. A change there is a new number here, and where a table changes
/// a step in `upgrade.sql`. A procedure that takes or answers something else than before gets another name, so
/// that processes which stay connected through an upgrade go on with what they know.
pub(super) const LAYOUT: i64 = 4;

/// The prefix that stands in the `.sql` files.
const WRITTEN: &str = "lk_";

/// The first file, and one statement, come before those that may change what is there.
const META: &str = include_str!("meta.sql");
const UPGRADE: &str = include_str!("upgrade.sql");
const FILES: [&str; 5] = [
    include_str!("tables.sql"),
    include_str!("parts.sql"),
    include_str!("lines.sql"),
    include_str!("sessions.sql"),
    include_str!("user.sql"),
];

/// For how long one process waits for another that is making the tables.
const MAKING: Duration = Duration::from_secs(30);
/// For how long one statement of it may take beyond that.
const PATIENCE: Duration = Duration::from_secs(10);

/// A text about our tables, with the prefix of the URL in it.
pub(super) fn named(prefix: &str, sql: &str) -> String {
    sql.replace(WRITTEN, &format!("{prefix}_"))
}

/// The statements that make all tables and procedures, in order. The first of them refuse what is newer.
fn statements(prefix: &str) -> Vec<String> {
    let mut statements: Vec<String> = [META, UPGRADE].map(|file| parts(prefix, file)).concat();
    statements.push(format!("CALL {prefix}_refuse_newer({LAYOUT})"));
    statements.extend(FILES.iter().flat_map(|file| parts(prefix, file)));
    statements.push(format!("CALL {prefix}_upgrade()"));
    for done in ["refuse_newer", "upgrade_do", "upgrade"] {
        statements.push(format!("DROP PROCEDURE IF EXISTS {prefix}_{done}"));
    }
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
/// client: for those whose programs may not create anything. The client stops at the first refusal.
pub(super) fn script(prefix: &str) -> String {
    let statements = statements(prefix).join("\n//\n");
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES';\n\
         SELECT GET_LOCK('{}', {});\nDELIMITER //\n{statements}\n//\nDELIMITER ;\n",
        turn(prefix),
        MAKING.as_secs()
    )
}

/// The name of the server's lock under which the tables are made.
fn turn(prefix: &str) -> String {
    format!("lockkeeper making {prefix}")
}

/// Makes what is missing; says whose data it is.
pub(super) async fn prepare(link: &Link, prefix: &str, create: bool) -> StoreResult<StoreId> {
    let found = match link.insist(link.lines(), &meta(prefix), Vec::new()).await {
        Err(e) if trouble::is_missing(&e) => None,
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
        return Err(StoreError::not_applied(KIND, Trouble::Misconfigured, what));
    }
    let mut maker = link.alone(MAKING + PATIENCE).await?;
    let made = make(&mut maker, prefix).await;
    maker.end().await;
    made.map_err(|e| explain(e, prefix))
}

/// Makes tables and procedures, unless another process has made them while this one waited for its turn.
async fn make(maker: &mut Alone, prefix: &str) -> StoreResult<StoreId> {
    let turn = vec![turn(prefix).into(), MAKING.as_secs().into()];
    let got = maker.ask("SELECT COALESCE(GET_LOCK(?, ?), 0)", turn).await?;
    if !got.first().is_some_and(|row| field(row, 0).is_ok_and(|got: i64| got == 1)) {
        let what = "somebody else is making the tables and does not come to an end";
        return Err(StoreError::not_applied(KIND, Trouble::Unavailable, what));
    }
    match maker.ask(&meta(prefix), Vec::new()).await {
        Err(e) if trouble::is_missing(&e) => {}
        rows => {
            if let Some(id) = known(&rows?, prefix)? {
                return Ok(id);
            }
        }
    }
    maker.ask("SET SESSION innodb_lock_wait_timeout = 5", Vec::new()).await?;
    for statement in statements(prefix) {
        maker.ask(&statement, Vec::new()).await?;
    }
    known(&maker.ask(&meta(prefix), Vec::new()).await?, prefix)?.ok_or_else(|| {
        let what = "the tables were made and are not there";
        StoreError::not_applied(KIND, Trouble::Misconfigured, what)
    })
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
        return Err(StoreError::not_applied(KIND, Trouble::Misconfigured, what));
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

/// Says which right is missing, and that somebody else can make the tables.
fn explain(mut e: StoreError, prefix: &str) -> StoreError {
    if e.trouble == Trouble::Denied {
        e.what.push_str(&format!(
            "; to make its tables {prefix}_… lockkeeper needs the rights CREATE, CREATE ROUTINE and \
             ALTER ROUTINE on the database; or let somebody who has them run what \
             `lockkeeper migrate --print` prints"
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
        assert_eq!((LAYOUT, format!("{:016x}", digest()).as_str()), (4, "937ea9e0db7e812d"));
    }

    #[test]
    fn the_script_makes_all_that_the_library_makes() {
        let script = script("lk");
        for statement in statements("lk") {
            assert!(script.contains(&statement));
        }
    }
}
