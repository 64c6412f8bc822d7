//! The one check before every route.

use super::{
    Security,
    audit::Entry,
    limits::{Place, Usage},
    stream::Stream,
    tls::ClientName,
};
use crate::{
    connection::Peer,
    principal::{Principal, Scope},
    problem::Problem,
    service::Service,
};
use axum::{
    RequestExt as _,
    body::Body,
    extract::{RawPathParams, Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{Extensions, HeaderMap, Method, StatusCode, header};
use lockkeeper::{Name, TicketId, store::http::wire};
use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

/// The route that a request has come to.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) service: Service,
    pub(crate) scope: Scope,
    pub(crate) method: Method,
    pub(crate) path: &'static str,
}

/// Stands before every route of the table: finds the caller, compares its rights with the route's scope and with the lock
/// that the path names, counts the request among the caller's, and hands the [`Principal`] on as an extension. A lock
/// that only the body names is up to the route.
pub(crate) async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    if gate.scope == Scope::Open {
        return next.run(request).await;
    }
    let security = &gate.service.options.security;
    let principal = match security.caller(request.headers(), request.extensions()) {
        Ok(principal) => principal,
        Err(problem) => return gate.refuse(&request, None, problem),
    };
    let lock = lock_of(&mut request).await;
    if let Err(problem) = gate.check(&principal, lock.as_deref()) {
        return gate.refuse(&request, Some(&principal), problem);
    }
    let usage = security.usages.of(principal.name());
    let _waiter = match gate.count(&usage, request.headers()) {
        Ok(waiter) => waiter,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(principal.clone());
    let peer = request.extensions().get::<Peer>().copied();
    let response = next.run(request).await;
    gate.note(&principal, peer.as_ref(), lock, &response);
    if is_stream(&response) {
        return bound(Arc::clone(security), principal, &usage, response);
    }
    response
}

/// What an eviction was about, for the audit log: the route sets it as an extension of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forced {
    pub(crate) ticket: TicketId,
    /// The fence that the request has named.
    pub(crate) fence: Option<u64>,
    /// Was the ticket in the line?
    pub(crate) is_done: bool,
}

impl Gate {
    fn check(&self, principal: &Principal, lock: Option<&str>) -> Result<(), Problem> {
        let may = match lock.map(Name::new) {
            Some(Ok(name)) => principal.may(self.scope, &name),
            // There can be no such lock, and the route says so.
            Some(Err(_)) => principal.has(self.scope),
            // What an administrator sees or does without a name is about all names.
            None if self.scope == Scope::Admin => principal.has_all(self.scope),
            None => principal.has(self.scope),
        };
        if may { Ok(()) } else { Err(Problem::denied(self.scope)) }
    }

    /// Counts the request; the place is kept until it is answered.
    fn count(&self, usage: &Arc<Usage>, headers: &HeaderMap) -> Result<Place, Problem> {
        let (quota, now) = (&self.service.options.security.quota, Instant::now());
        usage.request(quota, now)?;
        let opens = self.method == Method::POST
            && (self.path == "/v1/sessions"
                || self.path == "/v1/locks/{name}" && !headers.contains_key(wire::SECRET));
        if opens {
            usage.session(quota, now)?;
        }
        usage.waiter(quota)
    }

    fn refuse(
        &self,
        request: &Request,
        principal: Option<&Principal>,
        problem: Problem,
    ) -> Response {
        let peer = request.extensions().get::<Peer>();
        let entry = self.entry("refused", principal, peer).detail(problem.kind());
        self.service.options.security.note_refused(entry);
        problem.into_response()
    }

    /// Notes what an administrator did, and what the route itself has refused.
    fn note(
        &self,
        principal: &Principal,
        peer: Option<&Peer>,
        lock: Option<String>,
        response: &Response,
    ) {
        let problem = response.extensions().get::<Problem>().map(Problem::kind);
        let event = match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let entry = self.entry("refused", Some(principal), peer);
                let entry = entry.detail(problem.unwrap_or_default());
                return self.service.options.security.note_refused(entry);
            }
            _ if self.scope != Scope::Admin || self.method == Method::GET => return,
            _ => match response.extensions().get::<Forced>() {
                Some(Forced { is_done: true, .. }) => "evicted",
                _ => "evict_failed",
            },
        };
        let forced = response.extensions().get::<Forced>();
        let mut entry = self.entry(event, Some(principal), peer);
        entry.status = Some(response.status().as_u16());
        entry.lock = lock;
        entry.ticket = forced.map(|forced| forced.ticket.to_string());
        entry.fence = forced.and_then(|forced| forced.fence);
        if let Some(problem) = problem {
            entry = entry.detail(problem);
        }
        self.service.options.security.note(&entry);
    }

    fn entry(
        &self,
        event: &'static str,
        principal: Option<&Principal>,
        peer: Option<&Peer>,
    ) -> Entry {
        let mut entry = Entry::new(event).from(peer);
        entry.principal = principal.map(|principal| principal.name().to_owned());
        entry.method = Some(self.method.to_string());
        entry.route = Some(self.path);
        entry
    }
}

impl Security {
    /// Who sends this request. A token comes before a certificate, and a wrong one is not made good by it.
    fn caller(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Principal, Problem> {
        let Some(principals) = &self.principals else { return Ok(Principal::everything()) };
        let (principals, now) = (principals.get(), SystemTime::now());
        let mut said = headers.get_all(header::AUTHORIZATION).iter();
        let found = match (said.next(), said.next()) {
            (Some(said), None) => said
                .to_str()
                .ok()
                .and_then(bearer)
                .and_then(|token| principals.by_token(token, now)),
            (Some(_), Some(_)) => None,
            (None, _) => extensions
                .get::<ClientName>()
                .and_then(|ClientName(name)| principals.by_certificate(name, now)),
        };
        found.ok_or_else(|| {
            let what = "send a token that the service knows, as Authorization: Bearer TOKEN";
            Problem::new("unauthenticated", what).not_applied()
        })
    }
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The lock that the path names, percent-decoded.
async fn lock_of(request: &mut Request) -> Option<String> {
    let parameters = request.extract_parts::<RawPathParams>().await.ok()?;
    let name = parameters.iter().find(|(key, _)| *key == "name");
    name.map(|(_, value)| value.to_owned())
}

fn is_stream(response: &Response) -> bool {
    let media = response.headers().get(header::CONTENT_TYPE);
    media.is_some_and(|media| media.as_bytes().starts_with(b"text/event-stream"))
}

/// Counts a stream among its principal's, and ends it when that loses its rights.
fn bound(
    security: Arc<Security>,
    principal: Principal,
    usage: &Arc<Usage>,
    response: Response,
) -> Response {
    let place = match usage.stream(&security.quota) {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    let revoked = Box::pin(security.revoked(principal));
    response.map(|body| Body::new(Stream::new(body, revoked, place)))
}
