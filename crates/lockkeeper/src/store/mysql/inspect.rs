//! Reads that take no lock and grant nothing: listings, and whether a grant is held.

use super::{
    Shared,
    connection::bytes,
    reply::{self, field, one},
};
use crate::{
    model::{line::Line, name::Name},
    store::{Claim, LIST_MAX, ListScope, StoreResult},
};
use mysql_async::Value;

impl Shared {
    pub(super) async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let (begin, mut after) = match which {
            ListScope::Exact(name) => {
                let params = vec![bytes(name.as_str()), bytes(name.as_str())];
                return reply::lines(&self.ask(&self.statements.list_one, params).await?);
            }
            ListScope::Prefix { prefix, after } => {
                (prefix, after.as_ref().map_or(&b""[..], name_bytes).to_vec())
            }
        };
        // No name has the byte 0xff, which is not UTF-8.
        let end = [begin.as_bytes(), &[0xff]].concat();
        let mut found = Vec::new();
        while found.len() < LIST_MAX {
            let most = Value::from(LIST_MAX);
            let range = [bytes(&begin), bytes(&after), bytes(&end), most.clone()];
            let params = [&range[..], &range[..], &[most]].concat();
            let names = self.ask(&self.statements.names, params).await?;
            let Some(last) = names.last() else { break };
            let last: Vec<u8> = field(last, "name")?;
            let range = [bytes(&begin), bytes(&after), bytes(&last)];
            let params = [&range[..], &range[..]].concat();
            let rows = self.ask(&self.statements.list_range, params).await?;
            found.extend(reply::lines(&rows)?);
            after = last;
        }
        found.truncate(LIST_MAX);
        Ok(found)
    }

    pub(super) async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let params = check_params(&claim);
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

/// The parameters of `check.sql`.
pub(super) fn check_params(claim: &Claim) -> Vec<Value> {
    let (name, ticket) = (bytes(claim.name.as_str()), bytes(claim.ticket.to_bytes()));
    vec![
        name.clone(),
        name,
        ticket.clone(),
        ticket,
        claim.fence.into(),
        claim.mode.weight().into(),
        claim.mode.capacity().into(),
    ]
}

fn name_bytes(name: &Name) -> &[u8] {
    name.as_str().as_bytes()
}
