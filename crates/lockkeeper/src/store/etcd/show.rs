//! Lines as people see them.

use super::{
    Etcd, KIND, ops,
    proto::{Headed as _, KeyValue, RangeRequest},
    row::State,
    standing::{LineRow, Queue},
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::TicketId,
    },
    store::{LIST_MAX, ListScope, StoreResult, common::join},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// How many keys are read at a time.
const PAGE: i64 = 4_000;
/// How many keys are read at a time without their values.
const RAW_PAGE: i64 = 10_000;
/// How many keys are looked through for tickets in raw mode.
const KEYS_MAX: i64 = 100_000;

impl Etcd {
    pub(super) async fn get(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let lines = match which {
            ListScope::Exact(name) => {
                self.good(&name)?;
                let line = self.client.range(ops::all(&self.keys.line(&name))).await?;
                vec![(name.clone(), Queue::read(&self.keys, &name, line.kvs))]
            }
            ListScope::Prefix { prefix, after } => self.lines(&prefix, after).await?,
        };
        let leases: BTreeSet<i64> =
            lines.iter().flat_map(|(_, queue)| queue.0.iter().map(|s| s.lease)).collect();
        let ends = self.ends(leases).await?;
        let numbers = self.numbers(&lines).await?;
        let shown =
            lines.iter().filter_map(|(name, queue)| self.show(name, queue, &ends, &numbers));
        Ok(shown.take(LIST_MAX).collect())
    }

    async fn lines(&self, prefix: &str, after: Option<Name>) -> StoreResult<Vec<(Name, Queue)>> {
        if self.keys.is_raw() {
            return self.raw_lines(prefix, after).await;
        }
        let mut span = self.keys.lines(prefix);
        // Keys are in the order of names, so the next page begins behind the last line.
        if let Some(after) = &after {
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
            match last.filter(|_| page.more && lines.len() <= LIST_MAX) {
                Some(next) => span.from = next,
                None => break,
            }
        }
        let wanted = |(name, _): &(Name, _)| after.as_ref().is_none_or(|after| name > after);
        let lines = lines.into_iter().filter(wanted).take(LIST_MAX);
        let read = |(name, kvs)| {
            let queue = Queue::read(&self.keys, &name, kvs);
            (name, queue)
        };
        Ok(lines.map(read).collect())
    }

    /// In raw mode any key of the cluster may be a ticket, and a line's keys need not be side by side. So
    /// the keys are read alone, no more of them than [`KEYS_MAX`], and then the lines that are shown.
    async fn raw_lines(
        &self,
        prefix: &str,
        after: Option<Name>,
    ) -> StoreResult<Vec<(Name, Queue)>> {
        let mut span = self.keys.lines(prefix);
        if let Some(after) = &after {
            span.from = span.from.max(after.as_str().into());
        }
        let (mut names, mut left) = (BTreeSet::new(), KEYS_MAX);
        loop {
            let page = RangeRequest { limit: RAW_PAGE, keys_only: true, ..ops::all(&span) };
            let page = self.client.range(page).await?;
            let found = page.kvs.iter().filter_map(|kv| self.keys.parse(&kv.key, kv.lease));
            let found = found.map(|(name, _)| name).filter(|name| {
                name.as_str().starts_with(prefix) && after.as_ref().is_none_or(|after| name > after)
            });
            names.extend(found);
            left -= RAW_PAGE;
            match page.kvs.last().filter(|_| page.more) {
                Some(last) if left > 0 => span.from = [last.key.as_slice(), &[0]].concat(),
                Some(_) => {
                    let what = format!(
                        "more than {KEYS_MAX} keys of the cluster begin with {prefix:?}, and with \
                         raw=true each of them may be a lock: ask for a longer prefix"
                    );
                    return Err(StoreError::not_applied(KIND, ErrorKind::Full, what));
                }
                None => break,
            }
        }
        let names: Vec<Name> = names.into_iter().take(LIST_MAX).collect();
        let mut lines = Vec::with_capacity(names.len());
        for names in names.chunks(ops::OPS_MAX) {
            let asks = names.iter().map(|name| ops::all(&self.keys.line(name))).collect();
            let (_, found) = self.read_all(asks).await?;
            for (name, line) in names.iter().zip(found) {
                lines.push((name.clone(), Queue::read(&self.keys, name, line.kvs)));
            }
        }
        Ok(lines)
    }

    /// In raw mode: the numbers of our own grants, as they were drawn.
    async fn numbers(&self, lines: &[(Name, Queue)]) -> StoreResult<HashMap<TicketId, i64>> {
        let mut numbers = HashMap::new();
        if !self.keys.is_raw() {
            return Ok(numbers);
        }
        let granted = lines.iter().flat_map(|(name, queue)| {
            let granted = queue.0.iter().take(queue.admitted());
            granted.filter(|s| s.spot.session.is_some()).map(move |s| (name, s))
        });
        let granted: Vec<(&Name, &LineRow)> = granted.collect();
        for granted in granted.chunks(ops::OPS_MAX) {
            let key = |(name, s): &(&Name, &LineRow)| self.keys.number(name, s.ticket);
            let asks = granted.iter().map(|ours| ops::key_of(&key(ours))).collect();
            let (_, found) = self.read_all(asks).await?;
            for ((_, s), number) in granted.iter().zip(found) {
                let number = number.kvs.first().map(|kv| kv.mod_revision);
                numbers.extend(number.filter(|n| *n >= s.created).map(|n| (s.ticket, n)));
            }
        }
        Ok(numbers)
    }

    /// When leases end, by the second.
    async fn ends(&self, leases: BTreeSet<i64>) -> StoreResult<HashMap<i64, Duration>> {
        let asks = leases.into_iter().filter(|lease| *lease != 0).map(|lease| async move {
            let left = self.client.time_to_live(lease, false).await?.ttl;
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
            Ok::<_, StoreError>((lease, left))
        });
        join::all(asks).await.into_iter().collect()
    }

    fn show(
        &self,
        name: &Name,
        queue: &Queue,
        ends: &HashMap<i64, Duration>,
        numbers: &HashMap<TicketId, i64>,
    ) -> Option<Line> {
        // What another client has exported as the number of its grant is written nowhere.
        let number = |s: &LineRow| match self.keys.is_raw() {
            true => numbers.get(&s.ticket).copied().unwrap_or(0),
            false => s.created,
        };
        let ends_in = |lease: i64| match lease {
            0 => Duration::MAX,
            lease => ends.get(&lease).copied().unwrap_or_default(),
        };
        let (admitted, now) = (queue.admitted(), self.wall_ms());
        let tickets = queue.0.iter().enumerate().map(|(at, standing)| {
            let ago =
                |row: &super::row::Row| Duration::from_millis(now.saturating_sub(row.entered));
            let entered_ago = standing.row.as_ref().map(ago).unwrap_or_default();
            let at_once = |s: &LineRow| s.row.as_ref().is_some_and(|r| r.state != State::Queued);
            Ticket {
                id: standing.ticket,
                mode: standing.spot.mode,
                fence: (at < admitted).then(|| u64::try_from(number(standing)).unwrap_or(0)),
                owner: standing.owner(),
                label: standing.note().to_vec(),
                entered_ago,
                granted_ago: (at < admitted && at_once(standing)).then_some(entered_ago),
                ends_in: ends_in(standing.lease),
            }
        });
        Some(Line::new(name.clone(), queue.capacity()?, tickets.collect()))
    }
}
