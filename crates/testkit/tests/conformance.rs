//! The conformance suite over every store of the library.

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let taker = Path::new(env!("CARGO_BIN_EXE_taker"));
    let mut all = testkit::servers::all();
    all.extend(testkit::service::subjects(taker));
    testkit::main(&all, Some(taker))
}
