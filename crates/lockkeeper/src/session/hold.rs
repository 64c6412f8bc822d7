//! A granted ticket, shared by the guards of one owner.

use crate::{
    api::guard::Guard,
    clock::Moment,
    error::{Error, Loss, Result},
    model::{
        name::Name,
        ticket::{Mode, TicketId},
    },
    observe,
    session::{
        Session, hold_state::HoldState, pending_ticket::PendingTicket, request::LockRequest,
        state::Lease,
    },
    store::{Claim, Edit, Left},
    sync::Mutex,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A granted ticket. Dropping it hands it to the session's task.
pub(crate) struct Hold {
    pending: PendingTicket,
    hold_state: Arc<HoldState>,
    granted: Moment,
    at_least: Option<Duration>,
    label_edits: AtomicU64,
    cell_edits: AtomicU64,
    owned: Option<(Weak<Owned>, Arc<str>)>,
}

impl Hold {
    pub(crate) fn new(
        pending: PendingTicket,
        hold_state: Arc<HoldState>,
        granted: Moment,
        at_least: Option<Duration>,
    ) -> Self {
        let (label_edits, cell_edits) = Default::default();
        Self { pending, hold_state, granted, at_least, label_edits, cell_edits, owned: None }
    }

    /// From now on its edits have numbers above this one.
    pub(super) fn edit_after(&self, last: u64) {
        self.label_edits.store(last, Ordering::Relaxed);
        self.cell_edits.store(last, Ordering::Relaxed);
    }

    /// Leaves the ticket to another process: dropping the hold releases nothing any more.
    pub(super) fn let_another_release(&mut self) {
        self.pending.left();
    }

    /// Do the hold's own times depend on this process?
    pub(super) fn has_own_times(&self) -> bool {
        self.at_least.is_some() || self.hold_state.max_hold.is_some()
    }

    pub(crate) fn session(&self) -> &Session {
        &self.pending.session
    }

    pub(crate) fn name(&self) -> &Name {
        &self.pending.name
    }

    pub(crate) fn mode(&self) -> Mode {
        self.pending.mode
    }

    pub(crate) fn ticket(&self) -> TicketId {
        self.pending.ticket
    }

    pub(crate) fn state(&self) -> &Arc<HoldState> {
        &self.hold_state
    }

    pub(crate) fn claim(&self) -> Claim {
        let PendingTicket { name, ticket, mode, .. } = &self.pending;
        Claim { name: name.clone(), ticket: *ticket, mode: *mode, fence: self.hold_state.fence }
    }

    pub(crate) fn label_edit(&self, label: Vec<u8>) -> Edit {
        self.edit(&self.label_edits, Some(label))
    }

    pub(crate) fn cell_edit(&self, bytes: Option<Vec<u8>>) -> Edit {
        self.edit(&self.cell_edits, bytes)
    }

    fn edit(&self, number: &AtomicU64, bytes: Option<Vec<u8>>) -> Edit {
        let place = self.session().place(self.name(), self.pending.ticket);
        Edit { place, edit: number.fetch_add(1, Ordering::Relaxed) + 1, bytes }
    }

    fn held_for(&self) -> Duration {
        self.session().state.clock.now().saturating_since(self.granted)
    }

    /// For how long the lock must stay closed after its release.
    fn keep(&self) -> Option<Duration> {
        let keep = self.at_least?.saturating_sub(self.held_for());
        (!keep.is_zero()).then_some(keep)
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        let name = self.name().clone();
        let why = match (self.hold_state.why(), self.session().state.lease()) {
            (Some(why), _) | (None, Lease::Lost(why)) => Some(why),
            _ => None,
        };
        if let Some(why) = why {
            return Err(Error::Lost { name, why });
        }
        let leave = self.pending.leave_request(self.keep());
        // The store may grant the lock to others before its answer is here, so tokens must not say "held" meanwhile.
        self.hold_state.let_go(&self.session().state);
        // From here on a ticket that is missing in the store is no loss.
        self.session().state.leaving(self.pending.ticket);
        let left = self.session().leave(leave).await?;
        self.pending.left();
        match left {
            Left::Gone => Err(Error::Lost { name, why: Loss::Evicted }),
            Left::Released | Left::Withdrawn => Ok(()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.hold_state.let_go(&self.session().state);
        observe::let_go(self.name(), self.pending.ticket, self.held_for());
        let keep = self.keep();
        self.pending.hand_over(keep);
        if let Some((owned, owner)) = self.owned.take()
            && let Some(owned) = owned.upgrade()
        {
            owned.forget(self.name(), &owner);
        }
    }
}

/// The locks that named owners hold in this process, so that they can come again.
#[derive(Default)]
pub(crate) struct Owned {
    holds: Mutex<HashMap<OwnerOf, Weak<Hold>>>,
}

/// A name, and who holds it.
type OwnerOf = (Name, Arc<str>);

impl Owned {
    /// The guard for an owner who holds the lock already.
    pub(crate) fn again(&self, request: &LockRequest) -> Result<Option<Guard>> {
        let Some(owner) = &request.owner else { return Ok(None) };
        let key = (request.name.clone(), Arc::clone(owner));
        let hold = {
            let holds = self.holds.lock();
            holds.get(&key).and_then(Weak::upgrade)
        };
        let Some(guard) = hold.map(Guard::new).filter(Guard::is_held) else {
            return Ok(None);
        };
        let (held, asked) = (guard.mode(), request.mode);
        if held.capacity() != asked.capacity() || held.weight() < asked.weight() {
            return Err(Error::Upgrade { name: request.name.clone(), held, asked });
        }
        Ok(Some(guard))
    }

    /// The first guard of a hold; its owner, if it has one, can come again from now on.
    pub(crate) fn first(self: &Arc<Self>, request: &LockRequest, mut hold: Hold) -> Guard {
        let Some(owner) = &request.owner else { return Guard::new(Arc::new(hold)) };
        hold.owned = Some((Arc::downgrade(self), Arc::clone(owner)));
        let hold = Arc::new(hold);
        let key = (request.name.clone(), Arc::clone(owner));
        let mut holds = self.holds.lock();
        holds.insert(key, Arc::downgrade(&hold));
        Guard::new(hold)
    }

    fn forget(&self, name: &Name, owner: &Arc<str>) {
        let mut holds = self.holds.lock();
        let key = (name.clone(), Arc::clone(owner));
        // The owner may have taken the lock anew meanwhile: that hold stays.
        if holds.get(&key).is_some_and(|hold| hold.strong_count() == 0) {
            holds.remove(&key);
        }
    }
}
