//! What in the nodes' set-up can hurt locks, and what to do about it.

use super::{Redlock, flavour::Flavour};
use crate::store::{
    Advice, Severity,
    common::{advice::Findings, join},
    redis::advice::{facts, infos, judge_memory, judge_persistence},
};
use std::time::Duration;

/// For how long a node may take to say how it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl Redlock {
    /// Asks all nodes at once.
    pub(super) async fn setup_advice(&self) -> Vec<Advice> {
        let asks = self.nodes.connections.iter();
        let asks = asks.map(|node| crate::clock::timeout(ANSWER_TIMEOUT, infos(node)));
        let answers: Vec<_> = join::all(asks).await.into_iter().collect();
        let told = answers.into_iter().filter_map(|answer| answer.ok()?.ok());
        let told: Vec<Vec<String>> = told.collect();
        let mut findings = Findings::default();
        for info in told.iter().flatten() {
            let facts = facts(info);
            judge_memory(&mut findings, &facts);
            // A node that may have forgotten a fenced lock has no vote until the longest TTL has passed.
            if self.flavour == Flavour::Plain {
                judge_persistence(&mut findings, &facts);
            }
        }
        judge_nodes(&mut findings, self.nodes.connections.len(), told.len());
        judge_flavour(&mut findings, self.flavour);
        findings.without_repeats()
    }
}

fn judge_nodes(findings: &mut Findings, nodes: usize, told: usize) {
    let silent = nodes - told;
    findings.add_if(
        silent > 0,
        "silent-servers",
        Severity::Availability,
        format!("{silent} of {nodes} servers do not say how they are"),
        "as soon as fewer than a majority answer, no lock can be taken or renewed",
        "start them, or take them out of every client's URL",
    );
    findings.add_if(
        nodes > 0 && nodes.is_multiple_of(2),
        "even-servers",
        Severity::Information,
        format!("the number of servers, {nodes}, is even"),
        "one server less would survive as many failures",
        "use three or five",
    );
}

fn judge_flavour(findings: &mut Findings, flavour: Flavour) {
    findings.add_if(
        flavour == Flavour::Plain,
        "no-fences",
        Severity::Information,
        "plain string locks have no fences",
        "a resource cannot tell a holder that was stopped for longer than its TTL from the present one",
        "leave out compat=string where no other library has to take part",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_and_superfluous_nodes_are_named() {
        let codes = |nodes, told| {
            let mut findings = Findings::default();
            judge_nodes(&mut findings, nodes, told);
            findings.0.iter().map(|advice| advice.code).collect::<Vec<_>>()
        };
        assert!(codes(5, 5).is_empty() && codes(1, 1).is_empty());
        assert_eq!(codes(5, 4), ["silent-servers"]);
        assert_eq!(codes(4, 4), ["even-servers"]);
    }
}
