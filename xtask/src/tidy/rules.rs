//! The rules, each a small function over one file.

use super::code::{code_only, is_word};
use super::words::the_actor_is_named;

const MOST_LINES: usize = 600;

/// The one place of the library that may read clocks, sleep and limit a wait; all else is given a clock or asks this
/// one, and so can be tested without waiting.
const CLOCK: &str = "crates/lockkeeper/src/clock.rs";
const LIBRARY: &str = "crates/lockkeeper/src/";

/// The one crate with unsafe code, and so with lints of its own.
const UNSAFE: &str = "crates/lockkeeper-spawn/Cargo.toml";

/// A file, as the rules see it.
pub(super) struct Source<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    /// Without comments and literals; empty if this is not Rust.
    code: String,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &'a str, text: &'a str) -> Self {
        let code = if is_rust(path) { code_only(text) } else { String::new() };
        Self { path, text, code }
    }

    fn must_not_touch_time(&self) -> bool {
        self.path.starts_with(LIBRARY) && self.path != CLOCK
    }
}

/// A line, counted from 1, and what is wrong with it.
pub(super) type Breach = (usize, &'static str);

pub(super) type Rule = fn(&Source<'_>) -> Vec<Breach>;

pub(super) const RULES: &[Rule] = &[
    files_are_short,
    nothing_is_left_over,
    no_test_is_ignored,
    no_trailing_space,
    no_tabs,
    only_the_clock_waits,
    only_the_clock_tells_time,
    lints_are_inherited,
    the_actor_is_named,
];

fn files_are_short(source: &Source<'_>) -> Vec<Breach> {
    let lines = source.text.lines().count();
    if !is_rust(source.path) || lines <= MOST_LINES {
        return Vec::new();
    }
    vec![(lines, "more than 600 lines: split the file")]
}

fn nothing_is_left_over(source: &Source<'_>) -> Vec<Breach> {
    let macros = ["todo!", "unimplemented!", "dbg!"];
    let unfinished = |line: &str| macros.iter().any(|name| mentions(line, name));
    breaches(&source.code, "unfinished: todo!, unimplemented! or dbg!", unfinished)
}

fn no_test_is_ignored(source: &Source<'_>) -> Vec<Breach> {
    let ignores = |line: &str| line.trim_start().starts_with("#[") && mentions(line, "ignore");
    breaches(&source.code, "an ignored test: make it run, or remove it", ignores)
}

fn no_trailing_space(source: &Source<'_>) -> Vec<Breach> {
    breaches(source.text, "white space at the end of the line", |line| {
        line.ends_with(char::is_whitespace)
    })
}

fn no_tabs(source: &Source<'_>) -> Vec<Breach> {
    let text = if is_rust(source.path) { source.text } else { "" };
    breaches(text, "a tab: indent with spaces, write \\t in strings", |line| line.contains('\t'))
}

fn only_the_clock_waits(source: &Source<'_>) -> Vec<Breach> {
    if !source.must_not_touch_time() {
        return Vec::new();
    }
    let what = "a sleep or a timer outside of clock.rs: ask the clock";
    let mut found =
        breaches(&source.code, what, |line| TIMERS.iter().any(|timer| calls(line, timer)));
    found.extend(imports_of_timers(&source.code).map(|line| (line, what)));
    found.sort_unstable();
    found.dedup();
    found
}

fn only_the_clock_tells_time(source: &Source<'_>) -> Vec<Breach> {
    if !source.must_not_touch_time() {
        return Vec::new();
    }
    let calls = ["SystemTime::now", "Instant::now"];
    let reads = |line: &str| calls.iter().any(|call| mentions(line, call));
    breaches(&source.code, "the time read outside of clock.rs: ask the clock", reads)
}

fn lints_are_inherited(source: &Source<'_>) -> Vec<Breach> {
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let is_crate =
        source.path.rsplit('/').next() == Some("Cargo.toml") && lines.contains(&"[package]");
    let section = lines.iter().skip_while(|line| **line != "[lints]").skip(1);
    let inherits =
        section.take_while(|line| !line.starts_with('[')).any(|line| *line == "workspace = true");
    if is_crate && !inherits && source.path != UNSAFE {
        vec![(1, "no `[lints] workspace = true`")]
    } else {
        Vec::new()
    }
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn breaches(text: &str, what: &'static str, is_breach: impl Fn(&str) -> bool) -> Vec<Breach> {
    let numbered = text.lines().enumerate().filter(|(_, line)| is_breach(line));
    numbered.map(|(index, _)| (index + 1, what)).collect()
}

/// Whether the phrase stands there as a whole, not as a part of longer words.
fn mentions(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + phrase.len()..]);
        let cut_off = phrase.ends_with(is_word) && after.starts_with(is_word);
        !before.ends_with(is_word) && !cut_off
    })
}

/// What waits for a moment, in the modules `time` of tokio and `thread` of the standard library.
const TIMERS: [&str; 5] = ["sleep", "sleep_until", "timeout", "timeout_at", "interval"];

/// Whether this line calls the timer by its module's name.
fn calls(line: &str, timer: &str) -> bool {
    ["time", "thread"].iter().any(|module| mentions(line, &format!("{module}::{timer}")))
}

