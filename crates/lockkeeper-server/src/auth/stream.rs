//! The body of a stream of events, which counts among its principal's streams and ends when that loses its rights.

use super::limits::Place;
use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
};

pub(crate) type Revoked = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream that ends with its principal's rights.
pub(crate) struct Stream {
    inner: Body,
    revoked: Revoked,
    _place: Place,
}

impl Stream {
    pub(crate) fn new(inner: Body, revoked: Revoked, place: Place) -> Self {
        Self { inner, revoked, _place: place }
    }
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(context).is_ready() {
            // A future that has ended must not be asked again.
            self.revoked = Box::pin(std::future::ready(()));
            return Poll::Ready(None);
        }
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
