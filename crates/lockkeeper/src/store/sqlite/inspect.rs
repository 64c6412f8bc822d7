//! Listings, checks, and reads of cells: they take no lock and grant nothing.

use super::line::{micros, moment};
use crate::{
    clock::Moment,
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::{Mode, Owner, TicketId},
    },
    store::{Cell, Claim, LIST_MAX, ListScope},
};
use rusqlite::{Connection, OptionalExtension, Result, Row, params};

const TICKETS: &str = "SELECT t.id, t.weight, t.capacity, t.fence, t.note, t.entered, t.granted, \
     coalesce(t.hold_until, iif(t.fence IS NULL, s.expires, s.dead_at), 0), s.host, s.pid, s.program \
     FROM ticket t LEFT JOIN session s ON s.id = t.session WHERE t.name = ?1 ORDER BY t.seq";

pub(super) fn list(c: &Connection, which: &ListScope, now: Moment) -> Result<Vec<Line>> {
    let (prefix, after) = match which {
        ListScope::Exact(name) => return Ok(line(c, name.clone(), now)?.into_iter().collect()),
        ListScope::Prefix { prefix, after } => (prefix, after.as_ref()),
    };
    let sql = "SELECT DISTINCT name FROM ticket WHERE name >= ?1 AND name > ?2 ORDER BY name";
    let mut names = c.prepare_cached(sql)?;
    let mut names = names.query(params![prefix, after.map_or("", Name::as_str)])?;
    let mut lines = Vec::new();
    while lines.len() < LIST_MAX
        && let Some(row) = names.next()?
    {
        let name: String = row.get(0)?;
        if !name.starts_with(prefix.as_str()) {
            break;
        }
        if let Ok(name) = Name::new(&name) {
            lines.extend(line(c, name, now)?);
        }
    }
    Ok(lines)
}

fn line(c: &Connection, name: Name, now: Moment) -> Result<Option<Line>> {
    let mut tickets = c.prepare_cached(TICKETS)?;
    let tickets = tickets.query_map([name.as_str()], |r| ticket(r, now))?;
    let tickets: Vec<Ticket> = tickets.collect::<Result<_>>()?;
    let living: Vec<Ticket> = tickets.into_iter().filter(|t| !t.ends_in.is_zero()).collect();
    Ok(living.first().map(|t| t.mode.capacity()).map(|capacity| Line::new(name, capacity, living)))
}

fn ticket(r: &Row<'_>, now: Moment) -> Result<Ticket> {
    let owner = match r.get::<_, Option<String>>(8)? {
        Some(host) => Some(Owner { host, pid: r.get(9)?, program: r.get(10)? }),
        None => None,
    };
    let ago = |micros: i64| now.saturating_since(moment(micros));
    Ok(Ticket {
        id: TicketId::from_bytes(r.get(0)?),
        mode: Mode::of(r.get(1)?, r.get(2)?),
        fence: r.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
        owner,
        label: r.get(4)?,
        entered_ago: ago(r.get(5)?),
        granted_ago: r.get::<_, Option<i64>>(6)?.map(ago),
        ends_in: moment(r.get(7)?).saturating_since(now),
    })
}

pub(super) fn check(c: &Connection, claim: &Claim, now: Moment) -> Result<bool> {
    let sql = "SELECT EXISTS(SELECT 1 FROM ticket t JOIN session s ON s.id = t.session \
         WHERE t.name = ?1 AND t.id = ?2 AND t.fence = ?3 AND s.dead_at > ?4 \
         AND t.weight = ?5 AND t.capacity = ?6)";
    let (ticket, fence) = (claim.ticket.to_bytes(), claim.fence.cast_signed());
    let (weight, capacity) = (claim.mode.weight(), claim.mode.capacity());
    let claim = params![claim.name.as_str(), ticket, fence, micros(now), weight, capacity];
    c.prepare_cached(sql)?.query_row(claim, |r| r.get(0))
}

pub(super) fn read(c: &Connection, name: &Name) -> Result<Option<Cell>> {
    let sql = "SELECT bytes, fence FROM cell WHERE name = ?1";
    let cell =
        |r: &Row<'_>| Ok(Cell { bytes: r.get(0)?, fence: r.get::<_, i64>(1)?.cast_unsigned() });
    c.prepare_cached(sql)?.query_row([name.as_str()], cell).optional()
}

pub(super) fn native(claim: &Claim) -> Vec<(&'static str, String)> {
    vec![
        ("table", "ticket".to_owned()),
        ("name", claim.name.to_string()),
        ("id", claim.ticket.to_string()),
        ("fence", claim.fence.to_string()),
    ]
}
