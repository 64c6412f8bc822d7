//! Answers that are lost, late or old. A real server gives such answers only rarely, so a scripted one
//! gives them here.

use super::{
    Zookeeper,
    client::{OnExpiry, Session},
    config::Config,
    scripted::{
        Asked, ClientConnection, SESSION, Server, TIMEOUT, checked, created, data, names, stat,
    },
    shard::Shard,
    watch::{HintSink, WatchTable, Watcher},
};
use crate::{
    clock::Moment,
    error::{ErrorKind, Outcome},
    model::{
        name::Name,
        ticket::{Mode, Place, SessionId, TicketId},
    },
    store::{Enter, Entered, Hints, Leave, Left, Manner, PollScope, Renewal, Store as _, Terms},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::join;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn enter(session: SessionId, ticket: TicketId, text: &str) -> Enter {
    let place = Place { session, name: name(text), ticket };
    Enter { place, mode: Mode::Exclusive, manner: Manner::Queue, label: Vec::new() }
}

/// A ticket's node in the line, with this number.
fn node(ticket: TicketId, number: u32) -> String {
    let hex = ticket.to_string();
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("_c_{a}-{b}-{c}-{d}-{e}-lock-{number:010}")
}

fn path(line: &str, ticket: TicketId, number: u32) -> String {
    format!("/lockkeeper/lines/{line}/{}", node(ticket, number))
}

/// Answers the creation of a ticket and the list behind it.
async fn answer_enter(client: &mut ClientConnection, path: &str, czxid: i64, line: &[String]) {
    let (create, list) = (client.expect("create").await, client.expect("list").await);
    client.answer(&create, &created(path, czxid)).await;
    client.answer(&list, &names(line)).await;
}

/// Answers the reads of a waiting ticket: of the node that blocks it, its own, and the head of the line.
async fn answer_watches(client: &mut ClientConnection) {
    answer_reads(client, 3).await;
}

async fn answer_reads(client: &mut ClientConnection, times: usize) {
    let mut asks: Vec<Asked> = Vec::new();
    for _ in 0..times {
        asks.push(client.expect("data").await);
    }
    for ask in &asks {
        client.answer(ask, &data(b"", 1)).await;
    }
}

/// Enters a line, is granted by a list, and leaves; the node has this number.
async fn enter_and_leave(
    store: &Zookeeper,
    session: SessionId,
    client: &mut ClientConnection,
    number: u32,
) {
    let ticket = TicketId::random();
    let ask = enter(session, ticket, "a");
    let place = ask.place.clone();
    let (entered, ()) = join!(store.enter(ask), async {
        let line = [node(ticket, number)];
        answer_enter(client, &path("a", ticket, number), 100, &line).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Granted { fence: 100 }));
    let (left, ()) = join!(store.leave(Leave { place, keep: None, stray: false }), async {
        let delete = client.expect("delete").await;
        client.answer(&delete, &[]).await;
    });
    assert_eq!(left.unwrap(), Left::Released);
}

/// Another client can delete a line, create it again and reach any number, all in one write.
#[tokio::test]
async fn a_ticket_with_the_very_next_number_is_not_granted_without_a_list() {
    let server = Server::start().await;
    let (store, session, mut client) = server.store().await;
    enter_and_leave(&store, session, &mut client, 7).await;
    let (ticket, other) = (TicketId::random(), TicketId::random());
    let (entered, ()) = join!(store.enter(enter(session, ticket, "a")), async {
        let line = [node(other, 7), node(ticket, 8)];
        answer_enter(&mut client, &path("a", ticket, 8), 102, &line).await;
        answer_watches(&mut client).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Queued(wait) if wait.ahead == 1));
}

#[tokio::test]
async fn a_server_that_cannot_list_a_sessions_nodes_is_refused() {
    let server = Server::start().await;
    let (store, ()) = join!(Zookeeper::connect(server.url()), async {
        let mut common = server.common().await;
        let asks = [
            common.expect("data").await,
            common.expect("exists").await,
            common.expect("ephemerals").await,
        ];
        common.answer(&asks[0], &data(b"0000000000000001", 1)).await;
        common.answer(&asks[1], &stat(1, 0)).await;
        common.refuse(&asks[2], -6).await;
    });
    let e = store.map(drop).unwrap_err().to_string();
    assert!(e.contains("ZooKeeper 3.6 or newer"), "{e}");
}

/// The first copy of the creation reaches a majority only after the second one was sent.
#[tokio::test]
async fn a_ticket_whose_node_was_created_twice_is_the_node_that_was_answered() {
    let server = Server::start().await;
    let (store, session, mut client) = server.store().await;
    let (ticket, other) = (TicketId::random(), TicketId::random());
    let line = [node(ticket, 1), node(other, 2), node(ticket, 3)];
    let (entered, ()) = join!(store.enter(enter(session, ticket, "a")), async {
        answer_enter(&mut client, &path("a", ticket, 3), 30, &line).await;
        answer_watches(&mut client).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Queued(wait) if wait.ahead == 2));
}

/// Enters, and loses the connection before the creation is answered.
async fn lose_creation(store: &Zookeeper, ask: Enter, mut client: ClientConnection) {
    let (entered, ()) = join!(store.enter(ask), async {
        client.expect("create").await;
        client.expect("list").await;
        drop(client);
    });
    assert_eq!(entered.unwrap_err().outcome, Outcome::Unknown);
}

#[tokio::test]
async fn a_creation_that_was_not_answered_is_looked_for_after_a_sync() {
    let server = Server::start().await;
    let (store, session, client) = server.store().await;
    let ticket = TicketId::random();
    lose_creation(&store, enter(session, ticket, "a"), client).await;
    let (entered, ()) = join!(store.enter(enter(session, ticket, "a")), async {
        let mut client = server.accept(TIMEOUT).await;
        let (sync, list) = (client.expect("sync").await, client.expect("list").await);
        client.answer(&sync, &[]).await;
        client.answer(&list, &names(&[node(ticket, 1)])).await;
        let exists = client.expect("exists").await;
        client.answer(&exists, &stat(10, SESSION)).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Granted { fence: 10 }));
}

/// A poll lists the session's nodes while a ticket is being created, and uses the list only afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_is_not_forgotten_because_an_older_list_lacks_it() {
    let server = Server::start().await;
    let (store, session, mut client) = server.store().await;
    let store = Arc::new(store);
    let (holder, waiter, late) = (TicketId::random(), TicketId::random(), TicketId::random());
    let line = [node(holder, 1), node(waiter, 2)];
    let (waiting, ()) = join!(store.enter(enter(session, waiter, "a")), async {
        answer_enter(&mut client, &path("a", waiter, 2), 20, &line).await;
        answer_watches(&mut client).await;
    });
    assert!(matches!(waiting.unwrap(), Entered::Queued(_)));
    let entering = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.enter(enter(session, late, "b")).await }
    });
    let (create, list) = (client.expect("create").await, client.expect("list").await);
    let polling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.poll(session, PollScope::All).await }
    });
    let own = client.expect("ephemerals").await;
    client.refuse(&create, -101).await;
    client.refuse(&list, -101).await;
    let again = [
        client.expect("container").await,
        client.expect("create").await,
        client.expect("list").await,
    ];
    client.answer(&own, &names(&[path("a", waiter, 2)])).await;
    let lists = [client.expect("list").await, client.expect("list").await];
    client.answer(&again[0], &created("/lockkeeper/lines/b", 1)).await;
    client.answer(&again[1], &created(&path("b", late, 0), 30)).await;
    client.answer(&again[2], &names(&[node(late, 0)])).await;
    assert!(matches!(entering.await.unwrap().unwrap(), Entered::Granted { fence: 30 }));
    for list in &lists {
        let other = [node(TicketId::random(), 1), node(waiter, 2)];
        let line = if list.path.ends_with("/a") { &other[..] } else { &[] };
        client.answer(list, &names(line)).await;
    }
    // The waiting ticket looks at the node before it and at the head; it still watches its own node.
    answer_reads(&mut client, 2).await;
    polling.await.unwrap().unwrap();
    let place = enter(session, late, "b").place;
    let (left, ()) = join!(store.leave(Leave { place, keep: None, stray: false }), async {
        let delete = client.expect("delete").await;
        client.answer(&delete, &[]).await;
    });
    assert_eq!(left.unwrap(), Left::Released);
}

