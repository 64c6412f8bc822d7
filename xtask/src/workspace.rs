//! Where the workspace is, and cargo in it.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    // Cargo says at run time where it is; the folder of the build may have moved since.
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map(PathBuf::from).unwrap_or(here)
}

/// Runs cargo in the workspace.
pub(crate) fn cargo(args: &[&str]) -> Result<ExitCode> {
    run(Command::new(cargo_path()).args(args).current_dir(root()))
}

/// The cargo that has started this program.
pub(crate) fn cargo_path() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    let root = root();
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |it| root.join(it))
}

/// Runs a command; its words and its exit code are ours.
pub(crate) fn run(command: &mut Command) -> Result<ExitCode> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("{program} cannot be run"))?;
    Ok(ExitCode::from(exit_code(status)))
}

/// As a shell tells it: the program's own code, or 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map(|signal| signal + 128);
    status.code().or_else(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_kept_and_signals_are_told() {
        let code =
            |script: &str| exit_code(Command::new("sh").args(["-c", script]).status().unwrap());
        assert_eq!(code("exit 0"), 0);
        assert_eq!(code("exit 101"), 101);
        assert_eq!(code("kill -9 $$"), 137);
    }

    #[test]
    fn the_root_is_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").is_file());
    }
}
