//! Words of the service that the library hands out as `&'static str`.

use crate::sync::Mutex;
use std::collections::BTreeSet;

/// How many different texts are kept. A service has a handful of them.
const KEPT_MAX: usize = 256;
/// The longest one.
const LENGTH_MAX: usize = 200;

/// The same text, for as long as the program runs: each different one is kept once. A text that is too long, or one
/// too many, is replaced.
pub(super) fn keep(text: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock();
    if let Some(known) = kept.get(text) {
        return known;
    }
    if kept.len() >= KEPT_MAX || text.len() > LENGTH_MAX {
        return "what the service names";
    }
    let text: &'static str = Box::leak(text.into());
    kept.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once() {
        let (one, two) = (keep("read locks"), keep(&String::from("read locks")));
        assert!(std::ptr::eq(one, two));
        assert_eq!(keep(&"x".repeat(LENGTH_MAX + 1)), "what the service names");
    }
}
