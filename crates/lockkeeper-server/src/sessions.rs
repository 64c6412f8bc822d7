//! `/v1/sessions`: open, renew, poll, look, close, and hints as a stream.

use crate::{
    checks,
    extract::{Answer, Caller, Json},
    principal::Scope::Lock,
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
    Store as _, StoreError, Terms,
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
    let terms = service.open(open, &session, false).await?;
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

async fn hints(State(service): State<Service>, session: Session) -> Result<Response, Problem> {
    service.seen(session.id)?;
    if !service.store.capabilities().wakes {
        let what = "hints; poll the session instead";
        let kind = lockkeeper::ErrorKind::Unsupported(what);
        return Err(StoreError::not_applied(service.store.scheme(), kind, what).into());
    }
    let (to, from) = mpsc::channel(16);
    let mut hints = service.hint_stream(session.id);
    tokio::spawn(async move {
        while let Some(hint) = hints.recv().await {
            if to.send(message(&hint)).await.is_err() {
                return;
            }
        }
    });
    Ok(sse::answer(&service, from))
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
            self.hub.told(name, *ticket, status);
        }
        Ok(standing::tickets(all))
    }

    /// Opens a session in the store, and notes that it is known here.
    pub(crate) async fn open(
        &self,
        ask: Open,
        session: &Session,
        single: bool,
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
