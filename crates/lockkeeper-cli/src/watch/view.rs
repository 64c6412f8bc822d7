//! What stands around the list and the open lock: the head, the footer, the help, the question.

use super::{
    detail, keys, list,
    model::{Eviction, Model},
    style::{Theme, cell},
};
use crate::{
    duration,
    output::{cut, printable},
};
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span, Text},
    widgets::{Block, BorderType, Clear, Paragraph, Wrap},
};
use unicode_width::UnicodeWidthStr as _;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, theme: Theme) {
    let (head, rest) = split_top(frame.area(), 1);
    let (body, foot) = split_bottom(rest, 1);
    frame.render_widget(head_line(model, head.width.into(), theme), head);
    let words = alarm(model);
    let (top, body) = split_top(body, u16::from(words.is_some()));
    let words = cut(&format!(" ▲ {}", words.unwrap_or_default()), top.width.into());
    frame.render_widget(Span::styled(words, theme.warn()), top);
    if model.open.is_some() {
        detail::draw(frame, body, model, theme);
    } else {
        list::draw(frame, body, model, theme);
    }
    frame.render_widget(foot_line(model, foot.width.into(), theme), foot);
    if let Some(eviction) = &model.confirm {
        pop_up(frame, "Evict", question(eviction, theme), theme.bad());
    } else if model.help {
        pop_up(frame, "Keys", help(theme), theme.held());
    }
}

/// Cuts so many rows off at the top, as far as there are any.
pub(super) fn split_top(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    let rest = Rect { y: area.y + rows, height: area.height - rows, ..area };
    (Rect { height: rows, ..area }, rest)
}

/// The same at the bottom.
pub(super) fn split_bottom(area: Rect, rows: u16) -> (Rect, Rect) {
    split_top(area, area.height.saturating_sub(rows))
}

/// The command, the store, what is shown of it, and whether the store answers.
fn head_line(model: &Model, width: usize, theme: Theme) -> Line<'static> {
    let (state, style) = match (model.outage(), model.answered) {
        (Some(_), _) => ("▲ no answer", theme.warn()),
        (None, Some(_)) => ("● live", theme.held()),
        (None, None) => ("○ asking", theme.wait()),
    };
    let mut what = format!(" {}", printable(&model.store));
    if !model.prefix.is_empty() {
        what += &format!(" · {}…", printable(&model.prefix));
    }
    let title = " lockkeeper";
    let room = width.saturating_sub(title.width() + state.width() + 2);
    Line::from(vec![
        Span::styled(cut(title, width), theme.strong()),
        Span::styled(cell(&what, room, false), theme.faint()),
        Span::styled(format!(" {state}"), style),
    ])
}

/// What the user must know beyond the rows.
fn alarm(model: &Model) -> Option<String> {
    let outage = model.outage()?;
    let mut words = format!("the store has not answered for {}", duration::words(outage));
    if let Some(error) = &model.error {
        words += &format!(": {}", printable(error));
    }
    Some(words)
}

/// The filter while it is typed, a notice, or the keys.
fn foot_line(model: &Model, width: usize, theme: Theme) -> Line<'static> {
    if model.typing {
        let typed = format!(" / {}", printable(&model.filter));
        return Line::from(vec![
            Span::styled(cut(&typed, width.saturating_sub(1)), theme.strong()),
            Span::styled("█".to_owned(), theme.faint()),
        ]);
    }
    if let Some(notice) = &model.notice {
        let (mark, style) = if notice.failed { ("✕", theme.bad()) } else { ("·", theme.held()) };
        return Line::styled(cut(&format!(" {mark} {}", notice.words), width), style);
    }
    let list: &[(&str, &str)] = &[
        ("?", "keys"),
        ("q", "leave"),
        ("↵", "open"),
        ("/", "filter"),
        ("s", "sort"),
        ("r", "reverse"),
        ("e", "evict"),
    ];
    let lock: &[(&str, &str)] =
        &[("?", "keys"), ("Esc", "back"), ("e", "evict"), ("↑↓", "choose"), ("q", "leave")];
    hints(if model.open.is_some() { lock } else { list }, width, theme)
}

/// As many keys as there is room for.
fn hints(keys: &[(&str, &str)], width: usize, theme: Theme) -> Line<'static> {
    let mut spans = Vec::new();
    let mut room = width;
    for (key, word) in keys {
        let takes = key.width() + word.width() + 4;
        let Some(left) = room.checked_sub(takes) else { break };
        room = left;
        spans.push(Span::styled(format!(" {key}"), theme.strong()));
        spans.push(Span::styled(format!(" {word}  "), theme.faint()));
    }
    Line::from(spans)
}

