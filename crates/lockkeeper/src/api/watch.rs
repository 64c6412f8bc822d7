//! Following lines as they change.

use crate::{
    api::keeper::Keeper,
    error::{Error, Result},
    model::{line::Line, ticket::TicketId},
    store::ListScope,
    sync::Mutex,
};
use futures_core::Stream;
use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{sync::oneshot, task::AbortHandle};

/// How often a watch looks, at most and at least.
const EVERY_MIN: Duration = Duration::from_millis(50);
const EVERY_MAX: Duration = Duration::from_millis(500);

/// Follows lines: by [`next`](Self::next), or as a [`Stream`] that never ends.
///
/// It asks the store from time to time: every 50 ms while the lines change, down to twice a second when they
/// do not. So it works on every store, costs nothing where it is not polled, and shows a change half a second
/// late at most. What must not be late, the end of a lock in hand, is told by
/// [`Guard::lost`](crate::Guard::lost); a place in line by [`Acquire::on_wait`](crate::Acquire::on_wait).
///
/// ```
/// # use lockkeeper::Keeper;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-watch").await?;
/// let mut jobs = keeper.watch("jobs/");
/// assert!(jobs.next().await?.is_empty());         // at first the lines as they are
/// let guard = keeper.lock("jobs/nightly").await?;
/// assert_eq!(jobs.next().await?.len(), 1);        // then whenever they have changed
/// # drop(guard); keeper.close().await; Ok(()) }
/// ```
///
/// # As a stream
/// The combinators of `futures` and `tokio-stream` work on it; an error is an item, not the end.
///
/// ```
/// # use lockkeeper::Keeper; use std::{future::poll_fn, pin::Pin};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-watch-stream").await?;
/// # let guard = keeper.lock("jobs/nightly").await?;
/// use futures_core::Stream;
/// let mut jobs = keeper.watch("jobs/");
/// let first = poll_fn(|cx| Pin::new(&mut jobs).poll_next(cx)).await;   // or jobs.next() of StreamExt
/// assert_eq!(first.expect("it never ends")?[0].name.as_str(), "jobs/nightly");
/// # drop(guard); keeper.close().await; Ok(()) }
/// ```
///
/// # Load
/// Each look is one listing of the prefix, so a dashboard that shows thousands of lines should share one
/// watch among its viewers.
#[must_use = "a watch does nothing until its next() is awaited"]
pub struct Watch {
    /// `None` while a look is under way.
    state: Option<State>,
    /// A look that was begun. It is kept when the future of `next` is dropped, so that no change is
    /// missed. The mutex is never locked: it makes the watch `Sync`.
    look: Mutex<Option<Look>>,
}

type Look = Pin<Box<dyn Future<Output = (State, Result<Vec<Line>>)> + Send>>;

struct State {
    keeper: Keeper,
    which: ListScope,
    seen: Option<Vec<Glimpse>>,
    /// Before the next look; none before the first.
    pause: Duration,
}

/// What makes a difference between two looks at a line. Ages always differ.
type Glimpse = (crate::Name, u32, Vec<(TicketId, Option<u64>, Vec<u8>)>);

impl Watch {
    pub(crate) fn prefix(keeper: &Keeper, prefix: &str) -> Self {
        Self::of(keeper, ListScope::Prefix { prefix: prefix.to_owned(), after: None })
    }

    pub(crate) fn of(keeper: &Keeper, which: ListScope) -> Self {
        let state = State { keeper: keeper.clone(), which, seen: None, pause: Duration::ZERO };
        Self { state: Some(state), look: Mutex::default() }
    }

    /// All lines watched: at first as they are, then whenever they have changed.
    ///
    /// A name without tickets has no line. Holders stand at the head of a line, waiters behind them in their order.
    ///
    /// Changes that follow each other quickly may be seen as one, and a ticket that came and went between
    /// two looks is not seen. What changes by itself, the ages of tickets, is no change.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-next").await?;
    /// let mut all = keeper.watch("");
    /// loop {
    ///     match all.next().await {
    ///         Ok(lines) => println!("{} locks in use", lines.len()),
    ///         Err(e) => eprintln!("not seen: {e}"),          // and on it goes
    ///     }
    /// #   break;
    /// }
    /// # keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The store's error; the next call goes on.
    ///
    /// # Cancel safety
    /// A change that was not returned is returned by the next call. So it may stand in a `select!` in a loop:
    ///
    /// ```
    /// # use lockkeeper::Keeper; use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-watch-select").await?;
    /// let mut jobs = keeper.watch("jobs/");
    /// let mut tick = tokio::time::interval(Duration::from_millis(1));
    /// let lines = loop {
    ///     tokio::select! {
    ///         lines = jobs.next() => break lines?,
    ///         _ = tick.tick() => {}                          // the look goes on
    ///     }
    /// };
    /// # assert!(lines.is_empty()); keeper.close().await; Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Vec<Line>> {
        poll_fn(|cx| self.poll_lines(cx)).await
    }

    pub(crate) fn poll_lines(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Line>>> {
        let running = self.look.get_mut();
        if let Some(state) = self.state.take() {
            *running = Some(Box::pin(state.changed()));
        }
        let look = running.as_mut().expect("a look is under way where no state is at rest");
        let (state, lines) = ready!(look.as_mut().poll(cx));
        (self.state, *running) = (Some(state), None);
        Poll::Ready(lines)
    }
}

impl Stream for Watch {
    type Item = Result<Vec<Line>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_lines(cx).map(Some)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl State {
    /// Looks until the lines differ from those seen last.
    async fn changed(mut self) -> (Self, Result<Vec<Line>>) {
        loop {
            self.keeper.inner.clock.sleep(self.pause).await;
            self.pause = (self.pause * 2).clamp(EVERY_MIN, EVERY_MAX);
            let lines = match self.look().await {
                Ok(lines) => lines,
                Err(e) => return (self, Err(e)),
            };
            let seen: Vec<Glimpse> = lines.iter().map(glimpse).collect();
            if self.seen.as_ref() != Some(&seen) {
                self.seen = Some(seen);
                self.pause = EVERY_MIN;
                return (self, Ok(lines));
            }
        }
    }

    /// Asks the store in a task of its own. A watch may be left alone for long while it asks, and a request that
    /// is not polled would keep what it has: a place in the store's queue, a connection.
    async fn look(&self) -> Result<Vec<Line>> {
        let (reply, answer) = oneshot::channel();
        let (keeper, which) = (self.keeper.clone(), self.which.clone());
        let asking = self.keeper.inner.store.spawn(async move {
            let _ = reply.send(lines(&keeper, &which).await);
        });
        let _asking = Asking(asking.abort_handle());
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

async fn lines(keeper: &Keeper, which: &ListScope) -> Result<Vec<Line>> {
    match which {
        ListScope::Exact(name) => Ok(keeper.get(name).await?.into_iter().collect()),
        ListScope::Prefix { prefix, .. } => keeper.list(prefix).await,
    }
}

/// A request that is given up with its watch.
struct Asking(AbortHandle);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn glimpse(line: &Line) -> Glimpse {
    let tickets = line.tickets.iter().map(|t| (t.id, t.fence, t.label.clone())).collect();
    (line.name.clone(), line.capacity, tickets)
}
