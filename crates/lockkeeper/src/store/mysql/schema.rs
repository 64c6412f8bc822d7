//! The tables and procedures in the database: making them, and knowing them again.

use super::{
    KIND,
    link::{Alone, Link},
    trouble,
};
use crate::{
    error::{StoreError, Trouble},
    store::{StoreId, StoreResult},
};
use mysql_async::Row;
use std::time::Duration;

/// The version of what is in the `.sql` files. A change there is a new number here.
const LAYOUT: i64 = 3;

/// The prefix that stands in the `.sql` files.
const WRITTEN: &str = "lk_";

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

/// The statements that make all tables and procedures, in order.
fn statements(prefix: &str) -> Vec<String> {
    let mut statements = Vec::new();
    for file in FILES {
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
    }
    statements
}

/// All that makes the store's tables and procedures, as a script for the `mariadb` or `mysql`
/// client: for those whose programs may not create anything.
pub(super) fn script(prefix: &str) -> String {
    let meta = format!(
        "INSERT IGNORE INTO {prefix}_meta(id, layout, store) VALUES (1, 0, UNHEX(LEFT(SHA2(UUID(), 256), 16))) //\n\
         UPDATE {prefix}_meta SET layout = {LAYOUT} WHERE id = 1 //\n"
    );
    let statements = statements(prefix).join("\n//\n");
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES';\nDELIMITER //\n{statements}\n//\n{meta}DELIMITER ;\n"
    )
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
    let turn = vec![format!("lockkeeper making {prefix}").into(), MAKING.as_secs().into()];
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
    let fresh: [u8; 8] = rand::random();
    let insert = format!("INSERT IGNORE INTO {prefix}_meta(id, layout, store) VALUES (1, 0, ?)");
    maker.ask(&insert, vec![fresh.as_slice().into()]).await?;
    let update = format!("UPDATE {prefix}_meta SET layout = ? WHERE id = 1");
    maker.ask(&update, vec![LAYOUT.into()]).await?;
    known(&maker.ask(&meta(prefix), Vec::new()).await?, prefix)?.ok_or_else(|| {
        let what = "the tables were made and are not there";
        StoreError::not_applied(KIND, Trouble::Misconfigured, what)
    })
}

fn meta(prefix: &str) -> String {
    format!("SELECT layout, store FROM {prefix}_meta WHERE id = 1")
}

/// The identity of the data, if its layout is ours.
fn known(rows: &[Row], prefix: &str) -> StoreResult<Option<StoreId>> {
    let Some(row) = rows.first() else { return Ok(None) };
    let layout: i64 = field(row, 0)?;
    if layout > LAYOUT {
        let what = format!(
            "the tables {prefix}_… were made by a newer lockkeeper (layout {layout}, this one \
             knows {LAYOUT}); use that one, or another prefix="
        );
        return Err(StoreError::not_applied(KIND, Trouble::Misconfigured, what));
    }
    // 0 is a layout that is just being made.
    if 0 < layout && layout < LAYOUT {
        let what = format!(
            "the tables {prefix}_… were made by an older lockkeeper (layout {layout}, this one \
             has {LAYOUT}), whose locks this one cannot read; when nobody uses them any more drop \
             them, or use another prefix="
        );
        return Err(StoreError::not_applied(KIND, Trouble::Misconfigured, what));
    }
    let store: Vec<u8> = field(row, 1)?;
    let store = <[u8; 8]>::try_from(store).map_err(|_| super::reply::nonsense())?;
    Ok((layout == LAYOUT).then_some(StoreId(store)))
}

fn field<T: mysql_async::prelude::FromValue>(row: &Row, at: usize) -> StoreResult<T> {
    row.get_opt(at).and_then(Result::ok).ok_or_else(super::reply::nonsense)
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

    #[test]
    fn the_script_makes_all_that_the_library_makes() {
        let script = script("lk");
        for statement in statements("lk") {
            assert!(script.contains(&statement));
        }
    }
}
