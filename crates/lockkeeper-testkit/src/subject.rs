//! A store under test, and the fresh data that each case gets.

use crate::case::{Case, Need};
use lockkeeper::{Capabilities, Keeper, store::AnyStore};
use std::{any::Any, env, fmt, pin::Pin, sync::Arc, time::Duration};

/// A future that can be stored and moved between threads.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

type Make<T> = Arc<dyn Fn() -> Boxed<anyhow::Result<T>> + Send + Sync>;

/// The TTL of sessions whose expiry a case waits for, unless the store cannot go so low.
const SHORT: Duration = Duration::from_millis(500);

/// A store under test: its name, what it claims to be able to do, and how to get fresh data in it.
#[derive(Clone)]
pub struct Subject {
    name: String,
    can: Capabilities,
    dataset: Make<Dataset>,
    unavailable: Option<String>,
    processes: bool,
    leaves_at_once: bool,
    short_ttl: Duration,
    sharded: bool,
    notes_grants: bool,
    own_cases: Vec<Case>,
}

impl Subject {
    /// A store of this name that claims to be able to do `can`. Every case calls `dataset` once, for
    /// data for itself alone.
    pub fn new<F, S>(name: impl Into<String>, can: Capabilities, dataset: F) -> Self
    where
        F: Fn() -> S + Send + Sync + 'static,
        S: Future<Output = anyhow::Result<Dataset>> + Send + 'static,
    {
        Self {
            name: name.into(),
            can,
            dataset: Arc::new(move || Box::pin(dataset())),
            unavailable: None,
            processes: false,
            leaves_at_once: false,
            short_ttl: SHORT,
            sharded: false,
            notes_grants: true,
            own_cases: Vec::new(),
        }
    }

    /// The store in memory: the reference.
    #[must_use]
    pub fn memory() -> Self {
        let can = Capabilities {
            renewal_shows_tickets: true,
            waiters_end_at_ttl: true,
            ..Capabilities::LINES
        };
        let dataset = || async {
            let url = format!("memory://{:032x}", rand::random::<u128>());
            // The store forgets its data with its last handle: this one stays.
            let anchor = Keeper::connect(&url).await?;
            Ok(Dataset::url(url).keep(anchor))
        };
        Self::new("memory", can, dataset).leaves_at_once()
    }

    /// The store cannot be had here. Its cases are reported as ignored with this reason, or as
    /// failed if the environment variable `LOCKKEEPER_REQUIRE` is `all` or names it.
    #[must_use]
    pub fn unavailable(mut self, reason: impl Into<String>) -> Self {
        self.unavailable = Some(reason.into());
        self
    }

    /// Other processes can reach the data by the URL of the [`Dataset`].
    #[must_use]
    pub fn across_processes(mut self) -> Self {
        self.processes = true;
        self
    }

    /// The store can leave without awaiting (`Store::leave_now`).
    #[must_use]
    pub fn leaves_at_once(mut self) -> Self {
        self.leaves_at_once = true;
        self
    }

    /// The TTL of sessions whose expiry a case waits for: for stores that cannot go down to 500 ms.
    #[must_use]
    pub fn short_ttl(mut self, ttl: Duration) -> Self {
        self.short_ttl = ttl;
        self
    }

    /// A session of this store is spread over several servers, so that its parts expire a moment
    /// apart.
    #[must_use]
    pub fn sharded(mut self) -> Self {
        self.sharded = true;
        self
    }

    /// The store does not write down when a lock passes on to the next in line, so it cannot say for how
    /// long it has been held.
    #[must_use]
    pub fn notes_no_grants(mut self) -> Self {
        self.notes_grants = false;
        self
    }

