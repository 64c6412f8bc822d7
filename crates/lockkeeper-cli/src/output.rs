//! How words and numbers reach people and programs.
//!
//! What comes from a store was written by other programs: it is made [`printable`] before a
//! terminal sees it.

use crate::{failure::Failure, stderr};
use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use std::{
    io::{self, Write as _},
    os::fd::AsFd,
    time::Duration,
};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The version of all JSON that the command writes. It changes when a field changes its meaning or
/// goes away; new fields may come at any time.
pub(crate) const JSON_VERSION: u32 = 1;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HEADER: Style = Style::new().bold();

/// Says what went wrong, on stderr.
pub(crate) fn error(line: &str) {
    styled(&format!("{ERROR}lockkeeper:{ERROR:#} {line}\n"));
}

/// Says that something did not go as it should, and is not the end of it. Programs hear it as an event.
pub(crate) fn warning(line: &str) {
    if stderr::speaks_json() { stderr::say(json_warning(line)) } else { error(line) }
}

/// Says something that is not an error, on stderr.
pub(crate) fn note(line: &str) {
    styled(&format!("lockkeeper: {line}\n"));
}

/// Says a text with colours on stderr, or without them where they are not wanted.
pub(crate) fn styled(text: &str) {
    if has_colors() { stderr::say(text) } else { stderr::say(strip_str(text).to_string()) }
}

/// Are colours wanted on stderr?
pub(crate) fn has_colors() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Writes the answer of a verb to stdout, and gives the code to end with. A reader who has seen
/// enough (`head`) is no error.
pub(crate) fn answer(text: &str) -> u8 {
    let mut stdout = anstream::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => 0,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(e) => {
            let error = anyhow::Error::from(e).context("cannot write to stdout");
            Failure::bug(error).report(stderr::speaks_json())
        }
    }
}

#[derive(Serialize)]
struct Stamped<T> {
    version: u32,
    at: String,
    #[serde(flatten)]
    what: T,
}

/// One JSON object on one line of stderr, with the version and the time.
pub(crate) fn json_line(what: impl Serialize) {
    // Stdout belongs to the child.
    stderr::say(stamped_line(what));
}

/// A warning as one line of JSON.
pub(crate) fn json_warning(message: &str) -> String {
    stamped_line(json!({ "event": "warning", "message": message }))
}

/// One JSON object on one line, with the version and the time.
pub(crate) fn stamped_line(what: impl Serialize) -> String {
    let stamped = Stamped { version: JSON_VERSION, at: ago(Duration::ZERO), what };
    // A map with text keys always becomes JSON.
    serde_json::to_string(&stamped).unwrap_or_default() + "\n"
}

/// One JSON object for stdout, with the version and the time.
pub(crate) fn json_answer(what: impl Serialize) -> serde_json::Result<String> {
    let stamped = Stamped { version: JSON_VERSION, at: ago(Duration::ZERO), what };
    Ok(serde_json::to_string_pretty(&stamped)? + "\n")
}

/// The time so long ago, as RFC 3339.
pub(crate) fn ago(age: Duration) -> String {
    let now = Timestamp::now();
    format!("{:.3}", now.checked_sub(age).unwrap_or(now))
}

/// The text with everything escaped that could move the cursor, hide or reorder what is shown.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_treacherous(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Control characters, line breaks in disguise, and what changes the direction of writing or cannot
/// be seen. (Joiners stay: some scripts need them.)
fn is_treacherous(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The width of the terminal behind this stream, if there is one.
pub(crate) fn terminal_width(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Cuts a line so that it takes at most `width` columns.
pub(crate) fn cut(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    fitting(line.chars(), width.saturating_sub(1)).chain(['…']).collect()
}

/// The first characters, as long as they fit into so many columns.
pub(crate) fn fitting(
    characters: impl Iterator<Item = char>,
    mut room: usize,
) -> impl Iterator<Item = char> {
    characters.map_while(move |c| {
        room = room.checked_sub(c.width().unwrap_or(0))?;
        Some(c)
    })
}

/// Columns, aligned by blanks.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row, as long as the header.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines, cut to `width` if there is one.
    pub(crate) fn render(&self, width: Option<usize>) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let cells = |i: usize| self.rows.iter().filter_map(move |row| row.get(i));
        let width_of = |i| cells(i).map(|cell| cell.width()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width_of).collect();
        let mut out = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let line = aligned(row, &widths);
            let line = width.map_or_else(|| line.clone(), |width| cut(&line, width));
            match i {
                0 => out += &format!("{HEADER}{line}{HEADER:#}\n"),
                _ => out += &format!("{line}\n"),
            }
        }
        out
    }
}

fn aligned(row: &[String], widths: &[usize]) -> String {
    let padded = row.iter().zip(widths).map(|(cell, width)| {
        let blanks = width.saturating_sub(cell.width());
        format!("{cell}{:blanks$}", "")
    });
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_deceive_is_escaped_and_the_rest_is_kept() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\u{a}");
        assert_eq!(printable("abc\u{202e}txt"), "abc\\u{202e}txt");
        assert_eq!(printable("\u{9b}x\u{7f}"), "\\u{9b}x\\u{7f}");
        assert_eq!(printable("锁 é 👩\u{200d}🚀"), "锁 é 👩\u{200d}🚀");
    }

    #[test]
    fn a_line_is_cut_by_columns_not_by_characters() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("锁锁锁", 4), "锁…");
        assert_eq!(cut("ab", 0), "…");
    }

    #[test]
    fn columns_are_aligned_whatever_the_script() {
        let mut table = Table::new(&["NAME", "N"]);
        table.row(vec!["锁".into(), "1".into()]);
        table.row(vec!["deploy".into(), "2".into()]);
        let text = anstream::adapter::strip_str(&table.render(None)).to_string();
        assert_eq!(text, "NAME    N\n锁      1\ndeploy  2\n");
        let text = anstream::adapter::strip_str(&table.render(Some(5))).to_string();
        assert_eq!(text, "NAME…\n锁  …\ndepl…\n");
    }

    #[test]
    fn times_are_rfc_3339_with_milliseconds() {
        let at = ago(Duration::from_secs(3600));
        assert_eq!(at.len(), "2026-01-01T00:00:00.000Z".len(), "{at}");
        assert!(at.ends_with('Z') && at.contains('T'), "{at}");
    }
}
