//! Renewals, and what they say about the session's tickets.
//!
//! Whether the data is still what it was, a renewal's own answer tells, and no socket: the script adds how
//! many tickets the session has and their sum, and which server it runs on, with which history. A replica
//! that has taken over shows another history, whatever stands between it and us.

use super::{
    HOME, Redis,
    reply::{self, Parts},
    sessions::{hex, micros},
};
use crate::model::ticket::SessionId;
use crate::store::{Open, Renewal, StoreResult, TicketDigest, common::join};
use redis::{ScriptInvocation, Value};
use std::collections::BTreeSet;

/// What a renewal in one bucket has said.
pub(super) struct Renewed {
    evictions: u64,
    joined: Vec<u32>,
    tickets: TicketDigest,
}

impl Redis {
    pub(super) async fn renew_all(&self, session: SessionId) -> StoreResult<Renewal> {
        let Some((ask, buckets)) = self.life(session).await? else { return Ok(Renewal::Lost) };
        let (mut due, mut done) = (buckets, BTreeSet::new());
        due.insert(HOME);
        let (mut evictions, mut tickets) = (0_u64, TicketDigest::default());
        // In a cluster the message of a grant may come from a node that is no longer the one that we renew
        // at: then all tickets are compared.
        let told = if self.link.is_cluster() { self.sessions.told() } else { 0 };
        // The home may name buckets that another handle has opened since; then once more, for those.
        while !due.is_empty() {
            let renewals = due.iter().map(|bucket| self.renew_in(*bucket, &ask));
            let mut joined = BTreeSet::new();
            for renewal in join::all(renewals).await {
                let Some(renewed) = renewal? else { return Ok(Renewal::Lost) };
                evictions = evictions.wrapping_add(renewed.evictions);
                tickets.count += renewed.tickets.count;
                tickets.sum = tickets.sum.wrapping_add(renewed.tickets.sum);
                joined.extend(renewed.joined);
            }
            done.append(&mut due);
            due = joined.difference(&done).copied().collect();
        }
        let mut changes = told;
        if let Some(life) = self.sessions.lives().get_mut(&session) {
            life.buckets.append(&mut done);
            changes += life.changes();
        }
        let version = (changes << 32).wrapping_add(evictions);
        Ok(Renewal::Renewed { version, tickets: Some(tickets) })
    }

    pub(super) async fn renew_in(&self, bucket: u32, ask: &Open) -> StoreResult<Option<Renewed>> {
        let keys = &self.buckets[bucket as usize];
        let mut script = self.scripts.renew.prepare_invoke();
        script.key(keys.ends()).key(keys.sessions()).key(keys.numbers()).key(keys.own());
        script.key(keys.closed());
        script.arg(hex(ask.session)).arg(micros(ask.ttl)).arg(micros(ask.lock_delay));
        self.sweep(&mut script, bucket);
        let mut parts = match self.run(keys, None, &script).await? {
            Value::Int(_) => return Ok(None),
            answer => Parts::of(answer)?,
        };
        let evictions = u64::try_from(parts.int()?).unwrap_or(0);
        self.sessions.sweep_later(bucket, parts.dust()?);
        self.set_clock(parts.int()?);
        let joined = parts.parts()?.filter_map(|note| reply::joined(&note)).collect();
        self.sessions.shown(ask.session, bucket, parts.text()?);
        Ok(Some(Renewed { evictions, joined, tickets: parts.digest()? }))
    }

    /// Adds what is to be swept in the bucket now.
    pub(super) fn sweep(&self, script: &mut ScriptInvocation<'_>, bucket: u32) {
        let keys = &self.buckets[bucket as usize];
        for dust in self.sessions.sweep_now(bucket) {
            script.key(keys.order(&dust.name)).key(keys.tickets(&dust.name));
            script.arg(dust.name.as_str()).arg(dust.ticket).arg(dust.session);
        }
    }
}
