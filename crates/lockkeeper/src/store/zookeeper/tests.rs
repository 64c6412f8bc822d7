//! What becomes of answers that are lost, late or old. A real server gives such answers only once in
//! a long while, so here one is told what to say.

use super::{
    Zookeeper,
    link::{Lasting, Link},
    lives::{Life, Watcher},
    plan::Plan,
    scripted::{Ask, Guest, SESSION, Server, TIMEOUT, checked, created, data, names, stat},
};
use crate::{
    clock::Moment,
    error::{ErrorKind, Outcome},
    model::{
        name::Name,
        ticket::{Mode, Owner, Place, SessionId, TicketId},
    },
    store::{
        Enter, Entered, Hints, Leave, Left, Manner, Open, PollScope, Renewal, Store as _, Terms,
    },
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
async fn let_in(guest: &mut Guest, path: &str, czxid: i64, line: &[String]) {
    let (create, list) = (guest.expect("create").await, guest.expect("list").await);
    guest.answer(&create, &created(path, czxid)).await;
    guest.answer(&list, &names(line)).await;
}

/// Answers what a waiting ticket looks at: who is before it, itself, and the head of the line.
async fn let_wait(guest: &mut Guest) {
    let_look(guest, 3).await;
}

async fn let_look(guest: &mut Guest, times: usize) {
    let mut asks: Vec<Ask> = Vec::new();
    for _ in 0..times {
        asks.push(guest.expect("data").await);
    }
    for ask in &asks {
        guest.answer(ask, &data(b"", 1)).await;
    }
}

/// Enters a line, is granted by a list, and leaves; the node has this number.
async fn come_and_go(store: &Zookeeper, session: SessionId, guest: &mut Guest, number: u32) {
    let ticket = TicketId::random();
    let ask = enter(session, ticket, "a");
    let place = ask.place.clone();
    let (entered, ()) = join!(store.enter(ask), async {
        let line = [node(ticket, number)];
        let_in(guest, &path("a", ticket, number), 100, &line).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Granted { fence: 100 }));
    let (left, ()) = join!(store.leave(Leave { place, keep: None, stray: false }), async {
        let delete = guest.expect("delete").await;
        guest.answer(&delete, &[]).await;
    });
    assert_eq!(left.unwrap(), Left::Released);
}

/// Others can remove a line, make it anew and come to any number, all in one write.
#[tokio::test]
async fn a_ticket_with_the_very_next_number_is_not_granted_without_a_list() {
    let server = Server::start().await;
    let (store, session, mut guest) = server.store().await;
    come_and_go(&store, session, &mut guest, 7).await;
    let (ticket, other) = (TicketId::random(), TicketId::random());
    let (entered, ()) = join!(store.enter(enter(session, ticket, "a")), async {
        let line = [node(other, 7), node(ticket, 8)];
        let_in(&mut guest, &path("a", ticket, 8), 102, &line).await;
        let_wait(&mut guest).await;
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

/// A server that answers once a majority has its first copy of a creation, after the second was sent.
#[tokio::test]
async fn a_ticket_that_was_created_twice_holds_by_the_node_that_it_knows() {
    let server = Server::start().await;
    let (store, session, mut guest) = server.store().await;
    let (ticket, other) = (TicketId::random(), TicketId::random());
    let line = [node(ticket, 1), node(other, 2), node(ticket, 3)];
    let (entered, ()) = join!(store.enter(enter(session, ticket, "a")), async {
        let_in(&mut guest, &path("a", ticket, 3), 30, &line).await;
        let_wait(&mut guest).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Queued(wait) if wait.ahead == 2));
}

/// Enters, and loses the connection before the creation is answered.
async fn lose_creation(store: &Zookeeper, ask: Enter, mut guest: Guest) {
    let (entered, ()) = join!(store.enter(ask), async {
        guest.expect("create").await;
        guest.expect("list").await;
        drop(guest);
    });
    assert_eq!(entered.unwrap_err().outcome, Outcome::Unknown);
}

#[tokio::test]
async fn a_creation_that_was_not_answered_is_looked_for_behind_all_writes_under_way() {
    let server = Server::start().await;
    let (store, session, guest) = server.store().await;
    let ticket = TicketId::random();
    lose_creation(&store, enter(session, ticket, "a"), guest).await;
    let (entered, ()) = join!(store.enter(enter(session, ticket, "a")), async {
        let mut guest = server.guest(TIMEOUT).await;
        let (sync, list) = (guest.expect("sync").await, guest.expect("list").await);
        guest.answer(&sync, &[]).await;
        guest.answer(&list, &names(&[node(ticket, 1)])).await;
        let exists = guest.expect("exists").await;
        guest.answer(&exists, &stat(10, SESSION)).await;
    });
    assert!(matches!(entered.unwrap(), Entered::Granted { fence: 10 }));
}

/// A poll lists a line while one of its tickets is being created; the list is looked at only later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_list_does_not_make_a_ticket_that_came_since_forgotten() {
    let server = Server::start().await;
    let (store, session, mut guest) = server.store().await;
    let store = Arc::new(store);
    let (holder, waiter, late) = (TicketId::random(), TicketId::random(), TicketId::random());
    let line = [node(holder, 1), node(waiter, 2)];
    let (waiting, ()) = join!(store.enter(enter(session, waiter, "a")), async {
        let_in(&mut guest, &path("a", waiter, 2), 20, &line).await;
        let_wait(&mut guest).await;
    });
    assert!(matches!(waiting.unwrap(), Entered::Queued(_)));
    let entering = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.enter(enter(session, late, "b")).await }
    });
    let (create, list) = (guest.expect("create").await, guest.expect("list").await);
    let polling = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.poll(session, PollScope::All).await }
    });
    let own = guest.expect("ephemerals").await;
    guest.refuse(&create, -101).await;
    guest.refuse(&list, -101).await;
    let again =
        [guest.expect("container").await, guest.expect("create").await, guest.expect("list").await];
    guest.answer(&own, &names(&[path("a", waiter, 2)])).await;
    let lists = [guest.expect("list").await, guest.expect("list").await];
    guest.answer(&again[0], &created("/lockkeeper/lines/b", 1)).await;
    guest.answer(&again[1], &created(&path("b", late, 0), 30)).await;
    guest.answer(&again[2], &names(&[node(late, 0)])).await;
    assert!(matches!(entering.await.unwrap().unwrap(), Entered::Granted { fence: 30 }));
    for list in &lists {
        let other = [node(TicketId::random(), 1), node(waiter, 2)];
        let line = if list.path.ends_with("/a") { &other[..] } else { &[] };
        guest.answer(list, &names(line)).await;
    }
    // It still watches itself.
    let_look(&mut guest, 2).await;
    polling.await.unwrap().unwrap();
    let place = enter(session, late, "b").place;
    let (left, ()) = join!(store.leave(Leave { place, keep: None, stray: false }), async {
        let delete = guest.expect("delete").await;
        guest.answer(&delete, &[]).await;
    });
    assert_eq!(left.unwrap(), Left::Released);
}

