//! Listing lines, checking sequencers, and telling the key of a grant.

use super::{
    Etcd, KIND,
    client::{HasHeader as _, KeyValue, RangeRequest, malformed, txn},
    line::{LineEntry, LineSnapshot},
    row::State,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::TicketId,
    },
    store::{Claim, LIST_MAX, ListScope, StoreResult, common::join},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// How many keys are read at a time.
const PAGE: i64 = 4_000;
/// How many keys are read at a time without their values.
const RAW_PAGE: i64 = 10_000;
/// How many keys a listing in raw mode looks through.
const RAW_KEYS_MAX: i64 = 100_000;

type NamedLine = (Name, LineSnapshot);

/// What a listing shows besides the lines themselves.
struct Details {
    now_ms: u64,
    /// When leases end.
    ends: HashMap<i64, Duration>,
    /// In raw mode: the fences of our own grants.
    fences: HashMap<TicketId, i64>,
}

impl Etcd {
    pub(super) async fn list_lines(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let lines = match which {
            ListScope::Exact(name) => {
                self.check_name(&name)?;
                let line = self.read_line(&name).await?;
                vec![(name, line)]
            }
            ListScope::Prefix { prefix, after } if self.keys.is_raw() => {
                self.raw_lines(&prefix, after).await?
            }
            ListScope::Prefix { prefix, after } => self.lines(&prefix, after).await?,
        };
        let leases = lines.iter().flat_map(|(_, line)| line.0.iter().map(|entry| entry.lease));
        let ends = self.ends(leases.collect()).await?;
        let fences = self.raw_fences(&lines).await?;
        let details = Details { now_ms: self.wall_ms(), ends, fences };
        let shown = lines.into_iter().filter_map(|(name, line)| self.show(name, &line, &details));
        Ok(shown.take(LIST_MAX).collect())
    }

    pub(super) async fn read_line(&self, name: &Name) -> StoreResult<LineSnapshot> {
        let line = self.client.range(txn::all(&self.keys.line(name))).await?;
        Ok(LineSnapshot::read(&self.keys, name, line.kvs))
    }

    async fn lines(&self, prefix: &str, after: Option<Name>) -> StoreResult<Vec<NamedLine>> {
        let mut range = self.keys.lines(prefix);
        // Keys are in the order of names, so the next listing begins behind the last line.
        if let Some(after) = &after {
            range.from = range.from.max(self.keys.line(after).to);
        }
        let mut lines: BTreeMap<Name, Vec<KeyValue>> = BTreeMap::new();
        let request = RangeRequest { limit: PAGE, ..txn::all(&range) };
        let take = |kvs: Vec<KeyValue>| {
            for kv in kvs {
                if let Some((name, _)) = self.keys.parse(&kv.key, kv.lease)
                    && name.as_str().starts_with(prefix)
                {
                    lines.entry(name).or_default().push(kv);
                }
            }
            // The last line may go on in the next page, so one line more than wanted is read.
            lines.len() <= LIST_MAX
        };
        self.pages(request, take).await?;
        let wanted = |(name, _): &(Name, _)| after.as_ref().is_none_or(|after| name > after);
        let lines = lines.into_iter().filter(wanted).take(LIST_MAX);
        let read = |(name, kvs)| {
            let line = LineSnapshot::read(&self.keys, &name, kvs);
            (name, line)
        };
        Ok(lines.map(read).collect())
    }

    /// Reads keys page by page, all as of one revision, until `take` wants no more; says whether it had all.
    async fn pages(
        &self,
        mut request: RangeRequest,
        mut take: impl FnMut(Vec<KeyValue>) -> bool + Send,
    ) -> StoreResult<bool> {
        loop {
            let page = self.client.range(request.clone()).await?;
            if request.revision == 0 {
                request.revision = page.revision();
            }
            let next = txn::next_page(&page);
            match (take(page.kvs), next) {
                (_, None) => return Ok(true),
                (false, Some(_)) => return Ok(false),
                (true, Some(next)) => request.key = next,
            }
        }
    }

    /// In raw mode any key of the cluster may be a ticket, and a line's keys need not be side by side. So
    /// the keys alone are read first, at most [`RAW_KEYS_MAX`] of them, and then the lines that are shown.
    async fn raw_lines(&self, prefix: &str, after: Option<Name>) -> StoreResult<Vec<NamedLine>> {
        let mut range = self.keys.lines(prefix);
        if let Some(after) = &after {
            range.from = range.from.max(after.as_str().into());
        }
        let (mut names, mut left) = (BTreeSet::new(), RAW_KEYS_MAX);
        let request = RangeRequest { limit: RAW_PAGE, keys_only: true, ..txn::all(&range) };
        let take = |kvs: Vec<KeyValue>| {
            let found = kvs.iter().filter_map(|kv| self.keys.parse(&kv.key, kv.lease));
            names.extend(found.map(|(name, _)| name).filter(|name| {
                name.as_str().starts_with(prefix) && after.as_ref().is_none_or(|after| name > after)
            }));
            left -= RAW_PAGE;
            left > 0
        };
        if !self.pages(request, take).await? {
            let what = format!(
                "more than {RAW_KEYS_MAX} keys of the cluster begin with {prefix:?}, and with \
                 raw=true each of them may be a lock: ask for a longer prefix"
            );
            return Err(StoreError::not_applied(KIND, ErrorKind::Full, what));
        }
        let names: Vec<Name> = names.into_iter().take(LIST_MAX).collect();
        let mut lines = Vec::with_capacity(names.len());
        for names in names.chunks(txn::OPS_MAX) {
            let requests = names.iter().map(|name| txn::all(&self.keys.line(name))).collect();
            let (_, found) = self.client.ranges(requests).await?;
            for (name, line) in names.iter().zip(found) {
                lines.push((name.clone(), LineSnapshot::read(&self.keys, name, line.kvs)));
            }
        }
        Ok(lines)
    }

