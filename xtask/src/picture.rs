//! Pictures of a terminal: what `tmux capture-pane -e -p` prints, as SVG.
//!
//! Each word is a text of fixed length at its place, so that columns stand under each other whatever
//! font the reader has. Blocks are drawn as rectangles: fonts leave gaps between them.

use std::{
    fmt::Write as _,
    io::{self, Read as _},
    process::ExitCode,
};

use anyhow::Result;

/// The size of a cell, in pixels.
const WIDTH: f32 = 8.4;
const HEIGHT: f32 = 17.0;
const MARGIN: f32 = 14.0;
/// From the upper edge of a cell to the line on which letters stand.
const BASE: f32 = 13.0;

const BACKGROUND: &str = "#0b0f12";
const INK: &str = "#e8eff2";
/// The terminal's sixteen colours.
const PALETTE: [&str; 16] = [
    "#1f292f", "#ff8078", "#5fbf77", "#efb93f", "#93a9ea", "#c79df5", "#3ec9b4", "#aebcc4",
    "#64757f", "#ff9458", "#7fd894", "#f4cd6f", "#b3c3f2", "#d9bff9", "#6fdccb", "#e8eff2",
];

/// Reads a screen from stdin, writes a picture to stdout.
pub(crate) fn run() -> Result<ExitCode> {
    let mut screen = String::new();
    io::stdin().read_to_string(&mut screen)?;
    print!("{}", svg(&screen));
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Style {
    color: Option<usize>,
    bold: bool,
    dim: bool,
    reversed: bool,
}

/// A run of cells of one style.
#[derive(Debug, PartialEq)]
struct Run {
    column: usize,
    text: String,
    style: Style,
}

fn svg(screen: &str) -> String {
    let rows: Vec<&str> = screen.trim_end_matches('\n').split('\n').collect();
    let mut style = Style::default();
    let rows: Vec<Vec<Run>> = rows.iter().map(|row| runs(row, &mut style)).collect();
    let end = |row: &Vec<Run>| row.last().map_or(0, |run| run.column + run.text.chars().count());
    let columns = rows.iter().map(end).max().unwrap_or(0);
    let width = px(columns, WIDTH) + 2.0 * MARGIN;
    let height = px(rows.len(), HEIGHT) + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" font-size=\"14\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (row, runs) in rows.iter().enumerate() {
        let top = MARGIN + px(row, HEIGHT);
        runs.iter().for_each(|run| draw(&mut out, run, top));
    }
    out + "</svg>\n"
}

#[expect(clippy::cast_precision_loss, reason = "a terminal has few cells")]
fn px(cells: usize, size: f32) -> f32 {
    cells as f32 * size
}

/// The runs of one row. The style goes on from row to row.
fn runs(row: &str, style: &mut Style) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut column, mut rest) = (0, row);
    while let Some(c) = rest.chars().next() {
        if let Some((codes, behind)) = escape(rest) {
            change(style, codes);
            rest = behind;
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match runs.last_mut() {
            Some(run) if run.style == *style => run.text.push(c),
            _ => runs.push(Run { column, text: c.into(), style: *style }),
        }
        column += 1;
    }
    runs.retain(|run| !run.text.trim().is_empty() || run.style.reversed);
    runs
}

/// The codes of a change of style at the beginning of this text, and what stands behind it.
fn escape(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix("\x1b[")?.split_once('m')
}

fn change(style: &mut Style, codes: &str) {
    let mut codes = codes.split(';').map(|code| code.parse().unwrap_or(0));
    while let Some(code) = codes.next() {
        match code {
            0 => *style = Style::default(),
            1 => style.bold = true,
            2 => style.dim = true,
            7 => style.reversed = true,
            22 => (style.bold, style.dim) = (false, false),
            27 => style.reversed = false,
            30..=37 => style.color = Some(code - 30),
            90..=97 => style.color = Some(code - 82),
            38 => style.color = codes.nth(1).filter(|color| *color < 16),
            39 => style.color = None,
            _ => {}
        }
    }
}

fn draw(out: &mut String, run: &Run, top: f32) {
    let (left, cells) = (MARGIN + px(run.column, WIDTH), run.text.chars().count());
    let width = px(cells, WIDTH);
    let color = run.style.color.map_or(INK, |color| PALETTE[color]);
    let (fill, opacity) = (if run.style.reversed { BACKGROUND } else { color }, opacity(run.style));
    if run.style.reversed {
        rect(out, (left, top, width, HEIGHT), color, 1.0);
    }
    for (n, c) in run.text.chars().enumerate() {
        if let Some(part) = block(c) {
            let height = HEIGHT * part;
            rect(out, (left + px(n, WIDTH), top + HEIGHT - height, WIDTH, height), fill, opacity);
        }
    }
    let weight = if run.style.bold { " font-weight=\"600\"" } else { "" };
    for (n, word) in words(&run.text) {
        let (x, y) = (left + px(n, WIDTH), top + BASE);
        let width = px(word.chars().count(), WIDTH);
        let word = word.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{width:.1}\" \
             lengthAdjust=\"spacingAndGlyphs\" fill=\"{fill}\" opacity=\"{opacity}\"{weight}>{word}</text>"
        );
    }
}

/// The words of a run, each with the number of cells before it. Blocks are none.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (n, c) in text.chars().enumerate() {
        let part = c != ' ' && block(c).is_none();
        match words.last_mut() {
            Some((_, word)) if inside && part => word.push(c),
            _ if part => words.push((n, c.into())),
            _ => {}
        }
        inside = part;
    }
    words
}

fn opacity(style: Style) -> f32 {
    if style.dim { 0.6 } else { 1.0 }
}

fn rect(out: &mut String, (x, y, width, height): (f32, f32, f32, f32), fill: &str, opacity: f32) {
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{fill}\" opacity=\"{opacity}\"/>"
    );
}

/// How much of its cell a block fills, from below.
fn block(c: char) -> Option<f32> {
    let eighths = u32::from(c).checked_sub(0x2580).filter(|n| (1..=8).contains(n))?;
    u8::try_from(eighths).ok().map(|eighths| f32::from(eighths) / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_become_runs_and_blanks_are_left_out() {
        let mut style = Style::default();
        let found = runs("a\x1b[1;36mb \x1b[0m  \x1b[38;5;4mc", &mut style);
        let bold = Style { color: Some(6), bold: true, ..Style::default() };
        let blue = Style { color: Some(4), ..Style::default() };
        let run = |column, text: &str, style| Run { column, text: text.into(), style };
        assert_eq!(found, [run(0, "a", Style::default()), run(1, "b ", bold), run(5, "c", blue)]);
        assert_eq!(style, blue, "it goes on in the next row");
    }

    #[test]
    fn text_is_escaped_and_blocks_are_rectangles() {
        let picture = svg("<a>  b▄\n");
        assert!(picture.contains(">&lt;a></text>") && picture.contains(">b</text>"), "{picture}");
        assert!(picture.contains("height=\"8.5\""), "{picture}");
    }
}
