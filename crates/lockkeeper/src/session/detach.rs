//! A lock goes from one process to another: the first detaches it, the second attaches it.
//!
//! Between the two no process renews the session, so it ends with its TTL unless it is attached before.
//! Attaching sends a renewal, and then asks how the ticket stands: the lock counts as held from the sending
//! of that renewal on, and only if the store has the very grant that was detached.

use crate::{
    api::detached::Detached,
    clock::Moment,
    error::{Error, ErrorKind, Loss, Result},
    model::name::Name,
    session::{
        Cleanup, Opened, Session, hold::Hold, hold_state::HoldState, keeper_state::KeeperState,
        pending_ticket::PendingTicket,
    },
    store::{PollScope, Renewal, Store as _, TicketDigest, TicketStatus},
};
use std::sync::Arc;
use tokio::sync::oneshot;

impl Hold {
    /// Writes down what another process needs to hold the lock, and lets go of it without a release.
    pub(crate) async fn detach(mut self) -> Result<Detached> {
        self.check_detachable()?;
        let session = self.session();
        let state = session.detach(self.name()).await?;
        let store = session.store.id();
        let detached = Detached::new(store, session.id, session.terms, state, self.claim());
        self.let_another_release();
        Ok(detached)
    }

    fn check_detachable(&self) -> Result<()> {
        if !self.session().own {
            let what =
                "only a lock that has a session of its own can be detached: take it with lease()";
            return Err(Error::option("lease", what));
        }
        if self.has_own_times() {
            let what = "at_least and max_hold are kept by this process: a lock with them cannot be detached";
            return Err(Error::option("at_least", what));
        }
        Ok(())
    }
}

impl Session {
    /// Ends the task but not the session. Returns what another handle needs to act for it.
    async fn detach(&self, name: &Name) -> Result<Vec<u8>> {
        let (taker, taken) = oneshot::channel();
        let _ = self.cleanups.send(Cleanup::Detach(taker));
        match taken.await {
            Ok(state) => Ok(state?),
            Err(_) => Err(Error::Lost { name: name.clone(), why: self.state.lost().await }),
        }
    }
}

impl KeeperState {
    /// Holds a lock that another process has detached.
    pub(crate) async fn attach(&self, detached: &Detached) -> Result<Hold> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let (wanted, found) = (detached.store(), self.store.id());
        if wanted != found {
            return Err(Error::OtherStore { wanted, found });
        }
        let renewed = match self.renew_detached(detached).await {
            Err(Error::Store(e)) if e.kind == ErrorKind::SessionOver => {
                Err(lost(detached, Loss::SessionGone))
            }
            renewed => renewed,
        };
        let renewed = renewed.inspect_err(|_| self.store.forget(detached.session()))?;
        let hold = self.hold_detached(detached, &renewed);
        // Closed while we asked: `close` may not have seen this session.
        let hold = hold?;
        if !self.is_closed() {
            return Ok(hold);
        }
        // It stays with the process that has detached it.
        let _ = hold.detach().await;
        Err(Error::Closed)
    }

    async fn renew_detached(&self, detached: &Detached) -> Result<Renewed> {
        let (session, claim) = (detached.session(), detached.claim());
        self.store.attach(detached.to_attach()).await?;
        let sent = self.clock.now();
        let Renewal::Renewed { version, tickets } = self.store.renew(session).await? else {
            return Err(lost(detached, Loss::SessionGone));
        };
        let which = PollScope::These(vec![(claim.name.clone(), claim.ticket)]);
        let stands = self.store.poll(session, which).await?;
        let is_granted = |status: &TicketStatus| match status {
            TicketStatus::Granted { fence } => {
                *fence == claim.fence || !self.store.capabilities().fenced
            }
            TicketStatus::Waiting(_) | TicketStatus::Gone => false,
        };
        if !stands.iter().any(|(_, ticket, status)| *ticket == claim.ticket && is_granted(status)) {
            return Err(lost(detached, Loss::Evicted));
        }
        Ok(Renewed { sent, version, tickets })
    }

    fn hold_detached(&self, detached: &Detached, renewed: &Renewed) -> Result<Hold> {
        let (terms, claim) = (detached.terms(), detached.claim());
        let Self { store, clock, .. } = self;
        let renew = self.renew(terms.ttl);
        let (session, task) = Session::start(
            store,
            clock,
            detached.session(),
            terms,
            renew,
            Opened::by_another(renewed.sent),
        );
        self.add_task(task);
        self.add_own(&session);
        let mut pending = PendingTicket::attached(&session, claim);
        let hold_state = HoldState::new(claim.name.clone(), claim.fence, None);
        if !session.state.hold(claim.ticket, Arc::clone(&hold_state)) {
            // The answers took longer than the renewal is good for. Another process may attach it in time.
            pending.left();
            return Err(lost(detached, Loss::Expired));
        }
        session.state.attached(renewed.version, renewed.tickets);
        let hold = Hold::new(pending, hold_state, clock.now(), None);
        // The processes before have numbered theirs, from 1 on or from an earlier time.
        hold.edit_after(clock.wall_micros());
        Ok(hold)
    }
}

/// A renewal that was answered.
struct Renewed {
    sent: Moment,
    version: u64,
    tickets: Option<TicketDigest>,
}

fn lost(detached: &Detached, why: Loss) -> Error {
    Error::Lost { name: detached.claim().name.clone(), why }
}
