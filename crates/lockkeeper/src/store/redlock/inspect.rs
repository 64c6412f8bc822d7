//! What people and other programs ask: who holds a name, and whether a grant is still held. And the label,
//! which is for them.

use super::{
    Redlock,
    decide::Vote,
    flavour::Flavour,
    nodes::{PATIENCE, Replies, is_decided, patience},
    votes::{self, Shown},
};
use crate::{
    error::ErrorKind,
    model::{
        line::{Line, Ticket},
        name::Name,
        ticket::{Mode, Place, TicketId},
    },
    store::{
        Claim, Edit, Edited, LIST_MAX, ListScope, StoreResult,
        common::join,
        redis::{Call, hex},
    },
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// How many names a listing asks for at once.
const AT_ONCE: usize = 64;

impl Redlock {
    /// Whether a majority of the nodes holds this grant.
    pub(super) async fn is_held(
        &self,
        name: &Name,
        ticket: TicketId,
        fence: u64,
    ) -> StoreResult<bool> {
        let call = Call::new(&self.scripts.show, &[self.key(name)]);
        let fence = (self.flavour == Flavour::Fenced).then_some(fence);
        let is_it = move |t: &Ticket| t.id == ticket && fence.is_none_or(|f| t.fence == Some(f));
        let shown = self.scripts.shown;
        let read = move |reply| {
            let is_there = shown(reply)?.is_some_and(|shown| is_it(&shown.ticket));
            Ok(if is_there { Vote::Yes } else { Vote::No })
        };
        self.nodes.decision(self.nodes.vote(PATIENCE, call, read, is_decided).await)
    }

    pub(super) async fn lines(&self, which: ListScope) -> StoreResult<Vec<Line>> {
        let names = match which {
            ListScope::Exact(name) => BTreeSet::from([name]),
            ListScope::Prefix { prefix, after } => self.names(&prefix, after.as_ref()).await?,
        };
        let (mut lines, mut names) = (Vec::new(), names.into_iter().peekable());
        while names.peek().is_some() && lines.len() < LIST_MAX {
            let some = names.by_ref().take(AT_ONCE).map(|name| self.line(name));
            for line in join::all(some.collect::<Vec<_>>()).await {
                lines.extend(line?);
            }
        }
        lines.truncate(LIST_MAX);
        Ok(lines)
    }

    /// The names with this prefix, as far as any node knows them.
    async fn names(&self, prefix: &str, after: Option<&Name>) -> StoreResult<BTreeSet<Name>> {
        let names = self.nodes.index(&self.index(), PATIENCE * 4).await?;
        let names = names.iter().filter(|n| n.starts_with(prefix)).flat_map(|n| Name::new(n));
        Ok(names.filter(|name| after.is_none_or(|after| name > after)).collect())
    }

    async fn line(&self, name: Name) -> StoreResult<Option<Line>> {
        let ticket = self.holder(&name).await?;
        Ok(ticket.map(|ticket| Line::new(name, Mode::Exclusive.capacity(), vec![ticket])))
    }

    /// The ticket that a majority of the nodes shows, with its newest label, and until when a majority has it.
    async fn holder(&self, name: &Name) -> StoreResult<Option<Ticket>> {
        let call = Call::new(&self.scripts.show, &[self.key(name)]);
        let majority = self.nodes.majority();
        let is_clear = |replies: &Replies<Option<Shown>>| {
            let most = by_grant(replies.iter().flatten().flatten());
            let most = most.values().map(Vec::len).max().unwrap_or(0);
            let open = replies.iter().filter(|reply| reply.is_none()).count();
            most >= majority || most + open < majority
        };
        let all = self.nodes.read(PATIENCE, call, self.scripts.shown, is_clear).await?;
        let most = by_grant(&all).into_values().find(|nodes| nodes.len() >= majority);
        Ok(most.and_then(|mut nodes| {
            nodes.sort_by_key(|shown| Reverse(shown.ticket.ends_in));
            let ends_in = nodes[majority - 1].ticket.ends_in;
            let newest = nodes.into_iter().max_by_key(|s| (s.edit, s.ticket.entered_ago))?;
            Some(Ticket { ends_in, ..newest.ticket.clone() })
        }))
    }

    pub(super) async fn edit_label(&self, edit: &Edit) -> StoreResult<Edited> {
        let Place { session, name, ticket } = &edit.place;
        let Ok(local) = self.session(*session) else { return Ok(Edited::NotHeld) };
        let Some(script) = &self.scripts.edit else {
            let what = "changing the note of a plain string";
            return Err(self.refused(ErrorKind::Unsupported(what), what));
        };
        let mut call = Call::new(script, &[self.key(name)]);
        call.arg(ticket.to_string()).arg(hex(*session)).arg(edit.edit);
        call.arg(edit.bytes.as_deref().unwrap_or_default());
        let patience = patience(local.ask.ttl);
        let ballot = self.nodes.vote(patience, call, votes::yes_or_no, is_decided).await;
        Ok(if self.nodes.decision(ballot)? { Edited::Done } else { Edited::NotHeld })
    }

    pub(super) fn native_names(&self, claim: &Claim) -> Vec<(&'static str, String)> {
        let mut native = vec![("key", self.key(&claim.name))];
        if self.flavour == Flavour::Fenced {
            native.push(("field", "k".into()));
        }
        native
    }
}

/// The nodes that show the same grant.
fn by_grant<'a>(
    shown: impl IntoIterator<Item = &'a Option<Shown>>,
) -> BTreeMap<(TicketId, Option<u64>), Vec<&'a Shown>> {
    let mut nodes: BTreeMap<_, Vec<&Shown>> = BTreeMap::new();
    for shown in shown.into_iter().flatten() {
        nodes.entry((shown.ticket.id, shown.ticket.fence)).or_default().push(shown);
    }
    nodes
}
