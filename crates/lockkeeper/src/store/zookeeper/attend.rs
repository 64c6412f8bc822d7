//! How a ticket waits: it watches those who keep it out, and itself.

use super::{
    Zookeeper,
    conn::{Answer, Fault, Reply},
    data::Card,
    failure,
    line::readable,
    lives::{Life, Watcher},
    names::Queue,
    optional,
    wire::{Code, Request},
};
use crate::{
    error::ErrorKind,
    model::{name::Name, ticket::TicketId},
    store::{Holder, StoreResult, TicketStatus, Wait},
};

/// Who is kept out by more than so many watches the whole line instead.
const CROWD: usize = 32;

/// How a ticket was found.
pub(super) enum Found {
    LineRow(TicketStatus),
    /// While it was looked at, the line has moved.
    Moved(Queue),
}

impl Zookeeper {
    /// Watches those who keep a waiting ticket out, and the ticket itself. From 3.9 on servers do not tell
    /// whether a node is there which the client must not read; then the line is watched instead.
    pub(super) async fn attend(
        &self,
        life: &Life,
        name: &Name,
        ticket: TicketId,
        queue: &Queue,
        at: usize,
    ) -> StoreResult<Found> {
        let line = self.line(name)?;
        let obstacles = queue.obstacles(at).into_iter();
        let watched: Vec<String> = obstacles.map(|spot| format!("{line}/{}", spot.node)).collect();
        if watched.len() <= CROWD {
            match self.watch_all(life, name, ticket, queue, at, watched).await {
                Err(e) if e.kind == ErrorKind::Denied => {}
                found => return found,
            }
        }
        self.watch_all(life, name, ticket, queue, at, vec![line]).await
    }

    async fn watch_all(
        &self,
        life: &Life,
        name: &Name,
        ticket: TicketId,
        queue: &Queue,
        at: usize,
        watched: Vec<String>,
    ) -> StoreResult<Found> {
        let line = self.line(name)?;
        let node = |node: &str| format!("{line}/{node}");
        let (own, head) = (node(&queue.0[at].node), node(&queue.0[0].node));
        let connection = life.link.connect().await?;
        let mut news: Vec<String> = watched.iter().chain([&own]).cloned().collect();
        life.waits_for(ticket, &watched);
        news.retain(|path| life.watch(connection, path, Watcher::Ticket(ticket)));
        // Nothing moves here without a write, and writes are watched.
        let recheck = Wait::rest_most(at);
        let waiting =
            |holder| Found::LineRow(TicketStatus::Waiting(Wait { ahead: at, holder, recheck }));
        if news.is_empty() {
            return Ok(waiting(life.held(name, ticket).and_then(|held| held.holder)));
        }
        let (looks, head) = self.look_at_all(life, &line, &news, &head).await?;
        if looks.iter().any(Result::is_err) {
            // Whoever comes next must ask again.
            news.iter().for_each(|path| life.unwatch(path));
        }
        let mut moved = false;
        for (path, look) in news.iter().zip(looks) {
            match look? {
                Some(reply) if *path == line => {
                    let fresh = Queue::of(&reply.names().map_err(failure)?);
                    if fresh != *queue {
                        return Ok(Found::Moved(fresh));
                    }
                }
                Some(_) => {}
                None if *path == own => {
                    life.unwatch(path);
                    life.forget(ticket);
                    return Ok(Found::LineRow(TicketStatus::Gone));
                }
                None => {
                    life.unwatch(path);
                    moved = true;
                }
            }
        }
        if moved {
            return Ok(Found::Moved(self.list(life, &line).await?));
        }
        let seen = head_of_line(head?)?;
        life.change(ticket, |held| held.holder.clone_from(&seen));
        Ok(waiting(seen))
    }

    /// Looks at nodes, or at the line itself, with a watch on each; and at the head of the line.
    async fn look_at_all(
        &self,
        life: &Life,
        line: &str,
        paths: &[String],
        head: &str,
    ) -> StoreResult<(Vec<StoreResult<Option<Reply>>>, StoreResult<Option<Reply>>)> {
        let look = |path: &String| match path == line {
            true => Request::children(path, true),
            false => Request::data(path, true),
        };
        let mut requests: Vec<Request> = paths.iter().map(look).collect();
        requests.push(Request::data(head, false));
        let mut answers = life.link.ask(&requests).await?;
        let head = readable(answers.pop().unwrap_or(Err(Fault::Broken)));
        // Others' nodes need not be readable; most servers tell at least that they are there.
        let is_closed = |answer: &Answer| matches!(answer, Err(Fault::Refused(Code::NO_AUTH)));
        let closed: Vec<usize> = (0..answers.len()).filter(|i| is_closed(&answers[*i])).collect();
        if !closed.is_empty() {
            let requests: Vec<_> = closed.iter().map(|i| Request::watch(&paths[*i])).collect();
            for (i, answer) in closed.into_iter().zip(life.link.ask(&requests).await?) {
                answers[i] = answer;
            }
        }
        Ok((answers.into_iter().map(optional).collect(), head))
    }
}

/// What the ticket at the head of a line says of itself; another library's says little or nothing.
fn head_of_line(head: Option<Reply>) -> StoreResult<Option<Holder>> {
    let Some(reply) = head else { return Ok(None) };
    let (data, _) = reply.data().map_err(failure)?;
    let Card { owner, note, .. } = Card::read(&data);
    // When the one before it left is written nowhere.
    Ok(Some(Holder { owner, label: note, held_for: None }))
}
