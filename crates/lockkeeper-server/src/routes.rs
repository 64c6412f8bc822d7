//! The one table of routes. The router is built from it, and nothing else adds a route to it: what is not in the
//! table has no scope, and does not exist.

use crate::{
    auth::{self, Gate},
    cells, check, console, events, health, late, locks, metrics, openapi,
    principal::Scope::{self, Lock, Open, Read},
    problem::Problem,
    service::Service,
    sessions, store_info,
};
use axum::{
    Router,
    handler::Handler,
    middleware,
    routing::{MethodFilter, MethodRouter, on},
};
use http::{Method, Uri};

/// One route.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its method. A GET answers HEAD too.
    pub method: Method,
    /// Its path, as the router reads it.
    pub path: &'static str,
    /// What its caller must be allowed to.
    pub scope: Scope,
    handler: MethodRouter<Service>,
}

/// One row of the table.
pub(crate) fn route<H: Handler<T, Service>, T: 'static>(
    method: Method,
    path: &'static str,
    scope: Scope,
    handler: H,
) -> Route {
    let filter = MethodFilter::try_from(method.clone()).expect("the table has plain methods");
    Route { method, path, scope, handler: on(filter, handler) }
}

/// All routes.
#[must_use]
pub fn table() -> Vec<Route> {
    let get = Method::GET;
    let own = vec![
        route(get.clone(), "/livez", Open, health::livez),
        route(get.clone(), "/readyz", Open, health::readyz),
        route(get.clone(), "/v1/store", Read, store_info::show),
        route(Method::POST, "/v1/check", Read, check::check),
        route(get, "/v1/cells/{name}", Read, cells::get),
        route(Method::PUT, "/v1/cells/{name}", Lock, cells::put),
        route(Method::DELETE, "/v1/cells/{name}", Lock, cells::delete),
    ];
    [
        own,
        sessions::routes(),
        locks::routes(),
        events::routes(),
        metrics::routes(),
        openapi::routes(),
        console::routes(),
    ]
    .concat()
}

/// The service as axum runs it.
pub fn router(service: &Service) -> Router {
    let mut router = Router::new();
    for Route { method, path, scope, handler } in table() {
        let gate = Gate { service: service.clone(), scope, method, path };
        let admitted = handler.route_layer(middleware::from_fn_with_state(gate, auth::admit));
        router = router.route(path, admitted);
    }
    let observed = middleware::from_fn_with_state(service.clone(), metrics::observe);
    let front = middleware::from_fn_with_state(service.clone(), auth::front);
    router
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(front)
        .layer(observed)
        .layer(middleware::from_fn(late::refuse))
        .with_state(service.clone())
}

async fn no_route(uri: Uri) -> Problem {
    let what = format!("no route has the path {}; the API begins at /v1/", uri.path());
    Problem::new("no_route", what).not_applied()
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let what = format!("{} does not know {method}; see the header Allow", uri.path());
    Problem::new("method", what).not_applied()
}
