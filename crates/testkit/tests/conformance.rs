//! The conformance suite over every store of the library.

use std::{path::Path, process::ExitCode};
use testkit::Subject;

fn main() -> ExitCode {
    let mut subjects = vec![Subject::memory(), Subject::sqlite()];
    subjects.extend(testkit::servers::redis());
    subjects.extend(testkit::servers::postgres());
    subjects.push(testkit::servers::mariadb());
    subjects.extend(testkit::servers::etcd());
    subjects.extend(testkit::servers::zookeeper());
    testkit::main(&subjects, Some(Path::new(env!("CARGO_BIN_EXE_taker"))))
}
