//! What only a real PostgreSQL server can show: how many statements a lock costs, what becomes of locks
//! when connections and servers die, and locks inside of users' transactions.

mod bounds;
mod cost;
mod edge_cases;
mod failover;
mod faults;
mod network;
mod setup;
mod support;
mod tls;
mod upgrade;
mod user_transactions;

use std::process::ExitCode;
use testkit::trials;

fn main() -> ExitCode {
    trials::main([
        bounds::tests(),
        cost::tests(),
        edge_cases::tests(),
        failover::tests(),
        faults::tests(),
        network::tests(),
        setup::tests(),
        tls::tests(),
        upgrade::tests(),
        user_transactions::tests(),
    ])
}
