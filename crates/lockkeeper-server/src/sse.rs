//! Streams of server-sent events.

use crate::service::Service;
use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderValue, header};
use serde::Serialize;
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::mpsc, time::sleep};

/// A comment goes out after so long without an event, so that no proxy takes the stream for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// One event: its type, and its data as JSON.
pub(crate) fn event(kind: &str, data: &impl Serialize) -> Bytes {
    // What is sent here are structures of texts and numbers.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {kind}\ndata: {data}\n\n").into()
}

/// The answer with what comes through this channel, until its sender is dropped or the service stops.
pub(crate) fn answer(service: &Service, mut events: mpsc::Receiver<Bytes>) -> Response {
    let (to, from) = mpsc::channel(16);
    let service = service.clone();
    tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                event = events.recv() => match event {
                    Some(event) => event,
                    None => return,
                },
                () = sleep(COMMENT_EVERY) => Bytes::from_static(b":\n\n"),
                () = service.stopped() => return,
                () = to.closed() => return,
            };
            if to.send(next).await.is_err() {
                return;
            }
        }
    });
    let mut response = Body::from_stream(Events(from)).into_response();
    let headers = response.headers_mut();
    let values = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    headers.extend(values.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

struct Events(mpsc::Receiver<Bytes>);

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|event| event.map(Ok))
    }
}
