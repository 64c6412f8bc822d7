//! Cells and labels: what belongs to a held ticket and changes under its grant.

use super::{
    Shared,
    connection::Values,
    reply::{get, scalar},
    statements::Call,
};
use crate::{
    model::{name::Name, ticket::Place},
    store::{Cell, Claim, Edit, Edited, StoreResult, common::repeat::Repeat},
};

impl Shared {
    pub(super) async fn read(&self, name: Name) -> StoreResult<Option<Cell>> {
        let rows = self.ask(&self.statements.read, &[&name.as_str()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let fence = get::<i64>(row, "fence")?.cast_unsigned();
        Ok(Some(Cell { bytes: get(row, "bytes")?, fence }))
    }

    pub(super) async fn write(&self, edit: Edit) -> StoreResult<Edited> {
        self.edit(&self.statements.write, &edit, edit.bytes.as_deref()).await
    }

    pub(super) async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        let (ticket, fence) = (claim.ticket.to_bytes(), claim.fence.cast_signed());
        let weight = claim.mode.weight().cast_signed();
        let capacity = claim.mode.capacity().cast_signed();
        let name = claim.name.as_str();
        let values: Values<'_> = &[&name, &&ticket[..], &fence, &weight, &capacity, &bytes];
        let call = &self.statements.write_under;
        let held: bool = scalar(&self.requests.call(call, values, Repeat::IfNotApplied).await?)?;
        Ok(if held { Edited::Done } else { Edited::NotHeld })
    }

    pub(super) async fn set_label(&self, edit: Edit) -> StoreResult<Edited> {
        let label = edit.bytes.as_deref().unwrap_or_default();
        self.edit(&self.statements.set_label, &edit, Some(label)).await
    }

    async fn edit(&self, call: &Call, edit: &Edit, bytes: Option<&[u8]>) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let (ticket, session) = (ticket.to_bytes(), session.to_bytes());
        let number = edit.edit.cast_signed();
        let values: Values<'_> = &[&name.as_str(), &&ticket[..], &&session[..], &number, &bytes];
        let held: bool = scalar(&self.ask(call, values).await?)?;
        Ok(if held { Edited::Done } else { Edited::NotHeld })
    }
}
