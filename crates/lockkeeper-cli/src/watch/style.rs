//! Colours, and texts cut to columns.
//!
//! Colours are the sixteen of the terminal's own palette, so that they suit its background. A state
//! is always a shape and a word too: without colours nothing is lost.

use crate::output::{cut, fitting};
use ratatui::{
    style::{Color, Modifier, Style},
    text::Span,
};
use unicode_width::UnicodeWidthStr as _;

/// The styles of what is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    colors: bool,
}

impl Theme {
    pub(super) fn new(colors: bool) -> Self {
        Self { colors }
    }

    fn color(self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    /// Holds.
    pub(super) fn held(self) -> Style {
        self.color(Color::Cyan)
    }

    /// Waits.
    pub(super) fn wait(self) -> Style {
        self.color(Color::Blue)
    }

    /// Needs attention.
    pub(super) fn warn(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Has failed, or destroys.
    pub(super) fn bad(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Another library's client.
    pub(super) fn peer(self) -> Style {
        self.color(Color::Magenta)
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The chosen row.
    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// A cell of a table: a text cut and padded to a width, on its left or on its right side.
pub(super) fn cell(text: &str, width: usize, right: bool) -> String {
    let text = if width == 0 { String::new() } else { cut(text, width) };
    let blanks = width.saturating_sub(text.width());
    if right { format!("{:blanks$}{text}", "") } else { format!("{text}{:blanks$}", "") }
}

/// A lock's name (fit to print) in so many columns. The part behind the last slash stands out, and is cut
/// last: it tells one lock from the other.
pub(super) fn name(text: &str, width: usize, theme: Theme) -> Vec<Span<'static>> {
    let text = cut_left(text, width);
    let at = text.trim_end_matches('/').rfind('/').map_or(0, |at| at + 1);
    let (folder, name) = text.split_at(at);
    let blanks = " ".repeat(width.saturating_sub(text.width()));
    vec![
        Span::styled(folder.to_owned(), theme.faint()),
        Span::styled(name.to_owned(), theme.strong()),
        Span::raw(blanks),
    ]
}

/// Cuts a text at its beginning if it takes more than so many columns.
fn cut_left(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept: Vec<char> = fitting(text.chars().rev(), width.saturating_sub(1)).collect();
    kept.extend((width > 0).then_some('…'));
    kept.iter().rev().collect()
}

/// A small chart, one column for each value, against the highest one or against `most` if that is higher.
pub(super) fn bars(values: &[Option<u64>], most: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().flatten().copied().max().unwrap_or(0).max(most).max(1);
    let bar = |value: &Option<u64>| match value {
        None => ' ',
        Some(0) => '▁',
        Some(value) => {
            let eighths = usize::try_from(value.saturating_mul(7) / most).unwrap_or(0);
            BARS[eighths.clamp(1, 7)]
        }
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_as_wide_as_its_column() {
        assert_eq!(cell("ab", 4, false), "ab  ");
        assert_eq!(cell("ab", 4, true), "  ab");
        assert_eq!(cell("abcdef", 4, true), "abc…");
        assert_eq!(cell("锁锁锁", 4, false), "锁… ");
        assert_eq!(cell("ab", 0, false), "");
    }

    #[test]
    fn a_long_name_keeps_its_end() {
        let text = |width| -> String {
            name("orders/2026/settlement", width, Theme::new(true))
                .iter()
                .map(|span| span.content.to_string())
                .collect()
        };
        assert_eq!(text(24), "orders/2026/settlement  ");
        assert_eq!(text(14), "…26/settlement");
        assert_eq!(text(4), "…ent");
        assert_eq!(text(0), "");
    }

    #[test]
    fn bars_show_the_difference_between_none_and_few() {
        assert_eq!(bars(&[None, Some(0), Some(1), Some(50), Some(100)], 0), " ▁▂▄█");
        assert_eq!(bars(&[Some(0)], 0), "▁");
        assert_eq!(bars(&[Some(2)], 4), "▄");
    }
}