/// The lines of `use` declarations that bring in a timer by its bare name.
fn imports_of_timers(code: &str) -> impl Iterator<Item = usize> {
    let ends = code.match_indices(';').map(|(end, _)| end);
    let declarations = ends.filter_map(|end| Some((code[..end].rfind("use ")?, end)));
    declarations.filter_map(|(start, end)| {
        let declaration = &code[start..end];
        let of_time = mentions(declaration, "time") || mentions(declaration, "thread");
        let of_timer = TIMERS.iter().any(|timer| mentions(declaration, timer));
        let is_one = !declaration.contains(';') && of_time && of_timer;
        is_one.then(|| code[..start].lines().count() + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that break the rule, for a file of this name and content.
    fn lines(rule: Rule, path: &str, text: &str) -> Vec<usize> {
        rule(&Source::new(path, text)).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn long_files_are_found() {
        let long = "x\n".repeat(601);
        assert_eq!(lines(files_are_short, "a.rs", &long), [601]);
        assert!(lines(files_are_short, "a.rs", &"x\n".repeat(600)).is_empty());
        assert!(lines(files_are_short, "a.md", &long).is_empty());
    }

    #[test]
    fn left_overs_are_found_in_code_only() {
        let text = "todo!();\n// todo!()\nlet s = \"dbg!\";\nlet x = std::dbg!(x);\nmy_todo!();\n";
        assert_eq!(lines(nothing_is_left_over, "a.rs", text), [1, 4]);
        assert_eq!(lines(nothing_is_left_over, "a.rs", "fn f() { unimplemented!() }"), [1]);
        assert!(lines(nothing_is_left_over, "a.md", text).is_empty());
    }

    #[test]
    fn ignored_tests_are_found() {
        let text = "#[ignore]\n  #[ignore = \"slow\"]\n#[cfg_attr(miri, ignore)]\n#[test]\n";
        assert_eq!(lines(no_test_is_ignored, "a.rs", text), [1, 2, 3]);
        assert!(lines(no_test_is_ignored, "a.rs", "let ignore = 1; // #[ignore]\n").is_empty());
        assert!(lines(no_test_is_ignored, "a.rs", "#[expect(ignored_unit_patterns)]").is_empty());
    }

    #[test]
    fn trailing_space_is_found_everywhere() {
        assert_eq!(lines(no_trailing_space, "a.md", "a\nb \nc\t\n\n \n"), [2, 3, 5]);
        assert!(lines(no_trailing_space, "a.rs", "a\n\n    b\n").is_empty());
    }

    #[test]
    fn tabs_are_found_in_rust() {
        assert_eq!(lines(no_tabs, "a.rs", "a\n\tb\n"), [2]);
        assert!(lines(no_tabs, "Makefile", "a:\n\tb\n").is_empty());
    }

    #[test]
    fn sleeps_and_timers_are_found_in_the_library() {
        let calls = "tokio::time::sleep(d).await;\nstd::thread::sleep(d);\nclock.sleep(d).await;\n\
                     time::timeout(d, f).await;\nclock::timeout(d, f).await;\n";
        assert_eq!(lines(only_the_clock_waits, "crates/lockkeeper/src/a.rs", calls), [1, 2, 4]);
        assert!(lines(only_the_clock_waits, CLOCK, calls).is_empty());
        assert!(lines(only_the_clock_waits, "crates/testkit/src/a.rs", calls).is_empty());
    }

    #[test]
    fn imported_timers_are_found() {
        let path = "crates/lockkeeper/src/store/a.rs";
        let imports = "use a::b;\nuse tokio::time::{\n    Duration, sleep,\n};\nuse c::d;\n";
        assert_eq!(lines(only_the_clock_waits, path, imports), [2]);
        let once = "use tokio::time::sleep_until;\n";
        assert_eq!(lines(only_the_clock_waits, path, once), [1]);
        let other = "use tokio::time::{Timeout, Sleep};\nlet sleep = time;\n";
        assert!(lines(only_the_clock_waits, path, other).is_empty());
    }

    #[test]
    fn reading_the_time_is_found_in_the_library() {
        let text =
            "let a = Instant::now();\nlet b = std::time::SystemTime::now();\n// Instant::now\n";
        assert_eq!(lines(only_the_clock_tells_time, "crates/lockkeeper/src/a.rs", text), [1, 2]);
        assert!(lines(only_the_clock_tells_time, CLOCK, text).is_empty());
        assert!(lines(only_the_clock_tells_time, "xtask/src/a.rs", text).is_empty());
    }

    #[test]
    fn crates_without_the_common_lints_are_found() {
        let rule = lints_are_inherited;
        let good = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";
        assert!(lines(rule, "crates/a/Cargo.toml", good).is_empty());
        assert_eq!(lines(rule, "Cargo.toml", "[package]\nname = \"a\"\n"), [1]);
        let elsewhere = "[package]\n[lints]\n[dependencies.b]\nworkspace = true\n";
        assert_eq!(lines(rule, "a/Cargo.toml", elsewhere), [1]);
        assert!(lines(rule, "Cargo.toml", "[workspace]\nmembers = []\n").is_empty());
        assert!(lines(rule, "a/NotCargo.toml", "[package]\n").is_empty());
    }
}
