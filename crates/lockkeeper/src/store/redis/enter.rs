//! Entering a line: one script, and three more requests when the session first uses a bucket of a cluster.

use super::{
    KIND, Redis,
    exec::Call,
    reply::{Reply, hex, micros, unexpected},
    scripts::SCRIPTS,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{line::LINE_MAX, ticket::Place},
    store::{Enter, Entered, Manner, StoreResult},
};
use redis::Value;
use std::time::Duration;

impl Redis {
    pub(super) async fn enter_line(&self, ask: &Enter) -> StoreResult<Entered> {
        let Place { session, name, .. } = &ask.place;
        let bucket = self.bucket(name);
        let lock_delay = match self.sessions.lock_delay(*session, bucket) {
            Some(lock_delay) => lock_delay,
            None => self.open_also_in(bucket, *session).await?.lock_delay,
        };
        // The server's clock may have jumped since its last reply: then once more, with what it says now.
        for _ in 0..2 {
            let call = self.enter_call(ask, lock_delay);
            let reply = self.run(self.keys(name), Some(name), &call).await?;
            if let Some(entered) = self.entered(reply)? {
                return Ok(entered);
            }
        }
        let what = "the server refuses the request as too late";
        Err(StoreError::not_applied(KIND, ErrorKind::Unavailable, what))
    }

    fn enter_call(&self, ask: &Enter, lock_delay: Duration) -> Call {
        let Place { session, name, ticket } = &ask.place;
        let keys = self.keys(name);
        let mut call = Call::over_line(&SCRIPTS.enter, keys, (name, *ticket), &[]);
        call.arg(hex(*session)).arg(micros(lock_delay));
        call.arg(ask.mode.weight()).arg(ask.mode.capacity());
        call.arg(u8::from(ask.manner == Manner::Queue)).arg(self.server_clock.request_deadline());
        call.arg(LINE_MAX).arg(&ask.label[..]);
        call
    }

    /// `None` if the request came too late by the server's clock, which is known now.
    fn entered(&self, reply: Value) -> StoreResult<Option<Entered>> {
        let mut reply = Reply::of(reply)?;
        let refuse = |kind, what: String| Err(StoreError::not_applied(KIND, kind, what));
        Ok(Some(match &reply.bytes()?[..] {
            b"granted" => Entered::Granted { fence: reply.number()? },
            b"queued" => Entered::Queued(reply.wait()?),
            b"busy" => Entered::Busy(reply.wait()?),
            b"over" => return Err(StoreError::session_over(KIND)),
            b"closed" => {
                let what = "the ticket was closed before this request came";
                return refuse(ErrorKind::TicketClosed, what.into());
            }
            b"capacity" => {
                let line = reply.small()?;
                return refuse(ErrorKind::Capacity(line), format!("the line has capacity {line}"));
            }
            b"full" => {
                let what = format!("{LINE_MAX} tickets stand in the line already");
                return refuse(ErrorKind::Full, what);
            }
            b"late" => {
                self.server_clock.set(reply.int()?);
                return Ok(None);
            }
            _ => return Err(unexpected(&Value::Nil)),
        }))
    }
}
