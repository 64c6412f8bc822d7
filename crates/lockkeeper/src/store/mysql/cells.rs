//! Cells and labels: what belongs to a held ticket and changes under its grant.

use super::{
    Shared,
    connection::{bytes, params},
    reply::{self, field, nonsense, one, what},
};
use crate::{
    model::name::Name,
    store::{Cell, Edit, Edited, StoreResult, common::repeat::Repeat},
};
use mysql_async::Value;

impl Shared {
    pub(super) async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        let rows = self.ask(&self.statements.read, vec![bytes(name.as_str())]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Cell { bytes: field(row, "bytes")?, fence: reply::fence(row)? }))
    }

    pub(super) async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit(true, edit).await
    }

    pub(super) async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit(false, edit).await
    }

    async fn edit(&self, cell: bool, edit: Edit) -> StoreResult<Edited> {
        let value = edit.bytes.map_or(Value::NULL, Value::Bytes);
        let params = params(&edit.place, [u8::from(cell).into(), edit.edit.into(), value]);
        let call = &self.statements.edit;
        let (rows, _) = self.connections.call_line(call, params, true, Repeat::Always).await;
        let row = one(rows?)?;
        match what(&row)?.as_str() {
            "done" => Ok(Edited::Done),
            "lost" => Ok(Edited::NotHeld),
            "pinned" => Err(reply::pinned()),
            other => Err(nonsense(other)),
        }
    }
}
