//! What only a real etcd can show: how many requests a lock costs, and how its own clients and ours
//! stand in one line.

use lockkeeper::{Guard, Keeper};
use servers::Running;
use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    process::Stdio,
    time::Duration,
};
use testkit::{
    live::start,
    taker::Taker,
    world::{eventually, soon},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};

async fn keeper(server: &Running) -> Keeper {
    Keeper::builder()
        .ttl(Duration::from_secs(30))
        .connect(server.url())
        .await
        .expect("the server answers")
}

/// What the server has counted: requests and messages by method, and other numbers by name.
fn counted(server: &Running) -> HashMap<String, u64> {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_one_request_and_its_release_another() {
    let Some(server) = start(servers::ETCD) else { return };
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_on_a_busy_name_is_one_request_and_leaves_nothing() {
    let Some(server) = start(servers::ETCD) else { return };
    let (one, two) = (keeper(&server).await, keeper(&server).await);
    let _held = one.lock("a").await.expect("free");
    let _reader = one.rwlock("r").read().await.expect("free");
    let _permits = one.semaphore("s", 4).acquire(3).await.expect("free");
    drop(two.lock("else").try_now().await.expect("an answer").expect("free"));
    let keys = async || {
        let prefix = Keeper::look(&two, "").await.expect("a look");
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

/// Who held the lock before anybody came knows of nobody, so the next one reads once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_one_read() {
    let Some(server) = start(servers::ETCD) else { return };
    let keepers = [keeper(&server).await, keeper(&server).await];
    let mut held = keepers[0].lock("a").await.expect("free");
    let mut costs = Vec::new();
    for round in 1..9 {
        let next = tokio::spawn(keepers[round % 2].lock("a").into_future());
        until_length(&keepers[0], "a", 2).await;
        // Who has waited once watches its mailbox from then on.
        let mailboxes = if round == 1 { 1 } else { 2 };
        eventually("it watches its predecessor and itself", async || {
            counted(&server)["etcd_debugging_mvcc_watcher_total"] == mailboxes + 2
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

/// However many wait, the one whose turn it is hears of it, and nobody else stirs. It watches its
/// predecessor and itself; its session watches its mailbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_line_a_lock_passes_on_without_a_read() {
    let Some(server) = start(servers::ETCD) else { return };
    let holder = keeper(&server).await;
    let mut held = holder.lock("a").await.expect("free");
    let mut line = queue(&server, &holder, 30).await;
    eventually("all watch", async || {
        counted(&server)["etcd_debugging_mvcc_watcher_total"] == 3 * 30
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
    assert!(watchers <= 3 * 30, "{watchers} watches");
}

/// The holder knows who stands behind it. Of them one gives up, one is evicted, and the session of one
/// ends: none of that keeps the lock from those behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_left_the_line_is_not_passed_the_lock() {
    let Some(server) = start(servers::ETCD) else { return };
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
            let line = holder.look_at("a").await.expect("a look").expect("a line");
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
            let line = holder.look_at("a").await.expect("a look").expect("a line");
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_wait_in_eight_processes_a_release_wakes_one() {
    let Some(server) = start(servers::ETCD) else { return };
    let size = std::env::var("LOCKKEEPER_CROWD").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let holder = keeper(&server).await;
    let held = holder.lock("a").await.expect("free");
    let mut crowds = Vec::new();
    for _ in 0..8 {
        crowds.push(Crowd::start(&server, size).await);
    }
    until_length(&holder, "a", 8 * size + 1).await;
    eventually("all watch", async || {
        counted(&server)["etcd_debugging_mvcc_watcher_total"] == 3 * 8 * size as u64
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_locks_are_kept_by_eleven_leases() {
    let Some(server) = start(servers::ETCD) else { return };
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
    assert!(sent <= 11 * (renewals() + 1), "{sent} keep-alives in {} renewals", renewals());
    assert!(guards.iter().all(Guard::is_held));
    soon("the end", keeper.close()).await;
}

/// Runs `etcdctl` to its end.
async fn etcdctl(server: &Running, words: &[&str]) {
    let output = Etcdctl::command(server).args(words).output().await.expect("etcdctl runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {words:?}: {said}");
}

async fn refusal(url: &str) -> String {
    match soon("an answer", Keeper::connect(url)).await {
        Ok(_) => panic!("{url} connects"),
        Err(e) => e.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_tls_knows_its_clients_by_their_certificates() {
    let Some(server) = start(servers::ETCD_TLS) else { return };
    let keeper = keeper(&server).await;
    let guard = keeper.lock("a").await.expect("free");
    guard.release().await.expect("released");
    keeper.close().await;
    let (plain, options) = server.url().split_once('?').expect("options");
    let ca = options.split('&').next().expect("an authority");
    refusal(plain).await;
    refusal(&format!("{plain}?{ca}")).await;
    refusal(&format!("{plain}?{}", options.replace("ca.pem", "stranger.pem"))).await;
}

/// With no more rights than over its own keys. A restart makes the server forget all tokens, and a new
/// one is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_few_rights_takes_locks_and_outlives_its_token() {
    let Some(mut server) = start(servers::ETCD) else { return };
    for words in [
        "user add root:top",
        "user grant-role root root",
        "role add locks",
        "role grant-permission locks --prefix=true readwrite lockkeeper/",
        "user add keeper:secret",
        "user grant-role keeper locks",
        "auth enable",
    ] {
        etcdctl(&server, &words.split(' ').collect::<Vec<_>>()).await;
    }
    let url = |user: &str| server.url().replace("//", &format!("//{user}"));
    assert!(refusal(&url("keeper:wrong@")).await.contains("authentication failed"));
    assert!(refusal(&url("")).await.contains("user name is empty"));
    let builder = || Keeper::builder().ttl(Duration::from_secs(30));
    let one = builder().connect(&url("keeper:secret@")).await.expect("it may");
    let two = builder().connect(&url("keeper:secret@")).await.expect("it may");
    let held = one.lock("a").await.expect("free");
    let waiter = tokio::spawn(two.lock("a").into_future());
    until_length(&one, "a", 2).await;
    server.kill().expect("killed");
    server.restart().expect("restarted");
    eventually("a renewal", async || held.extend(Duration::from_secs(20)).await.is_ok()).await;
    assert!(one.check(&held.sequencer()).await.expect("an answer"));
    held.write(b"mine".to_vec()).await.expect("held");
    held.release().await.expect("released");
    drop(soon("the waiter's turn", waiter).await.expect("no panic").expect("granted"));
}

/// The data comes back from a snapshot: locks, and revisions, may be those of an earlier time. Whoever
/// held something hears of its loss, and no lock is taken as if nothing had happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_restored_from_a_snapshot_is_noticed() {
    for token in ["etcd-cluster", "restored"] {
        let Some(mut server) = start(servers::ETCD) else { return };
        let first = keeper(&server).await;
        let snapshot = server.folder().join("snapshot").display().to_string();
        etcdctl(&server, &["snapshot", "save", &snapshot]).await;
        let held = first.lock("a").await.expect("free");
        for _ in 0..5 {
            first.lock("b").await.expect("free").release().await.expect("released");
        }
        server.stop().expect("stopped");
        let (data, peers) = (server.folder().join("etcd-1"), server.ports()[1]);
        std::fs::remove_dir_all(&data).expect("removed");
        let peers = format!("http://127.0.0.1:{peers}");
        let restore = [
            format!("--data-dir={}", data.display()),
            "--name=etcd-1".to_owned(),
            format!("--initial-cluster=etcd-1={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster-token={token}"),
        ];
        let mut words = vec!["snapshot", "restore", &snapshot];
        words.extend(restore.iter().map(String::as_str));
        etcdctl(&server, &words).await;
        server.restart().expect("restarted");
        // The first to ask may only hear that its session is over; whoever goes on hears why.
        let attempt = async || soon("an answer", first.lock("b").try_now()).await;
        assert!(attempt().await.is_err(), "as if nothing had happened");
        let refused = attempt().await.expect_err("not the cluster it was").to_string();
        assert!(refused.contains("restored"), "{refused}");
        // Also when the new cluster's revisions have passed the old ones.
        let other = keeper(&server).await;
        for _ in 0..20 {
            other.lock("b").await.expect("free").release().await.expect("released");
        }
        other.close().await;
        let refused = attempt().await.expect_err("still not the cluster it was").to_string();
        assert!(refused.contains("restored"), "{refused}");
        assert!(held.extend(Duration::from_secs(20)).await.is_err());
        soon("the loss", held.lost()).await;
    }
}

/// A real `etcdctl lock`, holding or waiting.
struct Etcdctl {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it runs reads from a pipe here, and ends when somebody writes into it.
    folder: tempfile::TempDir,
}

impl Etcdctl {
    fn command(server: &Running) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints=127.0.0.1:{}", server.ports()[0]));
        command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Takes the lock and says its revision; holds it until it is told to let go.
    fn lock(server: &Running, name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let script = format!("echo $ETCD_LOCK_REV; cat {} > /dev/null", pipe.display());
        let mut command = Self::command(server);
        command.args(["lock", "--", name, "sh", "-c", &script]);
        let mut child = command.spawn().expect("etcdctl runs");
        let lines = BufReader::new(child.stdout.take().expect("its words")).lines();
        Self { child, lines, folder }
    }

    async fn granted(&mut self) -> u64 {
        let line = soon("etcdctl's turn", self.lines.next_line()).await;
        line.expect("its words").expect("a revision").parse().expect("a number")
    }

    /// Ends what it runs, so that it unlocks.
    async fn release(mut self) {
        let pipe = self.folder.path().join("pipe");
        let written = tokio::task::spawn_blocking(|| std::fs::write(pipe, "")).await;
        written.expect("no panic").expect("it reads");
        let status = soon("etcdctl's end", self.child.wait()).await.expect("it ends");
        assert!(status.success(), "{status}");
    }
}

async fn raw(server: &Running) -> Keeper {
    let url = format!("{}?raw=true", server.url());
    let keeper = Keeper::builder().ttl(Duration::from_secs(30)).connect(&url).await;
    keeper.expect("the server answers")
}

async fn until_length(keeper: &Keeper, name: &str, wanted: usize) {
    eventually(&format!("{wanted} stand in the line"), async || {
        let line = keeper.look_at(name).await.expect("a look");
        line.map_or(0, |line| line.tickets.len()) == wanted
    })
    .await;
}

/// Theirs and ours take turns in the order in which they came, and the numbers of all grants grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_and_we_stand_in_one_line() {
    let Some(server) = start(servers::ETCD) else { return };
    let (one, two) = (raw(&server).await, raw(&server).await);
    let first = one.lock("jobs/a").await.expect("free");
    let mut numbers = vec![first.fence()];
    let mut second = Etcdctl::lock(&server, "jobs/a");
    until_length(&one, "jobs/a", 2).await;
    let third = tokio::spawn(two.lock("jobs/a").into_future());
    until_length(&one, "jobs/a", 3).await;
    let mut fourth = Etcdctl::lock(&server, "jobs/a");
    until_length(&one, "jobs/a", 4).await;

    first.release().await.expect("released");
    numbers.push(second.granted().await);
    assert!(one.lock("jobs/a").try_now().await.expect("an answer").is_none());
    assert!(!third.is_finished());
    let line = one.look_at("jobs/a").await.expect("a look").expect("a line");
    assert_eq!((line.holders().count(), line.waiters().count()), (1, 2));
    second.release().await;
    let third = soon("our turn", third).await.expect("no panic").expect("granted");
    numbers.push(third.fence());
    assert!(one.check(&third.sequencer()).await.expect("an answer"));
    third.release().await.expect("released");
    numbers.push(fourth.granted().await);
    fourth.release().await;
    let last = soon("the last one", one.lock("jobs/a").into_future()).await.expect("free");
    numbers.push(last.fence());
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    for keeper in [one, two] {
        keeper.close().await;
    }
}

/// A number in a file that checks nothing, only kept right by the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_and_we_count_right_together() {
    const OURS: usize = 4;
    const THEIRS: usize = 4;
    const TIMES: usize = 12;
    let Some(server) = start(servers::ETCD) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("number");
    std::fs::write(&file, "0\n").expect("written");
    let script = format!("n=$(cat {0}); sleep 0.002; echo $((n + 1)) > {0}", file.display());
    let mut tasks = JoinSet::new();
    for _ in 0..THEIRS {
        let mut commands: Vec<Command> = (0..TIMES).map(|_| Etcdctl::command(&server)).collect();
        let script = script.clone();
        tasks.spawn(async move {
            for command in &mut commands {
                let lock = ["lock", "--", "count", "sh", "-c", &script];
                let status = command.args(lock).stdout(Stdio::null()).status().await;
                assert!(status.expect("etcdctl runs").success());
            }
        });
    }
    for _ in 0..OURS {
        let (keeper, file) = (raw(&server).await, file.clone());
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let guard = keeper.lock("count").await.expect("granted");
                let number = read(&file);
                tokio::time::sleep(Duration::from_millis(2)).await;
                std::fs::write(&file, format!("{}\n", number + 1)).expect("written");
                guard.release().await.expect("released");
            }
            keeper.close().await;
        });
    }
    tasks.join_all().await;
    assert_eq!(read(&file), (OURS + THEIRS) * TIMES);
}

fn read(file: &Path) -> usize {
    std::fs::read_to_string(file).expect("read").trim().parse().expect("a number")
}

/// `etcdctl elect` and our election are one: each sees the other's candidate lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_sees_whom_we_elect() {
    let Some(server) = start(servers::ETCD) else { return };
    let keeper = raw(&server).await;
    let term = keeper.election("boss").campaign("we").await.expect("elected");
    let mut observer = Etcdctl::command(&server);
    let mut observer = observer.args(["elect", "-l", "boss"]).spawn().expect("etcdctl runs");
    let mut lines = BufReader::new(observer.stdout.take().expect("its words")).lines();
    let mut said = async |wanted: &str| {
        while let Some(line) = soon("a word", lines.next_line()).await.expect("its words") {
            if line == wanted {
                return;
            }
        }
        panic!("etcdctl ended");
    };
    said("we").await;
    term.proclaim("we, the new").await.expect("elected");
    said("we, the new").await;
    let mut candidate = Etcdctl::command(&server);
    let mut candidate = candidate.args(["elect", "boss", "they"]).spawn().expect("etcdctl runs");
    until_length(&keeper, "boss", 2).await;
    term.resign().await.expect("resigned");
    said("they").await;
    candidate.kill().await.expect("killed");
    observer.kill().await.expect("killed");
}
