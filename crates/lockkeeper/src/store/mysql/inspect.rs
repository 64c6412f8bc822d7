//! Lines as people see them: reads that take no lock and grant nothing.

use super::{
    bytes,
    connection::Link,
    name,
    reply::{self, field},
    schema,
};
use crate::{
    model::{
        line::{Line, Ticket},
        name::Name,
    },
    store::{LIST_MAX, ListScope, StoreResult},
};
use mysql_async::Value;

/// The tickets that stand in lines whose names fit, each with what is left of its time: the first of each
/// line from its gate, and those behind it.
const STANDING: &str = "SELECT t.name, t.id, t.seq, t.weight, t.capacity, t.fence, t.note, \
     s.host, s.pid, s.program, n.now - t.entered AS entered_ago, n.now - t.granted AS granted_ago, \
     CASE WHEN t.session IS NULL THEN t.hold_until WHEN t.fence = 0 THEN COALESCE(s.expires, 0) \
     ELSE COALESCE(s.dead_at, 0) END - n.now AS ends_in FROM (\
     SELECT name, id, session, 0 AS seq, weight, capacity, fence, fence AS entered, \
     fence AS granted, hold_until, note FROM lk_gate WHERE fence > 0 AND {which} UNION ALL \
     SELECT name, id, session, seq, weight, capacity, fence, entered, granted, hold_until, note \
     FROM lk_ticket WHERE {which}) t LEFT JOIN lk_session s ON s.id = t.session \
     JOIN (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS now) n \
     ORDER BY t.name, t.seq";

/// The first of the names in a range, living or not.
const NAMES: &str = "(SELECT name FROM lk_gate \
     WHERE fence > 0 AND name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?) UNION \
     (SELECT DISTINCT name FROM lk_ticket \
     WHERE name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?) ORDER BY name LIMIT ?";

pub(super) async fn look(link: &Link, prefix: &str, which: ListScope) -> StoreResult<Vec<Line>> {
    let (begin, mut after) = match which {
        ListScope::Exact(exact) => {
            let sql = schema::named(prefix, &STANDING.replace("{which}", "name = ?"));
            let params = vec![bytes(exact.as_str()), bytes(exact.as_str())];
            return lines(&link.insist(link.lines(), &sql, params).await?.rows);
        }
        ListScope::Prefix { prefix, after } => {
            (prefix, after.as_ref().map_or_else(Vec::new, to_bytes))
        }
    };
    // No name has this byte, which is none of UTF-8.
    let end = [begin.as_bytes(), &[0xff]].concat();
    let names_sql = schema::named(prefix, NAMES);
    let which = "name >= ? AND name > ? AND name <= ?";
    let standing_sql = schema::named(prefix, &STANDING.replace("{which}", which));
    let mut found = Vec::new();
    while found.len() < LIST_MAX {
        let most = Value::from(LIST_MAX);
        let range = [bytes(&begin), bytes(&after), bytes(&end), most.clone()];
        let params = [&range[..], &range[..], &[most]].concat();
        let names = link.insist(link.lines(), &names_sql, params).await?.rows;
        let Some(last) = names.last() else { break };
        let last: Vec<u8> = field(last, "name")?;
        let range = [bytes(&begin), bytes(&after), bytes(&last)];
        let params = [&range[..], &range[..]].concat();
        found.extend(lines(&link.insist(link.lines(), &standing_sql, params).await?.rows)?);
        after = last;
    }
    found.truncate(LIST_MAX);
    Ok(found)
}

fn to_bytes(name: &Name) -> Vec<u8> {
    name.as_str().as_bytes().to_vec()
}

/// Rows in the order of names and places, as lines of those that live.
fn lines(rows: &[mysql_async::Row]) -> StoreResult<Vec<Line>> {
    let mut lines: Vec<(Name, Vec<Ticket>)> = Vec::new();
    for row in rows {
        let ticket = reply::ticket(row)?;
        let Some(name) = name(&field::<Vec<u8>>(row, "name")?) else { continue };
        if ticket.ends_in.is_zero() {
            continue;
        }
        match lines.last_mut() {
            Some((last, tickets)) if *last == name => tickets.push(ticket),
            _ => lines.push((name, vec![ticket])),
        }
    }
    let line =
        |(name, tickets): (Name, Vec<Ticket>)| Line::new(name, tickets[0].mode.capacity(), tickets);
    Ok(lines.into_iter().map(line).collect())
}
