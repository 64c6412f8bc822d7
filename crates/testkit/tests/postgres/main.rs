//! What only a real PostgreSQL server can show: how many statements a lock costs, what becomes of locks
//! when connections and servers die, and locks inside of users' transactions.

mod bounds;
mod cost;
mod failover;
mod faults;
mod road;
mod secure;
mod setup;
mod support;
mod traps;
mod tx;
mod upgrade;