#[tokio::test]
async fn a_session_that_is_kept_for_less_than_before_is_over() {
    let server = Server::start().await;
    let (store, session, guest) = server.store().await;
    drop(guest);
    let renewals = async {
        // The first one may find the connection just broken.
        let first = store.renew(session).await;
        if first.is_err() { store.renew(session).await } else { first }
    };
    let (renewed, _guest) = join!(renewals, server.guest(TIMEOUT / 2));
    assert_eq!(renewed.unwrap(), Renewal::Lost);
}

/// Only a majority can prolong a session; a server that is too busy has asked nobody.
#[tokio::test]
async fn a_renewal_that_was_turned_away_is_none() {
    let server = Server::start().await;
    let (store, session, mut guest) = server.store().await;
    let (renewed, ()) = join!(store.renew(session), async {
        let (write, own) = (guest.expect("multi").await, guest.expect("ephemerals").await);
        guest.refuse(&write, -127).await;
        guest.answer(&own, &names::<&str>(&[])).await;
    });
    assert!(renewed.is_err());
    let (renewed, ()) = join!(store.renew(session), async {
        let (write, own) = (guest.expect("multi").await, guest.expect("ephemerals").await);
        guest.answer(&write, &checked()).await;
        guest.answer(&own, &names::<&str>(&[])).await;
    });
    assert!(matches!(renewed.unwrap(), Renewal::Renewed { .. }));
}

#[tokio::test]
async fn a_close_that_was_not_answered_can_be_repeated() {
    let server = Server::start().await;
    let (store, session, mut guest) = server.store().await;
    let (closed, ()) = join!(store.close(session), async {
        guest.expect("close").await;
        drop(guest);
    });
    assert_eq!(closed.unwrap_err().outcome, Outcome::Unknown);
    let (closed, ()) = join!(store.close(session), async {
        let mut guest = server.guest(TIMEOUT).await;
        let close = guest.expect("close").await;
        guest.answer(&close, &[]).await;
    });
    closed.unwrap();
}

