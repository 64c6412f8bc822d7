//! `POST /v1/check`: does this grant still stand?

use crate::{
    extract::{Answer, Caller, Needed},
    principal::Scope,
    problem::Problem,
    service::Service,
};
use axum::extract::State;
use lockkeeper::{
    Store as _,
    store::http::wire::{Check, Checked},
};

pub(crate) async fn check(
    State(service): State<Service>,
    Caller(principal): Caller,
    Needed(ask): Needed<Check>,
) -> Result<Answer<Checked>, Problem> {
    let sequencer = service.options.security.read_sequencer(&ask.sequencer)?;
    principal.require(Scope::Read, sequencer.name())?;
    // A grant of another store is not held here.
    let held = sequencer.store() == service.store.id()
        && service.heard(service.store.check(sequencer.claim().clone()).await)?;
    Ok(Answer::ok(Checked { held }))
}
