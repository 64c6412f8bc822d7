//! The tables and functions in the database: finding them, making them, bringing them up to date.

use super::{
    KIND, advice,
    connection::Connection,
    error::{is_blocked, is_missing},
    reply::{self, get, nonsense},
    statements::Statements,
};
use crate::{
    api::retry::jittered,
    clock::Clock,
    store::{
        StoreId, StoreResult,
        common::{layout, repeat::Repeat},
    },
};
use std::time::Duration;
use tokio_postgres::Row;

/// The number of this layout. It grows with every change of the tables or functions; a test holds the digest
/// of the statements to it.
pub(super) const LAYOUT: i32 = 9;

/// How long making the schema may take.
const MAKING: Duration = Duration::from_secs(60);
/// For how long the store tries to make it while a transaction of others has locked the tables, and the pause
/// between two attempts. Each attempt waits for no longer than `lock_timeout` in the script, because all requests
/// of all programs wait behind it.
const ATTEMPTS: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(300);

const PARTS: [&str; 4] = [
    include_str!("schema.sql"),
    include_str!("lines.sql"),
    include_str!("sessions.sql"),
    include_str!("user.sql"),
];

/// A digest of the statements that make the schema, in hex. It covers their comments, too.
fn digest() -> String {
    format!("{:016x}", layout::digest(PARTS.iter().flat_map(|part| part.bytes())))
}

/// A name, quoted for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A value, quoted for SQL.
fn literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// Lets one program at a time make the schema: the server would refuse two that create the same at once.
fn alone(schema: &str) -> String {
    let key = literal(&format!("lockkeeper schema {schema}"));
    format!("SELECT pg_advisory_xact_lock(hashtextextended({key}, 0));")
}

/// The statements that make the schema or bring an older one up to date, for a transaction of the caller.
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

/// The same for a database administrator, with the rights that users of the locks need.
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

/// Asks in one round trip for all that a server knows on which nothing is to be made: the identity of the data, and
/// the server's clock. `None` where more has to be asked, made or explained.
pub(super) async fn find(
    requests: &Connection,
    statements: &Statements,
    create: bool,
) -> StoreResult<Option<(StoreId, i64)>> {
    let rows = match requests.call(&statements.start, &[], Repeat::Always).await {
        Ok(rows) => rows,
        Err(e) if e.is_transient() => return Err(e),
        Err(_) => return Ok(None),
    };
    let Some(row) = rows.first() else { return Ok(None) };
    advice::refuse_row(row)?;
    let made = Made::read(row)?;
    if !made.will_do(create) {
        return Ok(None);
    }
    Ok(Some((made.store, get(row, "now")?)))
}

/// Finds the schema, or makes it if `create` allows; returns the identity of its data.
pub(super) async fn ensure(
    requests: &Connection,
    statements: &Statements,
    clock: &Clock,
    schema: &str,
    create: bool,
) -> StoreResult<StoreId> {
    match known(requests, statements).await? {
        Some(made) if made.will_do(create) => return Ok(made.store),
        Some(made) if made.layout > LAYOUT => {
            let what = format!("the schema {schema:?} was made by a newer version");
            return Err(layout::refuse_newer(KIND, &what, made.layout, LAYOUT, "schema"));
        }
        _ if !create => {
            return Err(layout::refuse_missing(KIND, &format!("the schema {schema:?} is")));
        }
        _ => {}
    }
    make(requests, statements, clock, schema).await?;
    match known(requests, statements).await? {
        Some(made) => Ok(made.store),
        None => Err(nonsense("the schema was made and is not there")),
    }
}

/// Makes the schema, or brings it up to date, unless another program does so first.
async fn make(
    requests: &Connection,
    statements: &Statements,
    clock: &Clock,
    schema: &str,
) -> StoreResult<()> {
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '500ms'; {} {} COMMIT",
        alone(schema),
        unless_current(schema)
    );
    let until = clock.now() + ATTEMPTS;
    loop {
        let Err(e) = requests.batch(&sql, MAKING).await else { return Ok(()) };
        // Otherwise the connection stays in the failed transaction.
        let _ = requests.batch("ROLLBACK", MAKING).await;
        if !is_blocked(&e) || clock.now() >= until {
            return Err(e);
        }
        if known(requests, statements).await?.is_some_and(|made| made.is_current()) {
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

/// What a schema says about itself.
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

    /// Is nothing to be made? Another digest at our layout: the schema was made by an unreleased build, or changed by
    /// hand.
    fn will_do(&self, create: bool) -> bool {
        self.is_current() || self.layout == LAYOUT && !create
    }

    fn read(row: &Row) -> StoreResult<Self> {
        Ok(Self {
            layout: get(row, "layout")?,
            store: reply::store_id(get(row, "store")?)?,
            digest: get::<Option<String>>(row, "digest")?.unwrap_or_default(),
        })
    }
}

async fn known(requests: &Connection, statements: &Statements) -> StoreResult<Option<Made>> {
    let rows = match requests.call(&statements.meta, &[], Repeat::Always).await {
        Ok(rows) => rows,
        Err(e) if is_missing(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    rows.first().map(Made::read).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the statements must raise the layout, and put the new pair here.
    #[test]
    fn every_change_of_the_statements_is_another_layout() {
        assert_eq!((LAYOUT, digest().as_str()), (9, "4c4cd7f009a5f930"));
    }

    #[test]
    fn every_name_in_the_script_belongs_to_the_schema() {
        let script = script("my locks");
        assert!(script.contains("CREATE SCHEMA IF NOT EXISTS \"my locks\";"));
        assert!(!script.contains("lockkeeper."), "a name was not replaced");
    }
}
