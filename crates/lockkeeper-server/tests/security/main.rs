//! The service's security: who may do what, TLS, names and origins, limits, and secrets that stay secret.

mod front;
mod limits;
mod others;
mod routes;
mod secrets;
mod signed;
mod support;
mod tls;
