//! What only a real Redis server can show: how many commands a lock costs, and what becomes of locks
//! when the server dies, forgets, stands still, is replaced, or is told another time.

mod clock;
mod cluster;
mod cost;
mod crowd;
mod edge_cases;
mod failover;
mod interop;
mod interop_redis_py;
mod locks_of_others;
mod network;
mod outage;
mod redlock;
mod splice;
mod support;
mod switch;
mod tls;

use std::process::ExitCode;
use testkit::trials;

fn main() -> ExitCode {
    trials::main([
        clock::tests(),
        cluster::tests(),
        cost::tests(),
        edge_cases::tests(),
        failover::tests(),
        interop::tests(),
        interop_redis_py::tests(),
        locks_of_others::tests(),
        network::tests(),
        outage::tests(),
        redlock::tests(),
        switch::tests(),
        tls::tests(),
    ])
}
