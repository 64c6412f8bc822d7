//! `/v1/locks`: take, leave, label, list, look, evict.

mod ask;
mod evict;
mod leave;
mod list;
mod take;
mod withdraw;

pub(crate) use ask::unsupported;
pub(crate) use leave::edit_now;
pub(crate) use list::line;
pub(crate) use withdraw::InFlight;

use crate::{
    principal::Scope::{Admin, Lock, Read},
    routes::{Route, route},
};
use http::Method;

pub(crate) fn routes() -> Vec<Route> {
    let ticket = "/v1/locks/{name}/tickets/{ticket}";
    vec![
        route(Method::GET, "/v1/locks", Read, list::list),
        route(Method::GET, "/v1/locks/{name}", Read, list::look),
        route(Method::POST, "/v1/locks/{name}", Lock, take::take),
        route(Method::DELETE, ticket, Lock, leave::leave),
        route(Method::PATCH, ticket, Lock, leave::change),
        route(Method::POST, "/v1/locks/{name}/evict", Admin, evict::evict),
    ]
}
