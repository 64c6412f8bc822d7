//! `/v1/sessions`: open, renew, poll, look, close, and hints as a stream.

use crate::{
    checks,
    extract::{Answer, Caller, Json},
    principal::{Principal, Scope::Lock},
    problem::Problem,
    routes::{Route, route},
    service::Service,
    session_id::{Secret, Session},
    sse, standing,
};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::Method;
use lockkeeper::{
    Store as _, StoreError, Terms, TicketId,
    store::{
        Open, PollScope, Renewal,
        http::wire::{
            Digest, Done, Hint, OpenSession, PollSession, RenewSession, SessionOpened,
            SessionRenewed, SessionTickets, TicketState,
        },
    },
};
use tokio::sync::mpsc;

pub(crate) fn routes() -> Vec<Route> {
    let (get, post) = (Method::GET, Method::POST);
    vec![
        route(post.clone(), "/v1/sessions", Lock, open),
        route(get.clone(), "/v1/sessions/{session}", Lock, look),
        route(Method::DELETE, "/v1/sessions/{session}", Lock, close),
        route(post.clone(), "/v1/sessions/{session}/renew", Lock, renew),
        route(post, "/v1/sessions/{session}/poll", Lock, poll),
        route(get, "/v1/sessions/{session}/hints", Lock, hints),
    ]
}

async fn open(
    State(service): State<Service>,
    Caller(principal): Caller,
    Json(ask): Json<OpenSession>,
) -> Result<Answer<SessionOpened>, Problem> {
    let secret = ask.secret.as_deref().map_or_else(|| Ok(Secret::random()), Secret::read)?;
    let session = secret.session(&principal);
    let open = Open {
        session: session.id,
        ttl: checks::ttl(ask.ttl_ms, service.options.ttl)?,
        lock_delay: checks::lock_delay(ask.lock_delay_ms, service.options.lock_delay)?,
        owner: checks::owner(ask.owner),
    };
    let terms = service.open(open, &session, None).await?;
    let (secret, terms) = (secret.into_text(), checks::terms(&terms));
    Ok(Answer::ok(SessionOpened { session: session.public, secret, terms }))
}

async fn renew(
    State(service): State<Service>,
    session: Session,
    Json(ask): Json<RenewSession>,
) -> Result<Answer<SessionRenewed>, Problem> {
    service.seen(session.id)?;
    let (version, digest) = service.renew(&session).await?;
    let tickets = match ask.tickets {
        false => None,
        true => Some(service.tickets(&session, PollScope::All).await?),
    };
    let terms = service.terms(session.id).as_ref().map(checks::terms);
    Ok(Answer::ok(SessionRenewed { session: session.public, version, digest, tickets, terms }))
}

async fn poll(
    State(service): State<Service>,
    session: Session,
    Json(ask): Json<PollSession>,
) -> Result<Answer<SessionTickets>, Problem> {
    service.seen(session.id)?;
    let which = match ask.tickets {
        None => PollScope::All,
        Some(tickets) => {
            PollScope::These(tickets.into_iter().map(|of| (of.lock, of.ticket)).collect())
        }
    };
    tickets(&service, session, which).await
}

async fn look(
    State(service): State<Service>,
    session: Session,
) -> Result<Answer<SessionTickets>, Problem> {
    service.seen(session.id)?;
    tickets(&service, session, PollScope::All).await
}

async fn tickets(
    service: &Service,
    session: Session,
    which: PollScope,
) -> Result<Answer<SessionTickets>, Problem> {
    let tickets = service.tickets(&session, which).await?;
    Ok(Answer::ok(SessionTickets { session: session.public, tickets }))
}

async fn close(State(service): State<Service>, session: Session) -> Result<Answer<Done>, Problem> {
    service.seen(session.id)?;
    service.heard(service.store.close(session.id).await)?;
    service.closed(&session);
    Ok(Answer::ok(Done { result: "closed".to_owned() }))
}

