//! Lines as people see them.

use super::{
    Etcd, ops,
    proto::{Headed as _, KeyValue, RangeRequest},
    row::State,
    standing::{Queue, Standing},
};
use crate::{
    error::StoreError,
    line::{Line, Ticket},
    name::Name,
    store::{LOOK_MAX, Look, StoreResult, together},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// How many keys are read at a time.
const PAGE: i64 = 4_000;

impl Etcd {
    pub(super) async fn look_at(&self, which: Look) -> StoreResult<Vec<Line>> {
        let lines = match which {
            Look::Exact(name) => {
                let line = self.client.range(ops::all(&self.keys.line(&name))).await?;
                vec![(name.clone(), Queue::read(&self.keys, &name, line.kvs))]
            }
            Look::Prefix { prefix, after } => self.lines(&prefix, after).await?,
        };
        let leases: BTreeSet<i64> =
            lines.iter().flat_map(|(_, queue)| queue.0.iter().map(|s| s.lease)).collect();
        let ends = self.ends(leases).await?;
        let shown = lines.iter().filter_map(|(name, queue)| self.show(name, queue, &ends));
        Ok(shown.take(LOOK_MAX).collect())
    }

    async fn lines(&self, prefix: &str, after: Option<Name>) -> StoreResult<Vec<(Name, Queue)>> {
        let mut span = self.keys.lines(prefix);
        // Keys are in the order of names, so the next page begins behind the last line.
        if let Some(after) = after.as_ref().filter(|_| !self.keys.is_raw()) {
            span.from = span.from.max(self.keys.line(after).to);
        }
        let mut lines: BTreeMap<Name, Vec<KeyValue>> = BTreeMap::new();
        let mut revision = 0;
        loop {
            let ask = RangeRequest { limit: PAGE, revision, ..ops::all(&span) };
            let page = self.client.range(ask).await?;
            revision = page.revision().max(revision);
            let last = page.kvs.last().map(|kv| [kv.key.as_slice(), &[0]].concat());
            for kv in page.kvs {
                if let Some((name, _)) = self.keys.parse(&kv.key, kv.lease)
                    && name.as_str().starts_with(prefix)
                {
                    lines.entry(name).or_default().push(kv);
                }
            }
            // The last of the lines may go on, so one more than is wanted.
            let enough = !self.keys.is_raw() && lines.len() > LOOK_MAX;
            match last.filter(|_| page.more && !enough) {
                Some(next) => span.from = next,
                None => break,
            }
        }
        let wanted = |(name, _): &(Name, _)| after.as_ref().is_none_or(|after| name > after);
        let lines = lines.into_iter().filter(wanted).take(LOOK_MAX);
        let read = |(name, kvs)| {
            let queue = Queue::read(&self.keys, &name, kvs);
            (name, queue)
        };
        Ok(lines.map(read).collect())
    }

    /// When leases end, by the second.
    async fn ends(&self, leases: BTreeSet<i64>) -> StoreResult<HashMap<i64, Duration>> {
        let asks = leases.into_iter().filter(|lease| *lease != 0).map(|lease| async move {
            let left = self.client.time_to_live(lease, false).await?.ttl;
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
            Ok::<_, StoreError>((lease, left))
        });
        together::all(asks).await.into_iter().collect()
    }

    fn show(&self, name: &Name, queue: &Queue, ends: &HashMap<i64, Duration>) -> Option<Line> {
        let (admitted, now) = (queue.admitted(), self.wall_ms());
        let tickets = queue.0.iter().enumerate().map(|(at, standing)| {
            let ago =
                |row: &super::row::Row| Duration::from_millis(now.saturating_sub(row.entered));
            let entered_ago = standing.row.as_ref().map(ago).unwrap_or_default();
            let at_once = |s: &Standing| s.row.as_ref().is_some_and(|r| r.state != State::Queued);
            Ticket {
                id: standing.ticket,
                mode: standing.spot.mode,
                fence: (at < admitted).then(|| self.number(standing)),
                owner: standing.owner(),
                note: standing.note().to_vec(),
                entered_ago,
                granted_ago: (at < admitted && at_once(standing)).then_some(entered_ago),
                ends_in: ends.get(&standing.lease).copied().unwrap_or_default(),
            }
        });
        Some(Line::new(name.clone(), queue.capacity()?, tickets.collect()))
    }

    /// The number of a grant; of one that was seen by others in raw mode, the least that it can be.
    fn number(&self, standing: &Standing) -> u64 {
        let lives = self.sessions.lives();
        let own = lives.values().find_map(|life| life.tickets.get(&standing.ticket)?.fence);
        own.unwrap_or_else(|| u64::try_from(standing.created).unwrap_or(0))
    }
}
