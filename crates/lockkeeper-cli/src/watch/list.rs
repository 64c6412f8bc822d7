//! The list of locks, and the totals above it.

use super::{
    history::Sample,
    model::Model,
    rows::{Column, Row},
    style::{self, Theme, bars, cell},
    view::{split_bottom, split_top},
};
use crate::{duration, ls, output::printable};
use lockkeeper::{Line as Lock, Owner};
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
    widgets::{Paragraph, Sparkline},
};
use std::time::Duration;

/// The totals have charts where there are so many columns and rows.
const TILES_WIDTH: u16 = 64;
const TILES_HEIGHT: u16 = 14;

/// What a column of the table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// A column by which the list can be sorted.
    Sorted(Column),
    /// How the lock is held.
    State,
    /// The line as a row of ticks.
    Ticks,
    /// The waiters of the last minutes.
    Chart,
}

/// The columns with their widths, in the order in which they are shown. The name gets what is left.
/// Those that do not fit are left out: each stands with the width of the screen from which on it is shown.
const CELLS: [(Cell, &str, usize, u16); 9] = [
    (Cell::Sorted(Column::Name), "NAME", 0, 0),
    (Cell::State, "STATE", 14, 128),
    (Cell::Sorted(Column::Holder), "HOLDER", 24, 64),
    (Cell::Sorted(Column::Held), "HELD", 12, 0),
    (Cell::Sorted(Column::Ends), "ENDS IN", 11, 78),
    (Cell::Sorted(Column::Waiting), "LINE", 6, 0),
    (Cell::Ticks, "", 14, 146),
    (Cell::Sorted(Column::Longest), "LONGEST", 12, 92),
    (Cell::Chart, " 5 MINUTES", 20, 112),
];

/// Draws the totals, the table and what the listing does not show.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model, theme: Theme) {
    let tiles = area.width >= TILES_WIDTH && area.height >= TILES_HEIGHT;
    let (top, rest) = split_top(area, if tiles { 6 } else { 1 });
    if tiles {
        draw_tiles(frame, top, model, theme);
    } else {
        frame.render_widget(summary(model, theme), top);
    }
    let notes = notes(model);
    let (body, foot) = split_bottom(rest, u16::try_from(notes.len()).unwrap_or(0));
    let notes = notes.into_iter().map(|note| Line::styled(format!(" {note}"), theme.faint()));
    frame.render_widget(Paragraph::new(notes.collect::<Vec<_>>()), foot);
    let (header, body) = split_top(body, 1);
    let columns = columns(area.width);
    frame.render_widget(header_line(&columns, model, theme), header);
    let shown = model.scroll.show(body.height.into(), model.rows.len());
    let rows = shown.map(|at| row_line(&columns, model, at, theme));
    let rows: Vec<Line<'_>> = rows.collect();
    frame.render_widget(Paragraph::new(rows), body);
}

/// "2 of 3 names held · 4 waiting · longest 12 s", in short.
fn summary(model: &Model, theme: Theme) -> Line<'static> {
    let totals = &model.totals;
    let mut spans = vec![
        Span::styled(format!(" ● {} held", totals.held), theme.held()),
        Span::styled(format!("  ○ {} waiting", totals.waiting), theme.wait()),
    ];
    if let Some((longest, _)) = &totals.longest {
        let longest = duration::words(*longest + model.drift());
        spans.push(Span::raw(format!("  {longest}")));
    }
    Line::from(spans)
}

/// Three figures; two of them with the charts of the last minutes.
fn draw_tiles(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let totals = &model.totals;
    let (_, area) = split_top(area, 1);
    let side = 18;
    let half = (area.width - side) / 2;
    let tile = |x: u16, width: u16| Rect { x: area.x + x, width, height: 4, ..area };
    let held = [
        Line::styled(" Held", theme.faint()),
        Line::styled(format!(" {}", totals.held), theme.held().patch(theme.strong())),
        Line::styled(format!(" of {}", names(totals.names)), theme.faint()),
    ];
    frame.render_widget(Paragraph::new(held.to_vec()), tile(0, side));
    let lines = if totals.lines == 1 { "line" } else { "lines" };
    let of = format!("in {} {lines}", totals.lines);
    let waiting = (totals.waiting.to_string(), of);
    draw_chart(frame, tile(side, half), "Waiting", waiting, chart(model, half, 0), theme);
    let longest = totals.longest.as_ref().map_or_else(
        || (ls::dash(), String::new()),
        |(longest, name)| (duration::words(*longest + model.drift()), printable(name.as_str())),
    );
    let chart = chart(model, half, 1);
    draw_chart(frame, tile(side + half, half), "Longest wait", longest, chart, theme);
}

fn names(count: usize) -> String {
    if count == 1 { "1 name".to_owned() } else { format!("{count} names") }
}

