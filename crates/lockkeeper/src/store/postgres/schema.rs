//! The tables and functions in the database: written, known, brought up to date.

use super::{
    KIND,
    connection::{Link, Repeat, is_blocked},
    reply::{self, get, nonsense},
    statements::Calls,
};
use crate::{
    api::retry::jittered,
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{StoreId, StoreResult},
};
use std::time::Duration;

/// The number of this layout. It grows with every change of the tables or functions; a test holds the digest
/// of the statements to it.
pub(super) const LAYOUT: i32 = 7;

/// How long making the schema may take.
const MAKING: Duration = Duration::from_secs(60);
/// For how long it is tried to make it while a transaction of others keeps the tables, and the pause between
/// two attempts. Each waits for no longer than `lock_timeout` in the script: behind it wait all who use the
/// locks.
const PERSIST: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(300);

const PARTS: [&str; 4] = [
    include_str!("schema.sql"),
    include_str!("lines.sql"),
    include_str!("sessions.sql"),
    include_str!("user.sql"),
];

/// A digest of the statements that make the schema: 64-bit FNV-1a, in hex.
fn digest() -> String {
    let bytes = PARTS.iter().flat_map(|part| part.bytes());
    let digest = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{digest:016x}")
}

/// A name as SQL has it between quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A value as SQL has it between quotes.
fn literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// One at a time: two programs that create the same at once would be refused.
fn alone(schema: &str) -> String {
    let key = literal(&format!("lockkeeper schema {schema}"));
    format!("SELECT pg_advisory_xact_lock(hashtextextended({key}, 0));")
}

/// All statements that make the schema, or bring an older one up to date, in a transaction of the caller's.
pub(super) fn script(schema: &str) -> String {
    let (quoted, digest, alone) = (quoted(schema), digest(), alone(schema));
    let (text, meta) = (PARTS.concat(), literal(&format!("{quoted}.lk_meta")));
    let text =
        text.replace("SCHEMA IF NOT EXISTS lockkeeper", &format!("SCHEMA IF NOT EXISTS {quoted}"));
    let text = text.replace("lockkeeper.", &format!("{quoted}."));
    format!(
        "{alone}\nDO $$ BEGIN\n\
           IF to_regclass({meta}) IS NOT NULL THEN\n\
             IF (SELECT max(layout) FROM {quoted}.lk_meta) > {LAYOUT} THEN\n\
               RAISE EXCEPTION 'the schema was made by a newer version meanwhile';\n\
             END IF;\n\
           END IF;\n\
         END $$;\n{text}\nINSERT INTO {quoted}.lk_meta(id, layout, store, digest) \
         VALUES (1, {LAYOUT}, decode(right(gen_random_uuid()::text, 12) || left(gen_random_uuid()::text, 4), 'hex'), '{digest}') \
         ON CONFLICT (id) DO UPDATE SET layout = excluded.layout, digest = excluded.digest \
         WHERE lk_meta.layout <= excluded.layout;\n"
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
    clock: &Clock,
    schema: &str,
    create: bool,
) -> StoreResult<StoreId> {
    match known(link, calls).await? {
        // With another digest it was made by statements that were never released, or changed by hand.
        Some(made) if made.is_current() || made.layout == LAYOUT && !create => {
            return Ok(made.store);
        }
        Some(made) if made.layout > LAYOUT => return Err(newer(schema, made.layout)),
        _ if !create => return Err(missing(schema)),
        _ => {}
    }
    make(link, calls, clock, schema).await?;
    match known(link, calls).await? {
        Some(made) => Ok(made.store),
        None => Err(nonsense("the schema was made and is not there")),
    }
}

/// Makes the schema, or brings it up to date, unless another program has done so when it is our turn.
async fn make(link: &Link, calls: &Calls, clock: &Clock, schema: &str) -> StoreResult<()> {
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '500ms'; {} {} COMMIT",
        alone(schema),
        unless_current(schema)
    );
    let until = clock.now() + PERSIST;
    loop {
        let Err(e) = link.batch(&sql, MAKING).await else { return Ok(()) };
        // The connection stays in the failed transaction otherwise.
        let _ = link.batch("ROLLBACK", MAKING).await;
        if !is_blocked(&e) || clock.now() >= until {
            return Err(e);
        }
        if known(link, calls).await?.is_some_and(|made| made.is_current()) {
            return Ok(());
        }
        clock.sleep(jittered(PAUSE, 2)).await;
    }
}

/// The script as one statement, which does nothing if the schema is what the script would make.
fn unless_current(schema: &str) -> String {
    let (script, digest, quoted) = (script(schema), digest(), quoted(schema));
    let meta = literal(&format!("{quoted}.lk_meta"));
    format!(
        "DO $lk_unless$ BEGIN \
           IF to_regclass({meta}) IS NOT NULL THEN \
             IF EXISTS (SELECT FROM {quoted}.lk_meta m WHERE layout = {LAYOUT} \
                           AND to_jsonb(m) ->> 'digest' = '{digest}') THEN \
               RETURN; \
             END IF; \
           END IF; \
           EXECUTE $lk_script$ {script} $lk_script$; \
         END $lk_unless$;"
    )
}

/// What a schema says of itself.
struct Made {
    layout: i32,
    store: StoreId,
    digest: String,
}

impl Made {
    /// Was it made by the statements that this program has?
    fn is_current(&self) -> bool {
        self.layout == LAYOUT && self.digest == digest()
    }
}

async fn known(link: &Link, calls: &Calls) -> StoreResult<Option<Made>> {
    let rows = match link.call(&calls.meta, &[], Repeat::Always).await {
        Ok(rows) => rows,
        Err(e) if is_missing(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Made {
        layout: get(row, "layout")?,
        store: reply::store(get(row, "store")?)?,
        digest: get::<Option<String>>(row, "digest")?.unwrap_or_default(),
    }))
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
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
}

fn missing(schema: &str) -> StoreError {
    let what = format!(
        "the schema {schema:?} is not there or too old, and the URL says create=false; \
         `lockkeeper migrate --print` shows the statements that make it"
    );
    StoreError::not_applied(KIND, ErrorKind::Misconfigured, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the statements must raise the layout, and put the new pair here.
    #[test]
    fn every_change_of_the_statements_is_another_layout() {
        assert_eq!((LAYOUT, digest().as_str()), (7, "ee3c647c5487a2e7"));
    }

    #[test]
    fn every_name_in_the_script_belongs_to_the_schema() {
        let script = script("my locks");
        assert!(script.contains("CREATE SCHEMA IF NOT EXISTS \"my locks\";"));
        assert!(!script.contains("lockkeeper."), "a name was not replaced");
    }
}
