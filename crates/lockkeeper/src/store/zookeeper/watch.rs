//! Wake-ups: the watches of a waiting ticket, and a session's hints.
//!
//! A waiting ticket watches its own node, and of the tickets before it those that together leave it no
//! room. In a plain line that is one node, so a release wakes one waiter.

use super::{
    Zookeeper,
    client::{Answer, Code, Error, Reply, Request, if_readable, if_there},
    data::TicketData,
    poll::TicketRef,
    queue::Queue,
    session::LocalSession,
};
use crate::{
    error::{ErrorKind, StoreError},
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{Hints, Holder, StoreResult, TicketStatus, Wait, common::join},
    sync::Mutex,
};
use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

/// A ticket that is kept out by more nodes than this watches the whole line instead.
const WATCHES_MAX: usize = 32;

/// What setting the watches has shown.
pub(super) enum Looked {
    Status(TicketStatus),
    /// The line has moved meanwhile.
    Moved(Queue),
}

impl TicketRef<'_> {
    /// Sets the watches of the ticket at this place, which waits.
    pub(super) async fn watch(self, queue: &Queue, at: usize) -> StoreResult<Looked> {
        let blockers = queue.blockers(at).into_iter();
        let watched: Vec<String> =
            blockers.map(|blocker| format!("{}/{}", self.line, blocker.node)).collect();
        if watched.len() <= WATCHES_MAX {
            match self.watch_nodes(queue, at, watched).await {
                // Since 3.9 a server does not tell whether a node is there which the client must not read.
                Err(e) if e.kind == ErrorKind::Denied => {}
                looked => return looked,
            }
        }
        self.watch_nodes(queue, at, vec![self.line.to_owned()]).await
    }

    async fn watch_nodes(
        self,
        queue: &Queue,
        at: usize,
        watched: Vec<String>,
    ) -> StoreResult<Looked> {
        let shard = self.shard;
        let (own, head) = (self.node(queue, at), self.node(queue, 0));
        let connection = shard.zk.connect().await?;
        shard.set_watched(self.id, &watched);
        let is_new = |path: &String| shard.watches.add(connection, path, Watcher::Ticket(self.id));
        let new: Vec<String> = watched.into_iter().chain([own.clone()]).filter(is_new).collect();
        // Every change in the line is a write, and a watch tells of it.
        let recheck = Wait::rest_most(at);
        let waiting =
            |holder| Looked::Status(TicketStatus::Waiting(Wait { ahead: at, holder, recheck }));
        if new.is_empty() {
            return Ok(waiting(self.local().and_then(|local| local.holder)));
        }
        let (answers, head) = self.read_and_watch(&new, &head).await?;
        let line = |path: &str, reply: &Reply| match path == self.line {
            true => Ok(Some(Queue::of(&reply.names()?))),
            false => Ok(None),
        };
        let looks = new.iter().zip(answers);
        let looks = looks.map(|(path, answer)| if_there(answer, |reply| line(path, reply)));
        let looks: Vec<_> = looks.collect();
        if looks.iter().any(Result::is_err) {
            // The next caller has to ask for the watches again.
            new.iter().for_each(|path| shard.watches.drop_path(path));
        }
        let mut has_moved = false;
        for (path, look) in new.iter().zip(looks) {
            match look? {
                Some(Some(fresh)) if fresh != *queue => return Ok(Looked::Moved(fresh)),
                Some(_) => {}
                None => {
                    shard.watches.drop_path(path);
                    if *path == own {
                        self.forget();
                        return Ok(Looked::Status(TicketStatus::Gone));
                    }
                    has_moved = true;
                }
            }
        }
        if has_moved {
            let list = shard.zk.ask_one(Request::children(self.line)).await;
            return Ok(Looked::Moved(Queue::read(list)?));
        }
        let holder = if_readable(head, Reply::data)?.map(|(data, _)| holder(&data));
        shard.update(self.id, |local| local.holder.clone_from(&holder));
        Ok(waiting(holder))
    }

    /// Reads nodes, or the line itself, with a watch on each; and the head of the line without one.
    async fn read_and_watch(
        self,
        paths: &[String],
        head: &str,
    ) -> StoreResult<(Vec<Answer>, Answer)> {
        let zk = &self.shard.zk;
        let read = |path: &String| match path == self.line {
            true => Request::children(path).watching(true),
            false => Request::data(path).watching(true),
        };
        let mut requests: Vec<Request> = paths.iter().map(read).collect();
        requests.push(Request::data(head));
        let mut answers = zk.ask_all(&requests).await?;
        let head = answers.pop().unwrap_or(Err(Error::Broken));
        // Another client's node need not be readable. Most servers still tell that it is there.
        let is_denied = |answer: &Answer| matches!(answer, Err(Error::Refused(Code::NO_AUTH)));
        let denied: Vec<usize> = (0..answers.len()).filter(|i| is_denied(&answers[*i])).collect();
        if !denied.is_empty() {
            let exists = |i: &usize| Request::exists(&paths[*i]).watching(true);
            let requests: Vec<Request> = denied.iter().map(exists).collect();
            for (i, answer) in denied.into_iter().zip(zk.ask_all(&requests).await?) {
                answers[i] = answer;
            }
        }
        Ok((answers, head))
    }
}

