//! How the tickets of a session stand.

use super::{
    Keys, Redis,
    reply::{Parts, nonsense},
    sessions::{hex, micros},
};
use crate::{
    name::Name,
    store::{STRAY_MAX, Stand, StoreResult, Wait, Which, together},
    ticket::{SessionId, TicketId},
};
use redis::{Script, Value};
use std::{collections::BTreeMap, time::Duration};

/// In how many lines a script looks at once.
const AT_ONCE: usize = 500;

type Lines = Vec<(Name, TicketId)>;

impl Redis {
    pub(super) async fn stands(
        &self,
        session: SessionId,
        which: Which,
    ) -> StoreResult<Vec<(Name, TicketId, Stand)>> {
        let tickets = match which {
            Which::These(tickets) => return self.ask_after(session, tickets).await,
            Which::All => self.tickets_of(session),
        };
        // Before the others: what is entered meanwhile is known, and what is left meanwhile is gone.
        let strays = self.strays(session).await?;
        let mut stands = self.ask_after(session, tickets.clone()).await?;
        stands.retain(|(_, _, stand)| *stand != Stand::Gone);
        let unknown = |(_, stray, _): &(Name, TicketId, Stand)| {
            tickets.iter().all(|(_, ticket)| ticket != stray)
        };
        stands.extend(strays.into_iter().filter(unknown));
        Ok(stands)
    }

    async fn ask_after(
        &self,
        session: SessionId,
        tickets: Lines,
    ) -> StoreResult<Vec<(Name, TicketId, Stand)>> {
        let lines = self.by_bucket(tickets);
        let mut stands = Vec::new();
        for (lines, answers) in self.over_lines(&self.scripts.poll, session, lines).await? {
            for ((name, ticket), answer) in lines.into_iter().zip(Parts::of(answers)?) {
                let mut parts = Parts::of(answer)?;
                let stand = match parts.text()?.as_str() {
                    "granted" => Stand::Granted { fence: parts.fence()? },
                    "queued" => Stand::Waiting(parts.wait()?),
                    _ => Stand::Gone,
                };
                stands.push((name, ticket, stand));
            }
        }
        Ok(stands)
    }

    /// Runs a script over lines of one session, bucket by bucket, all at once.
    pub(super) async fn over_lines(
        &self,
        script: &Script,
        session: SessionId,
        lines: BTreeMap<u32, Lines>,
    ) -> StoreResult<Vec<(Lines, Value)>> {
        let asks = lines.into_iter().map(|(bucket, lines)| {
            let keys = &self.buckets[bucket as usize];
            let mut script = script.prepare_invoke();
            script.key(keys.ends()).key(keys.sessions()).key(keys.index());
            script.arg(hex(session)).arg(micros(STRAY_MAX));
            for (name, ticket) in &lines {
                script.key(keys.order(name)).key(keys.tickets(name));
                script.arg(name.as_str()).arg(ticket.to_string());
            }
            async move { Ok((lines, self.run::<Value>(keys, None, &script).await?)) }
        });
        together::all(asks).await.into_iter().collect()
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

    pub(super) fn tickets_of(&self, session: SessionId) -> Lines {
        let lives = self.sessions.lives();
        lives.get(&session).into_iter().flat_map(|life| &life.tickets).cloned().collect()
    }

    /// Notes that the session has left a line.
    pub(super) fn left(&self, session: SessionId, name: &Name, ticket: TicketId) {
        if let Some(life) = self.sessions.lives().get_mut(&session) {
            life.tickets.remove(&(name.clone(), ticket));
            life.left.insert(name.clone(), self.clock.now());
        }
    }

    /// Tickets of the session in lines that it has left: the server has forgotten that they were. A
    /// replica that missed the newest writes brings them back when it takes over, and with a session
    /// that lives they would stay for ever.
    async fn strays(&self, session: SessionId) -> StoreResult<Vec<(Name, TicketId, Stand)>> {
        let left: Vec<Name> = match self.sessions.lives().get(&session) {
            Some(life) => life.left.keys().cloned().collect(),
            None => Vec::new(),
        };
        let mut buckets: BTreeMap<u32, Vec<Name>> = BTreeMap::new();
        for name in left {
            buckets.entry(self.bucket(&name)).or_default().push(name);
        }
        let mut strays = Vec::new();
        for (bucket, names) in buckets {
            let keys = &self.buckets[bucket as usize];
            for names in names.chunks(AT_ONCE) {
                strays.extend(self.strays_in(keys, session, names).await?);
            }
        }
        Ok(strays)
    }

    async fn strays_in(
        &self,
        keys: &Keys,
        session: SessionId,
        names: &[Name],
    ) -> StoreResult<Vec<(Name, TicketId, Stand)>> {
        let mut script = self.scripts.strays.prepare_invoke();
        for name in names {
            script.key(keys.tickets(name));
        }
        script.arg(hex(session));
        let found = Parts::of(self.run::<Value>(keys, None, &script).await?)?;
        found.map(|stray| read_stray(stray, names)).collect()
    }
}

fn read_stray(stray: Value, names: &[Name]) -> StoreResult<(Name, TicketId, Stand)> {
    let mut parts = Parts::of(stray)?;
    let number = usize::try_from(parts.int()?).unwrap_or(0);
    let name = names.get(number.wrapping_sub(1)).ok_or_else(|| nonsense(&Value::Nil))?;
    let ticket = parts.text()?.parse().map_err(|_| nonsense(&Value::Nil))?;
    let stand = match parts.fence()? {
        0 => Stand::Waiting(Wait { ahead: 0, holder: None, recheck: Duration::ZERO }),
        fence => Stand::Granted { fence },
    };
    Ok((name.clone(), ticket, stand))
}
