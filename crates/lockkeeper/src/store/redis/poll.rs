//! How the tickets of a session stand.

use super::{
    Redis,
    reply::{Parts, own},
    sessions::hex,
};
use crate::{
    model::{
        name::Name,
        ticket::{SessionId, TicketId},
    },
    store::{PollScope, StoreResult, TicketStatus, common::join},
};
use redis::{Script, Value};
use std::collections::BTreeMap;

/// Through how many lines one script goes.
const AT_ONCE: usize = 300;

type Lines = Vec<(Name, TicketId)>;

/// At least one, for a bucket without lines.
fn portions(bucket: u32, lines: &[(Name, TicketId)]) -> Vec<(u32, Lines)> {
    let first = lines.len().min(AT_ONCE);
    let rest = lines[first..].chunks(AT_ONCE);
    [&lines[..first]].into_iter().chain(rest).map(|some| (bucket, some.to_vec())).collect()
}

impl Redis {
    pub(super) async fn stands(
        &self,
        session: SessionId,
        which: PollScope,
    ) -> StoreResult<Vec<(Name, TicketId, TicketStatus)>> {
        let all = matches!(which, PollScope::All);
        let tickets = match which {
            PollScope::These(tickets) => tickets,
            PollScope::All => self.tickets_of(session).await?,
        };
        let lines = self.by_bucket(tickets);
        let mut stands = Vec::new();
        let answered = self.over_lines(&self.scripts.poll, session, u64::from(all), lines, false);
        for (lines, answers) in answered.await? {
            for ((name, ticket), answer) in lines.into_iter().zip(Parts::of(answers)?) {
                let mut parts = Parts::of(answer)?;
                let stand = match parts.text()?.as_str() {
                    "granted" => TicketStatus::Granted { fence: parts.fence()? },
                    "queued" => TicketStatus::Waiting(parts.wait()?),
                    _ => TicketStatus::Gone,
                };
                stands.push((name, ticket, stand));
            }
        }
        if all {
            stands.retain(|(_, _, stand)| *stand != TicketStatus::Gone);
        }
        Ok(stands)
    }

    /// Runs a script over lines of one session, bucket by bucket, and over those to be swept. No script
    /// goes through so many that others would have to wait for it.
    pub(super) async fn over_lines(
        &self,
        script: &Script,
        session: SessionId,
        argument: u64,
        lines: BTreeMap<u32, Lines>,
        sweep: bool,
    ) -> StoreResult<Vec<(Lines, Value)>> {
        let asks = lines.into_iter().flat_map(|(bucket, lines)| portions(bucket, &lines));
        let asks = asks.map(|(bucket, lines)| {
            let keys = &self.buckets[bucket as usize];
            let mut script = script.prepare_invoke();
            script.key(keys.ends()).key(keys.sessions()).key(keys.numbers()).key(keys.own());
            script.key(keys.closed());
            let session = hex(session);
            script.arg(&session).arg(argument);
            for (name, ticket) in &lines {
                script.key(keys.order(name)).key(keys.tickets(name));
                script.arg(name.as_str()).arg(ticket.to_string()).arg(&session);
            }
            if sweep {
                self.sweep(&mut script, bucket);
            }
            async move { Ok((lines, self.run::<Value>(keys, None, &script).await?)) }
        });
        join::all(asks).await.into_iter().collect()
    }

    pub(super) fn by_bucket(
        &self,
        tickets: impl IntoIterator<Item = (Name, TicketId)>,
    ) -> BTreeMap<u32, Lines> {
        let mut buckets: BTreeMap<u32, Lines> = BTreeMap::new();
        for (name, ticket) in tickets {
            buckets.entry(self.bucket(&name)).or_default().push((name, ticket));
        }
        buckets
    }

    /// All tickets of a session that the server has, whichever handle has entered them. A handle would
    /// forget a ticket that it has left, and a replica that missed the leave brings it back when it
    /// takes over.
    pub(super) async fn tickets_of(&self, session: SessionId) -> StoreResult<Lines> {
        let (from, to) = (format!("[{} ", hex(session)), format!("({}!", hex(session)));
        let lists = self.buckets.iter().map(|keys| {
            let mut list = redis::cmd("ZRANGE");
            list.arg(keys.own()).arg(&from).arg(&to).arg("BYLEX");
            async move { self.link.query::<Vec<String>>(&list).await }
        });
        let lists: StoreResult<Vec<_>> = join::all(lists).await.into_iter().collect();
        Ok(lists?.iter().flatten().filter_map(|entry| own(entry)).collect())
    }
}
