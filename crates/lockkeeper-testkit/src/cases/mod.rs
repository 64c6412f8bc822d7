//! The cases, in groups.

mod cancel;
mod cells;
mod chaos;
mod clock;
mod contract;
mod delay;
mod detach;
mod election;
mod evict;
mod fence;
mod lease;
mod limits;
mod look;
mod loss;
mod many;
mod model;
mod mutex;
mod names;
mod process;
mod reentry;
mod replay;
mod rw;
mod semaphore;
mod session;
mod waiting;

use crate::case::Case;

/// The groups. Each must have cases for every store.
pub(crate) const GROUPS: &[&str] = &[
    "contract",
    "model",
    "mutex",
    "fence",
    "rw",
    "semaphore",
    "election",
    "session",
    "loss",
    "waiting",
    "cancel",
    "replay",
    "chaos",
    "delay",
    "lease",
    "detach",
    "cells",
    "look",
    "names",
    "reentry",
    "many",
    "clock",
    "limits",
    "evict",
    "process",
];

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    [
        contract::cases(),
        model::cases(),
        mutex::cases(),
        fence::cases(),
        rw::cases(),
        semaphore::cases(),
        election::cases(),
        session::cases(),
        loss::cases(),
        waiting::cases(),
        cancel::cases(),
        replay::cases(),
        chaos::cases(),
        delay::cases(),
        lease::cases(),
        detach::cases(),
        cells::cases(),
        look::cases(),
        names::cases(),
        reentry::cases(),
        many::cases(),
        clock::cases(),
        limits::cases(),
        evict::cases(),
        process::cases(),
    ]
    .concat()
}
