//! The floor below a hand-over through a file: one process wakes another by a bare datagram.

use crate::{
    benches::handover::{HOLD, Queue},
    child::{Child, Role, Shift, ready, say},
    machine::now,
    source::path_of,
    stats::millis,
};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::{os::unix::net::UnixDatagram, path::PathBuf, time::Duration};

/// A process that blocks for datagrams.
#[derive(Serialize, Deserialize)]
pub(crate) struct Wake {
    path: PathBuf,
}

impl Wake {
    /// Each datagram carries the moment at which it was sent; says how long each was under way.
    pub(crate) fn play(self) -> Result<()> {
        let socket = UnixDatagram::bind(&self.path)?;
        let shift = ready()?;
        socket.set_read_timeout(Some(shift.length() + Duration::from_secs(1)))?;
        let mut under_way = Vec::new();
        loop {
            let mut sent = [0; 8];
            let length = socket.recv(&mut sent)?;
            let came = now().as_nanos();
            if length < sent.len() {
                return say(&under_way);
            }
            under_way.push(millis(came.saturating_sub(u64::from_be_bytes(sent))));
        }
    }
}

/// How long datagrams were under way, in ms.
pub(crate) fn datagrams(queue: &Queue) -> Result<Vec<f64>> {
    let bell = path_of(&queue.url)?.with_file_name("bell");
    let mut child = Child::start(&Role::Wake(Wake { path: bell.clone() }))?;
    let shift = Shift::of(queue.time);
    child.tell(shift)?;
    let socket = UnixDatagram::unbound()?;
    while !shift.is_over() {
        std::thread::sleep(HOLD);
        socket.send_to(&now().as_nanos().to_be_bytes(), &bell)?;
    }
    socket.send_to(&[], &bell)?;
    child.hear()
}
