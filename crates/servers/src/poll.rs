//! Waiting for a condition of another process, which has no way to wake us.

use std::thread;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(10);

/// Looks until something is found or `within` has passed; looks at least once.
pub(crate) fn poll<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + within;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_once_even_without_time_and_again_with_it() {
        assert_eq!(poll(Duration::ZERO, || Some(1)), Some(1));
        assert_eq!(poll(Duration::ZERO, || None::<u8>), None);
        let mut looks = 0;
        let third = poll(Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(third, Some(3));
    }
}
