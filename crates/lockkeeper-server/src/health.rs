//! Probes: does the process run, does its store answer?

use crate::{extract::Answer, problem::Problem, service::Service};
use axum::extract::State;
use lockkeeper::{
    ErrorKind, Name, Store as _, StoreError,
    store::{ListScope, StoreResult},
};
use serde::Serialize;
use std::time::Duration;

/// For how long the store may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The lock that is looked at. It need not exist.
const NAME: &str = "lockkeeper/readyz";

#[derive(Serialize)]
pub(crate) struct Health {
    status: &'static str,
}

const OK: Health = Health { status: "ok" };

/// `GET /livez`: the process answers.
pub(crate) async fn livez() -> Answer<Health> {
    Answer::ok(OK)
}

/// `GET /readyz`: its store answers.
pub(crate) async fn readyz(State(service): State<Service>) -> Result<Answer<Health>, Problem> {
    if service.is_stopping() {
        return Err(Problem::stopping());
    }
    ask(&service).await?;
    Ok(Answer::ok(OK))
}

/// Looks at one line, within bounds of time.
async fn ask(service: &Service) -> StoreResult<()> {
    let scheme = service.store.scheme();
    let late = || {
        let what = format!("no answer within {ANSWER_MAX:?}");
        StoreError::not_applied(scheme, ErrorKind::Unavailable, what)
    };
    let name = Name::new(NAME).map_err(|_| late())?;
    let looking = service.store.list(ListScope::Exact(name));
    tokio::time::timeout(ANSWER_MAX, looking).await.unwrap_or_else(|_| Err(late())).map(drop)
}
