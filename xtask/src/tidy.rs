//! `cargo xtask tidy`: rules of this repository that neither rustfmt nor clippy knows.

mod code;
mod rules;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::workspace;
use rules::{RULES, Source};

/// A breach of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    path: String,
    line: usize,
    what: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

pub(crate) fn run() -> Result<ExitCode> {
    let problems = check(&workspace::root())?;
    for problem in &problems {
        println!("{problem}");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(root: &Path) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for path in files(root)? {
        // Listed files may be gone from the work tree, and pictures are no prose.
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        problems.extend(check_file(&path, &text));
    }
    Ok(problems)
}

fn check_file(path: &str, text: &str) -> Vec<Problem> {
    let source = Source::new(path, text);
    let breaches = RULES.iter().flat_map(|rule| rule(&source));
    breaches.map(|(line, what)| Problem { path: path.to_owned(), line, what }).collect()
}

/// What is in version control or could be put there.
fn files(root: &Path) -> Result<Vec<String>> {
    let output = git(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git cannot be run")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}

/// A hook of git finds these set for the repository it works on, which need not be `root`.
fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(root);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(variable);
    }
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let problems = check(&workspace::root()).unwrap();
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert!(lines.is_empty(), "\n{}", lines.join("\n"));
    }

    #[test]
    fn files_not_yet_added_are_looked_at_and_ignored_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        assert!(git(folder.path()).args(["init", "-q"]).status().unwrap().success());
        fs::write(folder.path().join(".gitignore"), "/built\n").unwrap();
        fs::write(folder.path().join("built"), "trailing \n").unwrap();
        fs::write(folder.path().join("new.txt"), "fine\ntrailing \n").unwrap();
        let problems = check(folder.path()).unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].to_string().starts_with("new.txt:2: "), "{problems:?}");
    }
}
