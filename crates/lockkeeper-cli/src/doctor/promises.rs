//! What exactly this server promises, as it is set up.

use super::verdict::Verdict;
use lockkeeper::{Advice, Capabilities, Severity};

type Has = fn(&Capabilities) -> bool;
/// One capability: its name in JSON, and in words when it is there or is missing.
type Can = (&'static str, Has, &'static str);

const CAN: &[Can] = &[
    ("fair", |can| can.fair, "waiting in line"),
    ("fenced", |can| can.fenced, "fences"),
    ("shared", |can| can.shared, "readers beside each other"),
    ("permits", |can| can.permits, "permits"),
    ("cells", |can| can.cells, "cells"),
    ("at_least", |can| can.at_least, "--at-least"),
    ("wakes", |can| can.wakes, "waking waiters"),
];

/// What outlives what is told apart from what the store can do.
const OUTLIVES: &[(&str, Has)] = &[
    ("durable", |can| can.durable),
    ("survives_failover", |can| can.survives_failover),
    ("sessions_shared", |can| can.sessions_shared),
    ("renewal_shows_tickets", |can| can.renewal_shows_tickets),
    ("waiters_end_at_ttl", |can| can.waiters_end_at_ttl),
];

/// What the store can do, by the names of the library.
pub(super) fn names(can: &Capabilities) -> Vec<&'static str> {
    let abilities = CAN.iter().map(|(name, has, _)| (*name, has(can)));
    let all = abilities.chain(OUTLIVES.iter().map(|(name, has)| (*name, has(can))));
    all.filter_map(|(name, has)| has.then_some(name)).collect()
}

pub(super) fn of(can: Capabilities, advice: &[Advice]) -> Vec<Verdict> {
    let words = |wanted: bool| {
        let words = CAN.iter().filter(|(_, has, _)| has(&can) == wanted).map(|(.., words)| *words);
        words.collect::<Vec<_>>().join(", ")
    };
    let mut verdicts = vec![match words(true) {
        none if none.is_empty() => Verdict::note("can", "only exclusive locks"),
        words => Verdict::ok("can", words),
    }];
    let missing = words(false);
    if !missing.is_empty() {
        verdicts.push(Verdict::note("cannot", missing));
    }
    let weak: Vec<&str> =
        advice.iter().filter(|a| a.severity == Severity::Durability).map(|a| a.code).collect();
    verdicts.push(match (can.durable, &weak[..]) {
        (true, []) => Verdict::ok("crash", "locks and fences outlive a crash"),
        (true, weak) => {
            let weak = weak.join(", ");
            Verdict::note("crash", format!("locks can be forgotten, as set up: see {weak}"))
        }
        (false, _) => Verdict::note("crash", "locks end with the process that serves the store"),
    });
    verdicts.push(match can.survives_failover {
        true => Verdict::ok("failover", "locks and fences survive the loss of a machine"),
        false => Verdict::note("failover", "the store makes no promise for the loss of a machine"),
    });
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(can: Capabilities, advice: &[Advice]) -> String {
        let lines = of(can, advice).iter().map(Verdict::line).collect::<String>();
        anstream::adapter::strip_str(&lines).to_string()
    }

    #[test]
    fn promises_are_those_of_the_server_as_it_is_set_up() {
        let can = Capabilities { durable: true, ..Capabilities::LINES };
        let text = lines(can, &[]);
        assert!(text.contains("waiting in line, fences") && !text.contains("cannot  "), "{text}");
        assert!(text.contains("outlive a crash"), "{text}");
        let weak = Advice::new("no-aof", Severity::Durability, "a", "b", "c");
        assert!(lines(can, &[weak]).contains("can be forgotten, as set up: see no-aof"));
        let text = lines(Capabilities::NONE, &[]);
        assert!(text.contains("only exclusive locks") && text.contains("cannot"), "{text}");
        assert_eq!(names(&can).last(), Some(&"sessions_shared"));
    }
}
