//! etcd's own clients beside ours, and what a server asks of its clients.

use crate::{keeper, until_length};
use lockkeeper::Keeper;
use servers::Running;
use std::{path::Path, process::Stdio, time::Duration};
use testkit::world::{eventually, soon};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinSet,
};

testkit::tests! {
    [servers::ETCD_TLS] =>
        a_server_with_tls_knows_its_clients_by_their_certificates;
    [servers::ETCD] =>
        a_user_with_few_rights_takes_locks_and_outlives_its_token,
        a_cluster_restored_from_a_snapshot_is_noticed,
        etcdctl_and_we_stand_in_one_line,
        etcdctl_and_we_count_right_together,
        etcdctl_sees_our_leader;
}

/// Runs `etcdctl` to its end.
pub(crate) async fn etcdctl(server: &Running, words: &[&str]) {
    let output = Etcdctl::command(server).args(words).output().await.expect("etcdctl runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {words:?}: {said}");
}

pub(crate) async fn refusal(url: &str) -> String {
    match soon("an answer", Keeper::connect(url)).await {
        Ok(_) => panic!("{url} connects"),
        Err(e) => e.to_string(),
    }
}

async fn a_server_with_tls_knows_its_clients_by_their_certificates(server: Running) {
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
async fn a_user_with_few_rights_takes_locks_and_outlives_its_token(mut server: Running) {
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

/// The data comes back from a snapshot: locks, and revisions, may be those of an earlier time. A client that
/// held something hears of its loss, and no lock is taken as if nothing had happened.
async fn a_cluster_restored_from_a_snapshot_is_noticed(mut server: Running) {
    for token in ["etcd-cluster", "restored"] {
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
        // The first to ask may only hear that its session is over; a client that goes on hears why.
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
pub(crate) struct Etcdctl {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it runs reads from a pipe here, and ends when the test writes into it.
    folder: tempfile::TempDir,
}

impl Etcdctl {
    pub(crate) fn command(server: &Running) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints=127.0.0.1:{}", server.ports()[0]));
        command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Takes the lock and says its revision; holds it until it is told to let go.
    pub(crate) fn lock(server: &Running, name: &str) -> Self {
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

    pub(crate) async fn granted(&mut self) -> u64 {
        let line = soon("etcdctl's turn", self.lines.next_line()).await;
        line.expect("its words").expect("a revision").parse().expect("a number")
    }

    /// Ends what it runs, so that it unlocks.
    pub(crate) async fn release(mut self) {
        let pipe = self.folder.path().join("pipe");
        let written = tokio::task::spawn_blocking(|| std::fs::write(pipe, "")).await;
        written.expect("no panic").expect("it reads");
        let status = soon("etcdctl's end", self.child.wait()).await.expect("it ends");
        assert!(status.success(), "{status}");
    }
}

pub(crate) async fn raw(server: &Running) -> Keeper {
    let url = format!("{}?raw=true", server.url());
    let keeper = Keeper::builder().ttl(Duration::from_secs(30)).connect(&url).await;
    keeper.expect("the server answers")
}

/// Theirs and ours take turns in the order in which they came, and the numbers of all grants grow.
async fn etcdctl_and_we_stand_in_one_line(server: Running) {
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
    let line = one.get("jobs/a").await.expect("a look").expect("a line");
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
async fn etcdctl_and_we_count_right_together(server: Running) {
    const OURS: usize = 4;
    const THEIRS: usize = 4;
    const TIMES: usize = 12;
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
async fn etcdctl_sees_our_leader(server: Running) {
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
