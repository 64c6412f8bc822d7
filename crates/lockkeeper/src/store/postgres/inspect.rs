//! Reads that change nothing: listings, and whether a grant is held.

use super::{
    Shared,
    connection::Values,
    reply::{self, scalar},
};
use crate::{
    model::line::Line,
    store::{Claim, LIST_MAX, ListScope, StoreResult},
};

impl Shared {
    pub(super) async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let (from, to, after) = match which {
            ListScope::Exact(name) => (name.to_string(), name.to_string(), String::new()),
            ListScope::Prefix { prefix, after } => {
                // In the order of bytes no name that begins with the prefix comes after this one.
                let to = format!("{prefix}{}", "\u{10ffff}".repeat(crate::NAME_MAX / 4));
                (prefix, to, after.map_or_else(String::new, |name| name.to_string()))
            }
        };
        let most = i32::try_from(LIST_MAX).unwrap_or(i32::MAX);
        reply::lines(&self.ask(&self.statements.list, &[&from, &to, &after, &most]).await?)
    }

    pub(super) async fn check(&self, claim: Claim) -> StoreResult<bool> {
        let (ticket, fence) = (claim.ticket.to_bytes(), claim.fence.cast_signed());
        let weight = claim.mode.weight().cast_signed();
        let capacity = claim.mode.capacity().cast_signed();
        let values: Values<'_> = &[&claim.name.as_str(), &&ticket[..], &fence, &weight, &capacity];
        scalar(&self.ask(&self.statements.check, values).await?)
    }
}

/// Where a user finds the grant in the database.
pub(super) fn native(claim: &Claim) -> Vec<(&'static str, String)> {
    vec![
        ("view", "lk_standing".to_owned()),
        ("name", claim.name.to_string()),
        ("id", claim.ticket.to_string()),
        ("fence", claim.fence.to_string()),
    ]
}
