//! What the live view knows. Nothing here draws, reads a clock or talks to a store.

use super::{
    OUTAGE_TOLD,
    history::History,
    poll::News,
    rows::{self, Column, Row, Sort},
};
use crate::{event::ordinal, ls, output::printable};
use lockkeeper::{Line, Name, Ticket, TicketId};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// For how long a notice stands.
const NOTICE: Duration = Duration::from_secs(8);

/// A ticket whose end is nearer than this part of the time that it once had is expiring.
const EXPIRING: u32 = 4;

/// A position in a list that is longer than the screen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scroll {
    /// The row that is chosen.
    pub(super) at: usize,
    /// The first row that is shown.
    pub(super) top: usize,
    /// How many rows are shown; known when they have been drawn.
    pub(super) page: usize,
}

impl Scroll {
    /// Moves by so many rows, within the list.
    pub(super) fn step(&mut self, by: isize, len: usize) {
        self.to(self.at.saturating_add_signed(by), len);
    }

    /// Moves to a row, or to the last one.
    pub(super) fn to(&mut self, at: usize, len: usize) {
        self.at = at.min(len.saturating_sub(1));
    }

    /// Shows the chosen row, and no empty rows if that can be helped; gives the rows that are shown.
    pub(super) fn show(&mut self, page: usize, len: usize) -> std::ops::Range<usize> {
        self.page = page;
        self.to(self.at, len);
        let last_top = len.saturating_sub(page);
        self.top = self.top.clamp((self.at + 1).saturating_sub(page.max(1)), self.at).min(last_top);
        self.top..(self.top + page).min(len)
    }
}

/// One lock, opened.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) name: Name,
    /// The chosen ticket: it stays chosen when it moves up in line.
    pub(super) ticket: Option<TicketId>,
    pub(super) scroll: Scroll,
}

/// A ticket that is to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Eviction {
    pub(super) name: Name,
    pub(super) ticket: TicketId,
    /// Its owner, in words.
    pub(super) who: String,
    /// Does it hold the lock? Else it waits.
    pub(super) holds: bool,
    /// Who is first in line behind it, in words.
    pub(super) next: Option<String>,
}

/// How many there are of what, filter or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) names: usize,
    /// How many names have a holder.
    pub(super) held: usize,
    pub(super) waiting: usize,
    /// How many names have waiters.
    pub(super) lines: usize,
    /// How many wait in the longest of them.
    pub(super) longest_line: usize,
    /// The longest wait, and the lock that is waited for.
    pub(super) longest: Option<(Duration, Name)>,
}

/// A word about what the user has done.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) words: String,
    pub(super) failed: bool,
    until: Instant,
}

/// All that is shown.
#[derive(Debug)]
pub(super) struct Model {
    /// The store's URL, without secrets.
    pub(super) store: String,
    pub(super) prefix: String,
    /// What the listing does not show.
    pub(super) hidden: Option<String>,
    pub(super) now: Instant,
    pub(super) lines: Arc<Vec<Line>>,
    pub(super) answered: Option<Instant>,
    asked: Option<Instant>,
    pub(super) error: Option<String>,
    pub(super) rows: Vec<Row>,
    pub(super) totals: Totals,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: bool,
    pub(super) sort: Sort,
    pub(super) scroll: Scroll,
    /// The chosen lock: it stays chosen when the order changes.
    pub(super) chosen: Option<Name>,
    pub(super) open: Option<Open>,
    pub(super) confirm: Option<Eviction>,
    pub(super) help: bool,
    pub(super) notice: Option<Notice>,
    pub(super) history: History,
    /// How far away the end of each held ticket has been at the most.
    lives: HashMap<TicketId, Duration>,
}

