//! The conformance suite over every store of the library.

use std::{path::Path, process::ExitCode};
use testkit::Subject;

fn main() -> ExitCode {
    let subjects = [Subject::memory(), Subject::sqlite()];
    testkit::main(&subjects, Some(Path::new(env!("CARGO_BIN_EXE_taker"))))
}
