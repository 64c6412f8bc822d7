//! A thread with a runtime of its own, so that a busy program keeps its renewals.
//!
//! The sessions' tasks and the store's connections run there. What the program awaits is polled where
//! the program awaits it, but [`Within`] the thread's runtime: a connection that it opens belongs there.

use crate::error::{Error, ErrorKind, Result, StoreError};
use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
    thread,
};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::JoinHandle,
};

pub(crate) struct OwnThread {
    handle: Handle,
    /// Dropped or used, it lets the thread end.
    end: oneshot::Sender<Vec<JoinHandle<()>>>,
}

impl OwnThread {
    pub(crate) fn start() -> Result<Self> {
        let failed = |e: io::Error| {
            let what = "cannot start a thread for renewals";
            Error::Store(StoreError::not_applied("lockkeeper", ErrorKind::Other, what).because(e))
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let work = async {
            for task in ended.await.unwrap_or_default() {
                let _ = task.await;
            }
        };
        let thread = thread::Builder::new().name("lockkeeper".into());
        thread.spawn(move || runtime.block_on(work)).map_err(failed)?;
        Ok(Self { handle, end })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Lets the thread end once these tasks have.
    pub(crate) fn end_after(self, tasks: Vec<JoinHandle<()>>) {
        let _ = self.end.send(tasks);
    }
}

impl fmt::Debug for OwnThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnThread")
    }
}

/// A future that is polled within another runtime than the task's own.
pub(crate) struct Within<F: ?Sized> {
    runtime: Handle,
    /// There until it is dropped.
    future: Option<Pin<Box<F>>>,
}

impl<F: ?Sized> Within<F> {
    pub(crate) fn new(runtime: &Handle, future: Pin<Box<F>>) -> Self {
        Self { runtime: runtime.clone(), future: Some(future) }
    }
}

impl<F: Future + ?Sized> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _entered = this.runtime.enter();
        let future = this.future.as_mut().expect("only a drop takes it");
        future.as_mut().poll(cx)
    }
}

/// What a dropped request leaves behind, such as a connection that is closed in the background, belongs there too.
impl<F: ?Sized> Drop for Within<F> {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        self.future = None;
    }
}
