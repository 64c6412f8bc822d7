//! A terminal for tests: a pty, a process that leads a session on it, and what stands on its screen.

use super::{Place, eventually};
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    pty::{Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::termios::{Winsize as Size, tcgetattr, tcsetwinsize};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// A process on a terminal.
pub(crate) struct Pty {
    child: Child,
    keyboard: File,
    /// Kept open, so that the terminal can be looked at when the process has ended.
    tty: File,
    modes: String,
    screen: Arc<Mutex<Screen>>,
}

impl Pty {
    /// Starts the command with these arguments on a terminal of this size.
    pub(crate) fn lockkeeper(place: &Place, arguments: &[&str], width: u16, height: u16) -> Self {
        Self::start(&place.lockkeeper(arguments), width, height)
    }

    /// Starts a command as the leader of a session on a terminal of its own.
    pub(crate) fn start(command: &Command, width: u16, height: u16) -> Self {
        let size = Winsize { ws_col: width, ws_row: height, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pty");
        for fd in [&pty.master, &pty.slave] {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a flag");
        }
        let (keyboard, tty) = (File::from(pty.master), File::from(pty.slave));
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        let stdio = || Stdio::from(tty.try_clone().expect("a copy"));
        leader.env("TERM", "xterm-256color").stdin(stdio()).stdout(stdio()).stderr(stdio());
        leader.current_dir(command.get_current_dir().expect("a folder"));
        let modes = modes(&tty);
        let child = leader.spawn().expect("setsid of util-linux");
        let screen = Arc::new(Mutex::new(Screen::new(width, height)));
        let (mut output, shown) = (keyboard.try_clone().expect("a copy"), Arc::clone(&screen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut buffer) {
                shown.lock().expect("no panic").feed(&buffer[..n]);
            }
        });
        Self { child, keyboard, tty, modes, screen }
    }

    pub(crate) fn write(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// What stands on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().expect("no panic").text()
    }

    /// Waits until this stands on the screen, and gives all of it.
    pub(crate) fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits until this stands on the screen no more.
    pub(crate) fn hides(&self, text: &str) -> String {
        self.until(text, |screen| !screen.contains(text))
    }

    pub(crate) fn until(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let _told = Told(self, what);
        eventually(|| condition(&self.text()));
        self.text()
    }

    /// The row in which this stands.
    pub(crate) fn row(&self, text: &str) -> String {
        let screen = self.shows(text);
        screen.lines().find(|row| row.contains(text)).expect("just seen").to_owned()
    }

    pub(crate) fn resize(&mut self, width: u16, height: u16) {
        let mut screen = self.screen.lock().expect("no panic");
        *screen = Screen { alternate: screen.alternate, ..Screen::new(width, height) };
        drop(screen);
        let size = Size { ws_col: width, ws_row: height, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("a terminal");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a small number"));
        kill(pid, signal).expect("a live process");
    }

    /// The code it ends with, as a shell would say it.
    pub(crate) fn code(&mut self) -> i32 {
        eventually(|| self.child.try_wait().expect("a child of ours").is_some());
        let status = self.child.wait().expect("a child of ours");
        status.code().or_else(|| status.signal().map(|n| 128 + n)).expect("an end")
    }

    /// Is the terminal as it was at the start: its modes, its first screen, its cursor?
    pub(crate) fn is_as_before(&self) -> bool {
        let screen = self.screen.lock().expect("no panic");
        modes(&self.tty) == self.modes && !screen.alternate && screen.cursor_shown
    }

    /// Has any colour been set?
    pub(crate) fn saw_colors(&self) -> bool {
        self.screen.lock().expect("no panic").colored
    }

    /// Is the alternate screen shown, in raw mode?
    pub(crate) fn is_taken(&self) -> bool {
        self.screen.lock().expect("no panic").alternate && modes(&self.tty) != self.modes
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says what the screen showed when a wait is given up.
struct Told<'a>(&'a Pty, &'a str);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("waited for {:?} on this screen:\n{}", self.1, self.0.text());
        }
    }
}

fn modes(tty: &File) -> String {
    let modes = tcgetattr(tty).expect("a terminal");
    format!("{:?} {:?} {:?}", modes.input_modes, modes.output_modes, modes.local_modes)
}

/// As much of a terminal as the tests need: it knows where the cursor goes, and no colours.
struct Screen {
    width: usize,
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    escape: Option<String>,
    rest: Vec<u8>,
    alternate: bool,
    cursor_shown: bool,
    colored: bool,
}

impl Screen {
    fn new(width: u16, height: u16) -> Self {
        let cells = vec![vec![' '; width.into()]; height.into()];
        Self {
            width: width.into(),
            cells,
            at: (0, 0),
            escape: None,
            rest: Vec::new(),
            alternate: false,
            cursor_shown: true,
            colored: false,
        }
    }

    fn text(&self) -> String {
        let rows = self.cells.iter().map(|row| row.iter().collect::<String>());
        rows.map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(e) => e.valid_up_to(),
        };
        let rest = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, rest);
        for c in String::from_utf8(text).expect("just checked").chars() {
            self.take(c);
        }
    }

    fn take(&mut self, c: char) {
        if let Some(mut escape) = self.escape.take() {
            escape.push(c);
            let goes_on = escape == "[" || !(c.is_ascii_alphabetic() || escape.starts_with('('));
            if goes_on {
                self.escape = Some(escape)
            } else {
                self.obey(&escape)
            }
            return;
        }
        match c {
            '\u{1b}' => self.escape = Some(String::new()),
            '\r' => self.at.1 = 0,
            '\n' => self.line_feed(),
            c if c.is_control() => {}
            c => {
                if self.at.1 >= self.width {
                    self.at.1 = 0;
                    self.line_feed();
                }
                let (row, column) = self.at;
                if let Some(cell) = self.cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = c;
                }
                self.at.1 += 1;
            }
        }
    }

    fn line_feed(&mut self) {
        self.at.0 += 1;
        if self.at.0 >= self.cells.len() {
            self.cells.remove(0);
            self.cells.push(vec![' '; self.width]);
            self.at.0 -= 1;
        }
    }

    fn obey(&mut self, escape: &str) {
        let arguments = escape.get(1..escape.len() - 1).unwrap_or_default();
        let numbers: Vec<usize> =
            arguments.split(';').map(|number| number.parse().unwrap_or(1)).collect();
        match escape {
            "[?1049h" | "[?1049l" => {
                self.alternate = escape.ends_with('h');
                self.cells.iter_mut().for_each(|row| row.fill(' '));
            }
            "[?25h" | "[?25l" => self.cursor_shown = escape.ends_with('h'),
            "[2J" => self.cells.iter_mut().for_each(|row| row.fill(' ')),
            // 39 and 49 take colours away.
            _ if escape.ends_with('m') => {
                let color = |n: &usize| matches!(n, 30..=38 | 40..=48 | 90..=107);
                self.colored |= numbers.iter().any(color);
            }
            _ if escape.ends_with('H') => {
                let column = numbers.get(1).copied().unwrap_or(1);
                self.at = (numbers[0].max(1) - 1, column.max(1) - 1);
            }
            _ => {}
        }
    }
}
