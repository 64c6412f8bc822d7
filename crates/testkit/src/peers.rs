//! Takers of other libraries: programs in `peers/` that do as the `taker` program does.

use lockkeeper_testkit::taker::Taker;
use servers::{BuiltPeer, JavaPeer};
use std::path::{Path, PathBuf};
use tokio::{process::Command, task::block_in_place};

fn in_peers(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(file)
}

/// Starts a script, with the Python that has the library.
pub async fn python(python: &Path, script: &str, args: &[&str]) -> Taker {
    let mut command = Command::new(python);
    command.arg(in_peers(script)).args(args).env("PYTHONDONTWRITEBYTECODE", "1");
    Taker::spawn(command).await
}

/// Starts a program for Java.
pub async fn java(peer: JavaPeer, program: &str, args: &[&str]) -> Taker {
    let command = block_in_place(|| peer.program(&in_peers(program)));
    let mut command = Command::from(command.expect("it compiles"));
    command.args(args);
    Taker::spawn(command).await
}

/// Starts one of the programs of a library that was built.
pub async fn built(peer: BuiltPeer, program: &str, args: &[&str]) -> Taker {
    let mut command = Command::from(peer.program(program));
    command.args(args);
    Taker::spawn(command).await
}
