//! What a key does.

use super::model::{Eviction, Model, Scroll};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The longest filter, in characters.
const FILTER_MAX: usize = 200;

/// What the model cannot do by itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Leave.
    Leave,
    /// Leave as if by Ctrl-C, so that a script around the command ends too.
    Interrupt,
    /// Give the terminal to the shell.
    Suspend,
    /// Draw everything anew.
    Redraw,
    /// Ask the store at once.
    Look,
    /// Evict this ticket.
    Evict(Eviction),
}

/// Every key, for the help.
pub(super) const KEYS: [(&str, &str); 13] = [
    ("↑ ↓  k j", "one row"),
    ("PgUp PgDn", "one page"),
    ("Home End", "the first, the last"),
    ("Enter", "open the lock"),
    ("Esc", "back; from the list, leave"),
    ("/", "filter as you type"),
    ("← →  s", "sort by another column"),
    ("r", "reverse the order"),
    ("e, then y", "evict"),
    ("F5", "ask the store at once"),
    ("Ctrl-L", "draw anew"),
    ("Ctrl-Z", "to the shell"),
    ("q  Ctrl-C", "leave"),
];

/// Changes the model as the key says.
pub(super) fn press(model: &mut Model, key: KeyEvent) -> Option<Action> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Interrupt),
            KeyCode::Char('z') => Some(Action::Suspend),
            KeyCode::Char('l') => Some(Action::Redraw),
            KeyCode::Char('u') if model.typing => edit(model, String::clear),
            _ => None,
        };
    }
    if let Some(eviction) = model.confirm.take() {
        return (key.code == KeyCode::Char('y')).then_some(Action::Evict(eviction));
    }
    if std::mem::take(&mut model.help) {
        return None;
    }
    if model.typing && type_filter(model, key.code) {
        return None;
    }
    match key.code {
        KeyCode::Char('q') => Some(Action::Leave),
        KeyCode::Char('?') => set(&mut model.help),
        KeyCode::Char('e') => {
            model.ask_eviction();
            None
        }
        KeyCode::F(5) => Some(Action::Look),
        code if model.open.is_some() => in_lock(model, code),
        code => in_list(model, code),
    }
}

fn set(flag: &mut bool) -> Option<Action> {
    *flag = true;
    None
}

fn in_lock(model: &mut Model, code: KeyCode) -> Option<Action> {
    if matches!(code, KeyCode::Esc | KeyCode::Backspace | KeyCode::Left) {
        model.open = None;
        return None;
    }
    let len = model.open_line().map_or(0, |line| line.tickets.len());
    let open = model.open.as_mut()?;
    if scroll_by(&mut open.scroll, code, len) {
        let at = open.scroll.at;
        model.choose_ticket(at);
    }
    None
}

fn in_list(model: &mut Model, code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Esc if model.filter.is_empty() => return Some(Action::Leave),
        KeyCode::Esc => return edit(model, String::clear),
        KeyCode::Enter => model.open_chosen(),
        KeyCode::Char('/') => return set(&mut model.typing),
        KeyCode::Right | KeyCode::Char('s') => sort(model, |model| model.sort.step(true)),
        KeyCode::Left => sort(model, |model| model.sort.step(false)),
        KeyCode::Char('r') => sort(model, |model| model.sort.reverse = !model.sort.reverse),
        code => {
            if scroll_by(&mut model.scroll, code, model.rows.len()) {
                model.choose(model.scroll.at);
            }
        }
    }
    None
}

fn sort(model: &mut Model, how: impl FnOnce(&mut Model)) {
    how(model);
    model.arrange();
}

/// Moves in a list, if the key says so.
fn scroll_by(scroll: &mut Scroll, code: KeyCode, len: usize) -> bool {
    let page = isize::try_from(scroll.page.saturating_sub(1).max(1)).unwrap_or(1);
    match code {
        KeyCode::Up | KeyCode::Char('k') => scroll.step(-1, len),
        KeyCode::Down | KeyCode::Char('j') => scroll.step(1, len),
        KeyCode::PageUp => scroll.step(-page, len),
        KeyCode::PageDown | KeyCode::Char(' ') => scroll.step(page, len),
        KeyCode::Home | KeyCode::Char('g') => scroll.to(0, len),
        KeyCode::End | KeyCode::Char('G') => scroll.to(usize::MAX, len),
        _ => return false,
    }
    true
}

/// Takes a key as a part of the filter; says whether it was one.
fn type_filter(model: &mut Model, code: KeyCode) -> bool {
    match code {
        KeyCode::Char(c) if model.filter.chars().count() < FILTER_MAX => {
            edit(model, |filter| filter.push(c));
        }
        KeyCode::Char(_) => {}
        KeyCode::Backspace if model.filter.is_empty() => model.typing = false,
        KeyCode::Backspace => {
            edit(model, |filter| _ = filter.pop());
        }
        KeyCode::Enter => model.typing = false,
        KeyCode::Esc => {
            model.typing = false;
            edit(model, String::clear);
        }
        _ => return false,
    }
    true
}