fn question(eviction: &Eviction, theme: Theme) -> Text<'static> {
    let (who, name) = (&eviction.who, eviction.name());
    let mut lines = Vec::new();
    if eviction.holds {
        lines.push(Line::from(vec![
            "End the hold of ".into(),
            Span::styled(who.clone(), theme.strong()),
        ]));
    } else {
        lines.push(Line::from(vec![
            "Take out of the line ".into(),
            Span::styled(who.clone(), theme.strong()),
        ]));
    }
    lines.push(Line::from(vec![
        "of ".into(),
        Span::styled(format!("`{name}`"), theme.strong()),
        "?".into(),
    ]));
    lines.push(Line::default());
    if eviction.holds {
        lines.push("The store hands the lock over at once. The holder hears of it at its next renewal; until then it may go on, and only the fence keeps its writes out.".into());
        let next = match &eviction.next {
            Some(next) => format!("Next in line: {next}"),
            None => "No ticket waits.".to_owned(),
        };
        lines.push(Line::default());
        lines.push(next.into());
    } else {
        lines.push("It goes to the end of the line if its program still wants the lock.".into());
    }
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("y", theme.bad()),
        " evict   ".into(),
        Span::styled("any other key", theme.strong()),
        " keep".into(),
    ]));
    Text::from(lines)
}

fn help(theme: Theme) -> Text<'static> {
    let line = |(key, what): &(&str, &'static str)| {
        Line::from(vec![Span::styled(cell(key, 11, false), theme.strong()), (*what).into()])
    };
    let mut lines: Vec<Line<'static>> = keys::KEYS.iter().map(line).collect();
    let mark = |mark: &'static str, style, what: &'static str| -> Line<'static> {
        Line::from(vec![Span::styled(cell(mark, 11, false), style), what.into()])
    };
    lines.extend([
        Line::default(),
        mark("●", theme.held(), "held"),
        mark("◔", theme.warn(), "held, not renewed, ends soon"),
        mark("◌", theme.faint(), "kept closed (--at-least)"),
        mark("○", theme.wait(), "waits"),
        mark("◆", theme.peer(), "another library's client"),
    ]);
    Text::from(lines)
}

