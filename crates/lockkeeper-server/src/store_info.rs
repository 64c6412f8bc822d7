//! `GET /v1/store`: what stands behind the service.

use crate::{extract::Answer, service::Service};
use axum::extract::State;
use lockkeeper::{Store as _, store::http::wire::StoreInfo};

pub(crate) async fn show(State(service): State<Service>) -> Answer<StoreInfo> {
    let store = &service.store;
    Answer::ok(StoreInfo {
        store: store.id().to_string(),
        scheme: store.scheme().to_owned(),
        capabilities: store.capabilities(),
        not_shown: store.blind_spots().map(str::to_owned),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: format!("{:016x}", service.instance),
        events: service.hub.freshness(),
    })
}
