//! The terminal in raw mode with the alternate screen, and how it is given back.
//!
//! It is given back on every way out: [`Screen`]'s drop, a panic ([`give_back`] in the panic hook), a
//! signal, a stop. What is drawn is written by a thread of its own: a terminal that does not read
//! (a hung ssh) must not keep a signal from ending the command.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use ratatui::{
    Frame, Terminal, TerminalOptions, Viewport, backend::CrosstermBackend, layout::Rect,
};
use rustix::termios::{self, OptionalActions, Termios};
use std::{
    fs::File,
    io::{self, IsTerminal as _, Write},
    mem,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// The alternate screen, cleared, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[0m\x1b[2J\x1b[?25l";
/// The same on the alternate screen.
const CLEAR: &str = "\x1b[0m\x1b[2J\x1b[?25l";
/// The screen as it was, with a cursor.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// How long the end waits until what was drawn is written.
const WRITTEN_MAX: Duration = Duration::from_millis(300);

/// The size of a terminal that does not tell it.
const SIZE: (u16, u16) = (80, 24);

/// How the terminal was before; none while it is not ours.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the terminal back as it was, if it is ours.
pub(super) fn give_back() {
    let Some(modes) = before().take() else { return };
    // First the modes: that does not depend on the terminal's reading.
    let _ = on_tty(|tty| termios::tcsetattr(tty, OptionalActions::Now, &modes));
    let timeout = PollTimeout::try_from(WRITTEN_MAX).unwrap_or(PollTimeout::ZERO);
    if takes_output(timeout) {
        let _ = write(LEAVE.as_bytes());
    }
}

/// Does the terminal take output within this time?
fn takes_output(timeout: PollTimeout) -> bool {
    let stdout = io::stdout();
    let mut ready = [PollFd::new(stdout.as_fd(), PollFlags::POLLOUT)];
    poll(&mut ready, timeout).is_ok_and(|n| n > 0)
}

/// Writes to the terminal, past the lock of the standard library's stdout: a thread that writes to a
/// terminal which does not read would keep it.
fn write(mut bytes: &[u8]) -> nix::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(io::stdout(), bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::EINTR) => {}
            // Another process may have made the terminal non-blocking.
            Err(Errno::EAGAIN) => _ = takes_output(PollTimeout::NONE),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The terminal from which keys are read: stdin, or the one that controls the session.
fn on_tty<T>(act: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>) -> io::Result<T> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(act(stdin.as_fd())?);
    }
    let tty = File::options().read(true).write(true).open("/dev/tty")?;
    Ok(act(tty.as_fd())?)
}

/// The size of the terminal behind stdout.
fn size() -> Rect {
    let told = termios::tcgetwinsize(io::stdout()).ok();
    let told = told.map(|size| (size.ws_col, size.ws_row));
    let (width, height) = told.filter(|(w, h)| *w > 0 && *h > 0).unwrap_or(SIZE);
    Rect::new(0, 0, width, height)
}

/// The terminal, drawn upon.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Ink>>,
    ink: Ink,
    writer: Writer,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn enter() -> io::Result<Self> {
        let (ink, writer) = (Ink::default(), Writer::start()?);
        let screen = Self { terminal: terminal(&ink)?, ink, writer };
        take()?;
        screen.writer.write(ENTER.into());
        Ok(screen)
    }

    /// Takes the terminal again after a stop, or after others have drawn on it, in its present size.
    pub(super) fn enter_again(&mut self) -> io::Result<()> {
        let start = if take()? { ENTER } else { CLEAR };
        self.terminal = terminal(&self.ink)?;
        self.ink.take();
        self.ink.write_all(start.as_bytes())
    }

    /// Can something be drawn now? If not, [`Written::notified`] tells when; after a panic never.
    pub(super) fn is_ready(&self) -> bool {
        !self.writer.is_busy() && before().is_some()
    }

    /// Draws. Does not wait for the terminal.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw)?;
        self.writer.write(self.ink.take());
        Ok(())
    }

    /// What tells that the terminal has taken what was drawn.
    pub(super) fn written(&self) -> Arc<Written> {
        Arc::clone(&self.writer.written)
    }

    /// Gives the terminal back, for a stop or for good.
    pub(super) fn leave(&mut self) {
        let began = Instant::now();
        while self.writer.is_busy() && began.elapsed() < WRITTEN_MAX {
            thread::sleep(Duration::from_millis(1));
        }
        give_back();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn terminal(ink: &Ink) -> io::Result<Terminal<CrosstermBackend<Ink>>> {
    // A viewport that is fixed: ratatui would ask for the size, and for the cursor, which is answered
    // where keys are read.
    let viewport = Viewport::Fixed(size());
    Terminal::with_options(CrosstermBackend::new(ink.clone()), TerminalOptions { viewport })
}

/// Sets raw mode, and keeps how it was before; says whether the terminal was not ours yet.
fn take() -> io::Result<bool> {
    let mut before = before();
    let new = before.is_none();
    on_tty(|tty| {
        let modes = termios::tcgetattr(tty)?;
        let mut raw = modes.clone();
        raw.make_raw();
        before.get_or_insert(modes);
        termios::tcsetattr(tty, OptionalActions::Now, &raw)
    })?;
    Ok(new)
}

/// What has been drawn and is not handed to the writer yet.
#[derive(Clone, Debug, Default)]
struct Ink(Arc<Mutex<Vec<u8>>>);

impl Ink {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<u8> {
        mem::take(&mut *self.bytes())
    }
}

impl Write for Ink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the writer's thread tells.
#[derive(Debug, Default)]
pub(super) struct Written {
    busy: AtomicBool,
    broken: AtomicBool,
    done: Notify,
}

impl Written {
    /// Waits until something has been written.
    pub(super) async fn notified(&self) {
        self.done.notified().await;
    }

    /// Is the terminal gone?
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}

/// A thread that writes to stdout.
#[derive(Debug)]
struct Writer {
    written: Arc<Written>,
    texts: Sender<Vec<u8>>,
}

impl Writer {
    fn start() -> io::Result<Self> {
        let (texts, waiting) = mpsc::channel::<Vec<u8>>();
        let written = Arc::new(Written::default());
        let told = Arc::clone(&written);
        let write = move || {
            for text in waiting {
                if write(&text).is_err() {
                    told.broken.store(true, Ordering::Release);
                }
                told.busy.store(false, Ordering::Release);
                told.done.notify_one();
            }
        };
        thread::Builder::new().name("screen".into()).spawn(write)?;
        Ok(Self { written, texts })
    }

    fn is_busy(&self) -> bool {
        self.written.busy.load(Ordering::Acquire)
    }

    fn write(&self, text: Vec<u8>) {
        self.written.busy.store(true, Ordering::Release);
        let _ = self.texts.send(text);
    }
}
