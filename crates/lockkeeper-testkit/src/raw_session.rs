//! A session that a test drives itself, request by request, without keeper, renewal or waiting loop.

use lockkeeper::{
    Mode, Name, Owner, Store as _, TicketId,
    store::{
        AnyStore, Claim, Edit, Edited, Enter, Entered, Leave, Left, Manner, Open, Place, PollScope,
        Renewal, SessionId, StoreResult, Terms, TicketStatus,
    },
};
use std::time::Duration;

/// Long enough to play no part in a case.
pub const LONG: Duration = Duration::from_secs(120);

/// A session that a test drives itself.
#[derive(Clone, Debug)]
pub struct RawSession {
    /// The store.
    pub store: AnyStore,
    /// The session.
    pub session: SessionId,
    /// The terms on which it was opened.
    pub terms: Terms,
}

impl RawSession {
    /// Opens a session that does not end by itself within a case.
    pub async fn open(store: &AnyStore) -> Self {
        Self::open_for(store, LONG, Duration::ZERO).await
    }

    /// Opens a session with these times.
    pub async fn open_for(store: &AnyStore, ttl: Duration, lock_delay: Duration) -> Self {
        let session = SessionId::random();
        let ask = Self::ask(session, ttl, lock_delay);
        let terms = store.open(ask).await.expect("a session");
        Self { store: store.clone(), session, terms }
    }

    /// The request that opens such a session.
    #[must_use]
    pub fn ask(session: SessionId, ttl: Duration, lock_delay: Duration) -> Open {
        let owner = Owner::new("here", 7, "raw");
        Open { session, ttl, lock_delay, owner }
    }

    /// A ticket of this session in a line.
    #[must_use]
    pub fn place(&self, name: &str, ticket: TicketId) -> Place {
        let name = Name::new(name).expect("a good name");
        Place { session: self.session, name, ticket }
    }

    /// Enters a line.
    pub async fn enter(
        &self,
        name: &str,
        ticket: TicketId,
        mode: Mode,
        manner: Manner,
    ) -> StoreResult<Entered> {
        let place = self.place(name, ticket);
        self.store.enter(Enter { place, mode, manner, label: b"raw".to_vec() }).await
    }

    /// Stands in line for all of it.
    pub async fn queue(&self, name: &str) -> (TicketId, Entered) {
        self.queue_for(name, Mode::Exclusive).await
    }

    /// Stands in line.
    pub async fn queue_for(&self, name: &str, mode: Mode) -> (TicketId, Entered) {
        let ticket = TicketId::random();
        let entered = self.enter(name, ticket, mode, Manner::Queue).await.expect("an answer");
        (ticket, entered)
    }

    /// Contends for all of it.
    pub async fn contend(&self, name: &str) -> (TicketId, Entered) {
        let ticket = TicketId::random();
        let mode = Mode::Exclusive;
        let entered = self.enter(name, ticket, mode, Manner::Contend).await.expect("an answer");
        (ticket, entered)
    }

    /// Takes a lock that is free.
    ///
    /// # Panics
    /// If it is not.
    pub async fn take(&self, name: &str) -> Claim {
        match self.contend(name).await {
            (ticket, Entered::Granted { fence }) => {
                let name = Name::new(name).expect("a good name");
                Claim { name, ticket, mode: Mode::Exclusive, fence }
            }
            (_, other) => panic!("{name:?} should be free, but: {other:?}"),
        }
    }

    /// How a ticket of this session stands.
    pub async fn stand(&self, name: &str, ticket: TicketId) -> TicketStatus {
        let which = PollScope::These(vec![(Name::new(name).expect("a good name"), ticket)]);
        let mut stands = self.store.poll(self.session, which).await.expect("an answer");
        assert_eq!(stands.len(), 1, "every ticket asked for is in the answer");
        stands.pop().expect("one answer").2
    }

    /// All tickets that the store has of this session.
    pub async fn all(&self) -> Vec<(Name, TicketId, TicketStatus)> {
        self.store.poll(self.session, PollScope::All).await.expect("an answer")
    }

    /// Leaves a line.
    pub async fn leave(&self, name: &str, ticket: TicketId) -> Left {
        self.leave_as(name, ticket, None, false).await
    }

    /// Leaves a line, in this way.
    pub async fn leave_as(
        &self,
        name: &str,
        ticket: TicketId,
        keep: Option<Duration>,
        stray: bool,
    ) -> Left {
        let place = self.place(name, ticket);
        self.store.leave(Leave { place, keep, stray }).await.expect("an answer")
    }

    /// Writes the cell of the ticket's name.
    pub async fn write(&self, claim: &Claim, edit: u64, bytes: &[u8]) -> Edited {
        let place = self.place(claim.name.as_str(), claim.ticket);
        let edit = Edit { place, edit, bytes: Some(bytes.to_vec()) };
        self.store.write(edit).await.expect("an answer")
    }

    /// Changes the ticket's note.
    pub async fn annotate(&self, claim: &Claim, edit: u64, bytes: &[u8]) -> Edited {
        let place = self.place(claim.name.as_str(), claim.ticket);
        let edit = Edit { place, edit, bytes: Some(bytes.to_vec()) };
        self.store.set_label(edit).await.expect("an answer")
    }

    /// Renews.
    pub async fn renew(&self) -> Renewal {
        self.store.renew(self.session).await.expect("an answer")
    }

    /// Is the session still renewed?
    pub async fn lives(&self) -> bool {
        matches!(self.renew().await, Renewal::Renewed { .. })
    }

    /// Closes.
    pub async fn close(&self) {
        self.store.close(self.session).await.expect("an answer");
    }

    /// Is this grant held?
    pub async fn check(&self, claim: &Claim) -> bool {
        self.store.check(claim.clone()).await.expect("an answer")
    }
}
