//! The table of capabilities in the guides is what the stores say of themselves: the suite holds each of
//! them to what its subject claims (`contract::it_claims_what_the_suite_was_told`).
//!
//! `LOCKKEEPER_WRITE=1 cargo test -p testkit --test capabilities` writes the table anew.

use lockkeeper::Capabilities;
use std::{env, fmt::Write as _, fs, path::PathBuf};

const BEGIN: &str = "<!-- capabilities: generated, see crates/testkit/tests/capabilities.rs -->\n";
const END: &str = "<!-- end of capabilities -->";

type Fact = (&'static str, fn(&Capabilities) -> bool);

const FACTS: [Fact; 12] = [
    ("fair", |can| can.fair),
    ("fenced", |can| can.fenced),
    ("shared", |can| can.shared),
    ("permits", |can| can.permits),
    ("cells", |can| can.cells),
    ("at least", |can| can.at_least),
    ("wakes", |can| can.wakes),
    ("durable", |can| can.durable),
    ("survives failover", |can| can.survives_failover),
    ("sessions shared", |can| can.sessions_shared),
    ("renewal shows tickets", |can| can.renewal_shows_tickets),
    ("waiters end at ttl", |can| can.waiters_end_at_ttl),
];

fn table() -> String {
    let mut text = String::from("| |");
    for (fact, _) in FACTS {
        write!(text, " {fact} |").unwrap();
    }
    text += "\n|---|";
    text += &":-:|".repeat(FACTS.len());
    for subject in testkit::servers::all() {
        write!(text, "\n| {} |", subject.name()).unwrap();
        for (_, is) in FACTS {
            text += if is(&subject.can()) { " ✓ |" } else { " – |" };
        }
    }
    text + "\n"
}

#[test]
fn the_table_in_the_guides_is_what_the_stores_say() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guarantees.md"));
    let guide = fs::read_to_string(&path).unwrap();
    let (before, rest) = guide.split_once(BEGIN).expect("the table has a beginning");
    let (found, after) = rest.split_once(END).expect("the table has an end");
    if env::var_os("LOCKKEEPER_WRITE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
    } else {
        assert_eq!(found, table(), "LOCKKEEPER_WRITE=1 writes it anew");
    }
}
