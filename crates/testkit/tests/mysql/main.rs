//! What only real servers of MySQL and MariaDB can show: what a lock costs, what becomes of locks when the server or its
//! connections die, and locks inside the users' own transactions. Every test runs on both.

mod blocking_transactions;
mod cost;
mod failover;
mod faults;
mod network;
mod races;
mod rows;
mod setup;
mod support;
mod tls;
mod transactions;
mod upgrade;
mod upgrade_refused;

use servers::{MARIADB, MARIADB_TLS, MYSQL, MYSQL_TLS, Recipe};
use std::process::ExitCode;
use testkit::trials;

/// Every test runs on each of these.
const SERVERS: [Recipe; 2] = [MYSQL, MARIADB];
const SERVERS_TLS: [Recipe; 2] = [MYSQL_TLS, MARIADB_TLS];

fn main() -> ExitCode {
    trials::main([
        blocking_transactions::tests(),
        cost::tests(),
        failover::tests(),
        faults::tests(),
        network::tests(),
        races::tests(),
        rows::tests(),
        setup::tests(),
        tls::tests(),
        transactions::tests(),
        upgrade::tests(),
        upgrade_refused::tests(),
    ])
}
