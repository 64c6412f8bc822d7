//! Lines as people see them: reads that take no lock and grant nothing.

use super::{
    bytes,
    link::Link,
    name,
    reply::{self, field},
    schema,
};
use crate::{
    line::{Line, Ticket},
    name::Name,
    store::{LOOK_MAX, Look, StoreResult},
};

/// The tickets that stand in lines, each with what is left of its time.
const STANDING: &str = "SELECT t.name, t.id, t.seq, t.weight, t.capacity, t.fence, t.note, \
     s.host, s.pid, s.program, n.now - t.entered AS entered_ago, n.now - t.granted AS granted_ago, \
     CASE WHEN t.session IS NULL THEN t.hold_until WHEN t.fence = 0 THEN COALESCE(s.expires, 0) \
     ELSE COALESCE(s.dead_at, 0) END - n.now AS ends_in \
     FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session \
     JOIN (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS now) n";

/// The first of the names in a range, living or not.
const NAMES: &str = "SELECT DISTINCT name FROM lk_ticket \
     WHERE name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?";

pub(super) async fn look(link: &Link, prefix: &str, which: Look) -> StoreResult<Vec<Line>> {
    let (begin, mut after) = match which {
        Look::Exact(exact) => {
            let sql = format!("{STANDING} WHERE t.name = ? ORDER BY t.name, t.seq");
            let params = vec![bytes(exact.as_str())];
            let sql = schema::named(prefix, &sql);
            return lines(&link.insist(link.lines(), &sql, params).await?.rows);
        }
        Look::Prefix { prefix, after } => (prefix, after.as_ref().map_or_else(Vec::new, to_bytes)),
    };
    // No name has this byte, which is none of UTF-8.
    let end = [begin.as_bytes(), &[0xff]].concat();
    let mut found = Vec::new();
    while found.len() < LOOK_MAX {
        let params = vec![bytes(&begin), bytes(&after), bytes(&end), LOOK_MAX.into()];
        let names = link.insist(link.lines(), &schema::named(prefix, NAMES), params).await?.rows;
        let Some(last) = names.last() else { break };
        let last: Vec<u8> = field(last, "name")?;
        let sql = format!(
            "{STANDING} WHERE t.name >= ? AND t.name > ? AND t.name <= ? ORDER BY t.name, t.seq"
        );
        let params = vec![bytes(&begin), bytes(&after), bytes(&last)];
        let sql = schema::named(prefix, &sql);
        found.extend(lines(&link.insist(link.lines(), &sql, params).await?.rows)?);
        after = last;
    }
    found.truncate(LOOK_MAX);
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
