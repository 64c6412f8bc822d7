//! One lock with its whole line.

use super::{
    list::{age, ends, mark},
    model::{Model, in_order, place, who},
    style::{self, Theme, bars, cell},
    view::{split_bottom, split_top},
};
use crate::{
    duration,
    event::label,
    listing::{known_age, known_end, known_fence},
    ls,
    output::{cut, printable},
};
use lockkeeper::{Line as Lock, Ticket};
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
    widgets::Paragraph,
};
use unicode_width::UnicodeWidthStr as _;

/// The columns with their widths, and the width of the screen from which on each is shown. The owner gets
/// what is left.
const CELLS: [(&str, usize, u16); 8] = [
    ("PLACE", 7, 0),
    ("MODE", 10, 56),
    ("OWNER", 0, 0),
    ("PROGRAM", 14, 84),
    ("SINCE", 12, 0),
    ("ENDS IN", 11, 70),
    ("FENCE", 17, 96),
    ("LABEL", 24, 120),
];

/// The rows that tell all about the chosen ticket.
const PANEL: u16 = 4;

/// Draws the lock that is open.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model, theme: Theme) {
    let head_rows = if area.height >= 14 { 5 } else { 2 };
    let (head, rest) = split_top(area, head_rows);
    let (_, head) = split_top(head, u16::from(head.height > 2));
    let panel = if rest.height >= PANEL + 4 { PANEL } else { 0 };
    let (body, panel) = split_bottom(rest, panel);
    frame.render_widget(Paragraph::new(head_lines(model, area.width.into(), theme)), head);
    let (header, body) = split_top(body, 1);
    let Some(tickets) = model.open_line().map(|line| line.tickets.len()) else { return };
    let columns = columns(area.width);
    let titles = columns.iter().map(|(title, width)| format!(" {}", cell(title, *width, false)));
    frame.render_widget(
        Span::styled("  ".to_owned() + &titles.collect::<String>(), theme.faint()),
        header,
    );
    let Some(open) = &mut model.open else { return };
    let shown = open.scroll.show(body.height.into(), tickets);
    let chosen = open.scroll.at;
    let Some(lock) = model.open_line() else { return };
    let rows = in_order(lock).enumerate().skip(shown.start).take(shown.len());
    let rows: Vec<Line<'_>> = rows
        .map(|(at, ticket)| {
            let line = row_line(&columns, model, (lock, at, ticket), theme);
            if at == chosen { plain(&line).style(theme.chosen()) } else { line }
        })
        .collect();
    frame.render_widget(Paragraph::new(rows), body);
    if let Some(ticket) = model.chosen_ticket() {
        let lines = panel_lines(model, ticket, panel.width.into(), theme);
        frame.render_widget(Paragraph::new(lines), panel);
    }
}