/// One of the two figures of each sample, over the width of a tile.
fn chart(model: &Model, width: u16, which: usize) -> Vec<Option<u64>> {
    let columns = usize::from(width.saturating_sub(2));
    let samples = model.history.all(model.now, columns);
    samples.iter().map(|sample| sample.map(|sample: Sample| sample[which])).collect()
}

fn draw_chart(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    (figure, of): (String, String),
    values: Vec<Option<u64>>,
    theme: Theme,
) {
    let (title_row, rest) = split_top(area, 1);
    let (figure_row, chart) = split_top(rest, 1);
    frame.render_widget(Span::styled(title.to_owned(), theme.faint()), title_row);
    let room = usize::from(area.width).saturating_sub(figure.len() + 4);
    let of = cell(&of, room, false);
    let style = theme.wait().patch(theme.strong());
    let spans = vec![Span::styled(figure, style), Span::raw("  "), Span::styled(of, theme.faint())];
    frame.render_widget(Line::from(spans), figure_row);
    let chart = Rect { width: chart.width.saturating_sub(2), ..chart };
    let most = values.iter().flatten().copied().max().unwrap_or(0).max(1);
    let line = Sparkline::default().data(values).max(most).style(theme.wait());
    frame.render_widget(line, chart);
}

/// What is said below the rows.
fn notes(model: &Model) -> Vec<String> {
    let mut notes = Vec::new();
    if !model.filter.is_empty() && !model.typing {
        let (shown, all) = (model.rows.len(), model.lines.len());
        let filter = printable(&model.filter);
        notes.push(format!("{shown} of {} match `{filter}`; Esc shows all", names(all)));
    }
    if model.rows.is_empty() && model.answered.is_some() {
        notes.extend((model.filter.is_empty() || model.typing).then(|| empty(model)));
    }
    notes
        .extend(model.hidden.as_ref().map(|hidden| format!("this listing does not show {hidden}")));
    notes
}

fn empty(model: &Model) -> String {
    match (model.lines.is_empty(), model.prefix.as_str(), &model.hidden) {
        (false, ..) => "no lock matches".to_owned(),
        (true, "", Some(_)) => "no lock to show".to_owned(),
        (true, "", None) => "no lock is held; one appears here as soon as it is taken".to_owned(),
        (true, prefix, _) => format!("no lock begins with `{}`", printable(prefix)),
    }
}

/// The columns for which there is room.
fn columns(width: u16) -> Vec<(Cell, &'static str, usize)> {
    let shown = CELLS.iter().filter(|(.., from)| width >= *from);
    let mut columns: Vec<_> = shown.map(|(cell, title, wide, _)| (*cell, *title, *wide)).collect();
    // Each column has a blank before it; before the first are the mark and two blanks.
    let taken: usize = columns.iter().map(|(.., wide)| wide + 1).sum::<usize>() + 2;
    columns[0].2 = usize::from(width).saturating_sub(taken);
    columns
}

fn is_right(cell: Cell) -> bool {
    matches!(cell, Cell::Sorted(column) if !matches!(column, Column::Name | Column::Holder))
}

