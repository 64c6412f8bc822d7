//! How many requests a lock costs, and who is woken by them.

use crate::{keeper, until_length};
use lockkeeper::{Guard, Keeper};
use servers::Running;
use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    time::Duration,
};
use testkit::{
    taker::Taker,
    world::{eventually, soon},
};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};

testkit::tests! {
    [servers::ETCD] =>
        a_lock_is_one_request_and_its_release_another,
        a_try_on_a_busy_name_is_one_request_and_leaves_nothing,
        a_hand_over_is_one_read,
        in_a_line_a_lock_passes_on_without_a_read,
        a_withdrawn_ticket_is_never_granted,
        however_many_wait_in_eight_processes_a_release_wakes_one,
        ten_thousand_locks_are_kept_by_one_lease;
}

/// What the server has counted: requests and messages by method, and other numbers by name.
pub(crate) fn counted(server: &Running) -> HashMap<String, u64> {
    let mut member =
        TcpStream::connect((Ipv4Addr::LOCALHOST, server.ports()[0])).expect("it is up");
    member.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it listens");
    let mut text = String::new();
    member.read_to_string(&mut text).expect("it answers");
    text.lines().filter_map(count).collect()
}

/// `grpc_server_started_total{grpc_method="Txn",…} 12` and `etcd_debugging_mvcc_watcher_total 3`
fn count(line: &str) -> Option<(String, u64)> {
    let (name, value) = line.rsplit_once(' ')?;
    let value = value.parse::<f64>().ok()? as u64;
    let Some((metric, labels)) = name.split_once('{') else { return Some((name.into(), value)) };
    let method = labels.split("grpc_method=\"").nth(1)?.split('"').next()?;
    let kind = match metric {
        "grpc_server_started_total" => "",
        "grpc_server_msg_received_total" => "messages of ",
        "grpc_server_msg_sent_total" => "answers of ",
        _ => return None,
    };
    Some((format!("{kind}{method}"), value))
}

/// How many requests of each kind were made meanwhile, those that were made at all.
fn since(server: &Running, before: &HashMap<String, u64>) -> HashMap<String, u64> {
    let of = |name: &str| before.get(name).copied().unwrap_or(0);
    let grown = counted(server).into_iter().map(|(name, n)| (name.clone(), n - of(&name).min(n)));
    grown.filter(|(name, n)| *n > 0 && METHODS.contains(&name.as_str())).collect()
}

const METHODS: [&str; 8] = [
    "Txn",
    "Range",
    "Put",
    "DeleteRange",
    "LeaseGrant",
    "LeaseRevoke",
    "LeaseTimeToLive",
    "LeaseKeepAlive",
];

/// The cost of what `work` does. A renewal or a safety poll may fall into it, so the cheapest of several
/// times counts.
async fn cost(server: &Running, mut work: impl AsyncFnMut()) -> HashMap<String, u64> {
    let mut least: Option<HashMap<String, u64>> = None;
    for _ in 0..8 {
        let before = counted(server);
        work().await;
        let cost = since(server, &before);
        let sum = |cost: &HashMap<String, u64>| cost.values().sum::<u64>();
        if least.as_ref().is_none_or(|least| sum(&cost) < sum(least)) {
            least = Some(cost);
        }
    }
    least.unwrap_or_default()
}

fn requests(of: &[(&str, u64)]) -> HashMap<String, u64> {
    of.iter().map(|(method, n)| ((*method).to_owned(), *n)).collect()
}

async fn a_lock_is_one_request_and_its_release_another(server: Running) {
    let keeper = keeper(&server).await;
    keeper.lock("a").await.expect("free").release().await.expect("released");
    let pair = async || keeper.lock("a").await.expect("free").release().await.expect("released");
    assert_eq!(cost(&server, pair).await, requests(&[("Txn", 2)]));
    let guard = keeper.lock("b").await.expect("free");
    let write = async || guard.write(b"x".to_vec()).await.expect("held");
    assert_eq!(cost(&server, write).await, requests(&[("Txn", 1)]));
    let sequencer = guard.sequencer();
    let check = async || assert!(keeper.check(&sequencer).await.expect("an answer"));
    assert_eq!(cost(&server, check).await, requests(&[("Range", 1)]));
    keeper.close().await;
}

