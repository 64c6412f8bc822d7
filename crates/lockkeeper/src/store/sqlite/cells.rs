//! What belongs to a held ticket: its label, and the cell of its name.

use super::{
    inspect,
    line::{Tx, micros},
};
use crate::{
    model::ticket::Place,
    store::{Claim, Edit, Edited},
};
use rusqlite::{OptionalExtension, Result, Row as SqlRow, params};

/// A held ticket.
struct Held {
    seq: i64,
    fence: i64,
    exclusive: bool,
    note_edit: u64,
    cell_edit: u64,
}

impl Tx<'_> {
    pub(super) fn set_label(&self, edit: &Edit) -> Result<Edited> {
        let Some(held) = self.held(&edit.place)? else { return Ok(Edited::NotHeld) };
        if edit.edit > held.note_edit {
            let sql = "UPDATE ticket SET note = ?3, note_edit = ?4 WHERE name = ?1 AND seq = ?2";
            let bytes = edit.bytes.as_deref().unwrap_or_default();
            let (name, number) = (edit.place.name.as_str(), edit.edit.cast_signed());
            self.c.prepare_cached(sql)?.execute(params![name, held.seq, bytes, number])?;
        }
        Ok(Edited::Done)
    }

    pub(super) fn write(&self, edit: &Edit) -> Result<Edited> {
        let held = self.held(&edit.place)?;
        let Some(held) = held.filter(|h| h.exclusive) else { return Ok(Edited::NotHeld) };
        if edit.edit <= held.cell_edit {
            return Ok(Edited::Done);
        }
        let name = edit.place.name.as_str();
        match &edit.bytes {
            Some(bytes) => self.put_cell(name, bytes, held.fence)?,
            None => {
                self.c.prepare_cached("DELETE FROM cell WHERE name = ?1")?.execute([name])?;
            }
        }
        let sql = "UPDATE ticket SET cell_edit = ?3 WHERE name = ?1 AND seq = ?2";
        let number = edit.edit.cast_signed();
        self.c.prepare_cached(sql)?.execute(params![name, held.seq, number])?;
        Ok(Edited::Done)
    }

    pub(super) fn write_under(&self, claim: &Claim, bytes: &[u8]) -> Result<Edited> {
        if !inspect::check(self.c, claim, self.now)? {
            return Ok(Edited::NotHeld);
        }
        self.put_cell(claim.name.as_str(), bytes, claim.fence.cast_signed())?;
        Ok(Edited::Done)
    }

    fn put_cell(&self, name: &str, bytes: &[u8], fence: i64) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO cell VALUES(?1, ?2, ?3)";
        self.c.prepare_cached(sql)?.execute(params![name, bytes, fence])?;
        Ok(())
    }

    /// The ticket, if its session holds it now.
    fn held(&self, place: &Place) -> Result<Option<Held>> {
        let sql = "SELECT t.seq, t.fence, t.weight = t.capacity, t.note_edit, t.cell_edit \
             FROM ticket t JOIN session s ON s.id = t.session \
             WHERE t.name = ?1 AND t.id = ?2 AND t.session = ?3 AND t.fence IS NOT NULL \
             AND s.dead_at > ?4";
        let held = |r: &SqlRow<'_>| {
            Ok(Held {
                seq: r.get(0)?,
                fence: r.get(1)?,
                exclusive: r.get(2)?,
                note_edit: r.get::<_, i64>(3)?.cast_unsigned(),
                cell_edit: r.get::<_, i64>(4)?.cast_unsigned(),
            })
        };
        let Place { session, name, ticket } = place;
        let (session, ticket, now) = (session.to_bytes(), ticket.to_bytes(), micros(self.now));
        let params = params![name.as_str(), ticket, session, now];
        self.c.prepare_cached(sql)?.query_row(params, held).optional()
    }
}