#[tokio::test]
async fn a_session_ends_when_the_next_server_grants_a_shorter_timeout() {
    let server = Server::start().await;
    let (store, session, client) = server.store().await;
    drop(client);
    let renewals = async {
        // The first one may find the connection just broken.
        let first = store.renew(session).await;
        if first.is_err() { store.renew(session).await } else { first }
    };
    let (renewed, _guest) = join!(renewals, server.accept(TIMEOUT / 2));
    assert_eq!(renewed.unwrap(), Renewal::Lost);
}

/// Only a majority can prolong a session, and a server that throttles has asked no other one.
#[tokio::test]
async fn a_throttled_renewal_does_not_count() {
    let server = Server::start().await;
    let (store, session, mut client) = server.store().await;
    let (renewed, ()) = join!(store.renew(session), async {
        let (write, own) = (client.expect("multi").await, client.expect("ephemerals").await);
        client.refuse(&write, -127).await;
        client.answer(&own, &names::<&str>(&[])).await;
    });
    assert!(renewed.is_err());
    let (renewed, ()) = join!(store.renew(session), async {
        let (write, own) = (client.expect("multi").await, client.expect("ephemerals").await);
        client.answer(&write, &checked()).await;
        client.answer(&own, &names::<&str>(&[])).await;
    });
    assert!(matches!(renewed.unwrap(), Renewal::Renewed { .. }));
}

