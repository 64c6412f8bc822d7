//! What people and other programs see of lines.

use super::{
    Zookeeper,
    conn::{Answer, Fault},
    data::Card,
    failure,
    line::{queue, readable},
    names::{Queue, Spot},
    optional, two,
    wire::{Code, Request, Stat},
};
use crate::{
    model::{
        line::{Line, Ticket},
        name::Name,
    },
    store::{Claim, LIST_MAX, ListScope, StoreResult},
};
use std::time::Duration;

impl Zookeeper {
    /// A line as it is now.
    pub(super) async fn read_line(&self, line: &str) -> StoreResult<Queue> {
        let requests = [Request::sync(line), Request::children(line, false)];
        let [_, list] = two(self.read_all(&requests).await?);
        queue(list)
    }

    /// Whether this grant is held. A write that a majority agrees upon goes before the read: a server
    /// that has been cut off, or a leader that has been replaced, cannot answer it.
    pub(super) async fn is_held(&self, claim: &Claim) -> StoreResult<bool> {
        let line = self.line(&claim.name)?;
        let proof = Request::all_or_nothing(&[Request::check(self.plan.paths.root())]);
        let [proof, list] = two(self.read_all(&[proof, Request::children(&line, false)]).await?);
        proof.map_err(failure)?;
        let queue = queue(list)?;
        let held = queue.position(claim.ticket).filter(|at| *at < queue.admitted());
        let Some(at) = held.filter(|at| queue.0[*at].mode == claim.mode) else { return Ok(false) };
        let path = format!("{line}/{}", queue.0[at].node);
        let mut answers = self.read_all(&[Request::exists(&path)]).await?;
        let Some(answer) = answers.pop() else { return Ok(false) };
        let Some(reply) = optional(answer)? else { return Ok(false) };
        Ok(reply.stat().map_err(failure)?.czxid == claim.fence)
    }

    pub(super) async fn show(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        match which {
            ListScope::Exact(name) => {
                let line = self.line(&name)?;
                self.show_lines(vec![(name, line)], true).await
            }
            ListScope::Prefix { prefix, after } => {
                let names = self.names(&prefix, after.as_ref()).await?.into_iter();
                // With raw names a folder has nodes that are no lines.
                let found = names.filter_map(|name| self.line(&name).ok().map(|line| (name, line)));
                let found: Vec<(Name, String)> = found.collect();
                let mut lines = Vec::new();
                // Most of them may have no tickets: their nodes outlive them for a minute.
                for some in found.chunks(LIST_MAX) {
                    lines.extend(self.show_lines(some.to_vec(), false).await?);
                    if lines.len() >= LIST_MAX {
                        lines.truncate(LIST_MAX);
                        break;
                    }
                }
                Ok(lines)
            }
        }
    }

    /// The names of nodes that may be lines, in order.
    async fn names(&self, prefix: &str, after: Option<&Name>) -> StoreResult<Vec<Name>> {
        let (folder, before) = self.plan.paths.folder(prefix);
        let requests = [Request::sync(&folder), Request::children(&folder, false)];
        let [_, list] = two(self.read_all(&requests).await?);
        let Some(reply) = optional(list)? else { return Ok(Vec::new()) };
        let nodes = reply.names().map_err(failure)?;
        let names = nodes.iter().filter_map(|node| self.plan.paths.name(&before, node));
        let wanted =
            |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|a| name > a);
        let mut names: Vec<Name> = names.filter(wanted).collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn show_lines(&self, found: Vec<(Name, String)>, sync: bool) -> StoreResult<Vec<Line>> {
        let mut requests = Vec::new();
        for (_, line) in &found {
            if sync {
                requests.push(Request::sync(line));
            }
            requests.push(Request::children(line, false));
        }
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let mut lists = self.read_all(&requests).await?.into_iter();
        let (mut queues, mut cards) = (Vec::new(), Vec::new());
        for (name, line) in found {
            if sync {
                lists.next();
            }
            let queue = lists.next().map_or(Ok(Queue::default()), queue)?;
            for spot in &queue.0 {
                let path = format!("{line}/{}", spot.node);
                cards.extend([Request::exists(&path), Request::data(&path, false)]);
            }
            queues.push((name, queue));
        }
        if cards.is_empty() {
            return Ok(Vec::new());
        }
        let mut cards = self.read_all(&cards).await?.into_iter();
        let mut lines = Vec::new();
        for (name, queue) in queues {
            let cards: Vec<Answer> = cards.by_ref().take(2 * queue.0.len()).collect();
            lines.extend(self.show_line(name, &queue, cards)?);
        }
        Ok(lines)
    }

    /// Who has gone since the line was listed is not shown; who was admitted then still is.
    fn show_line(
        &self,
        name: Name,
        queue: &Queue,
        cards: Vec<Answer>,
    ) -> StoreResult<Option<Line>> {
        let (capacity, admitted) = (queue.capacity(), queue.admitted());
        let (mut tickets, mut cards) = (Vec::new(), cards.into_iter());
        for (at, spot) in queue.0.iter().enumerate() {
            let (Some(node), Some(data)) = (cards.next(), cards.next()) else { break };
            let stat = match node {
                // From 3.9 on servers tell nothing of a node that the client must not read.
                Err(Fault::Refused(Code::NO_AUTH)) => None,
                node => match optional(node)? {
                    Some(reply) => Some(reply.stat().map_err(failure)?),
                    None => continue,
                },
            };
            // Others' nodes need not be readable.
            let data = readable(data)?.map(|reply| reply.data().map_err(failure)).transpose()?;
            let card = data.map(|(data, _)| Card::read(&data)).unwrap_or_default();
            tickets.push(self.ticket(spot, card, stat, at < admitted));
        }
        Ok((!tickets.is_empty()).then(|| Line::new(name, capacity, tickets)))
    }

    fn ticket(&self, spot: &Spot, card: Card, stat: Option<Stat>, granted: bool) -> Ticket {
        let entered_ago = stat.map_or(Duration::ZERO, |stat| self.ago(stat.ctime_ms));
        Ticket {
            id: spot.id,
            mode: spot.mode,
            fence: granted.then_some(stat.map_or(0, |stat| stat.czxid)),
            owner: Some(card.owner),
            label: card.note,
            entered_ago,
            // When the one before it left is written nowhere.
            granted_ago: None,
            ends_in: card.kept,
        }
    }
}
