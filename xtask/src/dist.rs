//! `cargo xtask dist`: what is installed with the command, in `target/dist`, laid out as below `/usr/local`.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Each shell whose completions are installed, and where it looks for them.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/lockkeeper"),
    ("zsh", "share/zsh/site-functions/_lockkeeper"),
    ("fish", "share/fish/vendor_completions.d/lockkeeper.fish"),
];

/// The files of this repository that are installed.
const DOCUMENTS: &[&str] =
    &["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "docs/cli.md"];

/// The folder of the schemas, all of which are installed.
const SCHEMAS: &str = "docs/schema";

pub(crate) fn run() -> Result<ExitCode> {
    let built =
        workspace::cargo(&["build", "--release", "--locked", "--package", "lockkeeper-cli"])?;
    if built != ExitCode::SUCCESS {
        return Ok(built);
    }
    let root = workspace::root();
    let target = workspace::target();
    let dist = target.join("dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("cannot empty {}", dist.display()))?;
    }
    lay_out(&root, &target.join("release/lockkeeper"), &dist)?;
    println!("{}", dist.display());
    Ok(ExitCode::SUCCESS)
}

/// Puts the program into `dist`, with what it says about itself.
fn lay_out(root: &Path, program: &Path, dist: &Path) -> Result<()> {
    copy(program, &dist.join("bin/lockkeeper"))?;
    for (shell, path) in COMPLETIONS {
        write(&dist.join(path), &output(program, &["completions", shell])?)?;
    }
    let manual = dist.join("share/man/man1").display().to_string();
    output(program, &["man", "--into", &manual])?;
    let documents = dist.join("share/doc/lockkeeper");
    for document in DOCUMENTS {
        let to = document.strip_prefix("docs/").unwrap_or(document);
        copy(&root.join(document), &documents.join(to))?;
    }
    for schema in fs::read_dir(root.join(SCHEMAS)).context("no schemas")? {
        let schema = schema?;
        copy(&schema.path(), &documents.join("schema").join(schema.file_name()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_folder_of(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn write(to: &Path, text: &[u8]) -> Result<()> {
    make_folder_of(to)?;
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().context("a path without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn output(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let shown = program.display();
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{shown} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown} {}: {}", arguments.join(" "), said.trim());
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn program_pages_completions_and_documents_are_laid_out() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        let script = "#!/bin/sh\n[ \"$1 $2\" = 'man --into' ] && mkdir -p \"$3\" && exec touch \
                      \"$3/lockkeeper.1\"\necho \"$@\"\n";
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let dist = folder.path().join("dist");
        lay_out(&workspace::root(), &program, &dist).unwrap();
        let read = |path| fs::read_to_string(dist.join(path)).unwrap();
        assert_eq!(read("bin/lockkeeper"), script);
        assert_eq!(read("share/zsh/site-functions/_lockkeeper"), "completions zsh\n");
        assert!(read("share/doc/lockkeeper/schema/events.json").contains("oneOf"));
        assert!(dist.join("share/man/man1/lockkeeper.1").exists());
    }
}
