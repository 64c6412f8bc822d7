//! Reads that take no lock and grant nothing: listings, and whether a grant is held.

use super::{
    Shared,
    connection::bytes,
    reply::{self, field, one},
    schema::with_prefix,
};
use crate::{
    model::{line::Line, name::Name},
    store::{Claim, LIST_MAX, ListScope, StoreResult},
};
use mysql_async::Value;

/// The tickets of the lines whose names fit, each with what is left of its time: the first of each
/// line from its gate, and those behind it.
const TICKETS: &str = "SELECT t.name, t.id, t.seq, t.weight, t.capacity, t.fence, t.note, \
     s.host, s.pid, s.program, n.now - t.entered AS entered_ago, n.now - t.granted AS granted_ago, \
     CASE WHEN t.session IS NULL THEN t.hold_until WHEN t.fence = 0 THEN COALESCE(s.expires, 0) \
     ELSE COALESCE(s.dead_at, 0) END - n.now AS ends_in FROM (\
     SELECT name, id, session, 0 AS seq, weight, capacity, fence, fence AS entered, \
     fence AS granted, hold_until, note FROM lk_gate WHERE fence > 0 AND {which} UNION ALL \
     SELECT name, id, session, seq, weight, capacity, fence, entered, granted, hold_until, note \
     FROM lk_ticket WHERE {which}) t LEFT JOIN lk_session s ON s.id = t.session \
     JOIN (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS now) n \
     ORDER BY t.name, t.seq";

/// The first names in a range that have tickets, living or dead.
const NAMES: &str = "(SELECT name FROM lk_gate \
     WHERE fence > 0 AND name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?) UNION \
     (SELECT DISTINCT name FROM lk_ticket \
     WHERE name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?) ORDER BY name LIMIT ?";

impl Shared {
    pub(super) async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let (begin, mut after) = match which {
            ListScope::Exact(name) => {
                let params = vec![bytes(name.as_str()), bytes(name.as_str())];
                return self.lines("name = ?", params).await;
            }
            ListScope::Prefix { prefix, after } => {
                (prefix, after.as_ref().map_or(&b""[..], name_bytes).to_vec())
            }
        };
        // No name has the byte 0xff, which is not UTF-8.
        let end = [begin.as_bytes(), &[0xff]].concat();
        let names_sql = with_prefix(&self.prefix, NAMES);
        let mut found = Vec::new();
        while found.len() < LIST_MAX {
            let most = Value::from(LIST_MAX);
            let range = [bytes(&begin), bytes(&after), bytes(&end), most.clone()];
            let params = [&range[..], &range[..], &[most]].concat();
            let names = self.ask(&names_sql, params).await?;
            let Some(last) = names.last() else { break };
            let last: Vec<u8> = field(last, "name")?;
            let range = [bytes(&begin), bytes(&after), bytes(&last)];
            let params = [&range[..], &range[..]].concat();
            found.extend(self.lines("name >= ? AND name > ? AND name <= ?", params).await?);
            after = last;
        }
        found.truncate(LIST_MAX);
        Ok(found)
    }

    async fn lines(&self, which: &str, params: Vec<Value>) -> StoreResult<Vec<Line>> {
        let sql = with_prefix(&self.prefix, &TICKETS.replace("{which}", which));
        reply::lines(&self.ask(&sql, params).await?)
    }

    pub(super) async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let (name, ticket) = (bytes(claim.name.as_str()), bytes(claim.ticket.to_bytes()));
        let params = vec![
            name.clone(),
            name,
            ticket.clone(),
            ticket,
            claim.fence.into(),
            claim.mode.weight().into(),
            claim.mode.capacity().into(),
        ];
        field(&one(self.ask(&self.statements.check, params).await?)?, "held")
    }

    /// Where a user finds the grant in the database.
    pub(super) fn native(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        vec![
            ("tables", format!("{0}_gate, {0}_ticket", self.prefix)),
            ("name", claim.name.to_string()),
            ("id", claim.ticket.to_string()),
            ("fence", claim.fence.to_string()),
        ]
    }
}

fn name_bytes(name: &Name) -> &[u8] {
    name.as_str().as_bytes()
}
