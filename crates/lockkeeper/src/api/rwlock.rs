//! Many readers or one writer.

use crate::{
    api::{acquire::Acquire, keeper::Keeper},
    model::{
        name::{Name, NameError},
        ticket::Mode,
    },
};

/// Many readers or one writer. A writer that waits is not overtaken by readers that come later.
///
/// A reader cannot become the writer: it would wait for itself, and for other readers that try the same.
///
/// ```
/// # use lockkeeper::Keeper;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// # let keeper = Keeper::connect("memory://doc-rw").await?;
/// let one = keeper.rwlock("cache").read().await?;
/// let two = keeper.rwlock("cache").read().await?;
/// assert!(keeper.rwlock("cache").write().try_now().await?.is_none());
/// # drop((one, two)); keeper.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    keeper: Keeper,
    name: Result<Name, NameError>,
}

impl RwLock {
    pub(crate) fn new(keeper: &Keeper, name: Result<Name, NameError>) -> Self {
        Self { keeper: keeper.clone(), name }
    }

    /// Together with other readers. It waits behind a writer that came before.
    ///
    /// Readers' grants have fences too, but no order among themselves: a reader proves that its lock still
    /// stands with [`Keeper::check`].
    pub fn read(&self) -> Acquire {
        Acquire::new(&self.keeper, self.name.clone(), Mode::Shared)
    }

    /// Alone: the same line as [`Keeper::lock`] with this name, so a lock and a write lock exclude each
    /// other.
    ///
    /// ```
    /// # use lockkeeper::Keeper;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let keeper = Keeper::connect("memory://doc-write").await?;
    /// let writer = keeper.rwlock("cache").write().await?;
    /// assert!(keeper.lock("cache").try_now().await?.is_none());
    /// # drop(writer); keeper.close().await; Ok(()) }
    /// ```
    pub fn write(&self) -> Acquire {
        Acquire::new(&self.keeper, self.name.clone(), Mode::Exclusive)
    }
}
