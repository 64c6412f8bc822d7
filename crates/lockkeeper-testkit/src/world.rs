//! What a case works with: fresh data, handles to it, and patience.

use crate::{
    fault_store::FaultStore,
    subject::{Dataset, Subject},
};
use lockkeeper::{
    Builder, Capabilities, Keeper, Line, Name, Store as _,
    store::{AnyStore, ListScope},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a condition may take to come true on a slow and noisy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks at a condition.
const GLANCE: Duration = Duration::from_millis(5);

/// The fresh data of one case.
#[derive(Debug)]
pub struct World {
    dataset: Dataset,
    can: Capabilities,
    short: Duration,
    sharded: bool,
    notes_grants: bool,
    taker: Option<PathBuf>,
}

impl World {
    pub(crate) async fn new(subject: &Subject, taker: Option<PathBuf>) -> anyhow::Result<Self> {
        let dataset = subject.dataset().await?;
        Ok(Self {
            dataset,
            can: subject.can(),
            short: subject.short(),
            sharded: subject.is_sharded(),
            notes_grants: subject.notes_grants(),
            taker,
        })
    }

    /// What the subject claims to be able to do.
    #[must_use]
    pub fn can(&self) -> Capabilities {
        self.can
    }

    /// The TTL of a session whose expiry is awaited.
    #[must_use]
    pub fn short(&self) -> Duration {
        self.short
    }

    /// Do the parts of a session expire a moment apart?
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// Does the store write down when a ticket was granted?
    #[must_use]
    pub fn notes_grants(&self) -> bool {
        self.notes_grants
    }

    /// A TTL that must not run out by the noise of the machine, renewed every second.
    #[must_use]
    pub fn steady(&self) -> Duration {
        self.short.max(Duration::from_secs(3))
    }

    /// One more handle to the data, as another process has it.
    pub async fn store(&self) -> AnyStore {
        self.dataset.open().await.expect("the store can be opened once more")
    }

    /// A keeper over a handle of its own.
    pub async fn keeper(&self) -> Keeper {
        Keeper::over(self.store().await)
    }

    /// A keeper over a handle of its own, with this TTL.
    pub async fn keeper_for(&self, ttl: Duration) -> Keeper {
        self.build(Keeper::builder().ttl(ttl)).await
    }

    /// A keeper over a handle of its own, with these options.
    pub async fn build(&self, builder: Builder) -> Keeper {
        builder.over(self.store().await).expect("the options make sense")
    }

    /// A handle of its own through which a case sees, fails and delays requests.
    pub async fn fault_store(&self) -> Arc<FaultStore> {
        FaultStore::over(self.store().await)
    }

    /// Where other processes reach the data.
    ///
    /// # Panics
    /// If they cannot.
    #[must_use]
    pub fn url(&self) -> &str {
        self.dataset.address().expect("the case needs processes, so the data has a URL")
    }

    pub(crate) fn taker(&self) -> &Path {
        self.taker.as_deref().expect("the case needs processes, so there is a taker")
    }
}

/// The line of this name, as the store shows it.
pub async fn line(store: &AnyStore, name: &str) -> Option<Line> {
    let name = Name::new(name).expect("a good name");
    store.list(ListScope::Exact(name)).await.expect("a look").pop()
}

/// How many tickets stand in the line of this name.
pub async fn length(store: &AnyStore, name: &str) -> usize {
    line(store, name).await.map_or(0, |line| line.tickets.len())
}

/// How many tickets wait in the line of this name.
pub async fn waiters(store: &AnyStore, name: &str) -> usize {
    line(store, name).await.map_or(0, |line| line.waiters().count())
}

/// How many tickets stand in all lines together.
pub async fn tickets(store: &AnyStore) -> usize {
    let all = ListScope::Prefix { prefix: String::new(), after: None };
    let lines = store.list(all).await.expect("a look");
    lines.iter().map(|line| line.tickets.len()).sum()
}

/// Waits until so many tickets stand in the line of this name.
///
/// # Panics
/// If that does not come true.
pub async fn until_length(store: &AnyStore, name: &str, wanted: usize) {
    let what = format!("{wanted} tickets stand in the line {name:?}");
    eventually(&what, async || length(store, name).await == wanted).await;
}

/// Waits until no ticket is left anywhere.
///
/// # Panics
/// If that does not come true.
pub async fn until_empty(store: &AnyStore) {
    eventually("no ticket is left", async || tickets(store).await == 0).await;
}

/// Waits until the condition holds.
///
/// # Panics
/// If that takes so long that it will not.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < end, "still not so after {PATIENCE:?}: {what}");
        tokio::time::sleep(GLANCE).await;
    }
}

/// Awaits something that must come soon, on the scale of a slow and noisy machine.
///
/// # Panics
/// If it does not.
pub async fn soon<T>(what: &str, future: impl Future<Output = T> + Send) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(out) => out,
        Err(_) => panic!("did not come within {PATIENCE:?}: {what}"),
    }
}
