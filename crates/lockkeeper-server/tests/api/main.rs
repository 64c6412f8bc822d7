//! Every route of the API, on the memory store and on SQLite, without a socket; and connections on real sockets.

mod bad_requests;
mod cells;
mod connections;
mod listing;
mod sessions;
mod support;
mod taking;
mod waiting;
