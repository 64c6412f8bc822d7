//! The runtimes that a program may run the library on.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

/// A kind of tokio runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flavour {
    /// Everything on one thread.
    CurrentThread,
    /// One worker for each core.
    MultiThread,
}

impl Flavour {
    pub(crate) const BOTH: [Self; 2] = [Self::CurrentThread, Self::MultiThread];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::CurrentThread => "current_thread",
            Self::MultiThread => "multi_thread",
        }
    }

    pub(crate) fn runtime(self) -> Result<Runtime> {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        Ok(builder.enable_all().build()?)
    }

    /// Runs the work on a fresh runtime of this kind, as a task: on the multi-threaded one the
    /// thread that blocks is no worker, and work that ran there would measure something else.
    pub(crate) fn run<T, W>(self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let runtime = self.runtime()?;
        runtime.block_on(async { tokio::spawn(work).await? })
    }
}