async fn a_try_on_a_busy_name_is_one_request_and_leaves_nothing(server: Running) {
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let _held = one.lock("a").await.expect("free");
    let _reader = one.rwlock("r").read().await.expect("free");
    let _permits = one.semaphore("s", 4).acquire(3).await.expect("free");
    drop(two.lock("else").try_now().await.expect("an answer").expect("free"));
    let keys = async || {
        let prefix = Keeper::list(&two, "").await.expect("a look");
        prefix.iter().map(|line| line.tickets.len()).sum::<usize>()
    };
    eventually("only what is held is left", async || keys().await == 3).await;
    let busy = requests(&[("Txn", 1)]);
    let lock = async || assert!(two.lock("a").try_now().await.expect("an answer").is_none());
    assert_eq!(cost(&server, lock).await, busy);
    let write =
        async || assert!(two.rwlock("r").write().try_now().await.expect("an answer").is_none());
    assert_eq!(cost(&server, write).await, busy);
    let gpu = two.semaphore("s", 4);
    let permits = async || assert!(gpu.acquire(2).try_now().await.expect("an answer").is_none());
    assert_eq!(cost(&server, permits).await, busy);
    assert_eq!(keys().await, 3, "nothing was left");
    for keeper in [one, two] {
        keeper.close().await;
    }
}

/// A holder that was alone knows of no waiter to notify, so the next one reads once.
async fn a_hand_over_is_one_read(server: Running) {
    let keepers = [keeper(&server).await, keeper(&server).await];
    let mut held = keepers[0].lock("a").await.expect("free");
    let mut costs = Vec::new();
    for round in 1..9 {
        let next = tokio::spawn(keepers[round % 2].lock("a").into_future());
        until_length(&keepers[0], "a", 2).await;
        // A keeper that has waited once watches its inbox from then on.
        let inboxes = if round == 1 { 1 } else { 2 };
        eventually("it watches its predecessor", async || {
            counted(&server)["etcd_debugging_mvcc_watcher_total"] == inboxes + 1
        })
        .await;
        let before = counted(&server);
        held.release().await.expect("released");
        held = soon("the grant", next).await.expect("no panic").expect("granted");
        costs.push(since(&server, &before));
    }
    let wanted = requests(&[("Txn", 1), ("Range", 1)]);
    assert!(costs.contains(&wanted), "never one release and one read: {costs:?}");
}

/// A line of keepers, each of which waits behind the one before.
async fn queue(server: &Running, ahead: &Keeper, count: usize) -> Vec<(Keeper, Next)> {
    let mut line = Vec::new();
    for at in 0..count {
        let waiter = keeper(server).await;
        let next = tokio::spawn(waiter.lock("a").into_future());
        line.push((waiter, next));
        until_length(ahead, "a", at + 2).await;
    }
    line
}

type Next = JoinHandle<lockkeeper::Result<Guard>>;

/// However many wait, the one that is granted the lock hears of it, and no other stirs. It watches its
/// predecessor and itself; its session watches its mailbox.
async fn in_a_line_a_lock_passes_on_without_a_read(server: Running) {
    let holder = keeper(&server).await;
    let mut held = holder.lock("a").await.expect("free");
    let mut line = queue(&server, &holder, 30).await;
    eventually("all watch", async || {
        counted(&server)["etcd_debugging_mvcc_watcher_total"] == 2 * 30
    })
    .await;
    let mut costs = Vec::new();
    for (_keeper, next) in line.iter_mut().take(12) {
        let before = counted(&server);
        held.release().await.expect("released");
        held = soon("the grant", next).await.expect("no panic").expect("granted");
        costs.push(since(&server, &before));
    }
    let wanted = requests(&[("Txn", 1)]);
    assert!(costs.contains(&wanted), "never a release alone: {costs:?}");
    let watchers = counted(&server)["etcd_debugging_mvcc_watcher_total"];
    assert!(watchers <= 2 * 30, "{watchers} watches");
}

/// The holder knows who stands behind it. Of them one gives up, one is evicted, and the session of one
/// ends: none of that keeps the lock from those behind.
async fn a_withdrawn_ticket_is_never_granted(server: Running) {
    let holder = keeper(&server).await;
    let first = holder.lock("a").await.expect("free");
    let mut line = queue(&server, &holder, 7).await;
    first.release().await.expect("released");
    let mut fence = 0;
    for leaves in 0..3 {
        let (_keeper, next) = line.remove(0);
        let held = soon("the grant", next).await.expect("no panic").expect("granted");
        assert!(held.fence() > fence);
        fence = held.fence();
        let (keeper, next) = line.remove(0);
        let ticket = {
            let line = holder.get("a").await.expect("a look").expect("a line");
            line.tickets[1].id
        };
        match leaves {
            0 => next.abort(),
            1 => {
                assert!(holder.evict("a", ticket).await.expect("an answer"));
                // It enters again, as the last one.
                line.push((keeper.clone(), next));
            }
            _ => soon("the end", keeper.close()).await,
        }
        eventually("it has left", async || {
            let line = holder.get("a").await.expect("a look").expect("a line");
            line.tickets.iter().all(|other| other.id != ticket)
        })
        .await;
        held.release().await.expect("released");
    }
    for (_keeper, next) in line {
        let held = soon("the grant", next).await.expect("no panic").expect("granted");
        assert!(held.fence() > fence);
        fence = held.fence();
        held.release().await.expect("released");
    }
}

