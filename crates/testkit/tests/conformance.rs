//! The conformance suite over every store of the library.

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    testkit::main(&testkit::servers::all(), Some(Path::new(env!("CARGO_BIN_EXE_taker"))))
}
