//! Cells and labels: what belongs to a held ticket and changes under its grant.

use super::{
    Shared,
    connection::{Dedicated, LIMITS, bytes, params},
    error,
    inspect::check_params,
    reply::{self, field, nonsense, one, what},
};
use crate::{
    model::name::Name,
    store::{Cell, Claim, Edit, Edited, StoreResult, common::repeat::Repeat},
};
use mysql_async::Value;
use std::time::Duration;

/// For how long one statement of a write under another client's grant may take.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// How the transaction of such a write begins. It waits for a moment for the ticket's row.
const BEGIN: [&str; 2] = ["SET SESSION innodb_lock_wait_timeout = 1", "START TRANSACTION"];

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

    /// A transaction on a connection of its own. `lk_fence_check` locks the ticket's row, so that it cannot leave the
    /// line before the commit; whether its session is dead, and the mode, are read after that.
    pub(super) async fn write_under(&self, claim: Claim, bytes: Vec<u8>) -> StoreResult<Edited> {
        let write_once = || async {
            let mut connection = self.connections.dedicated(WRITE_MAX).await?;
            let written = self.write_in(&mut connection, &claim, &bytes).await;
            // What was not committed is rolled back.
            connection.end().await;
            written
        };
        LIMITS.send(&self.connections.clock, Repeat::IfNotApplied, write_once).await.0
    }

    async fn write_in(
        &self,
        connection: &mut Dedicated,
        claim: &Claim,
        value: &[u8],
    ) -> StoreResult<Edited> {
        for begin in BEGIN {
            connection.ask(begin, Vec::new()).await?;
        }
        let (name, ticket) = (bytes(claim.name.as_str()), bytes(claim.ticket.to_bytes()));
        let grant = vec![name.clone(), ticket, claim.fence.into()];
        match connection.ask(&self.statements.fence_check, grant).await {
            Err(e) if error::is_grant_over(&e) => return Ok(Edited::NotHeld),
            answer => answer?,
        };
        let held = connection.ask(&self.statements.check, check_params(claim)).await?;
        if !field::<bool>(&one(held)?, "held")? {
            return Ok(Edited::NotHeld);
        }
        let cell = vec![name, bytes(value), claim.fence.into()];
        connection.ask(&self.statements.put_cell, cell).await?;
        connection.ask("COMMIT", Vec::new()).await?;
        Ok(Edited::Done)
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
