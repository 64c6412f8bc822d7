//! Reads that change nothing: listings, and whether a grant is held.

use super::State;
use crate::{
    clock::Moment,
    model::{
        line::{Line, Ticket},
        name::Name,
    },
    store::Claim,
};

impl State {
    pub(super) fn is_held(&self, claim: &Claim, now: Moment) -> bool {
        self.row(&claim.name, claim.ticket).is_some_and(|(_, row)| {
            let live = row.session.is_some() && self.dead_at(row) > now;
            live && row.fence == Some(claim.fence) && row.mode == claim.mode
        })
    }

    pub(super) fn shown_line(&self, name: &Name, now: Moment) -> Option<Line> {
        let rows = self.lines.get(name)?;
        let living = rows.iter().filter(|row| self.dead_at(row) > now);
        let tickets: Vec<Ticket> = living
            .map(|row| Ticket {
                id: row.id,
                mode: row.mode,
                fence: row.fence,
                owner: row.session.and_then(|s| Some(self.sessions.get(&s)?.owner.clone())),
                label: row.note.clone(),
                entered_ago: now.saturating_since(row.entered),
                granted_ago: row.granted.map(|at| now.saturating_since(at)),
                ends_in: self.dead_at(row).saturating_since(now),
            })
            .collect();
        let capacity = tickets.first()?.mode.capacity();
        Some(Line::new(name.clone(), capacity, tickets))
    }
}