#[tokio::test]
async fn a_close_that_was_not_answered_can_be_repeated() {
    let server = Server::start().await;
    let (store, session, mut client) = server.store().await;
    let (closed, ()) = join!(store.close(session), async {
        client.expect("close").await;
        drop(client);
    });
    assert_eq!(closed.unwrap_err().outcome, Outcome::Unknown);
    let (closed, ()) = join!(store.close(session), async {
        let mut client = server.accept(TIMEOUT).await;
        let close = client.expect("close").await;
        client.answer(&close, &[]).await;
    });
    closed.unwrap();
}

/// Its withdrawal was not answered, so its capacity is checked again.
#[tokio::test]
async fn a_ticket_of_another_capacity_is_refused_again_when_it_enters_again() {
    let server = Server::start().await;
    let (store, session, mut client) = server.store().await;
    let (ticket, other) = (TicketId::random(), TicketId::random());
    let mode = Mode::Permits { weight: 1, of: 4 };
    let ask = Enter { mode, ..enter(session, ticket, "a") };
    let permit = |id, weight: u32, of: u32, number: u32| {
        node(id, number).replace("-lock-", &format!("-{weight}-of-{of}-permits-"))
    };
    let line = [permit(other, 1, 3, 1), permit(ticket, 1, 4, 2)];
    let own = format!("/lockkeeper/lines/a/{}", line[1]);
    let (entered, ()) = join!(store.enter(ask.clone()), async {
        answer_enter(&mut client, &own, 20, &line).await;
        client.expect("delete").await;
        drop(client);
    });
    assert_eq!(entered.unwrap_err().outcome, Outcome::Unknown);
    let (entered, ()) = join!(store.enter(ask), async {
        let mut client = server.accept(TIMEOUT).await;
        let list = client.expect("list").await;
        client.answer(&list, &names(&line)).await;
        let delete = client.expect("delete").await;
        assert_eq!(delete.path, own);
        client.answer(&delete, &[]).await;
    });
    assert_eq!(entered.unwrap_err().kind, ErrorKind::Capacity(3));
}

