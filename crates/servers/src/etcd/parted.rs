//! A cluster whose members can be cut off from each other, while clients still reach all of them.
//!
//! What members tell each other goes through gates in this program, one before every member. Every
//! connection begins with a request that says from whom it is, so a gate knows whom to keep out. No
//! rights over the machine's network are needed for that.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::{ETCD_CLUSTER, MEMBERS, address, name, process};
use crate::recipe::{Process, Recipe, Sandbox};
use crate::running::Running;

/// The longest head of a request that makes sense.
const HEAD_MAX: usize = 16 << 10;

/// A cluster of three members that can be parted with [`cut_off`] and [`rejoin`].
///
/// Its nodes and first ports are those of [`ETCD_CLUSTER`]; the last three ports are the gates'. It
/// lives only as long as the program that started it.
pub const ETCD_PARTED: Recipe =
    Recipe { name: "etcd-parted", ports: 3 * MEMBERS, processes, ..ETCD_CLUSTER };

/// The gates of every cluster that runs, by its first port.
static GATES: LazyLock<Mutex<HashMap<u16, Arc<Gates>>>> = LazyLock::new(Mutex::default);

/// Cuts a member off from the others.
///
/// # Errors
///
/// If the cluster is of another recipe.
pub fn cut_off(cluster: &Running, member: usize) -> Result<()> {
    let gates = gates(cluster)?;
    let mut state = gates.state();
    state.cut = Some(member);
    state.passing.retain(|passing| {
        let cut = passing.from.is_none_or(|from| from == member) || passing.to == member;
        if cut {
            for side in &passing.sides {
                // It may be closed already.
                let _ = side.shutdown(Shutdown::Both);
            }
        }
        !cut
    });
    Ok(())
}

/// Lets all members reach each other again.
///
/// # Errors
///
/// If the cluster is of another recipe.
pub fn rejoin(cluster: &Running) -> Result<()> {
    gates(cluster)?.state().cut = None;
    Ok(())
}

fn gates(cluster: &Running) -> Result<Arc<Gates>> {
    let gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    gates.get(&cluster.ports()[0]).cloned().context("this cluster has no gates")
}

fn processes(sandbox: &Sandbox) -> Result<Vec<Process>> {
    let ports = |part: usize| &sandbox.ports[part * MEMBERS..(part + 1) * MEMBERS];
    let (clients, peers, doors) = (ports(0), ports(1), ports(2));
    let gates = Arc::new(Gates::default());
    let listeners = doors.iter().map(|door| TcpListener::bind((Ipv4Addr::LOCALHOST, *door)));
    let listeners: Vec<_> = listeners.collect::<io::Result<_>>()?;
    for (member, (listener, peer)) in listeners.into_iter().zip(peers).enumerate() {
        let (gates, peer) = (Arc::clone(&gates), *peer);
        thread::spawn(move || gates.guard(member, &listener, peer));
    }
    GATES.lock().unwrap_or_else(PoisonError::into_inner).insert(clients[0], gates);
    let member = |at: usize| format!("{}={}", name(at), address(doors[at]));
    let cluster: Vec<String> = (0..MEMBERS).map(member).collect();
    let start = |at: usize| {
        let mut process = process(at, clients[at], peers[at], &cluster.join(","));
        // The last of several values counts.
        let told = format!("--initial-advertise-peer-urls={}", address(doors[at]));
        process.args.push(told.into());
        process
    };
    Ok((0..MEMBERS).map(start).collect())
}

#[derive(Default)]
struct Gates(Mutex<State>);

#[derive(Default)]
struct State {
    cut: Option<usize>,
    /// Which member has which id.
    members: HashMap<String, usize>,
    passing: Vec<Passing>,
}

/// A connection that goes through a gate.
struct Passing {
    from: Option<usize>,
    to: usize,
    sides: [TcpStream; 2],
}

impl Gates {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands before a member for as long as this program runs.
    fn guard(self: Arc<Self>, to: usize, listener: &TcpListener, peer: u16) {
        for caller in listener.incoming().flatten() {
            let gates = Arc::clone(&self);
            // A connection that fails is its caller's trouble.
            thread::spawn(move || gates.pass(to, caller, peer).ok());
        }
    }

    fn pass(&self, to: usize, mut caller: TcpStream, peer: u16) -> Result<()> {
        let head = read_head(&mut caller)?;
        let mut member = {
            let mut state = self.state();
            if let Some(id) = field(&head, "X-Raft-To") {
                state.members.insert(id, to);
            }
            let from = field(&head, "X-Server-From").and_then(|id| state.members.get(&id).copied());
            let cut = state.cut.is_some_and(|cut| cut == to || from.is_none_or(|from| from == cut));
            ensure!(!cut, "cut off");
            let member = TcpStream::connect((Ipv4Addr::LOCALHOST, peer))?;
            let sides = [caller.try_clone()?, member.try_clone()?];
            state.passing.push(Passing { from, to, sides });
            member
        };
        member.write_all(&head)?;
        let (mut answers, mut back) = (member.try_clone()?, caller.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let _ = io::copy(&mut caller, &mut member);
        let _ = member.shutdown(Shutdown::Both);
        Ok(())
    }
}

/// What a connection begins with, up to the empty line.
fn read_head(caller: &mut TcpStream) -> Result<Vec<u8>> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = caller.read(&mut part)?;
        ensure!(count > 0 && head.len() < HEAD_MAX, "no request");
        head.extend_from_slice(&part[..count]);
    }
    Ok(head)
}

/// The value of a field in the head of a request.
fn field(head: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    Some(fields.find(|(field, _)| field.eq_ignore_ascii_case(name))?.1.trim().to_owned())
}
