//! A process that is killed while it waits on the embedded store.

mod support;

use nix::sys::signal::Signal;
use support::{Place, eventually};

/// With these times its ticket would close the line for an hour.
const LONG: [&str; 4] = ["--ttl", "1h", "--kill-after", "1s"];

#[test]
fn a_waiter_that_was_killed_is_passed_over_at_once() {
    let place = Place::new();
    let (mut holder, first) = place.hold(&[], "a");
    let mut killed = place.start_script(&LONG, "a", "echo ran");
    place.await_waiters("a", 1);
    // Its doorbell says that it is gone, so it must hang before the kill.
    let hangs = || {
        let files = std::fs::read_dir(place.path(".")).unwrap();
        files.filter_map(Result::ok).any(|file| file.file_name().to_string_lossy().contains("bell"))
    };
    eventually(hangs);
    killed.signal(Signal::SIGKILL);
    killed.wait();
    let mut next = place.start_script(&[], "a", "echo $LOCKKEEPER_FENCE");
    place.await_waiters("a", 2);
    assert!(holder.end().success());
    let second: u64 = next.line().parse().expect("a fence");
    assert!(second > first);
    assert!(next.wait().success());
}
