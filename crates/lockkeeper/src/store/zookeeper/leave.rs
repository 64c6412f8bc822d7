//! Going out of a line, and noticing that others have put a ticket out.

use super::{
    Zookeeper,
    conn::{Answer, Fault},
    failure,
    line::queue,
    lives::{Held, Life},
    names::Spot,
    not_the_callers, optional, two,
    wire::Request,
};
use crate::{
    error::ErrorKind,
    model::{
        name::Name,
        ticket::{Place, TicketId},
    },
    store::{Leave, Left, STRAY_MAX, StoreResult, TicketDigest, TicketStatus},
};
use std::{collections::HashSet, sync::Arc};

impl Zookeeper {
    pub(super) async fn leave_line(&self, ask: Leave) -> StoreResult<Left> {
        let Place { session, name, ticket } = &ask.place;
        // Past its deadline nothing is sent for a session, or its lock-delay would be cut short.
        let Ok(session) = self.lives.living(*session, self.now()) else { return Ok(Left::Gone) };
        if ask.stray {
            session.first().state().closed.insert(*ticket, self.now() + STRAY_MAX);
        }
        let Some(life) = session.of(*ticket) else { return Ok(Left::Gone) };
        let Some(held) = life.held(name, *ticket) else { return Ok(Left::Gone) };
        life.change(*ticket, |held| held.leaving = true);
        match self.take_out(&life, name, *ticket, &held).await {
            Ok(left) => {
                life.forget(*ticket);
                Ok(left)
            }
            Err(e) if e.kind == ErrorKind::SessionOver => Ok(Left::Gone),
            Err(e) => Err(e),
        }
    }

    async fn take_out(
        &self,
        life: &Life,
        name: &Name,
        ticket: TicketId,
        held: &Held,
    ) -> StoreResult<Left> {
        let line = self.line(name)?;
        // What is known to be granted stays so, and needs no look.
        if let (Some(path), true) = (&held.path, held.granted) {
            let mut answers = life.link.ask(&[Request::delete(path, -1)]).await?;
            let gone = optional(answers.pop().unwrap_or(Err(Fault::Broken)))?.is_none();
            return Ok(if gone { Left::Gone } else { Left::Released });
        }
        let (queue, gone) = match &held.path {
            Some(path) => {
                let requests = [Request::children(&line, false), Request::delete(path, -1)];
                let [list, gone] = two(life.link.ask(&requests).await?);
                (queue(list)?, Some(gone))
            }
            None => (self.list_with(life, &line, held).await?, None),
        };
        let Some(at) = queue.place(ticket, held.path.as_deref()) else { return Ok(Left::Gone) };
        let left = if at < queue.admitted() { Left::Released } else { Left::Withdrawn };
        let gone = match gone {
            Some(gone) => gone,
            None => {
                // The creation was not answered, so the path has only now been seen.
                let path = format!("{line}/{}", queue.0[at].node);
                let mut answers = life.link.ask(&[Request::delete(&path, -1)]).await?;
                answers.pop().unwrap_or(Err(Fault::Broken))
            }
        };
        Ok(if optional(gone)?.is_none() { Left::Gone } else { left })
    }

    /// The tickets whose nodes are there, unless others have removed them.
    pub(super) fn standing(&self, life: &Life) -> Vec<(TicketId, String)> {
        let state = life.state();
        let here = state.tickets.iter().filter(|(_, held)| !held.leaving);
        here.filter_map(|(ticket, held)| Some((*ticket, held.path.clone()?))).collect()
    }

    /// Compares what was known before the question with all nodes of the session. What is missing was
    /// ended by others. What is too much is the late copy of a creation, and is removed. Says which
    /// tickets there were.
    pub(super) async fn compare(
        &self,
        life: &Life,
        known: &[(TicketId, String)],
        there: &[String],
    ) -> TicketDigest {
        let spot = |path: &str| path.rsplit('/').next().and_then(Spot::read);
        let tickets = there.iter().filter_map(|path| spot(path)).map(|spot| spot.id).collect();
        let there: HashSet<&str> = there.iter().map(String::as_str).collect();
        let strays: Vec<Request> = {
            let mut state = life.state();
            for (ticket, path) in known.iter().filter(|(_, path)| !there.contains(path.as_str())) {
                let is_it = |held: &&Held| held.path.as_ref() == Some(path) && !held.leaving;
                if state.tickets.get(ticket).filter(is_it).is_some() {
                    state.remove(*ticket);
                    state.version += 1;
                }
            }
            let is_stray = |path: &&&str| {
                match spot(path).map(|spot| state.tickets.get(&spot.id)) {
                    None => false,
                    Some(None) => true,
                    // A creation that was not answered yet may be this one.
                    Some(Some(held)) => held.path.as_ref().is_some_and(|own| own != **path),
                }
            };
            there.iter().filter(is_stray).map(|path| Request::delete(path, -1)).collect()
        };
        if strays.is_empty() {
            return tickets;
        }
        // If it fails, the next renewal finds them again. Most often they have only just been left.
        let removed = life.link.ask(&strays).await.unwrap_or_default();
        if removed.iter().any(Result::is_ok) {
            life.state().version += 1;
        }
        tickets
    }

    /// All tickets of a session: one list of its nodes for those that hold, one of its line for each
    /// that waits.
    pub(super) async fn all_stands(
        &self,
        life: &Arc<Life>,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let known = self.standing(life);
        let mut answers = life.link.ask(&[Request::ephemerals(&self.plan.paths.base())]).await?;
        let there = names(answers.pop().unwrap_or(Err(Fault::Broken)))?;
        self.compare(life, &known, &there).await;
        let (mut stands, mut open) = (Vec::new(), Vec::new());
        for (ticket, held) in &life.state().tickets {
            if held.granted && held.path.is_some() {
                let stand = TicketStatus::Granted { fence: held.fence };
                stands.push((held.name.clone(), *ticket, stand));
            } else {
                open.push((held.name.clone(), *ticket));
            }
        }
        let open = self.stands(life, open).await?;
        stands.extend(open.into_iter().filter(|(_, _, stand)| *stand != TicketStatus::Gone));
        Ok(stands)
    }

    /// Ends somebody's ticket, ours or another's.
    pub(super) async fn end_ticket(&self, name: &Name, ticket: TicketId) -> StoreResult<bool> {
        let line = self.line(name)?;
        let queue = self.read_line(&line).await?;
        let Some(at) = queue.position(ticket) else { return Ok(false) };
        let path = format!("{line}/{}", queue.0[at].node);
        let answers = self.common.ask(&[Request::delete(&path, -1)]).await;
        let mut answers = answers.map_err(not_the_callers)?;
        Ok(optional(answers.pop().unwrap_or(Err(Fault::Broken)))?.is_some())
    }
}

pub(super) fn names(answer: Answer) -> StoreResult<Vec<String>> {
    answer.and_then(|reply| reply.names()).map_err(failure)
}
