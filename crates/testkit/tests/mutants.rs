//! The checks are checked: stores with a bug planted in them, each of which a case must find.

use lockkeeper::{
    Line, Name, Store as _, StoreError, TicketId,
    store::{
        AnyStore, Claim, Edit, Edited, Enter, Entered, Hints, Leave, Left, ListScope, Manner, Open,
        PollScope, Renewal, SessionId, StoreResult, Terms, TicketDigest, TicketStatus,
        memory::Memory,
    },
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use testkit::{
    Dataset, Subject,
    layer::{Layer, Layered, Statuses},
    run_one,
};

/// What is wrong with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A leave does not ask whose ticket it is.
    LeavesForEverySession,
    /// A leave ends whatever its session holds in the line (etcd issue 22082).
    LeavesLaterGrants,
    /// Every queued ticket is told that it is granted.
    GrantsToAll,
    /// All fences are the same.
    OneFence,
    /// An enter that is repeated gets another fence.
    NewFenceWhenAsked,
    /// Upper case is lower case.
    FoldsCase,
    /// A try that finds the lock taken stands in line all the same.
    BusyStays,
    /// A renewal opens what has expired.
    RevivesTheDead,
    /// An expired session is opened anew by a copy of its open.
    OpenRenews,
    /// Closing ends nothing.
    CloseForgets,
    /// The lock-delay is promised and not kept.
    NoDelay,
    /// A clean release is delayed too.
    DelaysReleases,
    /// Late copies of an enter are not refused.
    ForgetsStrays,
    /// The last edit to arrive wins.
    LastEditWins,
    /// Whatever was granted once is taken to be held.
    ChecksNothing,
    /// No waiter is woken.
    Deaf,
    /// An eviction is not told.
    OneVersion,
    /// Every renewal shows the tickets of the first one.
    RemembersTickets,
    /// The secret of a session is in what it shows.
    ShowsSecrets,
    /// A release that was to keep the lock closed does not.
    KeepsNothing,
}

/// Each bug, and the case that must fail because of it.
const PLANTED: &[(Bug, &str)] = &[
    (Bug::LeavesForEverySession, "mutex::a_strangers_requests_change_nothing"),
    (Bug::LeavesLaterGrants, "replay::a_late_leave_never_ends_a_later_grant"),
    (Bug::GrantsToAll, "mutex::lock_never_tears_a_counter"),
    (Bug::OneFence, "fence::it_grows_across_releases"),
    (Bug::NewFenceWhenAsked, "fence::it_is_the_same_however_often_it_is_asked"),
    (Bug::FoldsCase, "names::names_never_collide"),
    (Bug::BusyStays, "mutex::lock_busy_try_leaves_nothing"),
    (Bug::RevivesTheDead, "session::an_expired_session_is_never_revived"),
    (Bug::OpenRenews, "replay::an_open_again_renews_nothing"),
    (Bug::CloseForgets, "session::closing_ends_all_its_tickets"),
    (Bug::NoDelay, "delay::an_abnormal_end_keeps_it_closed"),
    (Bug::DelaysReleases, "delay::a_clean_release_frees_at_once"),
    (Bug::ForgetsStrays, "replay::a_late_enter_of_a_stray_is_refused"),
    (Bug::LastEditWins, "replay::a_late_note_never_undoes_a_newer_one"),
    (Bug::ChecksNothing, "evict::a_check_is_exact"),
    (Bug::Deaf, "waiting::a_hand_over_wakes_the_waiter"),
    (Bug::OneVersion, "session::a_version_changes_only_when_others_interfere"),
    (Bug::RemembersTickets, "session::a_renewal_shows_the_tickets_that_the_store_has"),
    (Bug::ShowsSecrets, "look::a_secret_is_shown_nowhere"),
    (Bug::KeepsNothing, "lease::a_shortest_hold_keeps_it_closed_after_the_release"),
    (Bug::LeavesForEverySession, "model::it_does_what_the_reference_does"),
    (Bug::GrantsToAll, "model::it_does_what_the_reference_does"),
    (Bug::OneFence, "model::it_does_what_the_reference_does"),
];

#[test]
fn every_planted_bug_is_found() {
    let undetected: Vec<_> = PLANTED
        .iter()
        .filter(|(bug, case)| match run_one(&subject(*bug), case) {
            Ok(()) => true,
            Err(why) => {
                println!("{bug:?} found by {case}: {why}");
                false
            }
        })
        .collect();
    assert!(undetected.is_empty(), "not found: {undetected:?}");
}

/// The cases above fail because of the bugs and not because of the wrapper around them.
#[test]
fn without_a_bug_the_same_cases_pass() {
    for (_, case) in PLANTED {
        let bent = run_one(&subject(Bug::None), case);
        // A case that the store inside does not pass either says nothing about the wrapper.
        assert!(bent.is_ok() || run_one(&Subject::memory(), case).is_err(), "{case}: {bent:?}");
    }
}

fn subject(bug: Bug) -> Subject {
    Subject::new(format!("{bug:?}"), Subject::memory().can(), move || async move {
        let store = AnyStore::new(Layered(Bent { bug, ..Bent::default() }));
        Ok(Dataset::new(move || {
            let store = store.clone();
            async move { Ok(store) }
        }))
    })
}

/// A store in memory with a bug.
struct Bent {
    inner: AnyStore,
    bug: Bug,
    /// Counts up, where a bug needs new numbers.
    number: AtomicU64,
    secrets: Mutex<Vec<SessionId>>,
    held: Mutex<HashMap<(SessionId, Name), TicketId>>,
    first_digest: Mutex<Option<TicketDigest>>,
}

