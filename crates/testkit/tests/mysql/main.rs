//! What only a real MariaDB server can show: what a lock costs, what becomes of locks when the server
//! or its connections die, and locks inside the users' own transactions.

mod cost;
mod faults;
mod races;
mod road;
mod rows;
mod secure;
mod setup;
mod sitting;
mod support;
mod transactions;