impl Model {
    pub(super) fn new(store: String, prefix: String, hidden: Option<String>, now: Instant) -> Self {
        Self {
            store,
            prefix,
            hidden,
            now,
            lines: Arc::default(),
            answered: None,
            asked: None,
            error: None,
            rows: Vec::new(),
            totals: Totals::default(),
            filter: String::new(),
            typing: false,
            sort: Sort { by: Column::Waiting, reverse: false },
            scroll: Scroll::default(),
            chosen: None,
            open: None,
            confirm: None,
            help: false,
            notice: None,
            history: History::new(now),
            lives: HashMap::new(),
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant, asked: Option<Instant>) {
        (self.now, self.asked) = (now, asked);
        self.notice.take_if(|notice| notice.until <= now);
    }

    /// Takes in what the store has said.
    pub(super) fn hear(&mut self, news: News, now: Instant) {
        self.tick(now, news.asked);
        self.error = news.error;
        let Some((lines, at)) = news.lines else { return };
        if self.answered == Some(at) {
            return;
        }
        (self.lines, self.answered) = (lines, Some(at));
        self.history.record(at, &self.lines);
        self.lives = lives(&self.lives, &self.lines);
        self.totals = totals(&self.lines);
        self.arrange();
        self.follow_ticket();
        self.review_eviction();
    }

    /// Sorts and filters anew. What was chosen stays chosen if it is still there.
    pub(super) fn arrange(&mut self) {
        self.rows = rows::rows(&self.lines, &self.filter, self.sort);
        let chosen = self.chosen.as_ref();
        let name = |row: &Row| Some(&self.lines[row.index].name);
        match self.rows.iter().position(|row| name(row) == chosen) {
            Some(at) => self.scroll.at = at,
            None => self.choose(self.scroll.at),
        }
    }

    /// Chooses this row, or the last one.
    pub(super) fn choose(&mut self, at: usize) {
        self.scroll.to(at, self.rows.len());
        self.chosen = self.line_at(self.scroll.at).map(|line| line.name.clone());
    }

    /// The lock in this row.
    pub(super) fn line_at(&self, at: usize) -> Option<&Line> {
        self.rows.get(at).map(|row| &self.lines[row.index])
    }

    /// The lock of this name, if it is held or waited for.
    pub(super) fn line(&self, name: &Name) -> Option<&Line> {
        // The lines come in the order of the names' bytes.
        let at = self.lines.binary_search_by(|line| line.name.as_str().cmp(name.as_str()));
        at.ok().map(|at| &self.lines[at])
    }

    /// The lock that is open, if it is held or waited for.
    pub(super) fn open_line(&self) -> Option<&Line> {
        self.line(&self.open.as_ref()?.name)
    }

    /// The ticket that is chosen in the lock that is open.
    pub(super) fn chosen_ticket(&self) -> Option<&Ticket> {
        let open = self.open.as_ref()?;
        in_order(self.open_line()?).nth(open.scroll.at)
    }

    /// Chooses a ticket of the lock that is open.
    pub(super) fn choose_ticket(&mut self, at: usize) {
        let len = self.open_line().map_or(0, |line| line.tickets.len());
        if let Some(open) = &mut self.open {
            open.scroll.to(at, len);
        }
        let ticket = self.chosen_ticket().map(|ticket| ticket.id);
        if let Some(open) = &mut self.open {
            open.ticket = ticket;
        }
    }

    /// Finds the chosen ticket again where it stands now.
    fn follow_ticket(&mut self) {
        let Some(open) = &self.open else { return };
        let (ticket, at) = (open.ticket, open.scroll.at);
        let found =
            self.open_line().and_then(|line| in_order(line).position(|t| Some(t.id) == ticket));
        self.choose_ticket(found.unwrap_or(at));
    }

    /// Opens the chosen lock.
    pub(super) fn open_chosen(&mut self) {
        if let Some(name) = self.chosen.clone() {
            self.open = Some(Open { name, ticket: None, scroll: Scroll::default() });
            self.choose_ticket(0);
        }
    }

    /// Asks whether the ticket is to be evicted: the chosen one, or the only holder of the chosen lock.
    pub(super) fn ask_eviction(&mut self) {
        if self.open.is_some() {
            let found = self.open_line().zip(self.chosen_ticket());
            self.confirm = found.map(|(line, ticket)| Eviction::new(line, ticket));
            return;
        }
        let Some(line) = self.line_at(self.scroll.at) else { return };
        let holders: Vec<&Ticket> = line.holders().take(2).collect();
        if let [ticket] = holders[..] {
            self.confirm = Some(Eviction::new(line, ticket));
        } else {
            self.open_chosen();
            self.note("choose the ticket to evict, then e".to_owned(), false);
        }
    }

    /// The line has moved on while the user was asked.
    fn review_eviction(&mut self) {
        let Some(asked) = &self.confirm else { return };
        let line = self.line(&asked.name);
        let ticket = line.and_then(|line| line.tickets.iter().find(|t| t.id == asked.ticket));
        let now = line.zip(ticket).map(|(line, ticket)| Eviction::new(line, ticket));
        if now.is_none() {
            let gone = format!("{} is gone from `{}`", asked.who, asked.name());
            self.note(gone, false);
        }
        self.confirm = now;
    }

    /// Says what came of an eviction.
    pub(super) fn evicted(&mut self, eviction: &Eviction, done: Result<bool, String>) {
        let (who, name) = (&eviction.who, eviction.name());
        match done {
            Ok(true) => self.note(format!("evicted {who} from `{name}`"), false),
            Ok(false) => self.note(format!("{who} was gone from `{name}` already"), false),
            Err(why) => self.note(format!("cannot evict {who} from `{name}`: {why}"), true),
        }
    }

    pub(super) fn note(&mut self, words: String, failed: bool) {
        self.notice = Some(Notice { words, failed, until: self.now + NOTICE });
    }

    /// For how long the store has not answered, if it is worth telling.
    pub(super) fn outage(&self) -> Option<Duration> {
        let since = self.now.saturating_duration_since(self.asked?);
        (since >= OUTAGE_TOLD).then_some(since)
    }

    /// How much older than the last answer the ages are. During an outage it is not known how things
    /// stand, so nothing counts on.
    pub(super) fn drift(&self) -> Duration {
        let Some(answered) = self.answered else { return Duration::ZERO };
        let until = if self.outage().is_some() { self.asked.unwrap_or(self.now) } else { self.now };
        until.saturating_duration_since(answered)
    }

    /// Has most of the ticket's time passed without a renewal?
    pub(super) fn is_expiring(&self, ticket: &Ticket) -> bool {
        let life = self.lives.get(&ticket.id).copied().unwrap_or_default();
        ticket.ends_in != Duration::MAX
            && self.outage().is_none()
            && ticket.ends_in.saturating_sub(self.drift()) * EXPIRING < life
    }
}

impl Eviction {
    fn new(line: &Line, ticket: &Ticket) -> Self {
        let holds = ticket.fence.is_some();
        let next = line.waiters().find(|next| next.id != ticket.id).map(who);
        Self { name: line.name.clone(), ticket: ticket.id, who: who(ticket), holds, next }
    }