fn zk_session(server: &Server) -> Session {
    let ensemble = Config::read(server.url()).unwrap().ensemble;
    Session::new(&ensemble, OnExpiry::Stop, Duration::from_secs(90), SHORT, Arc::new(|_| {}))
}

/// Long enough for a handshake to arrive, short enough to wait for.
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn callers_share_an_attempt_to_connect_that_fails() {
    let server = Server::start().await;
    let zk = Arc::new(zk_session(&server));
    let asks: Vec<_> = (0..20)
        .map(|_| {
            let zk = Arc::clone(&zk);
            tokio::spawn(async move { zk.connect().await.map(drop) })
        })
        .collect();
    let silent = tokio::spawn(async move {
        let mut attempts = Vec::new();
        loop {
            attempts.push(server.accept_unanswered().await);
            assert!(attempts.len() <= 4, "each caller makes an attempt of its own");
        }
    });
    for ask in asks {
        assert!(ask.await.unwrap().is_err());
    }
    assert!(!silent.is_finished());
    silent.abort();
}

/// A handshake would prolong it.
#[tokio::test]
async fn a_session_that_was_dropped_is_not_connected_again() {
    let server = Server::start().await;
    let zk = zk_session(&server);
    let (connected, client) = join!(zk.connect(), server.accept(TIMEOUT));
    let number = connected.unwrap();
    drop(client);
    zk.broken(number).await;
    let again = zk.connect();
    tokio::select! {
        _ = again => panic!("the server has not answered"),
        attempt = server.accept_unanswered() => {
            drop(zk);
            // The attempt fails, and goes on in its own task.
            drop(attempt);
        }
    }
    let more = crate::clock::timeout(SHORT * 3, server.accept_unanswered()).await;
    assert!(more.is_err(), "it connects again");
}

#[derive(Default)]
struct Heard(Mutex<Vec<TicketId>>);

impl Hints for Heard {
    fn granted(&self, _: TicketId, _: u64) {}
    fn ended(&self, _: TicketId) {}
    fn freed(&self, _: &Name) {}
    fn recheck(&self, ticket: Option<TicketId>) {
        self.0.lock().unwrap().extend(ticket);
    }
}

/// A table of watches, and the hints that it gives.
fn watch_table() -> (WatchTable, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let hints = HintSink::default();
    *hints.lock() = Some(heard.clone());
    (WatchTable::new(hints), heard)
}

#[test]
fn a_watcher_that_names_an_older_connection_keeps_the_watches_of_the_newer() {
    let ((watches, heard), one, two) = (watch_table(), TicketId::random(), TicketId::random());
    assert!(watches.add(8, "/one", Watcher::Ticket(one)));
    assert!(watches.add(7, "/two", Watcher::Ticket(two)));
    watches.fired("/one");
    watches.fired("/two");
    assert_eq!(*heard.0.lock().unwrap(), [one, two]);
}

/// The node that they watched may stay for long after one of several blockers has gone.
#[tokio::test]
async fn a_ticket_that_waits_no_more_gets_no_hints() {
    let ((watches, heard), ttl) = (watch_table(), Duration::from_secs(60));
    let zk = zk_session(&Server::start().await);
    let terms = Terms::new(ttl, Duration::ZERO);
    let shard = Shard::new(terms, zk, Arc::new(watches), Moment::NEVER);
    let [granted, gone, waits] = [(); 3].map(|()| TicketId::random());
    for ticket in [granted, gone, waits] {
        shard.add(&name("a"), "/a", ticket);
        shard.set_watched(ticket, &["/a/1".to_owned()]);
        assert!(shard.watches.add(1, "/a/1", Watcher::Ticket(ticket)));
    }
    shard.set_granted(granted);
    shard.forget(gone);
    shard.watches.fired("/a/1");
    assert_eq!(*heard.0.lock().unwrap(), [waits]);
}