/// Changes the filter, and starts from the top of what matches.
fn edit(model: &mut Model, how: impl FnOnce(&mut String)) -> Option<Action> {
    how(&mut model.filter);
    (model.chosen, model.scroll.at) = (None, 0);
    model.arrange();
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::{
        model::tests::model,
        rows::{Column, tests::line},
    };
    use lockkeeper::Line;

    fn locks(count: usize) -> Vec<Line> {
        (0..count).map(|n| line(&format!("lock/{n:04}"), 1, 0)).collect()
    }

    fn press_all(model: &mut Model, keys: &[KeyCode]) -> Option<Action> {
        keys.iter().fold(None, |_, code| press(model, (*code).into()))
    }

    fn type_in(model: &mut Model, text: &str) -> Option<Action> {
        press_all(model, &text.chars().map(KeyCode::Char).collect::<Vec<_>>())
    }

    #[test]
    fn a_filter_takes_every_letter_and_escape_takes_it_away() {
        let mut model = model(&locks(20));
        assert_eq!(type_in(&mut model, "/001q"), None);
        assert_eq!((model.filter.as_str(), model.rows.len()), ("001q", 0));
        press_all(&mut model, &[KeyCode::Backspace]);
        assert_eq!(model.rows.len(), 11, "0001, and 0010 to 0019");
        assert_eq!(press_all(&mut model, &[KeyCode::Enter]), None);
        assert!(!model.typing);
        assert_eq!(press_all(&mut model, &[KeyCode::Esc]), None);
        assert_eq!(model.rows.len(), 20);
        assert_eq!(press_all(&mut model, &[KeyCode::Esc]), Some(Action::Leave));
    }

    #[test]
    fn escape_goes_back_one_step_at_a_time() {
        let mut model = model(&locks(3));
        type_in(&mut model, "/lock");
        press_all(&mut model, &[KeyCode::Enter, KeyCode::Enter, KeyCode::Char('e')]);
        assert!(model.open.is_some() && model.confirm.is_some());
        for _ in 0..3 {
            assert_eq!(press_all(&mut model, &[KeyCode::Esc]), None);
        }
        assert!(model.confirm.is_none() && model.open.is_none() && model.filter.is_empty());
        assert_eq!(press_all(&mut model, &[KeyCode::Esc]), Some(Action::Leave));
    }

    #[test]
    fn only_y_evicts() {
        let mut model = model(&[line("a", 1, 1)]);
        for no in [KeyCode::Enter, KeyCode::Char('n'), KeyCode::Char('e'), KeyCode::Char('q')] {
            assert_eq!(press_all(&mut model, &[KeyCode::Char('e'), no]), None, "{no:?}");
            assert!(model.confirm.is_none());
        }
        let action = press_all(&mut model, &[KeyCode::Char('e'), KeyCode::Char('y')]);
        assert!(matches!(action, Some(Action::Evict(e)) if e.name.as_str() == "a" && e.holds));
    }

    #[test]
    fn pages_are_as_long_as_the_screen() {
        let mut model = model(&locks(5000));
        model.scroll.show(20, 5000);
        press_all(&mut model, &[KeyCode::PageDown, KeyCode::PageDown, KeyCode::Up]);
        assert_eq!(model.scroll.at, 37);
        press_all(&mut model, &[KeyCode::End]);
        assert_eq!(model.chosen.as_ref().unwrap().as_str(), "lock/4999");
        press_all(&mut model, &[KeyCode::Home]);
        assert_eq!(model.scroll.at, 0);
    }

    #[test]
    fn the_order_is_changed_by_keys() {
        let mut model = model(&locks(3));
        type_in(&mut model, "s");
        assert_eq!(model.sort.by, Column::Longest);
        press_all(&mut model, &[KeyCode::Right, KeyCode::Char('r')]);
        assert_eq!((model.sort.by, model.sort.reverse), (Column::Name, true));
        assert_eq!(model.line_at(0).unwrap().name.as_str(), "lock/0002");
        assert_eq!(model.scroll.at, 2, "the chosen lock is still chosen");
    }

    #[test]
    fn ctrl_c_leaves_from_everywhere() {
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let mut model = model(&locks(3));
        type_in(&mut model, "/l");
        assert_eq!(press(&mut model, ctrl_c), Some(Action::Interrupt));
        press_all(&mut model, &[KeyCode::Enter, KeyCode::Enter, KeyCode::Char('e')]);
        assert_eq!(press(&mut model, ctrl_c), Some(Action::Interrupt));
    }
}
