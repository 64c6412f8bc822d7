//! Handing a session with one ticket to another handle.
//!
//! A ZooKeeper session outlives its connections, so another process can go on with it: it connects with the
//! session's id and password. The server hears of the session by that, too. A follower asks its leader
//! whether a session that comes to it is alive, and the leader counts the timeout anew from there, before the
//! renewal that follows. So the two renewals of `terms.rs`, of which the leader may have missed the later
//! one, are at most a request apart here, however long the session was detached.

use super::{
    KIND, Zookeeper,
    client::{OnExpiry, Resume, Session},
    session::{LocalSession, answer_timeout, watch_table},
    shard::Shard,
    watch::HintSink,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::ticket::{Owner, SessionId},
    store::{Attach, Open, StoreResult},
};
use std::sync::Arc;

impl Zookeeper {
    pub(super) fn detach_session(&self, session: SessionId) -> StoreResult<Vec<u8>> {
        let shards = self.sessions.living(session, self.now())?.shards();
        match &shards[..] {
            [shard] => Ok(shard.zk.to_resume().to_bytes()),
            _ => {
                let what = "a session with more than one ZooKeeper session cannot be handed over";
                Err(StoreError::not_applied(KIND, ErrorKind::Other, what))
            }
        }
    }

    pub(super) async fn attach_session(&self, ask: Attach) -> StoreResult<()> {
        let began = self.now();
        if self.sessions.living(ask.session, began).is_ok() {
            return Ok(());
        }
        let line = self.line(&ask.claim.name)?;
        let resume = Resume::from_bytes(&ask.state).ok_or_else(|| {
            let what = "the detached lock does not say which ZooKeeper session it is in";
            StoreError::not_applied(KIND, ErrorKind::Corrupt, what)
        })?;
        let hints = HintSink::default();
        let (watches, on_watch) = watch_table(&hints);
        let (ensemble, answer_timeout) = (&self.config.ensemble, answer_timeout(ask.terms.ttl));
        let zk = Session::new(ensemble, OnExpiry::Stop, resume.granted(), answer_timeout, on_watch);
        let zk = zk.resume(resume);
        zk.connect().await?;
        let shard = Shard::new(ask.terms, zk, watches, began + ask.terms.ttl);
        // Its node is found by the ticket's id when it is polled.
        shard.add(&ask.claim.name, &line, ask.claim.ticket);
        let Attach { session, terms, .. } = ask;
        let open =
            Open { session, ttl: terms.ttl, lock_delay: terms.lock_delay, owner: Owner::default() };
        self.sessions.attach(LocalSession::new(open, Arc::new(shard), hints));
        Ok(())
    }
}