/// What the node at the head of a line says of its owner; another library's says little or nothing. When it
/// was granted is written nowhere.
fn holder(data: &[u8]) -> Holder {
    let TicketData { owner, label, .. } = TicketData::read(data);
    Holder { owner, label, held_for: None }
}

impl Zookeeper {
    /// Passes on the hints of a session until one of its connections breaks.
    pub(super) async fn session_hints(&self, id: SessionId, to: Arc<dyn Hints>) -> StoreError {
        match self.sessions.living(id, self.now()) {
            Ok(session) => listen(&session, &to).await,
            Err(over) => over,
        }
    }
}

async fn listen(session: &LocalSession, to: &Arc<dyn Hints>) -> StoreError {
    *session.hints.lock() = Some(Arc::clone(to));
    loop {
        let mut broken = Vec::new();
        for shard in session.shards() {
            match shard.zk.connect().await {
                Ok(number) => broken.push(Box::pin(async move { shard.zk.broken(number).await })),
                Err(e) => return e.into(),
            }
        }
        // Watches of earlier connections have gone with these.
        to.recheck(None);
        let any = |broken: &[Option<()>]| broken.iter().any(Option::is_some);
        tokio::select! {
            _ = join::until(broken, any, std::future::pending()) => return Error::Broken.into(),
            () = session.grown.notified() => {}
        }
    }
}

/// Where the core wants the hints of a session.
pub(super) type HintSink = Arc<Mutex<Option<Arc<dyn Hints>>>>;

/// To what a fired watch leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watcher {
    Ticket(TicketId),
    /// All contenders for a name.
    Line(Name),
}

/// The watches of one shard, and their watchers. The server is asked for a watch only if it has none.
#[derive(Default)]
pub(super) struct WatchTable {
    hints: HintSink,
    watches: Mutex<Watches>,
}

#[derive(Default)]
struct Watches {
    /// The number of the connection on which the server has them.
    connection: u64,
    watchers: HashMap<String, HashSet<Watcher>>,
}

impl WatchTable {
    pub(super) fn new(hints: HintSink) -> Self {
        Self { hints, watches: Mutex::default() }
    }

    pub(super) fn has_listener(&self) -> bool {
        self.hints.lock().is_some()
    }

    /// Adds a watcher of a path. Says whether it is new: then the server has to be asked for a watch.
    pub(super) fn add(&self, connection: u64, path: &str, watcher: Watcher) -> bool {
        let mut watches = self.watches.lock();
        // A caller that is late may still name an older connection.
        if watches.connection < connection {
            *watches = Watches { connection, ..Watches::default() };
        }
        watches.watchers.entry(path.to_owned()).or_default().insert(watcher)
    }

    /// The server has no watch on this path.
    pub(super) fn drop_path(&self, path: &str) {
        self.watches.lock().watchers.remove(path);
    }

    /// Takes a ticket off the watchers of these paths, but for some. The nodes may stay for long, and when
    /// they go the ticket must not be rechecked in vain.
    pub(super) fn remove(&self, ticket: TicketId, paths: Vec<String>, but: &[String]) {
        let mut watches = self.watches.lock();
        for path in paths.into_iter().filter(|path| !but.contains(path)) {
            if let Entry::Occupied(mut watchers) = watches.watchers.entry(path) {
                watchers.get_mut().remove(&Watcher::Ticket(ticket));
                if watchers.get().is_empty() {
                    watchers.remove();
                }
            }
        }
    }

    /// Passes a fired watch on to the core.
    pub(super) fn fired(&self, path: &str) {
        let watchers = self.watches.lock().watchers.remove(path).unwrap_or_default();
        let Some(hints) = self.hints.lock().clone() else { return };
        for watcher in watchers {
            match watcher {
                Watcher::Ticket(ticket) => hints.recheck(Some(ticket)),
                Watcher::Line(name) => hints.freed(&name),
            }
        }
    }
}
