//! One leader at a time, which all clients can see.

use crate::{
    api::{acquire::Acquire, guard::Guard, keeper::Keeper, watch::Watch},
    error::{Loss, Result},
    model::{
        line::Line,
        name::{Name, NameError},
        ticket::{Mode, Owner, TicketId},
    },
    store::ListScope,
};
use futures_core::Stream;
use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

/// One leader at a time. Candidates stand in the same line as [`Keeper::lock`]'s, so they lead in
/// the order in which they came; what a leader proclaims is the label of its ticket.
///
/// ```
/// # use lockkeeper::Keeper;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-election").await?;
/// let election = keeper.election("scheduler");
/// let term = election.campaign("host-7").await?;
/// let leader = election.leader().await?.unwrap();
/// assert_eq!(leader.label, b"host-7");
/// term.resign().await?;
/// # keeper.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    keeper: Keeper,
    name: Result<Name, NameError>,
}

impl Election {
    pub(crate) fn new(keeper: &Keeper, name: Result<Name, NameError>) -> Self {
        Self { keeper: keeper.clone(), name }
    }

    /// Becomes a candidate and, when its turn comes, the leader, proclaiming `label`.
    pub fn campaign(&self, label: impl Into<Vec<u8>>) -> Campaign {
        let lock = Acquire::new(&self.keeper, self.name.clone(), Mode::Exclusive);
        Campaign(lock.label(label))
    }

    /// Who leads now; `None` while there is no leader. A candidate that waits is not shown.
    ///
    /// # Errors
    /// [`Error::Name`](crate::Error::Name), or the store's error.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let name = self.name.clone()?;
        Ok(self.keeper.get(name).await?.as_ref().and_then(Leader::of))
    }

    /// Follows who leads.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-observe").await?;
    /// let election = keeper.election("scheduler");
    /// let term = election.campaign("host-7").await?;
    /// let mut leaders = election.observe();
    /// assert_eq!(leaders.next().await?.expect("a leader").label, b"host-7");
    /// term.proclaim("host-7, draining").await?;
    /// assert_eq!(leaders.next().await?.expect("a leader").label, b"host-7, draining");
    /// # drop(term); keeper.close().await; Ok(()) }
    /// ```
    pub fn observe(&self) -> Observer {
        let watch = self.name.clone().map(|name| Watch::of(&self.keeper, ListScope::Exact(name)));
        Observer { watch, seen: None }
    }
}

/// A candidacy. Await it to lead, or set options first.
///
/// ```
/// # use lockkeeper::Keeper; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-campaign").await?;
/// let election = keeper.election("scheduler");
/// let term = election.campaign("host-7").ttl(Duration::from_secs(5)).await?;
/// let other = election.campaign("host-8").wait(Duration::from_millis(10)).await;
/// assert!(other.unwrap_err().is_not_acquired());
/// # drop(term); keeper.close().await; Ok(()) }
/// ```
///
/// # Cancel safety
/// As [`Acquire`].
#[derive(Clone, Debug)]
#[must_use = "a campaign begins when this is awaited"]
pub struct Campaign(Acquire);

impl Campaign {
    /// Gives up after so long, as [`Acquire::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// For how long a leader outlives its last renewal, as [`Acquire::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Extra time after the TTL before another candidate leads, as [`Acquire::lock_delay`].
    pub fn lock_delay(self, lock_delay: Duration) -> Self {
        Self(self.0.lock_delay(lock_delay))
    }

    /// Contends instead of standing in line, as [`Acquire::unfair`].
    pub fn unfair(self) -> Self {
        Self(self.0.unfair())
    }

    /// Leads if there is neither a leader nor a candidate; `None` otherwise.
    ///
    /// # Errors
    /// As [`Acquire::try_now`].
    ///
    /// # Cancel safety
    /// As [`Acquire`].
    pub async fn try_now(self) -> Result<Option<Term>> {
        Ok(self.0.try_now().await?.map(Term))
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Term>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.0.await.map(Term) })
    }
}

/// A leader's term of office. Dropping it resigns, in the background.
///
/// ```
/// # use lockkeeper::Keeper;
/// # async fn lead(fence: u64) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-term").await?;
/// let term = keeper.election("scheduler").campaign("host-7").await?;
/// tokio::select! {
///     why = term.lost() => eprintln!("no longer the leader: {why}"),
///     () = lead(term.fence()) => term.resign().await?,
/// }
/// # keeper.close().await; Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping the term resigns"]
pub struct Term(Guard);

impl Term {
    /// The number of this term: grows with every leader.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.fence()
    }

    /// The guard below, for all that a lock in hand can do: [`health`](Guard::health),
    /// [`sequencer`](Guard::sequencer), [`loss`](Guard::loss).
    pub fn guard(&self) -> &Guard {
        &self.0
    }

    /// The guard below, which is the term of office too: its label is what the leader proclaims, and its
    /// release resigns.
    pub fn into_guard(self) -> Guard {
        self.0
    }

    /// Waits until the leadership is lost, and says why.
    ///
    /// # Cancel safety
    /// Can be dropped and called again as often as wanted.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }

    /// Proclaims another label while leading: observers see it as a change of the leader.
    ///
    /// # Errors
    /// As [`Guard::set_label`].
    ///
    /// # Cancel safety
    /// As [`Guard::set_label`].
    pub async fn proclaim(&self, label: impl Into<Vec<u8>>) -> Result<()> {
        self.0.set_label(label).await
    }

    /// Steps down; the next candidate leads.
    ///
    /// # Errors
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.0.release().await
    }
}

/// The leader, as [`Election::leader`] and [`Observer`] show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Leader {
    /// What the leader proclaims.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::model::serde::label"))]
    pub label: Vec<u8>,
    /// The number of its term.
    pub fence: u64,
    /// Its ticket.
    pub ticket: TicketId,
    /// Its process.
    pub owner: Option<Owner>,
}

impl Leader {
    fn of(line: &Line) -> Option<Self> {
        let ticket = line.holders().next()?;
        Some(Self {
            label: ticket.label.clone(),
            fence: ticket.fence?,
            ticket: ticket.id,
            owner: ticket.owner.clone(),
        })
    }
}

/// Follows who leads: by [`next`](Self::next), or as a [`Stream`] that never ends.
#[derive(Debug)]
#[must_use = "an observer does nothing until its next() is awaited"]
pub struct Observer {
    watch: Result<Watch, NameError>,
    seen: Option<Option<Leader>>,
}

impl Observer {
    /// The leader, or that there is none: at first how it stands, then whenever it changes. Changes
    /// that follow each other quickly may be seen as one.
    ///
    /// # Errors
    /// [`Error::Name`](crate::Error::Name), or the store's error; the next call goes on.
    ///
    /// # Cancel safety
    /// A change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        poll_fn(|cx| self.poll_leader(cx)).await
    }

    fn poll_leader(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Leader>>> {
        let watch = match &mut self.watch {
            Ok(watch) => watch,
            Err(e) => return Poll::Ready(Err(e.clone().into())),
        };
        loop {
            let leader = ready!(watch.poll_lines(cx))?.first().and_then(Leader::of);
            if self.seen.as_ref() != Some(&leader) {
                self.seen = Some(leader.clone());
                return Poll::Ready(Ok(leader));
            }
        }
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_leader(cx).map(Some)
    }
}
