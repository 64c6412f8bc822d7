//! The decisions of Redlock, without clocks and networks: what to propose, and what the votes mean.
//!
//! A node keeps, for each name, the ticket that holds it, until when, and a counter. It accepts a
//! proposal (ticket, t) only if the name is free or held by that very ticket, and t is above the
//! counter; then the counter is t. So every node's counter strictly increases, two majorities share a
//! node, and the later of two grants has the larger t there. No clock is needed for this order: the
//! fences of two grants differ and grow in the order of the grants even when, by clocks gone wrong,
//! exclusion itself has failed.

/// How one node answered a proposal or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// The node has it.
    Yes,
    /// Another ticket holds the name, or (of a renewal) the ticket is not there any more.
    No,
    /// The name is free, but its counter is at or above the proposal.
    Low(u64),
    /// The ticket was closed by its owner: this is a late copy of its proposal.
    Closed,
    /// The node has started empty not long ago and may have forgotten a holder: it has no vote.
    Void,
    /// The node was told this other `max_ttl`, in microseconds, and does not vote for a client that says
    /// another one.
    Differs(u64),
    /// No answer.
    Silent,
}

/// What the votes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority has it.
    Carried,
    /// No majority can have it any more.
    Failed,
    /// It depends on the nodes that have not answered.
    Open,
}

/// How many nodes are more than half.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Counts votes; those that have not come in are `None`.
pub(super) fn tally(votes: &[Option<Vote>]) -> Verdict {
    let majority = majority(votes.len());
    let yes = votes.iter().filter(|v| **v == Some(Vote::Yes)).count();
    let possible = votes.iter().filter(|v| matches!(v, None | Some(Vote::Yes | Vote::Silent)));
    if yes >= majority {
        Verdict::Carried
    } else if possible.count() < majority {
        Verdict::Failed
    } else {
        Verdict::Open
    }
}

/// The fence to propose: the clock, and above everything seen so far.
pub(super) fn propose(wall_micros: u64, seen: u64) -> u64 {
    wall_micros.max(seen + 1)
}

/// After a failed proposal: the counter that stood in the way, if a higher proposal could carry.
pub(super) fn raise(votes: &[Option<Vote>]) -> Option<u64> {
    let lows = votes.iter().filter_map(|v| match v {
        Some(Vote::Low(counter)) => Some(*counter),
        _ => None,
    });
    let highest = lows.max()?;
    let could = votes.iter().filter(|v| matches!(v, Some(Vote::Yes | Vote::Low(_)))).count();
    (could >= majority(votes.len())).then_some(highest)
}

#[cfg(test)]
mod tests {
    use super::{super::model::Node, *};
    use rand::{Rng, RngExt as _, SeedableRng, rngs::StdRng};
    use std::collections::HashSet;

    #[test]
    fn a_majority_of_all_nodes_carries_and_not_of_those_that_answer() {
        let yes = |n: usize| -> Vec<Option<Vote>> {
            (0..5).map(|i| Some(if i < n { Vote::Yes } else { Vote::Silent })).collect()
        };
        assert_eq!(tally(&yes(3)), Verdict::Carried);
        assert_eq!(tally(&yes(2)), Verdict::Open);
        let refused =
            [Some(Vote::Yes), Some(Vote::Yes), Some(Vote::No), Some(Vote::Void), Some(Vote::No)];
        assert_eq!(tally(&refused), Verdict::Failed);
        assert_eq!(tally(&[Some(Vote::Yes), Some(Vote::No), None]), Verdict::Open);
    }

    #[test]
    fn a_low_proposal_is_raised_only_where_it_could_carry() {
        assert_eq!(raise(&[Some(Vote::Low(7)), Some(Vote::Yes), Some(Vote::No)]), Some(7));
        assert_eq!(raise(&[Some(Vote::Low(7)), Some(Vote::No), Some(Vote::No)]), None);
        assert_eq!(raise(&[Some(Vote::Yes), Some(Vote::Yes), Some(Vote::No)]), None);
    }

    #[derive(Clone, Copy)]
    enum Message {
        Enter { client: usize, round: u32, node: usize, ticket: u32, t: u64 },
        Vote { client: usize, round: u32, node: usize, vote: Vote },
        Repair { node: usize, ticket: u32, t: u64 },
        Release { node: usize, ticket: u32 },
    }

    #[derive(Default)]
    struct Client {
        ticket: u32,
        round: u32,
        t: u64,
        seen: u64,
        began: usize,
        votes: Vec<Option<Vote>>,
    }

    /// A grant: when it was asked for, when it was decided, and its fence.
    #[derive(Debug)]
    struct Grant {
        began: usize,
        decided: usize,
        t: u64,
    }