    /// A case for this store alone, for example one that exercises what only it can do.
    #[must_use]
    pub fn case(mut self, case: Case) -> Self {
        self.own_cases.push(case);
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it claims to be able to do.
    #[must_use]
    pub fn can(&self) -> Capabilities {
        self.can
    }

    /// Fresh data, for one case.
    ///
    /// # Errors
    /// Whatever goes wrong while making it.
    pub async fn dataset(&self) -> anyhow::Result<Dataset> {
        (self.dataset)().await
    }

    pub(crate) fn short(&self) -> Duration {
        self.short_ttl
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded
    }

    pub(crate) fn notes_grants(&self) -> bool {
        self.notes_grants
    }

    pub(crate) fn own_cases(&self) -> &[Case] {
        &self.own_cases
    }

    /// Why the store cannot be had, and whether that is a failure.
    pub(crate) fn missing(&self) -> Option<(&str, bool)> {
        let reason = self.unavailable.as_deref()?;
        let required = env::var("LOCKKEEPER_REQUIRE").unwrap_or_default();
        Some((reason, names(&required, &self.name)))
    }

    /// Does the store have what the case needs?
    pub(crate) fn has(&self, need: Need) -> bool {
        match need {
            Need::Fair => self.can.fair,
            Need::Fenced => self.can.fenced,
            Need::Shared => self.can.shared,
            Need::Permits => self.can.permits,
            Need::Cells => self.can.cells,
            Need::AtLeast => self.can.at_least,
            Need::Wakes => self.can.wakes,
            Need::Durable => self.can.durable,
            Need::SurvivesFailover => self.can.survives_failover,
            Need::SessionsShared => self.can.sessions_shared,
            Need::RenewalShowsTickets => self.can.renewal_shows_tickets,
            Need::WaitersEndAtTtl => self.can.waiters_end_at_ttl,
            Need::Processes => self.processes,
            Need::LeaveNow => self.leaves_at_once,
        }
    }
}

/// Does what `LOCKKEEPER_REQUIRE` says name this store?
fn names(required: &str, store: &str) -> bool {
    required.split([',', ' ']).any(|word| word == "all" || word == store)
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut subject = f.debug_struct("Subject");
        subject.field("name", &self.name).field("can", &self.can);
        subject.field("unavailable", &self.unavailable).finish_non_exhaustive()
    }
}

/// Fresh data in a store, and how to open handles to it. Dropping it may remove the data.
pub struct Dataset {
    open: Make<AnyStore>,
    url: Option<String>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Dataset {
    /// Data to which `open` makes a handle, as another process would: handles share nothing but
    /// the data.
    pub fn new<F, S>(open: F) -> Self
    where
        F: Fn() -> S + Send + Sync + 'static,
        S: Future<Output = anyhow::Result<AnyStore>> + Send + 'static,
    {
        Self { open: Arc::new(move || Box::pin(open())), url: None, kept: Vec::new() }
    }

    /// Data that a URL leads to.
    pub fn url(url: impl Into<String>) -> Self {
        let url = url.into();
        let open = {
            let url = url.clone();
            move || {
                let url = url.clone();
                async move { Ok(Keeper::connect(&url).await?.store().clone()) }
            }
        };
        Self { url: Some(url), ..Self::new(open) }
    }

    /// Gives data made by [`new`](Self::new) the URL by which the `taker` program reaches it.
    #[must_use]
    pub fn at(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Keeps something for as long as the data is used: a folder, a server.
    #[must_use]
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }

    /// One more handle to the data.
    ///
    /// # Errors
    /// Whatever goes wrong while opening it.
    pub async fn open(&self) -> anyhow::Result<AnyStore> {
        (self.open)().await
    }

    pub(crate) fn address(&self) -> Option<&str> {
        self.url.as_deref()
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset").field("kept", &self.kept.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_required_by_name_or_with_all_others() {
        assert!(names("all", "redis") && names("etcd,redis", "redis") && names("redis", "redis"));
        assert!(!names("", "redis") && !names("redis-cluster", "redis") && !names("etcd", "redis"));
    }

    #[test]
    fn only_an_unavailable_store_is_missing() {
        assert_eq!(Subject::memory().missing(), None);
        let missing = Subject::memory().unavailable("not installed");
        assert_eq!(missing.missing().map(|(reason, _)| reason), Some("not installed"));
    }
}