fn plain(line: &Line<'_>) -> Line<'static> {
    Line::raw(line.spans.iter().map(|span| span.content.as_ref()).collect::<String>())
}

/// The name, how the lock stands, and the waiters of the last minutes.
fn head_lines(model: &Model, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let Some(open) = &model.open else { return Vec::new() };
    let name = printable(open.name.as_str());
    let Some(lock) = model.open_line() else {
        let mut title = vec![Span::styled(" ○ ", theme.faint())];
        title.extend(style::name(&name, width.saturating_sub(3), theme));
        let free = "   free: no ticket holds it or waits for it";
        return vec![Line::from(title), Line::styled(cut(free, width), theme.faint())];
    };
    let (sign, sign_style) = mark(model, lock, theme);
    let mut title = vec![Span::styled(format!(" {sign} "), sign_style)];
    title.extend(style::name(&name, width.saturating_sub(3), theme));
    let words = cut(&format!("   {}", words(model, lock)), width);
    let room = width.saturating_sub(4 + "waiting, 5 minutes  ".width());
    let samples = model.history.of(&open.name, model.now, room.min(100));
    let waits: Vec<Option<u64>> = samples.iter().map(|s| s.map(|sample| sample[0])).collect();
    let mut lines = vec![Line::from(title), Line::raw(words)];
    if room > 20 && waits.iter().flatten().next().is_some() {
        lines.push(Line::from(vec![
            Span::styled("   waiting, 5 minutes  ", theme.faint()),
            Span::styled(bars(&waits, 0), theme.wait()),
        ]));
    }
    lines
}

/// "exclusive · 3 waiting, the longest for 12 s".
fn words(model: &Model, lock: &Lock) -> String {
    let waiting = lock.waiters().count();
    let longest = lock.waiters().filter_map(known_age).max();
    let mut words = ls::state(lock);
    words += &match (waiting, longest) {
        (0, _) => " · no ticket waits".to_owned(),
        (_, None) => format!(" · {waiting} waiting"),
        (_, longest) => {
            format!(" · {waiting} waiting, the longest for {}", age(longest, model.drift()))
        }
    };
    words
}

/// The columns for which there is room.
fn columns(width: u16) -> Vec<(&'static str, usize)> {
    let shown = CELLS.iter().filter(|(.., from)| width >= *from);
    let mut columns: Vec<_> = shown.map(|(title, wide, _)| (*title, *wide)).collect();
    let taken: usize = columns.iter().map(|(_, wide)| wide + 1).sum::<usize>() + 2;
    for (_, width_of_owner) in columns.iter_mut().filter(|(title, _)| *title == "OWNER") {
        *width_of_owner = usize::from(width).saturating_sub(taken);
    }
    columns
}

fn row_line(
    columns: &[(&'static str, usize)],
    model: &Model,
    (lock, at, ticket): (&Lock, usize, &Ticket),
    theme: Theme,
) -> Line<'static> {
    let holds = ticket.fence.is_some();
    let style = if holds { theme.held() } else { theme.wait() };
    let (sign, sign_style) = match (holds, model.is_expiring(ticket)) {
        (true, true) => ("◔", theme.warn()),
        (true, false) => ("●", theme.held()),
        (false, _) => ("○", theme.wait()),
    };
    let mut spans = vec![Span::raw(" "), Span::styled(sign, sign_style)];
    for (title, width) in columns {
        let (text, style) = match *title {
            "PLACE" => (place(lock, at), style),
            "MODE" => (ticket.mode.to_string(), theme.faint()),
            "OWNER" => (who(ticket), theme.strong()),
            "PROGRAM" => (program(ticket), ratatui::style::Style::new()),
            "SINCE" => (since(model, ticket), style),
            "ENDS IN" => (ends(known_end(ticket), model.drift()), ratatui::style::Style::new()),
            "FENCE" => (fence(ticket), ratatui::style::Style::new()),
            _ => (label_words(ticket), theme.faint()),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(cell(&text, *width, false), style));
    }
    Line::from(spans)
}

/// All about one ticket, also what has no room in its row.
fn panel_lines(model: &Model, ticket: &Ticket, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let rule = "─".repeat(width);
    let ends = ends(known_end(ticket), model.drift());
    let pairs = [
        vec![
            ("fence", fence(ticket)),
            ("mode", ticket.mode.to_string()),
            ("program", program(ticket)),
        ],
        vec![("ends in", ends), ("label", label_words(ticket))],
        vec![("ticket", ticket.id.to_string())],
    ];
    let mut lines = vec![Line::styled(rule, theme.faint())];
    for row in pairs {
        let mut spans = Vec::new();
        let mut room = width;
        for (what, value) in row {
            let text = cut(&value, room.saturating_sub(what.width() + 2));
            room = room.saturating_sub(what.width() + text.width() + 4);
            spans.push(Span::styled(format!(" {what} "), theme.faint()));
            spans.push(Span::raw(format!("{text}  ")));
        }
        lines.push(Line::from(spans));
    }
    lines
}

/// Since when it holds, or waits.
fn since(model: &Model, ticket: &Ticket) -> String {
    match (ticket.fence, ticket.granted_ago, known_age(ticket)) {
        (Some(_), None, Some(most)) => format!("≤ {}", duration::words(most + model.drift())),
        (Some(_), held, _) => age(held, model.drift()),
        (None, _, waited) => age(waited, model.drift()),
    }
}

fn program(ticket: &Ticket) -> String {
    let program = ticket.owner.as_ref().map(|owner| printable(&owner.program));
    program.filter(|program| !program.is_empty()).unwrap_or_else(ls::dash)
}

fn fence(ticket: &Ticket) -> String {
    known_fence(ticket).map_or_else(ls::dash, |fence| fence.to_string())
}

fn label_words(ticket: &Ticket) -> String {
    label(&ticket.label).map_or_else(ls::dash, |label| printable(&label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{keys::press, model::tests::model, rows::tests::line, view::tests::screen};
    use ratatui::crossterm::event::KeyCode;

    #[test]
    fn an_open_lock_shows_its_whole_line_and_all_about_the_chosen_ticket() {
        let mut lock = line("jobs/deploy", 192, 2);
        lock.tickets[0].label = b"nightly".to_vec();
        let mut model = model(&[lock]);
        model.open_chosen();
        let text = screen(&mut model, 80, 24);
        assert!(text.contains("exclusive · 2 waiting, the longest for 5 s"), "{text}");
        let rows =
            ["● holds   exclusive  ci (pid 7)", "○ 1st     exclusive  web (pid 7)", "○ 2nd "];
        for row in rows {
            assert!(text.contains(row), "{row} in {text}");
        }
        assert!(text.contains("label nightly") && text.contains("fence 41"), "{text}");
        press(&mut model, KeyCode::Down.into());
        let text = screen(&mut model, 80, 24);
        assert!(text.contains(&format!("ticket {}", "01".repeat(16))), "{text}");
    }

    #[test]
    fn a_wide_screen_has_labels_and_fences_in_the_rows() {
        let mut lock = line("jobs/deploy", 192, 1);
        lock.tickets[1].label = b"release 7".to_vec();
        let mut model = model(&[lock]);
        model.open_chosen();
        let text = screen(&mut model, 140, 24);
        let waits = text.lines().find(|row| row.contains("1st")).unwrap();
        assert!(waits.contains("release 7") && waits.contains(" sh "), "{text}");
        let holds = text.lines().find(|row| row.contains("holds")).unwrap();
        assert!(holds.contains(" 41 ") && holds.contains("3 min 12 s"), "{text}");
    }

    #[test]
    fn a_lock_that_became_free_says_so() {
        let mut model = model(&[line("a", 1, 0)]);
        model.open_chosen();
        crate::watch::model::tests::hear(&mut model, &[], 1);
        let text = screen(&mut model, 60, 20);
        assert!(text.contains("free: no ticket holds it"), "{text}");
    }

    #[test]
    fn the_owner_has_room_at_every_width() {
        for width in [40, 56, 70, 84, 96, 120, 200] {
            let columns = columns(width);
            let owner = columns.iter().find(|(title, _)| *title == "OWNER").unwrap();
            assert!(owner.1 >= 14, "{width}: {columns:?}");
        }
    }
}
