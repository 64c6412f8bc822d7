//! Reads for people and other programs: listings, checks, and the native name of a grant.

use super::{
    Zookeeper,
    client::{Answer, Code, Error, Reply, Request, Stat, if_readable, if_there},
    data::TicketData,
    queue::{Queue, TicketNode},
};
use crate::{
    model::{
        line::{Line, Ticket},
        name::Name,
    },
    store::{Claim, LIST_MAX, ListScope, StoreResult},
};
use std::{iter::once, time::Duration};

impl Zookeeper {
    /// A line as it is now.
    pub(super) async fn read_line(&self, line: &str) -> StoreResult<Queue> {
        let [_, list] = self.read_two([Request::sync(line), Request::children(line)]).await?;
        Ok(Queue::read(list)?)
    }

    /// The path of the ticket, if this grant is held. A write that a majority agrees upon precedes the read: a
    /// server that was cut off, or a leader that was replaced, cannot answer it.
    pub(super) async fn claimed(&self, claim: &Claim) -> StoreResult<Option<String>> {
        let line = self.line(&claim.name)?;
        let proof = Request::multi(&[Request::check(self.config.paths.root())]);
        let [proof, list] = self.read_two([proof, Request::children(&line)]).await?;
        proof?;
        let queue = Queue::read(list)?;
        let held = queue.position(claim.ticket).filter(|at| *at < queue.admitted());
        let Some(at) = held.filter(|at| queue.0[*at].mode == claim.mode) else { return Ok(None) };
        let path = queue.path(&line, at);
        let mut answers = self.read_all(&[Request::exists(&path)]).await?;
        let stat = if_there(answers.pop().unwrap_or(Err(Error::Broken)), Reply::stat)?;
        Ok(stat.filter(|stat| stat.czxid == claim.fence).map(|_| path))
    }

    pub(super) async fn list_locks(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let (prefix, after) = match which {
            ListScope::Exact(name) => {
                let line = self.line(&name)?;
                return self.lines(&[(name, line)]).await;
            }
            ListScope::Prefix { prefix, after } => (prefix, after),
        };
        let names = self.names(&prefix, after.as_ref()).await?.into_iter();
        // With raw names a folder also has nodes that are no lines.
        let found = names.filter_map(|name| self.line(&name).ok().map(|line| (name, line)));
        let found: Vec<(Name, String)> = found.collect();
        let mut lines = Vec::new();
        // Most of them may be empty: a line's node outlives its tickets for a minute.
        for some in found.chunks(LIST_MAX) {
            lines.extend(self.lines(some).await?);
            if lines.len() >= LIST_MAX {
                lines.truncate(LIST_MAX);
                break;
            }
        }
        Ok(lines)
    }

    /// The names of nodes that may be lines, in order.
    async fn names(&self, prefix: &str, after: Option<&Name>) -> StoreResult<Vec<Name>> {
        let (folder, before) = self.config.paths.folder(prefix);
        let requests = [Request::sync(&folder), Request::children(&folder)];
        let [_, list] = self.read_two(requests).await?;
        let nodes = if_there(list, Reply::names)?.unwrap_or_default();
        let names = nodes.iter().filter_map(|node| self.config.paths.name(&before, node));
        let wanted =
            |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|a| name > a);
        let mut names: Vec<Name> = names.filter(wanted).collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn lines(&self, found: &[(Name, String)]) -> StoreResult<Vec<Line>> {
        let lists = found.iter().map(|(_, line)| Request::children(line));
        let sync = Request::sync(self.config.paths.root());
        let lists = self.read_all(&once(sync).chain(lists).collect::<Vec<_>>()).await?;
        let queues = lists.into_iter().skip(1).map(Queue::read);
        let queues = queues.collect::<Result<Vec<_>, _>>()?;
        let mut requests = Vec::new();
        for ((_, line), queue) in found.iter().zip(&queues) {
            let paths = (0..queue.0.len()).map(|at| queue.path(line, at));
            requests.extend(paths.flat_map(|path| [Request::exists(&path), Request::data(&path)]));
        }
        let mut answers = self.read_all(&requests).await?.into_iter();
        let mut lines = Vec::new();
        for ((name, _), queue) in found.iter().zip(&queues) {
            lines.extend(self.shown_line(name, queue, &mut answers)?);
        }
        Ok(lines)
    }

    /// Takes the two answers for each ticket. Tickets that have left since the line was listed are not shown;
    /// those that were granted then are shown as granted.
    fn shown_line(
        &self,
        name: &Name,
        queue: &Queue,
        answers: &mut impl Iterator<Item = Answer>,
    ) -> StoreResult<Option<Line>> {
        let (capacity, admitted) = (queue.capacity(), queue.admitted());
        let mut tickets = Vec::new();
        for (at, node) in queue.0.iter().enumerate() {
            let (Some(stat), Some(data)) = (answers.next(), answers.next()) else { break };
            let stat = match stat {
                // Since 3.9 a server tells nothing of a node that the client must not read.
                Err(Error::Refused(Code::NO_AUTH)) => None,
                stat => match if_there(stat, Reply::stat)? {
                    Some(stat) => Some(stat),
                    None => continue,
                },
            };
            let data = if_readable(data, Reply::data)?;
            let data = data.map(|(data, _)| TicketData::read(&data)).unwrap_or_default();
            tickets.push(self.shown_ticket(node, data, stat, at < admitted));
        }
        Ok((!tickets.is_empty()).then(|| Line::new(name.clone(), capacity, tickets)))
    }

    fn shown_ticket(
        &self,
        node: &TicketNode,
        data: TicketData,
        stat: Option<Stat>,
        granted: bool,
    ) -> Ticket {
        Ticket {
            id: node.id,
            mode: node.mode,
            fence: granted.then_some(stat.map_or(0, |stat| stat.czxid)),
            owner: Some(data.owner),
            label: data.label,
            entered_ago: stat.map_or(Duration::ZERO, |stat| self.ago(stat.ctime_ms)),
            // Nothing is written when a lock passes on.
            granted_ago: None,
            ends_in: data.kept,
        }
    }

    /// How long ago that was on the server's wall clock, if it agrees with ours.
    fn ago(&self, ms: u64) -> Duration {
        Duration::from_millis((self.clock.wall_micros() / 1_000).saturating_sub(ms))
    }

    pub(super) fn native_name(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let path = self.sessions.path(claim.ticket);
        path.map(|path| vec![("path", path), ("czxid", claim.fence.to_string())])
            .unwrap_or_default()
    }
}
