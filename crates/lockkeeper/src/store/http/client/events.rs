//! A stream of server-sent events, on a connection of its own.

use super::{
    super::{KIND, error},
    Ask, Client, Reply,
    endpoint::{Broken, Sender},
    retry::Failure,
};
use crate::{
    clock::timeout,
    error::{ErrorKind, StoreError},
    store::{StoreResult, common::tls::late},
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use std::{sync::atomic::AtomicBool, time::Duration};

/// How long the head of the answer may take.
const OPEN: Duration = Duration::from_secs(5);
/// How long the service may say nothing: it sends a comment every fifteen seconds.
const SILENCE: Duration = Duration::from_secs(40);
/// The longest line of an event.
const LINE_MAX: usize = 1 << 16;

/// The data of events, one after the other.
pub(in crate::store::http) struct Events {
    body: Incoming,
    /// The connection lives as long as this.
    _sender: Sender,
    lines: Lines,
    epoch: usize,
    endpoint: String,
}

impl Client {
    /// Opens a stream at the instance in use.
    pub(in crate::store::http) async fn events(&self, ask: &Ask) -> StoreResult<Events> {
        let epoch = self.epoch();
        let endpoint = self.endpoint(epoch);
        let request = self.request(ask, endpoint)?;
        let sent = AtomicBool::new(false);
        let answer = timeout(OPEN, endpoint.send(request, &sent)).await;
        let silent = |_| Err(Broken::Unsent(format!("{endpoint}: {}", late(OPEN))));
        let answer = answer.unwrap_or_else(silent).map_err(|broken| {
            self.leave_endpoint(epoch);
            Failure::from(broken).error
        });
        let (answer, sender) = answer?;
        let (head, body) = answer.into_parts();
        if !head.status.is_success() {
            let body = timeout(OPEN, Limited::new(body, LINE_MAX).collect()).await;
            let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes());
            let body = body.unwrap_or_default();
            let (status, headers) = (head.status, head.headers);
            let reply = Reply { status, headers, body, was_sent_before: false };
            let not_now = error::not_now(&reply);
            // A limit of this caller is no fault of the instance.
            if not_now.is_some() && reply.status != 429 {
                self.leave_endpoint(epoch);
            }
            return Err(not_now.unwrap_or_else(|| error::refusal(&reply)));
        }
        let (lines, endpoint) = (Lines::default(), endpoint.to_string());
        Ok(Events { body, _sender: sender, lines, epoch, endpoint })
    }

    /// The data of the next event; an error if the stream is over or another instance is in use by now.
    pub(in crate::store::http) async fn next_event(
        &self,
        events: &mut Events,
    ) -> StoreResult<String> {
        loop {
            if let Some(event) = events.lines.next_event() {
                return Ok(event);
            }
            let over = |why: &str| {
                let what = format!("{}: the stream of hints ended: {why}", events.endpoint);
                StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
            };
            let frame = tokio::select! {
                frame = timeout(SILENCE, events.body.frame()) => frame,
                () = self.endpoint_changed(events.epoch) => {
                    return Err(over("another instance is in use"));
                }
            };
            match frame {
                Err(_) => return Err(over("silence")),
                Ok(None) => return Err(over("the service closed it")),
                Ok(Some(Err(e))) => return Err(over("the connection broke").because(e)),
                Ok(Some(Ok(frame))) => {
                    let data = frame.into_data().unwrap_or_else(|_| Bytes::new());
                    if !events.lines.push(&data) {
                        return Err(over("a line is too long"));
                    }
                }
            }
        }
    }
}

/// Cuts the stream into events. Only their data counts: it says itself what it is.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    data: String,
}

impl Lines {
    /// Takes what has arrived; says whether that is still within bounds.
    fn push(&mut self, arrived: &[u8]) -> bool {
        self.text.extend_from_slice(arrived);
        self.text.contains(&b'\n') || self.text.len() <= LINE_MAX
    }

    fn next_event(&mut self) -> Option<String> {
        while let Some(at) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=at).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() && !self.data.is_empty() {
                return Some(std::mem::take(&mut self.data));
            }
            if let Some(data) = line.strip_prefix("data:") {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(parts: &[&str]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut events = Vec::new();
        for part in parts {
            assert!(lines.push(part.as_bytes()));
            events.extend(std::iter::from_fn(|| lines.next_event()));
        }
        events
    }

    #[test]
    fn events_are_read_however_the_stream_is_cut() {
        let whole = "event: granted\ndata: {\"a\":1}\n\n: a comment\n\ndata:x\r\ndata: y\r\n\r\n";
        let want = ["{\"a\":1}", "x\ny"];
        assert_eq!(events(&[whole]), want);
        let letters: Vec<String> = whole.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(events(&letters), want);
        assert_eq!(events(&["data: never ended\n"]), Vec::<String>::new());
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let mut lines = Lines::default();
        assert!(lines.push(b"data: "));
        assert!(!lines.push(&[b'x'; LINE_MAX]));
    }
}
