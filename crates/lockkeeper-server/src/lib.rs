//! The lock service: locks over HTTP for every language, on any store of [`lockkeeper`].
//!
//! The service keeps no locks. A request becomes one or two operations of the [store](lockkeeper::Store), so several
//! instances can stand side by side in front of one store, and a client may move between them. What the two sides
//! say to each other is in `lockkeeper::store::http::wire`.
//!
//! | file | holds |
//! |---|---|
//! | `routes` | the one table of routes, each with the scope that it needs |
//! | `service` | what all requests share |
//! | `sessions`, `locks`, `cells`, `check`, `store_info`, `health` | the routes |
//! | `waiting` | the one waiting loop of a session, for all its long polls and streams of hints |
//! | `problem`, `extract`, `checks`, `sse` | errors as problem documents; bodies, paths and queries; bounds; streams |
//! | `known` | the sessions that this instance has seen |
//! | `session_id`, `principal`, `auth` | whose session it is, and what a caller may do |
//! | `events`, `metrics`, `console` | what happens, in figures and on a page |
//! | `late` | the service's clock, and requests that come after their deadline |
//! | `listen`, `connection` | sockets, their limits, and the shutdown |

mod auth;
mod cells;
mod check;
mod checks;
mod connection;
mod console;
mod events;
mod extract;
mod health;
mod known;
mod late;
mod listen;
mod locks;
mod metrics;
mod openapi;
mod principal;
mod problem;
mod routes;
mod service;
mod session_id;
mod sessions;
mod sse;
mod standing;
mod store_info;
mod waiting;

pub use auth::{NewToken, Quota, Security, SecurityError, SecurityOptions, TlsFiles};
pub use connection::{Limits, Peer, serve};
pub use listen::{Address, AddressError, Listener, SocketFile};
pub use metrics::RequestId;
pub use openapi::DOCUMENT as OPENAPI;
pub use principal::{Principal, Scope};
pub use problem::Problem;
pub use routes::{Route, router, table};
pub use service::{Options, Service, Shared};
