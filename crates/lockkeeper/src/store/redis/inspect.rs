//! What people and other programs ask: which lines there are, and whether a grant is still held.
//!
//! A listing costs what is held and waited for: each bucket lists its lines in the order of their names, so a
//! page begins where the last one ended.

use super::{Redis, exec::Call, keys::Keys, reply::Reply, scripts::SCRIPTS};
use crate::{
    model::{
        line::{Line, Ticket},
        name::Name,
    },
    store::{Claim, LIST_MAX, ListScope, StoreResult, common::join},
};
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How many lines one script shows, since the server serves no other request meanwhile.
const AT_ONCE: usize = 64;

/// How far a bucket's list has been read: to its end, or to this name.
enum Read {
    Whole,
    To(Option<Vec<u8>>),
}

impl Redis {
    /// Lines in the order of their names.
    pub(super) async fn lines(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let (prefix, mut after) = match which {
            ListScope::Exact(name) => return self.show(vec![name]).await,
            ListScope::Prefix { prefix, after } => (prefix, after),
        };
        let mut lines = Vec::new();
        while lines.len() < LIST_MAX {
            let names = self.names(&prefix, after.as_ref()).await?;
            let was_last = names.len() < LIST_MAX;
            after = names.last().cloned();
            lines.append(&mut self.show(names).await?);
            if was_last {
                break;
            }
        }
        lines.truncate(LIST_MAX);
        Ok(lines)
    }

    /// The lines of these names, in order, without those that are empty.
    async fn show(&self, names: Vec<Name>) -> StoreResult<Vec<Line>> {
        let mut buckets: BTreeMap<u32, Vec<Name>> = BTreeMap::new();
        for name in names {
            buckets.entry(self.bucket(&name)).or_default().push(name);
        }
        let mut shows = Vec::new();
        for (bucket, names) in &buckets {
            let keys = &self.buckets[*bucket as usize];
            shows.extend(names.chunks(AT_ONCE).map(|some| self.show_in(keys, some)));
        }
        let mut lines = Vec::new();
        for shown in join::all(shows).await {
            lines.append(&mut shown?);
        }
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(lines)
    }

    async fn show_in(&self, keys: &Keys, names: &[Name]) -> StoreResult<Vec<Line>> {
        let lines = names.iter().flat_map(|name| keys.line(name));
        let bucket = [&keys.ends, &keys.sessions].into_iter().cloned();
        let call = Call::new(&SCRIPTS.show, &bucket.chain(lines).collect::<Vec<_>>());
        let shown = Reply::of(self.run(keys, names.first(), &call).await?)?;
        let mut lines = Vec::new();
        for (name, tickets) in names.iter().zip(shown) {
            let tickets = Reply::of(tickets)?.map(|ticket| Reply::of(ticket)?.ticket());
            let tickets: Vec<Ticket> = tickets.collect::<StoreResult<_>>()?;
            let capacity = tickets.first().map(|t| t.mode.capacity());
            lines.extend(capacity.map(|capacity| Line::new(name.clone(), capacity, tickets)));
        }
        Ok(lines)
    }

    /// The next names in order, at most [`LIST_MAX`], of all buckets. Each bucket is asked for some names, and
    /// the one that has been read the least far for more, until enough names are certain to be neighbours.
    async fn names(&self, prefix: &str, after: Option<&Name>) -> StoreResult<Vec<Name>> {
        let portion = LIST_MAX.min(2 * LIST_MAX / self.buckets.len() + 1);
        let start = after.map(|name| name.as_str().as_bytes().to_vec());
        let start = start.filter(|name| name.as_slice() >= prefix.as_bytes());
        let mut read: Vec<Read> = self.buckets.iter().map(|_| Read::To(start.clone())).collect();
        let mut found = BTreeSet::<Vec<u8>>::new();
        loop {
            let so_far = |read: &Read| match read {
                Read::Whole => None,
                Read::To(name) => Some(name.clone()),
            };
            let Some(least) = read.iter().filter_map(so_far).min() else { break };
            let certain = least.as_ref().map_or(0, |name| found.range(..=name.clone()).count());
            if certain >= LIST_MAX {
                break;
            }
            let due = |read: &Read| matches!(read, Read::To(name) if *name == least);
            let due: Vec<usize> = (0..read.len()).filter(|at| due(&read[*at])).collect();
            let asks = due.iter().map(|at| self.some_names(*at, prefix, least.as_deref(), portion));
            for (at, names) in due.iter().zip(join::all(asks).await) {
                let names = names?;
                let is_whole = names.len() < portion;
                read[*at] = if is_whole { Read::Whole } else { Read::To(names.last().cloned()) };
                found.extend(names);
            }
        }
        let names = found.into_iter().take(LIST_MAX).map(String::from_utf8);
        Ok(names.filter_map(|name| Name::new(&name.ok()?).ok()).collect())
    }

    /// Names of one bucket with this prefix, in order, after one that was read already.
    async fn some_names(
        &self,
        bucket: usize,
        prefix: &str,
        after: Option<&[u8]>,
        portion: usize,
    ) -> StoreResult<Vec<Vec<u8>>> {
        let keys = &self.buckets[bucket];
        let from = match after {
            Some(name) => [b"(@", name].concat(),
            None => [b"[@", prefix.as_bytes()].concat(),
        };
        // No name has this byte in it, since it is not UTF-8.
        let to = [b"(@", prefix.as_bytes(), b"\xff"].concat();
        let mut list = redis::cmd("ZRANGE");
        list.arg(&keys.own).arg(from).arg(to).arg("BYLEX").arg("LIMIT").arg(0).arg(portion);
        let entries: Vec<Value> = self.connection.query(&list).await?;
        let name = |entry| match entry {
            Value::BulkString(bytes) => Some(bytes.get(1..)?.to_vec()),
            _ => None,
        };
        Ok(entries.into_iter().filter_map(name).collect())
    }

    pub(super) async fn is_held(&self, claim: &Claim) -> StoreResult<bool> {
        let keys = self.keys(&claim.name);
        let tickets = keys.tickets(&claim.name);
        let mut call = Call::new(&SCRIPTS.check, &[&keys.ends, &keys.sessions, &tickets]);
        call.arg(claim.ticket.to_string()).arg(claim.fence);
        call.arg(claim.mode.weight()).arg(claim.mode.capacity());
        Ok(self.run::<i64>(keys, Some(&claim.name), &call).await? == 1)
    }

    pub(super) fn native_names(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let key = self.keys(&claim.name).tickets(&claim.name);
        vec![("key", key), ("field", claim.ticket.to_string()), ("fence", claim.fence.to_string())]
    }
}
