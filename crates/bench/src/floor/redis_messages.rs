//! The floor below a hand-over on Redis: a bare message from one process to another.

use super::redis::{client, config, connect};
use crate::{
    benches::handover::{HOLD, Queue},
    child::{Child, Role, Shift, ready, say},
    flavour::Flavour,
    machine::now,
    stats::millis,
};
use anyhow::Result;
use redis::{PushInfo, PushKind, Value};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinSet};

/// Sends a message to one subscriber after the other; says how long each was under way, in ms.
pub(crate) fn messages(queue: &Queue) -> Result<Vec<f64>> {
    let Queue { url, flavour, .. } = queue;
    let (all, flavour) = (queue.waiting(), *flavour);
    let mut channels = (0..all).map(|i| format!("channel-{i}"));
    let roles = queue.takers.iter().map(|n| {
        let channels = channels.by_ref().take(*n).collect();
        Role::Subscriber(Subscriber { url: url.clone(), channels, flavour })
    });
    let mut children = Child::start_all(&roles.collect::<Vec<_>>())?;
    let shift = Shift::of(queue.time);
    children.iter_mut().try_for_each(|child| child.tell(shift))?;
    flavour.run(publish(url.clone(), all, shift))?;
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
    flavour: Flavour,
}

impl Subscriber {
    /// Each message carries the moment at which it was sent; says how long each was under way.
    pub(crate) fn play(self) -> Result<()> {
        let under_way = self.flavour.run(self.listen())?;
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
