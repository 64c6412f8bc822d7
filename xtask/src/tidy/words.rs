//! Words that hide the actor. A sentence names the server, the renewal task or the caller instead.

use super::rules::{Breach, Source};

const HIDDEN_ACTORS: [&str; 7] =
    ["whoever", "somebody", "someone", "nobody", "anybody", "everybody", "those who"];

/// The folders that are clean of these words, and stay so. Add a folder when its last one is gone.
const CLEAN: &[&str] = &[
    "crates/bench/",
    "crates/lockkeeper-testkit/",
    "crates/servers/",
    "crates/testkit/",
    "xtask/",
];

/// These words are what this file is about.
const HERE: &str = "xtask/src/tidy/words.rs";

pub(super) fn the_actor_is_named(source: &Source<'_>) -> Vec<Breach> {
    let is_clean = CLEAN.iter().any(|folder| source.path.starts_with(folder));
    if !is_clean || source.path == HERE || !source.path.ends_with(".rs") {
        return Vec::new();
    }
    let numbered = source.text.lines().enumerate();
    let breaches = numbered.filter(|(_, line)| HIDDEN_ACTORS.iter().any(|word| says(line, word)));
    breaches.map(|(index, _)| (index + 1, "name the actor: server, task, caller…")).collect()
}

/// Whether the word stands there, be it a part of an identifier.
fn says(line: &str, word: &str) -> bool {
    let line = line.to_lowercase();
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(char::is_alphabetic) && !after.starts_with(char::is_alphabetic)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_actors_are_found_in_prose_and_in_names_of_clean_folders() {
        let text = "// Whoever waits\nfn nobody_waits() {}\n// those who wait\n// a waiter\n";
        let lines = |path| -> Vec<usize> {
            the_actor_is_named(&Source::new(path, text)).into_iter().map(|(line, _)| line).collect()
        };
        assert_eq!(lines("crates/testkit/src/a.rs"), [1, 2, 3]);
        assert!(lines("not-yet-clean/a.rs").is_empty() && lines(HERE).is_empty());
        assert!(lines("crates/testkit/a.md").is_empty());
    }
}