    /// In raw mode: the fences of our own grants.
    async fn raw_fences(&self, lines: &[NamedLine]) -> StoreResult<HashMap<TicketId, i64>> {
        let granted = lines.iter().filter(|_| self.keys.is_raw()).flat_map(|(name, line)| {
            let granted = line.0.iter().take(line.admitted());
            granted.filter(|entry| entry.parsed.session.is_some()).map(move |entry| (name, entry))
        });
        let granted: Vec<(&Name, &LineEntry)> = granted.collect();
        let mut fences = HashMap::new();
        for granted in granted.chunks(txn::OPS_MAX) {
            let key = |(name, entry): &(&Name, &LineEntry)| self.keys.fence(name, entry.ticket);
            let requests = granted.iter().map(|ours| txn::key_of(&key(ours))).collect();
            let (_, found) = self.client.ranges(requests).await?;
            for ((_, entry), fence) in granted.iter().zip(found) {
                let fence = fence.kvs.first().map(|kv| kv.mod_revision);
                let fence = fence.filter(|fence| *fence >= entry.created);
                fences.extend(fence.map(|fence| (entry.ticket, fence)));
            }
        }
        Ok(fences)
    }

    /// When leases end, to the second. A key without a lease stays.
    async fn ends(&self, leases: BTreeSet<i64>) -> StoreResult<HashMap<i64, Duration>> {
        let requests = leases.into_iter().map(|lease| async move {
            if lease == 0 {
                return Ok((lease, Duration::MAX));
            }
            let left = self.client.time_to_live(lease, false).await?.ttl;
            Ok((lease, Duration::from_secs(u64::try_from(left).unwrap_or(0))))
        });
        join::all(requests).await.into_iter().collect()
    }

    fn show(&self, name: Name, line: &LineSnapshot, details: &Details) -> Option<Line> {
        let Details { now_ms, ends, fences } = details;
        // The fence of another client's grant is written nowhere.
        let fence = |entry: &LineEntry| match self.keys.is_raw() {
            true => fences.get(&entry.ticket).copied().unwrap_or(0),
            false => entry.created,
        };
        let admitted = line.admitted();
        let tickets = line.0.iter().enumerate().map(|(at, entry)| {
            let (granted, row) = (at < admitted, entry.row.as_ref());
            let ago = row.map(|row| Duration::from_millis(now_ms.saturating_sub(row.entered)));
            let entered_ago = ago.unwrap_or_default();
            let at_once = row.is_some_and(|row| row.state != State::Queued);
            Ticket {
                id: entry.ticket,
                mode: entry.parsed.mode,
                fence: granted.then(|| u64::try_from(fence(entry)).unwrap_or(0)),
                owner: entry.owner(),
                label: entry.label().to_vec(),
                entered_ago,
                granted_ago: (granted && at_once).then_some(entered_ago),
                ends_in: ends.get(&entry.lease).copied().unwrap_or_default(),
            }
        });
        Some(Line::new(name, line.capacity()?, tickets.collect()))
    }

    /// The ticket, if this grant is held now.
    pub(super) async fn claimed(&self, claim: &Claim) -> StoreResult<Option<LineEntry>> {
        let Ok(fence) = i64::try_from(claim.fence) else { return Ok(None) };
        let line = txn::all(&self.keys.line(&claim.name));
        let mut requests = vec![RangeRequest { max_create_revision: fence, ..line }];
        if self.keys.is_raw() {
            requests.push(txn::key_of(&self.keys.fence(&claim.name, claim.ticket)));
        }
        let mut found = self.client.ranges(requests).await?.1.into_iter();
        let line = found.next().ok_or_else(|| malformed("a line"))?;
        let mut line = LineSnapshot::read(&self.keys, &claim.name, line.kvs);
        let at = line.0.iter().position(|e| e.ticket == claim.ticket && !e.is_kept());
        let Some(at) = at.filter(|at| *at < line.admitted()) else { return Ok(None) };
        let own = line.0.swap_remove(at);
        let granted = match found.next() {
            Some(raw) => raw.kvs.first().map(|kv| kv.mod_revision),
            None => Some(own.created),
        };
        let is_it = granted == Some(fence) && own.parsed.mode == claim.mode;
        Ok(is_it.then_some(own))
    }

    /// The key of a grant that this handle knows, and its create revision.
    pub(super) fn native_key(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let sessions = self.sessions.lock();
        let known = sessions.values().find_map(|local| local.tickets.get(&claim.ticket));
        let Some(known) = known else { return Vec::new() };
        let mut native = vec![("key", String::from_utf8_lossy(&known.key).into_owned())];
        native.extend(known.created.map(|created| ("create_revision", created.to_string())));
        native
    }
}
