//! A Redis cluster.

use anyhow::{Context, Result, ensure};

use super::resp::ask;
use super::{REDIS, hosts, server};
use crate::recipe::{Recipe, Sandbox};

/// How many nodes there are, all of them primaries.
const NODES: usize = 3;

/// Into how many slots every cluster divides the keys.
const SLOTS: usize = 16_384;

/// A cluster of three nodes, each with a third of the slots, without replicas and persistence.
///
/// Its nodes are `redis-1`, `redis-2` and `redis-3`, in the order of the URL. The ports are theirs
/// in the same order, and after them three for what the nodes tell each other. The slots go to the
/// nodes in this order too: 0 to 5460, 5461 to 10921 and 10922 to 16383.
///
/// The others miss a node after two seconds, and then none of them serves any key, because some
/// keys have no node.
pub const REDIS_CLUSTER: Recipe = Recipe {
    name: "redis-cluster",
    ports: 2 * NODES,
    processes: |sandbox| {
        let numbered = (1..).zip(addresses(sandbox));
        let start = |(number, (port, bus))| {
            server(sandbox, &format!("redis-{number}"), port, &settings(bus))
        };
        numbered.map(start).collect()
    },
    form: Some(form),
    url: |sandbox| format!("redis+cluster://{}", hosts(&sandbox.ports[..NODES])),
    ..REDIS
};

/// The port for clients and the port for the other nodes, of every node.
fn addresses(sandbox: &Sandbox) -> impl Iterator<Item = (u16, u16)> {
    let (ports, buses) = sandbox.ports.split_at(NODES);
    ports.iter().copied().zip(buses.iter().copied())
}

/// The other nodes' port would be 10000 above the clients' one if it were not set, and that need
/// not be free.
fn settings(bus: u16) -> String {
    format!(
        "cluster-enabled yes\n\
         cluster-config-file nodes.conf\n\
         cluster-node-timeout 2000\n\
         cluster-announce-ip 127.0.0.1\n\
         cluster-port {bus}\n"
    )
}

/// Every node gets its slots before it meets the others, so that no other one can seem to have
/// them.
fn form(sandbox: &Sandbox) -> Result<()> {
    for (index, (port, _)) in addresses(sandbox).enumerate() {
        take_slots(port, index)?;
    }
    introduce(sandbox)?;
    addresses(sandbox).try_for_each(|(port, _)| is_whole(port))
}

/// Gives a node its slots, if it has none.
fn take_slots(port: u16, index: usize) -> Result<()> {
    if count(port, "cluster_slots_assigned")? > 0 {
        return Ok(());
    }
    if count(port, "cluster_my_epoch")? == 0 {
        // All different from the start; else the nodes would have to settle it among themselves.
        ask(port, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1))?;
    }
    let (first, next) = (border(index), border(index + 1));
    ask(port, &format!("CLUSTER ADDSLOTSRANGE {first} {}", next - 1))?;
    Ok(())
}

/// The first slot of this node; the shares differ by one at most.
const fn border(index: usize) -> usize {
    index * SLOTS / NODES
}

/// Lets the first node meet the others, which then hear of each other by themselves.
fn introduce(sandbox: &Sandbox) -> Result<()> {
    let first = sandbox.ports[0];
    if count(first, "cluster_known_nodes")? >= NODES {
        return Ok(());
    }
    for (port, bus) in addresses(sandbox).skip(1) {
        ask(first, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
    }
    Ok(())
}

/// Whether a node knows all nodes and would serve or redirect every key.
fn is_whole(port: u16) -> Result<()> {
    let info = ask(port, "CLUSTER INFO")?;
    let state = info.field("cluster_state");
    ensure!(state == "ok", "port {port} holds the cluster for {state:?}");
    for (name, wanted) in [("cluster_known_nodes", NODES), ("cluster_slots_ok", SLOTS)] {
        let found = info.field(name);
        ensure!(found == wanted.to_string(), "{name} of port {port} is {found}, not {wanted}");
    }
    Ok(())
}

fn count(port: u16, field: &str) -> Result<usize> {
    let info = ask(port, "CLUSTER INFO")?;
    info.field(field).parse().with_context(|| format!("{field} of port {port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_are_shared_out_without_rest() {
        let borders: Vec<usize> = (0..=NODES).map(border).collect();
        assert_eq!(borders, [0, 5461, 10_922, SLOTS]);
    }
}
