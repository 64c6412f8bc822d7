//! What only a real Redis server can show: how many commands a lock costs, and what becomes of locks
//! when the server dies, forgets, stands still, is replaced, or is told another time.

mod clock;
mod cluster;
mod cost;
mod crowd;
mod failover;
mod foreign;
mod outage;
mod redlock;
mod splice;
mod support;
mod switch;