async fn hints(
    State(service): State<Service>,
    Caller(principal): Caller,
    session: Session,
) -> Result<Response, Problem> {
    service.seen(session.id)?;
    if !service.store.capabilities().wakes {
        let what = "hints; poll the session instead";
        let kind = lockkeeper::ErrorKind::Unsupported(what);
        return Err(StoreError::not_applied(service.store.scheme(), kind, what).into());
    }
    let (to, from) = mpsc::channel(16);
    tokio::spawn(forward(service.hint_stream(session.id), principal, to));
    Ok(sse::answer(&service, from))
}

/// Sends hints on until the client is gone. A store tells every session of each lock that comes free: the client hears
/// only of those that it may lock.
async fn forward(mut hints: mpsc::Receiver<Hint>, principal: Principal, to: mpsc::Sender<Bytes>) {
    loop {
        let hint = tokio::select! {
            hint = hints.recv() => hint,
            () = to.closed() => return,
        };
        let Some(hint) = hint else { return };
        let is_foreign = matches!(&hint, Hint::Freed { lock } if !principal.may(Lock, lock));
        if !is_foreign && to.send(message(&hint)).await.is_err() {
            return;
        }
    }
}

fn message(hint: &Hint) -> Bytes {
    let kind = match hint {
        Hint::Granted { .. } => "granted",
        Hint::Ended { .. } => "ended",
        Hint::Freed { .. } => "freed",
        Hint::Recheck { .. } => "recheck",
    };
    sse::event(kind, hint)
}

impl Service {
    /// How these tickets stand.
    async fn tickets(
        &self,
        session: &Session,
        which: PollScope,
    ) -> Result<Vec<TicketState>, Problem> {
        let all = self.heard(self.store.poll(session.id, which).await)?;
        for (name, ticket, status) in &all {
            self.hub.told(&session.public, name, *ticket, status);
        }
        Ok(standing::tickets(all))
    }

    /// Opens a session in the store, and notes that it is known here. `single`: the ticket with which it ends.
    pub(crate) async fn open(
        &self,
        ask: Open,
        session: &Session,
        single: Option<TicketId>,
    ) -> Result<Terms, Problem> {
        let terms = self.heard(self.store.open(ask).await)?;
        self.opened(session, terms, single);
        Ok(terms)
    }

    /// Renews a session: its version and its digest.
    pub(crate) async fn renew(
        &self,
        session: &Session,
    ) -> Result<(String, Option<Digest>), Problem> {
        match self.heard(self.store.renew(session.id).await)? {
            Renewal::Renewed { version, tickets } => {
                self.hub.session_renewed(&session.public);
                let digest = tickets.map(|of| Digest { count: of.count, sum: of.sum.to_string() });
                Ok((format!("{:016x}.{version}", self.instance), digest))
            }
            Renewal::Lost => {
                self.lost(session);
                Err(StoreError::session_over(self.store.scheme()).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::Name;
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(30);

    fn listen() -> (mpsc::Sender<Hint>, mpsc::Receiver<Bytes>, tokio::task::JoinHandle<()>) {
        let principal = Principal::new("ci".to_owned(), vec!["lock:jobs/*".parse().unwrap()]);
        let ((hint, hints), (to, from)) = (mpsc::channel(4), mpsc::channel(4));
        (hint, from, tokio::spawn(forward(hints, principal, to)))
    }

    #[tokio::test]
    async fn the_hints_of_a_client_name_no_lock_that_it_may_not_lock() {
        let (hint, mut from, task) = listen();
        for name in ["web/a", "jobs/a"] {
            hint.send(Hint::Freed { lock: Name::new(name).unwrap() }).await.unwrap();
        }
        drop(hint);
        let first = from.recv().await.unwrap();
        let text = String::from_utf8_lossy(&first);
        assert!(text.contains("jobs/a") && !text.contains("web"), "{text}");
        assert_eq!(from.recv().await, None);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn hints_are_forwarded_no_longer_than_their_client_listens() {
        let (hint, from, task) = listen();
        drop(from);
        tokio::time::timeout(DEADLINE, task).await.expect("the task ends").unwrap();
        assert!(hint.is_closed());
    }
}
