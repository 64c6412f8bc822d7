//! Everything that the command says on stderr, written by a thread of its own.
//!
//! Stderr can block for ever: a full pipe, a terminal stopped with Ctrl-S, a hung ssh. The main
//! thread renews the lock and signals the command, so it must never wait for a reader. It puts
//! messages into a bounded queue; when the queue is full, messages are dropped and counted.

use crate::secrets;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{
        Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// How many messages can wait for a reader.
const QUEUE_MAX: usize = 256;

/// How many of them before the log has no room: the rest is for what the user must know.
const LOG_MAX: usize = QUEUE_MAX / 2;

/// How long the end of the process waits for the last messages to be written.
pub(crate) const EXIT_MAX: Duration = Duration::from_millis(500);

/// How long the start of the command waits for earlier messages, so that they come before its own.
pub(crate) const START_MAX: Duration = Duration::from_millis(100);

/// From one look at the queue to the next.
const LOOK: Duration = Duration::from_millis(1);

static JSON: AtomicBool = AtomicBool::new(false);
static LOG_MUTED: AtomicBool = AtomicBool::new(false);
static QUEUE: Queue = Queue::new();
static THREAD: OnceLock<()> = OnceLock::new();

/// Chooses JSON for what this module has to say by itself.
pub(crate) fn speak_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Was [JSON](speak_json) chosen?
pub(crate) fn speaks_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Drops the log, or no longer: while a whole screen is drawn on the terminal that it would go to.
pub(crate) fn mute_log(muted: bool) {
    LOG_MUTED.store(muted, Ordering::Relaxed);
}

/// Says a text. Never blocks.
pub(crate) fn say(text: impl Into<Vec<u8>>) {
    put(text.into(), QUEUE_MAX);
}

fn put(message: Vec<u8>, room: usize) {
    QUEUE.push(secrets::hide(message), room);
    THREAD.get_or_init(start);
}

/// Waits until everything is written, but not longer than this.
pub(crate) fn flush(at_most: Duration) {
    QUEUE.flush(at_most);
}

/// The same, while other tasks of this thread, such as renewals, go on.
pub(crate) async fn written(at_most: Duration) {
    let written = async {
        while !QUEUE.is_settled() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(at_most, written).await.is_err() {
        QUEUE.state().stuck = true;
    }
}

/// A writer for the log: each write is one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !LOG_MUTED.load(Ordering::Relaxed) {
            put(bytes.to_vec(), LOG_MAX);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

struct State {
    messages: VecDeque<Vec<u8>>,
    /// A message has been taken out and is not written yet.
    writing: bool,
    dropped: u64,
    /// A flush was in vain, and nothing has been written since.
    stuck: bool,
}

impl State {
    /// Is everything written, or is nobody reading? A reader that did not read a moment ago is not
    /// waited for again.
    fn is_settled(&self) -> bool {
        self.stuck || (!self.writing && self.messages.is_empty() && self.dropped == 0)
    }
}

impl Queue {
    const fn new() -> Self {
        let messages = VecDeque::new();
        let state = State { messages, writing: false, dropped: 0, stuck: false };
        Self { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, message: Vec<u8>, room: usize) {
        let mut state = self.state();
        if state.messages.len() < room {
            state.messages.push_back(message);
        } else {
            state.dropped += 1;
        }
        self.filled.notify_one();
    }

    /// Waits for the next message, and marks the one before it as written.
    fn pop(&self) -> Vec<u8> {
        let mut state = self.state();
        (state.writing, state.stuck) = (false, false);
        while state.messages.is_empty() && state.dropped == 0 {
            self.emptied.notify_all();
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        // What was dropped came after what is in the queue.
        match state.messages.pop_front() {
            Some(message) => message,
            None => count(std::mem::take(&mut state.dropped)),
        }
    }

    fn flush(&self, at_most: Duration) {
        let waited =
            self.emptied.wait_timeout_while(self.state(), at_most, |state| !state.is_settled());
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.stuck |= timeout.timed_out();
    }

    fn is_settled(&self) -> bool {
        self.state().is_settled()
    }
}

/// Says how many messages were dropped.
fn count(dropped: u64) -> Vec<u8> {
    let what = format!("{dropped} messages were dropped: stderr was not read");
    let json = speaks_json();
    if json { crate::output::json_warning(&what) } else { format!("lockkeeper: {what}\n") }.into()
}

/// Starts the writer. It gets no signals: they are for the main thread. With SIGTTOU blocked a
/// message from the background is written also where `stty tostop` is set, and stops nothing.
fn start() {
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    // If there can be no thread, there are no messages.
    let _ = thread::Builder::new().name("stderr".into()).spawn(|| {
        loop {
            // When nobody reads stderr any more, there is nobody to tell about it.
            let _ = io::stderr().write_all(&QUEUE.pop());
        }
    });
    if let Ok(mask) = mask {
        let _ = mask.thread_set_mask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = Queue::new();
        for _ in 0..QUEUE_MAX + 3 {
            queue.push(b"x".to_vec(), QUEUE_MAX);
        }
        for _ in 0..QUEUE_MAX {
            assert_eq!(queue.pop(), b"x");
        }
        let counted = String::from_utf8(queue.pop()).unwrap();
        assert_eq!(counted, "lockkeeper: 3 messages were dropped: stderr was not read\n");
    }

    #[test]
    fn a_flush_waits_once_for_a_reader_that_does_not_read() {
        let (queue, moment) = (Queue::new(), Duration::from_millis(20));
        queue.flush(Duration::from_secs(60));
        queue.push(b"x".to_vec(), QUEUE_MAX);
        queue.flush(moment);
        queue.flush(Duration::from_secs(3600));
        assert_eq!(queue.pop(), b"x");
    }
}