    /// One random schedule: messages are lost, doubled and reordered, keys expire at any moment, as if clocks
    /// jumped, and every client has a clock of its own. Tickets are put back on nodes that lack them, and
    /// these messages come late like all others.
    fn schedule(seed: u64, nodes: usize, lax: bool) -> Vec<Grant> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut state = vec![Node { lax, ..Node::default() }; nodes];
        let mut clients: Vec<Client> = (0..3).map(|_| Client::default()).collect();
        let (mut net, mut grants, mut tickets) = (Vec::new(), Vec::new(), 0);
        for step in 0..120 {
            match rng.random_range(0..14) {
                0 => {
                    let at = rng.random_range(0..clients.len());
                    clients[at].began = step;
                    begin(at, &mut clients[at], &mut tickets, nodes, &mut rng, &mut net);
                }
                1 => state[rng.random_range(0..nodes)].ticket = None,
                _ => {
                    let grant = deliver(&mut rng, &mut net, &mut state, &mut clients);
                    grants.extend(grant.map(|(began, t)| Grant { began, decided: step, t }));
                }
            }
        }
        grants
    }

    fn begin(
        at: usize,
        client: &mut Client,
        tickets: &mut u32,
        nodes: usize,
        rng: &mut impl Rng,
        net: &mut Vec<Message>,
    ) {
        *tickets += 1;
        (client.ticket, client.round) = (*tickets, client.round + 1);
        client.t = propose(rng.random_range(0..20), client.seen);
        client.votes = vec![None; nodes];
        for node in 0..nodes {
            let (ticket, t, round) = (client.ticket, client.t, client.round);
            net.push(Message::Enter { client: at, round, node, ticket, t });
        }
    }

    fn deliver(
        rng: &mut impl Rng,
        net: &mut Vec<Message>,
        state: &mut [Node],
        clients: &mut [Client],
    ) -> Option<(usize, u64)> {
        if net.is_empty() {
            return None;
        }
        let at = rng.random_range(0..net.len());
        // Left in the net it will come once more; taken out and dropped it is lost.
        let message = if rng.random_range(0..8) == 0 { net[at] } else { net.swap_remove(at) };
        if rng.random_range(0..10) == 0 {
            return None;
        }
        match message {
            Message::Enter { client, round, node, ticket, t } => {
                let vote = state[node].accept(ticket, t);
                net.push(Message::Vote { client, round, node, vote });
            }
            Message::Repair { node, ticket, t } => state[node].repair(ticket, t),
            Message::Release { node, ticket } => {
                state[node].release(ticket);
            }
            Message::Vote { client: at, round, node, vote } => {
                let client = &mut clients[at];
                if client.round != round || client.votes[node].is_some() {
                    return None;
                }
                client.votes[node] = Some(vote);
                if let Vote::Low(counter) = vote {
                    client.seen = client.seen.max(counter);
                }
                return decide(client, net);
            }
        }
        None
    }

    fn decide(client: &mut Client, net: &mut Vec<Message>) -> Option<(usize, u64)> {
        let verdict = tally(&client.votes);
        if verdict == Verdict::Open {
            return None;
        }
        client.seen = client.seen.max(client.t);
        client.round += 1;
        let (nodes, ticket, t) = (client.votes.len(), client.ticket, client.t);
        if verdict == Verdict::Carried {
            net.extend((0..nodes).map(|node| Message::Repair { node, ticket, t }));
        }
        net.extend((0..nodes).map(|node| Message::Release { node, ticket }));
        (verdict == Verdict::Carried).then_some((client.began, client.t))
    }

    /// No fence twice, and none below that of a grant decided before it was asked for.
    fn is_sound(grants: &[Grant]) -> bool {
        let unique: HashSet<u64> = grants.iter().map(|g| g.t).collect();
        let mut pairs = grants.iter().flat_map(|a| grants.iter().map(move |b| (a, b)));
        unique.len() == grants.len() && pairs.all(|(a, b)| a.decided >= b.began || a.t < b.t)
    }

    #[test]
    fn a_node_that_accepts_equals_is_caught() {
        assert!((0..60_000).any(|seed| !is_sound(&schedule(seed, 3, true))));
    }

    #[test]
    fn fences_never_repeat_and_only_grow_whatever_the_clocks_and_the_network_do() {
        let mut granted = 0;
        for seed in 0..60_000 {
            let grants = schedule(seed, if seed % 2 == 0 { 3 } else { 5 }, false);
            assert!(is_sound(&grants), "seed {seed}: {grants:?}");
            granted += grants.len();
        }
        assert!(granted > 30_000, "the schedules must grant something: {granted}");
    }

    /// A grant of the fence `first` on the nodes 1 and 2 while 3 is cut off. Then 2 loses its data, and when
    /// its quarantine has ended, `end` by its clock, 2 and 3 decide without 1. The lowest fence that they
    /// accept.
    fn lowest_fence_after_amnesia(first: u64, end: u64) -> u64 {
        let mut nodes = [Node::default(), Node::default(), Node::default()];
        let granted = [Some(nodes[0].accept(1, first)), Some(nodes[1].accept(1, first)), None];
        assert_eq!(tally(&granted), Verdict::Carried);
        for node in &mut nodes {
            node.release(1);
        }
        nodes[1].forget(end);
        let mut t = 1;
        loop {
            let mut vote = |at: usize| Some(nodes[at].accept(2, t));
            let votes = [None, vote(1), vote(2)];
            if tally(&votes) == Verdict::Carried {
                return t;
            }
            for node in &mut nodes {
                node.release(2);
            }
            t = raise(&votes).expect("a higher one carries") + 1;
        }
    }

    #[test]
    fn fences_grow_though_only_a_minority_remembers_if_no_clock_was_ahead_by_the_quarantine() {
        let (granted_at, max_ttl) = (1_000, 60);
        for (skew, lost_after) in [(0, 0), (59, 0), (60, 0), (70, 10)] {
            let first = granted_at + skew;
            let next = lowest_fence_after_amnesia(first, granted_at + lost_after + max_ttl);
            assert!(next > first, "{next} after {first}");
        }
        // The limit that docs/guarantees.md states: a client's clock was ahead of the node's by more.
        let ahead = granted_at + max_ttl + 2;
        assert!(lowest_fence_after_amnesia(ahead, granted_at + max_ttl) < ahead);
        // Without that rule any clock behind the first client's would do.
        assert!(lowest_fence_after_amnesia(granted_at, 0) < granted_at);
    }
}