/// A box in the middle, as large as its text needs and the screen allows.
fn pop_up(frame: &mut Frame<'_>, title: &str, text: Text<'static>, style: ratatui::style::Style) {
    let screen = frame.area();
    let width = screen.width.saturating_sub(2).min(62);
    let inner = usize::from(width.saturating_sub(4)).max(1);
    let rows: usize = text.lines.iter().map(|line| line.width().div_ceil(inner).max(1)).sum();
    // Words are not broken, so a wrapped line may need one row more.
    let wrapped = text.lines.iter().filter(|line| line.width() > inner).count();
    let height = u16::try_from(rows + wrapped + 2).unwrap_or(u16::MAX).min(screen.height);
    let area = Rect {
        x: screen.x + (screen.width - width) / 2,
        y: screen.y + (screen.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().border_type(BorderType::Rounded).border_style(style);
    let block = block.title(Span::styled(format!(" {title} "), style));
    let block = block.padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), area);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::watch::{
        keys::press,
        model::tests::{hear, model},
        poll::News,
        rows::tests::line,
    };
    use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode, style::Color};
    use std::time::Duration;

    /// The screen as text.
    pub(in crate::watch) fn screen(model: &mut Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model, Theme::new(true))).unwrap();
        let cells = terminal.backend().buffer().content();
        let rows = cells.chunks(usize::from(width).max(1));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    fn keys(model: &mut Model, keys: &[KeyCode]) {
        for key in keys {
            press(model, (*key).into());
        }
    }

    #[test]
    fn the_list_shows_who_holds_what_and_how_long_the_line_is() {
        let mut model = model(&[line("jobs/a", 192, 3), line("jobs/b", 5, 0)]);
        let text = screen(&mut model, 110, 24);
        assert!(text.starts_with(" lockkeeper sqlite:locks.db"), "{text}");
        assert!(text.contains("● live") && text.contains("of 2 names"), "{text}");
        let row = text.lines().find(|row| row.contains("jobs/a ") && row.contains("pid")).unwrap();
        for cell in ["●", "ci (pid 7)", "3 min 12 s", "15 s", " 3 "] {
            assert!(row.contains(cell), "{cell} in {row}");
        }
        let (a, b) = (text.find("jobs/a ").unwrap(), text.find("jobs/b ").unwrap());
        assert!(a < b, "the longest line is first: {text}");
    }

    #[test]
    fn forty_columns_and_few_rows_are_enough() {
        let mut model = model(&[line("jobs/a", 192, 3), line("jobs/b", 5, 0)]);
        let text = screen(&mut model, 40, 10);
        let row = text.lines().find(|row| row.contains("jobs/a")).unwrap();
        assert!(row.contains("3 min 12 s") && row.trim_end().ends_with('3'), "{text}");
        keys(&mut model, &[KeyCode::Enter]);
        let text = screen(&mut model, 40, 10);
        assert!(text.contains("jobs/a") && text.contains("holds") && text.contains("ci"), "{text}");
        for (width, height) in [(1, 1), (5, 2), (20, 3), (300, 100), (40, 4), (0, 0)] {
            screen(&mut model, width, height);
            keys(&mut model, &[KeyCode::Char('e')]);
            screen(&mut model, width, height);
            keys(&mut model, &[KeyCode::Esc, KeyCode::Esc, KeyCode::Char('?')]);
            screen(&mut model, width, height);
            keys(&mut model, &[KeyCode::Esc]);
            screen(&mut model, width, height);
            keys(&mut model, &[KeyCode::Enter]);
        }
    }

    #[test]
    fn thousands_of_rows_scroll() {
        let lines: Vec<_> = (0..5000).map(|n| line(&format!("lock/{n:04}"), 1, 0)).collect();
        let mut model = model(&lines);
        let text = screen(&mut model, 80, 24);
        assert!(text.contains("lock/0000") && !text.contains("lock/4999"), "{text}");
        keys(&mut model, &[KeyCode::End]);
        let text = screen(&mut model, 80, 24);
        assert!(text.contains("lock/4999") && !text.contains("lock/0000"), "{text}");
        assert!(text.contains("of 5000 names"), "{text}");
    }

    #[test]
    fn an_outage_is_told_with_its_length_and_reason() {
        let mut model = model(&[line("a", 1, 0)]);
        let now = model.now + Duration::from_secs(18);
        let asked = Some(now - Duration::from_secs(17));
        model.hear(News { lines: None, asked, error: Some("refused\u{1b}[2J".into()) }, now);
        let text = screen(&mut model, 80, 24);
        let alarm = "▲ the store has not answered for 17 s: refused\\u{1b}[2J";
        assert!(text.contains(alarm) && text.contains("▲ no answer"), "{text}");
        hear(&mut model, &[line("a", 1, 0)], 1);
        let text = screen(&mut model, 80, 24);
        assert!(!text.contains("not answered") && text.contains("● live"), "{text}");
    }

    #[test]
    fn names_and_labels_cannot_touch_the_terminal() {
        let mut treacherous = line("a\u{202e}b", 1, 0);
        treacherous.tickets[0].label = b"x\x1b[31m".to_vec();
        let mut model = model(&[treacherous]);
        assert!(screen(&mut model, 80, 24).contains("a\\u{202e}b"));
        keys(&mut model, &[KeyCode::Enter]);
        let text = screen(&mut model, 140, 24);
        assert!(text.contains("a\\u{202e}b") && text.contains("x\\u{1b}[31m"), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
    }

    #[test]
    fn the_question_says_what_an_eviction_does() {
        let mut model = model(&[line("deploy", 1, 1)]);
        keys(&mut model, &[KeyCode::Char('e')]);
        let text = screen(&mut model, 80, 24);
        for words in
            ["End the hold of ci (pid 7)", "`deploy`?", "Next in line: web (pid 7)", "y evict"]
        {
            assert!(text.contains(words), "{words} in {text}");
        }
        let narrow = screen(&mut model, 40, 20);
        assert!(narrow.contains("y evict"), "{narrow}");
    }

    #[test]
    fn without_colours_there_are_none() {
        let mut model = model(&[line("a", 1, 3)]);
        keys(&mut model, &[KeyCode::Char('e')]);
        let mut colors = |theme| {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal.draw(|frame| draw(frame, &mut model, theme)).unwrap();
            let cells = terminal.backend().buffer().content();
            cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colors(Theme::new(true)) && !colors(Theme::new(false)));
    }
}
