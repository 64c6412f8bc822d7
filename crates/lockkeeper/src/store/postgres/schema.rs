//! The tables and functions in the database: written, known, brought up to date.

use super::{
    KIND,
    calls::Calls,
    link::{Link, Repeat},
    reply::{self, get, nonsense},
};
use crate::{
    error::{StoreError, Trouble},
    store::{StoreId, StoreResult},
};
use std::time::Duration;

/// The number of this layout. It grows with every change of the tables or functions.
const LAYOUT: i32 = 3;

/// How long making the schema may take, waiting for others who do the same included.
const MAKING: Duration = Duration::from_secs(60);

const PARTS: [&str; 4] = [
    include_str!("schema.sql"),
    include_str!("lines.sql"),
    include_str!("sessions.sql"),
    include_str!("user.sql"),
];

/// A name as SQL has it between quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// All statements that make the schema, or bring an older one up to date.
pub(super) fn script(schema: &str) -> String {
    let quoted = quoted(schema);
    let (text, place) = (PARTS.concat(), quoted.replace('\'', "''"));
    let text =
        text.replace("SCHEMA IF NOT EXISTS lockkeeper", &format!("SCHEMA IF NOT EXISTS {quoted}"));
    let text = text.replace("lockkeeper.", &format!("{quoted}."));
    format!(
        "DO $$ BEGIN\n\
           IF to_regclass('{place}.lk_meta') IS NOT NULL THEN\n\
             IF (SELECT max(layout) FROM {quoted}.lk_meta) > {LAYOUT} THEN\n\
               RAISE EXCEPTION 'the schema was made by a newer version meanwhile';\n\
             END IF;\n\
           END IF;\n\
         END $$;\n{text}\nINSERT INTO {quoted}.lk_meta(id, layout, store) \
         VALUES (1, {LAYOUT}, decode(right(gen_random_uuid()::text, 12) || left(gen_random_uuid()::text, 4), 'hex')) \
         ON CONFLICT (id) DO UPDATE SET layout = excluded.layout;\n"
    )
}

/// The same for a DBA, with the rights that users of the locks need.
pub(super) fn printed(schema: &str) -> String {
    let quoted = quoted(schema);
    format!(
        "BEGIN;\nSET LOCAL lock_timeout = '5s';\n{}COMMIT;\n\n-- The rights of those who use the locks; put a role in the place of app.\n\
         -- GRANT USAGE ON SCHEMA {quoted} TO app;\n\
         -- GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {quoted} TO app;\n\
         -- GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {quoted} TO app; -- again after every upgrade\n",
        script(schema)
    )
}

/// Finds the schema, or makes it if the plan allows; says what its identity is.
pub(super) async fn ensure(
    link: &Link,
    calls: &Calls,
    schema: &str,
    create: bool,
) -> StoreResult<StoreId> {
    match known(link, calls).await? {
        Some((layout, store)) if layout == LAYOUT => return Ok(store),
        Some((layout, _)) if layout > LAYOUT => return Err(newer(schema, layout)),
        _ if !create => return Err(missing(schema)),
        _ => {}
    }
    // One at a time: two who create the same at once would be refused.
    let script = script(schema);
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '30s'; \
         SELECT pg_advisory_xact_lock(hashtextextended('lockkeeper schema {schema}', 0)); \
         {script} COMMIT"
    );
    if let Err(e) = link.batch(&sql, MAKING).await {
        // The connection stays in the failed transaction otherwise.
        let _ = link.batch("ROLLBACK", MAKING).await;
        return Err(e);
    }
    match known(link, calls).await? {
        Some((_, store)) => Ok(store),
        None => Err(nonsense("the schema was made and is not there")),
    }
}

async fn known(link: &Link, calls: &Calls) -> StoreResult<Option<(i32, StoreId)>> {
    let rows = match link.call(&calls.meta, &[], Repeat::Always).await {
        Ok(rows) => rows,
        Err(e) if is_missing(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some((get(row, "layout")?, reply::store(get(row, "store")?)?)))
}

/// There is no such table, function or schema.
pub(super) fn is_missing(e: &StoreError) -> bool {
    let source = e.source.as_ref().and_then(|s| s.downcast_ref::<tokio_postgres::Error>());
    let code = source.and_then(|e| e.code());
    code.is_some_and(|code| matches!(code.code(), "42P01" | "42883" | "3F000"))
}

fn newer(schema: &str, layout: i32) -> StoreError {
    let what = format!(
        "the schema {schema:?} was made by a newer version (layout {layout}, and this one knows \
         {LAYOUT}); update this program, or use another schema"
    );
    StoreError::not_applied(KIND, Trouble::Misconfigured, what)
}

fn missing(schema: &str) -> StoreError {
    let what = format!(
        "the schema {schema:?} is not there or too old, and the URL says create=false; \
         `lockkeeper migrate --print` shows the statements that make it"
    );
    StoreError::not_applied(KIND, Trouble::Misconfigured, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_the_script_belongs_to_the_schema() {
        let script = script("my locks");
        assert!(script.contains("CREATE SCHEMA IF NOT EXISTS \"my locks\";"));
        assert!(!script.contains("lockkeeper."), "a name was not replaced");
    }
}
