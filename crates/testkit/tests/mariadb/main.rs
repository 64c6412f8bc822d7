//! The tests of MySQL on MariaDB.

#[path = "../mysql/cost.rs"]
mod cost;
#[path = "../mysql/failover.rs"]
mod failover;
#[path = "../mysql/faults.rs"]
mod faults;
#[path = "../mysql/races.rs"]
mod races;
#[path = "../mysql/road.rs"]
mod road;
#[path = "../mysql/rows.rs"]
mod rows;
#[path = "../mysql/secure.rs"]
mod secure;
#[path = "../mysql/setup.rs"]
mod setup;
#[path = "../mysql/sitting.rs"]
mod sitting;
#[path = "../mysql/support.rs"]
mod support;
#[path = "../mysql/transactions.rs"]
mod transactions;
#[path = "../mysql/upgrade.rs"]
mod upgrade;
#[path = "../mysql/upgrade_refused.rs"]
mod upgrade_refused;

const SERVER: servers::Recipe = servers::MARIADB;
const SERVER_TLS: servers::Recipe = servers::MARIADB_TLS;