    /// The lock's name, fit to print.
    pub(super) fn name(&self) -> String {
        printable(self.name.as_str())
    }
}

/// Holders first, then waiters as they stand in line.
pub(super) fn in_order(line: &Line) -> impl Iterator<Item = &Ticket> {
    line.holders().chain(line.waiters())
}

/// Where each ticket stands: "holds", "1st", "2nd" …
pub(super) fn place(line: &Line, at: usize) -> String {
    let holders = line.holders().count();
    if at < holders { "holds".to_owned() } else { ordinal(at - holders + 1) }
}

/// A ticket's owner, in words.
pub(super) fn who(ticket: &Ticket) -> String {
    ticket.owner.as_ref().map_or_else(ls::kept, |owner| printable(&owner.to_string()))
}

fn lives(before: &HashMap<TicketId, Duration>, lines: &[Line]) -> HashMap<TicketId, Duration> {
    let held = lines.iter().flat_map(Line::holders).filter(|t| t.ends_in != Duration::MAX);
    held.map(|t| (t.id, before.get(&t.id).copied().unwrap_or_default().max(t.ends_in))).collect()
}

fn totals(lines: &[Line]) -> Totals {
    let mut totals = Totals { names: lines.len(), ..Totals::default() };
    for (index, line) in lines.iter().enumerate() {
        let row = Row::new(index, line);
        totals.held += usize::from(line.holders().next().is_some());
        totals.waiting += row.waiting;
        totals.longest_line = totals.longest_line.max(row.waiting);
        totals.lines += usize::from(row.waiting > 0);
        let longest = totals.longest.as_ref().map(|(longest, _)| *longest);
        if row.longest > longest {
            totals.longest = row.longest.map(|longest| (longest, line.name.clone()));
        }
    }
    totals
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::watch::rows::tests::line;

    /// A model that has heard of these lines.
    pub(in crate::watch) fn model(lines: &[Line]) -> Model {
        let now = Instant::now();
        let mut model = Model::new("sqlite:locks.db".into(), String::new(), None, now);
        hear(&mut model, lines, 0);
        model
    }

    /// The store answers so many seconds after the model's present.
    pub(in crate::watch) fn hear(model: &mut Model, lines: &[Line], seconds: u64) {
        let now = model.now + Duration::from_secs(seconds) + Duration::from_nanos(1);
        let lines = Some((Arc::new(lines.to_vec()), now));
        model.hear(News { lines, asked: None, error: None }, now);
    }

    fn chosen(model: &Model) -> &str {
        model.chosen.as_ref().map_or("", |name| name.as_str())
    }

    #[test]
    fn the_chosen_lock_stays_chosen_when_the_order_changes() {
        let mut model = model(&[line("a", 1, 0), line("b", 1, 2), line("c", 1, 1)]);
        assert_eq!(chosen(&model), "b", "the longest line is first");
        model.choose(1);
        assert_eq!(chosen(&model), "c");
        hear(&mut model, &[line("a", 1, 0), line("b", 1, 2), line("c", 1, 9)], 1);
        assert_eq!((chosen(&model), model.scroll.at), ("c", 0));
        hear(&mut model, &[line("a", 1, 0), line("b", 1, 2)], 1);
        assert_eq!(chosen(&model), "b", "the one that stands where it stood");
    }

    #[test]
    fn the_chosen_ticket_is_followed_up_the_line() {
        let mut model = model(&[line("a", 1, 3)]);
        model.open_chosen();
        model.choose_ticket(2);
        let ticket = model.chosen_ticket().unwrap().id;
        let mut shorter = line("a", 1, 3);
        shorter.tickets.remove(1);
        hear(&mut model, &[shorter], 1);
        assert_eq!(model.chosen_ticket().unwrap().id, ticket);
        assert_eq!(model.open.as_ref().unwrap().scroll.at, 1);
        hear(&mut model, &[], 1);
        assert!(model.open.is_some() && model.chosen_ticket().is_none());
    }

    #[test]
    fn an_eviction_names_the_next_in_line_and_ends_with_its_ticket() {
        let mut model = model(&[line("a", 1, 1)]);
        model.ask_eviction();
        let asked = model.confirm.clone().unwrap();
        assert_eq!((asked.who.as_str(), asked.holds), ("ci (pid 7)", true));
        assert_eq!(asked.next.as_deref(), Some("web (pid 7)"));
        hear(&mut model, &[], 1);
        assert!(model.confirm.is_none());
        assert_eq!(model.notice.as_ref().unwrap().words, "ci (pid 7) is gone from `a`");
    }

    #[test]
    fn of_several_holders_the_user_chooses_the_one_to_evict() {
        let mut shared = line("a", 1, 1);
        shared.tickets[1].fence = Some(42);
        let mut model = model(&[shared]);
        model.ask_eviction();
        assert!(model.confirm.is_none() && model.open.is_some());
        model.choose_ticket(1);
        model.ask_eviction();
        assert_eq!(model.confirm.unwrap().ticket, TicketId::from_bytes([1; 16]));
    }

    #[test]
    fn ages_stop_while_the_store_does_not_answer() {
        let mut model = model(&[line("a", 1, 0)]);
        let answered = model.now;
        let at = |seconds| answered + Duration::from_secs(seconds);
        model.tick(at(3), None);
        assert_eq!((model.drift().as_secs(), model.outage()), (3, None));
        model.tick(at(4), Some(at(3)));
        assert_eq!((model.drift().as_secs(), model.outage()), (4, None));
        model.tick(at(20), Some(at(3)));
        assert_eq!(model.outage(), Some(Duration::from_secs(17)));
        assert_eq!(model.drift().as_secs(), 3);
    }

    #[test]
    fn a_hold_that_is_not_renewed_is_expiring() {
        let mut model = model(&[line("a", 1, 0)]);
        let held = |model: &Model| model.is_expiring(&model.lines[0].tickets[0]);
        assert!(!held(&model));
        let mut late = line("a", 1, 0);
        late.tickets[0].ends_in = Duration::from_secs(3);
        hear(&mut model, &[late], 1);
        assert!(held(&model));
    }

    #[test]
    fn the_chosen_row_is_shown_and_no_empty_ones() {
        let mut scroll = Scroll::default();
        assert_eq!(scroll.show(10, 3), 0..3);
        scroll.to(99, 5000);
        assert_eq!(scroll.show(10, 5000), 90..100);
        scroll.step(-3, 5000);
        assert_eq!(scroll.show(10, 5000), 90..100);
        assert_eq!(scroll.show(3, 5000), 94..97, "a smaller window");
        assert_eq!(scroll.show(10, 20), 10..20, "a shorter list");
        assert_eq!(scroll.show(0, 20), 19..19);
        assert_eq!(scroll.show(10, 0), 0..0);
    }

    #[test]
    fn totals_count_all_locks() {
        let totals = model(&[line("a", 1, 2), line("b", 1, 0), line("c", 1, 1)]).totals;
        assert_eq!((totals.names, totals.held, totals.waiting, totals.lines), (3, 3, 3, 2));
        assert_eq!(totals.longest_line, 2);
        assert_eq!(totals.longest.unwrap().1.as_str(), "a");
    }
}
