//! Hand-offs on Redis, beside a bare message from one process to another and beside the peer.

use super::handoff::{HOLD, Locks, PROCESSES, figures, line, spread};
use crate::{
    args::Plan,
    child::{Child, Role, Shift, ready, say},
    flavour::Flavour,
    floor::redis::{client, config, connect},
    machine::now,
    report::Report,
    rounds::Rounds,
    server::Server,
    stats::{median, millis},
};
use anyhow::Result;
use redis::{PushInfo, PushKind, Value};
use serde::{Deserialize, Serialize};
use servers::REDIS;
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinSet};

/// A hand-off in the middle may take so many times the bare message.
const TIMES: f64 = 1.5;
/// What most programs run on.
const FLAVOUR: Flavour = Flavour::MultiThread;

#[derive(Clone, Copy)]
enum Kind {
    Message,
    Ours,
    Peer,
}

/// What is measured, and how many wait.
#[derive(Clone, Copy)]
struct Variant(Kind, usize);

impl Variant {
    fn what(self) -> String {
        let kind = match self.0 {
            Kind::Message => "floor: PUBLISH to a subscriber",
            Kind::Ours => "lockkeeper",
            Kind::Peer => "rslock",
        };
        format!("{kind}, {} waiting", self.1)
    }

    /// The hand-offs of one round, in ms.
    fn measure(self, server: &Server, time: Duration) -> Result<Vec<f64>> {
        let (url, takers) = (server.url().to_owned(), self.1 + 1);
        let locks = match self.0 {
            Kind::Message => return messages(&url, &spread(self.1), time),
            Kind::Ours => Locks::Server(url),
            Kind::Peer => Locks::Peer(url),
        };
        line(&locks, &spread(takers), FLAVOUR, HOLD, time)
    }
}

pub(super) fn run(plan: &Plan) -> Result<Report> {
    let server = Server::start(REDIS, plan)?;
    let crowds = [1, 10, 100].map(|n: usize| n.min(plan.scaled(100, 3)));
    let kinds = [Kind::Message, Kind::Ours, Kind::Peer];
    let variants: Vec<Variant> =
        crowds.iter().flat_map(|n| kinds.map(|kind| Variant(kind, *n))).collect();
    let rounds = Rounds::run(plan.rounds, &variants, |v| v.measure(&server, plan.round()))?;
    let mut report = Report::new("redis-handoff");
    for (i, variant) in variants.iter().enumerate() {
        report.row(variant.what(), &figures(&rounds.of(i).concat()));
        if matches!(variant.0, Kind::Ours) {
            let what = format!("times the bare message, p50, {} waiting", variant.1);
            report.below(what, TIMES, rounds.ratio(i, i - 1, |all| median(all)));
        }
    }
    report.note(format!(
        "every taker has a connection of its own, in at most {PROCESSES} processes, {}",
        FLAVOUR.word()
    ));
    Ok(report)
}

/// Sends a message to one subscriber after the other; says how long each was under way, in ms.
fn messages(url: &str, subscribers: &[usize], time: Duration) -> Result<Vec<f64>> {
    let mut channels = (0..subscribers.iter().sum::<usize>()).map(|i| format!("channel-{i}"));
    let roles: Vec<Role> = subscribers
        .iter()
        .map(|n| {
            let channels = channels.by_ref().take(*n).collect();
            Role::Subscriber(Subscriber { url: url.to_owned(), channels })
        })
        .collect();
    let mut children = Child::start_all(&roles)?;
    let shift = Shift::of(time);
    children.iter_mut().try_for_each(|child| child.tell(shift))?;
    FLAVOUR.run(publish(url.to_owned(), subscribers.iter().sum(), shift))?;
    let mut under_way: Vec<u64> = Vec::new();
    for child in &mut children {
        under_way.extend(child.hear::<Vec<u64>>()?);
    }
    Ok(under_way.into_iter().map(millis).collect())
}

async fn publish(url: String, channels: usize, shift: Shift) -> Result<()> {
    let mut wire = connect(&url).await?;
    shift.begin().await;
    for i in (0..channels).cycle() {
        tokio::time::sleep(HOLD).await;
        if shift.is_over() {
            break;
        }
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(format!("channel-{i}")).arg(now().as_nanos());
        publish.exec_async(&mut wire).await?;
    }
    Ok(())
}

/// A process that takes messages, by one connection for each channel.
#[derive(Serialize, Deserialize)]
pub(crate) struct Subscriber {
    url: String,
    channels: Vec<String>,
}

impl Subscriber {
    /// Each message carries the moment at which it was sent; says how long each was under way.
    pub(crate) fn play(self) -> Result<()> {
        let under_way = FLAVOUR.run(self.listen())?;
        say(&under_way)
    }

    async fn listen(self) -> Result<Vec<u64>> {
        let mut ears = Vec::new();
        for channel in &self.channels {
            let (mouth, ear) = mpsc::unbounded_channel();
            let config = config().set_push_sender(mouth);
            let client = client(&self.url)?;
            let mut wire = client.get_multiplexed_async_connection_with_config(&config).await?;
            wire.subscribe(channel).await?;
            ears.push((wire, ear));
        }
        let shift = ready()?;
        let mut tasks = JoinSet::new();
        for (wire, mut ear) in ears {
            tasks.spawn(async move {
                let heard = hear(&mut ear, shift).await;
                drop(wire);
                heard
            });
        }
        Ok(tasks.join_all().await.concat())
    }
}

async fn hear(ear: &mut mpsc::UnboundedReceiver<PushInfo>, shift: Shift) -> Vec<u64> {
    let mut under_way = Vec::new();
    let end = tokio::time::sleep(shift.end().saturating_since(now()) + HOLD);
    tokio::pin!(end);
    loop {
        let info = tokio::select! {
            biased;
            Some(info) = ear.recv() => info,
            () = &mut end => return under_way,
        };
        let came = now().as_nanos();
        if let (PushKind::Message, Some(Value::BulkString(sent))) = (info.kind, info.data.last())
            && let Some(sent) = std::str::from_utf8(sent).ok().and_then(|sent| sent.parse().ok())
        {
            under_way.push(came.saturating_sub(sent));
        }
    }
}
