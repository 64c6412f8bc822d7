//! What only a real server of MySQL can show: what a lock costs, what becomes of locks when the server
//! or its connections die, and locks inside the users' own transactions. The same tests run on MariaDB.

mod cost;
mod failover;
mod faults;
mod races;
mod road;
mod rows;
mod secure;
mod setup;
mod sitting;
mod support;
mod transactions;
mod upgrade;
mod upgrade_refused;

const SERVER: servers::Recipe = servers::MYSQL;
const SERVER_TLS: servers::Recipe = servers::MYSQL_TLS;