impl Default for Bent {
    fn default() -> Self {
        let (number, secrets, held, first_digest) = Default::default();
        Self {
            inner: AnyStore::new(Memory::new()),
            bug: Bug::None,
            number,
            secrets,
            held,
            first_digest,
        }
    }
}

impl Bent {
    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn name(&self, name: Name) -> Name {
        match self.bug {
            Bug::FoldsCase => Name::new(&name.as_str().to_lowercase()).unwrap_or(name),
            _ => name,
        }
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn fence(&self, fence: u64) -> u64 {
        match self.bug {
            Bug::OneFence => 7,
            Bug::NewFenceWhenAsked => fence + self.next(),
            _ => fence,
        }
    }
}

impl Layer for Bent {
    fn inner(&self) -> &AnyStore {
        &self.inner
    }

    async fn open(&self, mut ask: Open) -> StoreResult<Terms> {
        self.secrets.lock().unwrap().push(ask.session);
        let lock_delay = ask.lock_delay;
        if self.has(Bug::OpenRenews) {
            self.inner.renew(ask.session).await?;
        }
        if self.has(Bug::NoDelay) {
            ask.lock_delay = Duration::ZERO;
        }
        let mut terms = self.inner.open(ask).await?;
        terms.lock_delay = lock_delay;
        Ok(terms)
    }

    async fn renew(&self, session: SessionId) -> StoreResult<Renewal> {
        match self.inner.renew(session).await? {
            Renewal::Renewed { tickets, .. } if self.has(Bug::OneVersion) => {
                Ok(Renewal::Renewed { version: 0, tickets })
            }
            Renewal::Renewed { version, tickets } if self.has(Bug::RemembersTickets) => {
                let mut first = self.first_digest.lock().unwrap();
                let tickets = Some(*first.get_or_insert(tickets.unwrap_or_default()));
                Ok(Renewal::Renewed { version, tickets })
            }
            Renewal::Lost if self.has(Bug::RevivesTheDead) => {
                Ok(Renewal::Renewed { version: 0, tickets: None })
            }
            renewal => Ok(renewal),
        }
    }

    async fn close(&self, session: SessionId) -> StoreResult<()> {
        if self.has(Bug::CloseForgets) {
            return Ok(());
        }
        self.inner.close(session).await
    }

    async fn enter(&self, mut ask: Enter) -> StoreResult<Entered> {
        ask.place.name = self.name(ask.place.name);
        let contends = ask.manner == Manner::Contend;
        if self.has(Bug::BusyStays) {
            ask.manner = Manner::Queue;
        }
        let place = ask.place.clone();
        let entered = self.inner.enter(ask).await?;
        if matches!(entered, Entered::Granted { .. }) {
            self.held.lock().unwrap().insert((place.session, place.name), place.ticket);
        }
        Ok(match entered {
            Entered::Granted { fence } => Entered::Granted { fence: self.fence(fence) },
            Entered::Queued(_) if self.has(Bug::GrantsToAll) => {
                Entered::Granted { fence: u64::MAX / 2 + self.next() }
            }
            Entered::Queued(wait) if contends && self.has(Bug::BusyStays) => Entered::Busy(wait),
            other => other,
        })
    }

    async fn poll(&self, session: SessionId, which: PollScope) -> StoreResult<Statuses> {
        let mut stands = self.inner.poll(session, which).await?;
        for (_, _, stand) in &mut stands {
            if let TicketStatus::Granted { fence } = stand {
                *fence = self.fence(*fence);
            }
        }
        Ok(stands)
    }

    async fn hints(&self, session: SessionId, to: Arc<dyn Hints>) -> StoreError {
        if self.has(Bug::Deaf) {
            to.recheck(None);
            return std::future::pending().await;
        }
        self.inner.hints(session, to).await
    }

    async fn leave(&self, mut ask: Leave) -> StoreResult<Left> {
        ask.place.name = self.name(ask.place.name);
        match self.bug {
            Bug::LeavesForEverySession => {
                let there = self.inner.evict(ask.place.name, ask.place.ticket).await?;
                return Ok(if there { Left::Released } else { Left::Gone });
            }
            Bug::LeavesLaterGrants => {
                let key = (ask.place.session, ask.place.name.clone());
                let held = self.held.lock().unwrap().get(&key).copied();
                ask.place.ticket = held.unwrap_or(ask.place.ticket);
            }
            Bug::DelaysReleases => ask.keep = Some(Duration::from_secs(2)),
            Bug::KeepsNothing => ask.keep = None,
            Bug::ForgetsStrays => ask.stray = false,
            _ => {}
        }
        self.inner.leave(ask).await
    }

    async fn set_label(&self, mut edit: Edit) -> StoreResult<Edited> {
        if self.has(Bug::LastEditWins) {
            edit.edit = self.next() + 1_000;
        }
        self.inner.set_label(edit).await
    }

    async fn list(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let mut lines = self.inner.list(which).await?;
        for ticket in lines.iter_mut().flat_map(|line| &mut line.tickets) {
            ticket.fence = ticket.fence.map(|fence| self.fence(fence));
            if self.has(Bug::ShowsSecrets) {
                let secrets = self.secrets.lock().unwrap();
                ticket.label = secrets.first().map(|s| s.to_bytes().to_vec()).unwrap_or_default();
            }
        }
        Ok(lines)
    }

    async fn check(&self, claim: Claim) -> StoreResult<bool> {
        Ok(self.has(Bug::ChecksNothing) || self.inner.check(claim).await?)
    }

    async fn write(&self, mut edit: Edit) -> StoreResult<Edited> {
        if self.has(Bug::LastEditWins) {
            edit.edit = self.next() + 1_000;
        }
        self.inner.write(edit).await
    }
}
