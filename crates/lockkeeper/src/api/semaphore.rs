//! A limited number of permits.

use crate::{
    api::{acquire::Acquire, keeper::Keeper},
    model::{
        name::{Name, NameError},
        ticket::Mode,
    },
};

/// A number of permits, taken one or several at a time, in the order of asking.
///
/// All clients must name the same number of permits: while a ticket is in the line, another number
/// is an error ([`Error::Capacity`](crate::Error::Capacity)).
///
/// ```
/// # use lockkeeper::Keeper;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-semaphore").await?;
/// let gpu = keeper.semaphore("gpu", 4);
/// let three = gpu.acquire(3).await?;
/// assert!(gpu.acquire(2).try_now().await?.is_none());
/// # drop(three); keeper.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    keeper: Keeper,
    name: Result<Name, NameError>,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(keeper: &Keeper, name: Result<Name, NameError>, permits: u32) -> Self {
        Self { keeper: keeper.clone(), name, permits }
    }

    /// `weight` of the permits, together: all of them are granted in one step, so two programs that want
    /// several cannot block each other half-way. A light request does not overtake a heavy one that waits.
    ///
    /// ```
    /// # use lockkeeper::{Error, Keeper};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-permits").await?;
    /// let two = keeper.semaphore("gpu", 4).acquire(2).await?;
    /// assert_eq!(two.mode().to_string(), "2 of 4");
    /// let other = keeper.semaphore("gpu", 5).acquire(1).try_now().await;
    /// assert!(matches!(other, Err(Error::Capacity { line: 4, .. })));
    /// # drop(two); keeper.close().await; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Awaiting it is [`Error::Option`](crate::Error::Option) for no permits, or more than there are.
    pub fn acquire(&self, weight: u32) -> Acquire {
        let mode = Mode::Permits { weight, of: self.permits };
        Acquire::new(&self.keeper, self.name.clone(), mode)
    }
}