/// Its withdrawal was not answered; so it is asked again whether it may stay.
#[tokio::test]
async fn a_ticket_of_another_capacity_does_not_slip_in_when_it_comes_again() {
    let server = Server::start().await;
    let (store, session, mut guest) = server.store().await;
    let (ticket, other) = (TicketId::random(), TicketId::random());
    let mode = Mode::Permits { weight: 1, of: 4 };
    let ask = Enter { mode, ..enter(session, ticket, "a") };
    let permit = |id, weight: u32, of: u32, number: u32| {
        node(id, number).replace("-lock-", &format!("-{weight}-of-{of}-permits-"))
    };
    let line = [permit(other, 1, 3, 1), permit(ticket, 1, 4, 2)];
    let own = format!("/lockkeeper/lines/a/{}", line[1]);
    let (entered, ()) = join!(store.enter(ask.clone()), async {
        let_in(&mut guest, &own, 20, &line).await;
        guest.expect("delete").await;
        drop(guest);
    });
    assert_eq!(entered.unwrap_err().outcome, Outcome::Unknown);
    let (entered, ()) = join!(store.enter(ask), async {
        let mut guest = server.guest(TIMEOUT).await;
        let list = guest.expect("list").await;
        guest.answer(&list, &names(&line)).await;
        let delete = guest.expect("delete").await;
        assert_eq!(delete.path, own);
        guest.answer(&delete, &[]).await;
    });
    assert_eq!(entered.unwrap_err().kind, ErrorKind::Capacity(3));
}

fn link(server: &Server, patience: Duration) -> Link {
    let plan = Arc::new(Plan::read(server.url()).unwrap());
    Link::new(&plan, Lasting::WithItsSession, Duration::from_secs(90), patience, Arc::new(|_| {}))
}

/// Long enough for a hello to come, short enough to wait for.
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn callers_share_an_attempt_to_connect_that_fails() {
    let server = Server::start().await;
    let link = Arc::new(link(&server, SHORT));
    let asks: Vec<_> = (0..20)
        .map(|_| {
            let link = Arc::clone(&link);
            tokio::spawn(async move { link.connect().await.map(drop) })
        })
        .collect();
    let silent = tokio::spawn(async move {
        let mut callers = Vec::new();
        loop {
            callers.push(server.caller().await);
            assert!(callers.len() <= 4, "everybody tries for himself");
        }
    });
    for ask in asks {
        assert!(ask.await.unwrap().is_err());
    }
    assert!(!silent.is_finished());
    silent.abort();
}

/// A hello would prolong it.
#[tokio::test]
async fn a_session_that_was_given_up_says_nothing_more() {
    let server = Server::start().await;
    let link = link(&server, SHORT);
    let (connected, guest) = join!(link.connect(), server.guest(TIMEOUT));
    let number = connected.unwrap();
    drop(guest);
    link.broken(number).await;
    let again = link.connect();
    tokio::select! {
        _ = again => panic!("nobody answers"),
        caller = server.caller() => {
            drop(link);
            // The attempt goes on without anybody who waits for it.
            drop(caller);
        }
    }
    let more = tokio::time::timeout(SHORT * 3, server.caller()).await;
    assert!(more.is_err(), "it says hello again");
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

/// A life without a server, and what it hears.
async fn life() -> (Life, Arc<Heard>) {
    let (session, lock_delay) = (SessionId::random(), Duration::ZERO);
    let ttl = Duration::from_secs(60);
    let open = Open { session, ttl, lock_delay, owner: Owner::default() };
    let link = link(&Server::start().await, SHORT);
    let life = Life::new(open, Terms::new(ttl, lock_delay), link, Moment::NEVER);
    let heard = Arc::new(Heard::default());
    life.state().sink = Some(heard.clone());
    (life, heard)
}

#[tokio::test]
async fn one_who_thinks_of_an_older_connection_keeps_the_watches_of_the_newer() {
    let ((life, heard), one, two) = (life().await, TicketId::random(), TicketId::random());
    assert!(life.watch(8, "/one", Watcher::Ticket(one)));
    assert!(life.watch(7, "/two", Watcher::Ticket(two)));
    life.hear("/one");
    life.hear("/two");
    assert_eq!(*heard.0.lock().unwrap(), [one, two]);
}

/// Of several who keep it out one has gone, and the others may stay for long.
#[tokio::test]
async fn one_who_waits_no_more_is_told_nothing() {
    let (life, heard) = life().await;
    let [granted, gone, waits] = [(); 3].map(|()| TicketId::random());
    for ticket in [granted, gone, waits] {
        life.begin(&name("a"), "/a", ticket);
        life.waits_for(ticket, &["/a/1".to_owned()]);
        assert!(life.watch(1, "/a/1", Watcher::Ticket(ticket)));
    }
    life.granted(granted);
    life.forget(gone);
    life.hear("/a/1");
    assert_eq!(*heard.0.lock().unwrap(), [waits]);
}