/// A process in which many keepers wait, each with its own session and its own ticket.
struct Crowd {
    orders: mpsc::UnboundedSender<&'static str>,
    said: mpsc::UnboundedReceiver<String>,
}

impl Crowd {
    async fn start(server: &Running, size: usize) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_taker"));
        let ttl = Duration::from_secs(60);
        let mut taker = Taker::at(program, server.url(), ttl, Duration::ZERO).await;
        taker.tell(&format!("crowd a {size}")).await;
        let (orders, mut ordered) = mpsc::unbounded_channel();
        let (say, said) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    line = taker.line() => drop(say.send(line)),
                    order = ordered.recv() => match order {
                        Some(order) => taker.tell(order).await,
                        None => return,
                    },
                }
            }
        });
        Self { orders, said }
    }
}

/// Who of them says something next, and that it is a grant.
async fn granted(crowds: &mut [Crowd]) -> usize {
    let mut who = None;
    eventually("one is granted", async || {
        who = crowds.iter_mut().position(|crowd| match crowd.said.try_recv() {
            Ok(line) if line.starts_with("granted") => true,
            Ok(line) => {
                assert_eq!(line, "released");
                false
            }
            Err(_) => false,
        });
        who.is_some()
    })
    .await;
    who.expect("it was found")
}

/// Eight processes, with a hundred tickets in line each if `LOCKKEEPER_CROWD` is 100. What a release
/// makes the server say by its watches is counted, which is one event, one letter and that two watches
/// have ended: waiters who look again by themselves do not disturb that.
async fn however_many_wait_in_eight_processes_a_release_wakes_one(server: Running) {
    let size = std::env::var("LOCKKEEPER_CROWD").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let holder = keeper(&server).await;
    let held = holder.lock("a").await.expect("free");
    let mut crowds = Vec::new();
    for _ in 0..8 {
        crowds.push(Crowd::start(&server, size).await);
    }
    until_length(&holder, "a", 8 * size + 1).await;
    eventually("all watch", async || {
        counted(&server)["etcd_debugging_mvcc_watcher_total"] == 2 * 8 * size as u64
    })
    .await;
    held.release().await.expect("released");
    let mut at = granted(&mut crowds).await;
    let mut heard = Vec::new();
    for _ in 0..15 {
        let before = counted(&server)["answers of Watch"];
        crowds[at].orders.send("release").expect("it runs");
        at = granted(&mut crowds).await;
        let more = crowds.iter_mut().filter_map(|crowd| crowd.said.try_recv().ok());
        assert!(more.filter(|line| line != "released").count() == 0, "two at once");
        heard.push(counted(&server)["answers of Watch"] - before);
    }
    heard.sort_unstable();
    assert!(
        heard[heard.len() / 2] <= 4,
        "{} wait, and a release is told {heard:?} times",
        8 * size
    );
}

async fn ten_thousand_locks_are_kept_by_one_lease(server: Running) {
    let ttl = Duration::from_secs(9);
    let keeper = Keeper::builder().ttl(ttl).connect(server.url()).await.expect("it answers");
    let mut tasks = JoinSet::new();
    for task in 0..50 {
        let keeper = keeper.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for i in 0..200 {
                let name = format!("name {task} {i}");
                guards.push(keeper.lock(name).try_now().await.expect("an answer").expect("free"));
            }
            guards
        });
    }
    let guards: Vec<Guard> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(guards.len(), 10_000);
    let before = counted(&server);
    let renewals = || since(&server, &before).get("LeaseKeepAlive").copied().unwrap_or(0);
    eventually("three renewals", async || renewals() >= 3).await;
    let messages = |counts: &HashMap<String, u64>| counts["messages of LeaseKeepAlive"];
    let sent = messages(&counted(&server)) - messages(&before);
    // A renewal may have begun after the others were counted.
    assert!(sent <= renewals() + 1, "{sent} keep-alives in {} renewals", renewals());
    assert!(guards.iter().all(Guard::is_held));
    soon("the end", keeper.close()).await;
}