fn header_line(
    columns: &[(Cell, &'static str, usize)],
    model: &Model,
    theme: Theme,
) -> Line<'static> {
    let arrow = if model.sort.ascends() { "▴" } else { "▾" };
    let mut spans = vec![Span::raw("  ")];
    for (column, title, width) in columns {
        let sorted = *column == Cell::Sorted(model.sort.by);
        let (title, style) = match sorted {
            true => (format!("{title} {arrow}"), theme.strong()),
            false => ((*title).to_owned(), theme.faint()),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(cell(&title, *width, is_right(*column)), style));
    }
    Line::from(spans)
}

fn row_line(
    columns: &[(Cell, &'static str, usize)],
    model: &Model,
    at: usize,
    theme: Theme,
) -> Line<'static> {
    let row = &model.rows[at];
    let lock = &model.lines[row.index];
    let (mark, style) = mark(model, lock, theme);
    let mut spans = vec![Span::raw(" "), Span::styled(mark, style)];
    let is_chart = |(column, ..): &(Cell, &str, usize)| *column == Cell::Chart;
    let (charts, texts): (Vec<_>, Vec<_>) = columns.iter().copied().partition(is_chart);
    for (column, _, width) in texts {
        spans.push(Span::raw(" "));
        spans.extend(cell_spans(column, width, model, row, theme));
    }
    if at == model.scroll.at {
        // One style for the whole row: colours of its parts would be colours of its background. And
        // a chart in reverse would be one of what is not there.
        spans.iter_mut().for_each(|span| span.style = theme.chosen());
    }
    for (column, _, width) in charts {
        spans.push(Span::raw(" "));
        spans.extend(cell_spans(column, width, model, row, theme));
    }
    Line::from(spans)
}

/// How the lock stands, as a sign: its holder, or that there is none.
pub(super) fn mark(model: &Model, lock: &Lock, theme: Theme) -> (&'static str, Style) {
    match lock.holders().next() {
        None => ("○", theme.wait()),
        Some(_) if lock.holders().any(|ticket| model.is_expiring(ticket)) => ("◔", theme.warn()),
        Some(ticket) => match &ticket.owner {
            None => ("◌", theme.faint()),
            Some(owner) if Owner::is_unknown(owner) => ("◆", theme.peer()),
            Some(_) => ("●", theme.held()),
        },
    }
}

fn cell_spans(
    column: Cell,
    width: usize,
    model: &Model,
    row: &Row,
    theme: Theme,
) -> Vec<Span<'static>> {
    let lock = &model.lines[row.index];
    let text =
        |text: String, style| vec![Span::styled(cell(&text, width, is_right(column)), style)];
    let plain = Style::new();
    match column {
        Cell::Sorted(Column::Name) => style::name(&printable(lock.name.as_str()), width, theme),
        Cell::State => text(ls::state(lock), theme.faint()),
        Cell::Sorted(Column::Holder) => text(ls::holder(lock), plain),
        Cell::Sorted(Column::Held) => text(held(lock, row, model.drift()), theme.held()),
        Cell::Sorted(Column::Ends) => text(ends(row.ends, model.drift()), plain),
        Cell::Sorted(Column::Waiting) => match row.waiting {
            0 => text(ls::dash(), theme.faint()),
            waiting => text(waiting.to_string(), theme.wait().patch(theme.strong())),
        },
        Cell::Sorted(Column::Longest) => match row.longest {
            None if row.waiting == 0 => text(String::new(), plain),
            longest => text(age(longest, model.drift()), theme.wait()),
        },
        Cell::Ticks => text(ticks(row.waiting, width), theme.wait()),
        Cell::Chart => {
            text(format!(" {}", waits(model, lock, width.saturating_sub(1))), theme.wait())
        }
    }
}

/// For how long the oldest holder has held it, or at the most.
fn held(lock: &Lock, row: &Row, drift: Duration) -> String {
    let exact = lock.holders().all(|ticket| ticket.granted_ago.is_some());
    match row.held {
        Some(held) if !exact => format!("≤ {}", duration::words(held + drift)),
        held => age(held, drift),
    }
}

/// How old something is by now; a dash if that is not known.
pub(super) fn age(age: Option<Duration>, drift: Duration) -> String {
    age.map_or_else(ls::dash, |age| duration::words(age.saturating_add(drift)))
}

/// How far away an end is by now.
pub(super) fn ends(end: Option<Duration>, drift: Duration) -> String {
    match end {
        None => ls::dash(),
        Some(Duration::MAX) => "never".to_owned(),
        Some(end) => duration::words(end.saturating_sub(drift)),
    }
}

/// A tick for each waiter; more than fit end in an ellipsis.
fn ticks(waiting: usize, width: usize) -> String {
    match waiting {
        0 => String::new(),
        _ if waiting < width => "┃".repeat(waiting),
        _ => "┃".repeat(width.saturating_sub(1)) + "…",
    }
}

/// The waiters of the last minutes, against the longest line of all; nothing if there were none.
fn waits(model: &Model, lock: &Lock, width: usize) -> String {
    let samples = model.history.of(&lock.name, model.now, width);
    let values: Vec<_> = samples.iter().map(|sample| sample.map(|sample| sample[0])).collect();
    bars(&values, u64::try_from(model.totals.longest_line).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fill_the_width_and_the_name_has_room() {
        for width in [40, 64, 80, 100, 120, 140, 300] {
            let columns = columns(width);
            let taken: usize = columns.iter().map(|(.., wide)| wide + 1).sum();
            assert_eq!(taken + 2, usize::from(width));
            assert!(columns[0].2 >= 16, "{width}: {columns:?}");
        }
    }

    #[test]
    fn times_go_on_between_two_answers() {
        let seconds = Duration::from_secs;
        assert_eq!(age(Some(seconds(3)), seconds(2)), "5 s");
        assert_eq!(age(None, seconds(2)), "-");
        assert_eq!(ends(Some(seconds(3)), seconds(2)), "1 s");
        assert_eq!(ends(Some(seconds(3)), seconds(9)), "0 s");
        assert_eq!(ends(Some(Duration::MAX), seconds(9)), "never");
    }

    #[test]
    fn a_line_has_a_tick_for_each_waiter() {
        assert_eq!(ticks(3, 5), "┃┃┃");
        assert_eq!(ticks(5, 5), "┃┃┃┃…");
        assert_eq!(ticks(0, 5), "");
    }
}
