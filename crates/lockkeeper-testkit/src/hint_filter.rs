//! What becomes of hints on their way from a store to the core.

use crate::fault_store::locked;
use lockkeeper::{Name, TicketId, store::Hints};
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// What becomes of hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HintFate {
    /// They arrive.
    #[default]
    Pass,
    /// None arrives.
    Drop,
    /// Each arrives twice, among others that mean nothing.
    Noise,
    /// They are kept back until [`HintFilter::deliver`].
    Hold,
}

type Hint = Box<dyn Fn(&dyn Hints) + Send + Sync>;

/// Stands between the store and the core, and counts the hints that pass.
#[derive(Default)]
pub struct HintFilter {
    fate: Mutex<HintFate>,
    seen: AtomicUsize,
    held: Mutex<Vec<(Arc<dyn Hints>, Hint)>>,
}

impl HintFilter {
    pub(crate) fn set(&self, fate: HintFate) {
        *locked(&self.fate) = fate;
    }

    /// How many hints have come from the store that a ticket was granted or may stand differently.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    /// Delivers what was kept back.
    pub fn deliver(&self) {
        let held = std::mem::take(&mut *locked(&self.held));
        for (to, hint) in held {
            hint(&*to);
        }
    }

    pub(crate) fn before(self: &Arc<Self>, to: Arc<dyn Hints>) -> Arc<dyn Hints> {
        Arc::new(FilteredHints { filter: Arc::clone(self), to })
    }
}

impl fmt::Debug for HintFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HintFilter({:?})", locked(&self.fate))
    }
}

struct FilteredHints {
    filter: Arc<HintFilter>,
    to: Arc<dyn Hints>,
}

impl FilteredHints {
    fn pass(&self, hint: impl Fn(&dyn Hints) + Send + Sync + 'static) {
        let fate = *locked(&self.filter.fate);
        match fate {
            HintFate::Pass => hint(&*self.to),
            HintFate::Drop => {}
            HintFate::Noise => {
                self.babble();
                hint(&*self.to);
                hint(&*self.to);
            }
            HintFate::Hold => {
                locked(&self.filter.held).push((Arc::clone(&self.to), Box::new(hint)));
            }
        }
    }

    /// Hints about a ticket and a name that no session has.
    fn babble(&self) {
        let foreign = TicketId::random();
        self.to.granted(foreign, 1);
        self.to.ended(foreign);
        self.to.freed(&Name::new("foreign").expect("a good name"));
        self.to.recheck(Some(foreign));
        self.to.recheck(None);
    }

    fn count(&self) {
        self.filter.seen.fetch_add(1, Ordering::SeqCst);
    }
}

impl Hints for FilteredHints {
    fn granted(&self, ticket: TicketId, fence: u64) {
        self.count();
        self.pass(move |to| to.granted(ticket, fence));
    }

    fn ended(&self, ticket: TicketId) {
        self.pass(move |to| to.ended(ticket));
    }

    fn freed(&self, name: &Name) {
        let name = name.clone();
        self.pass(move |to| to.freed(&name));
    }

    fn recheck(&self, ticket: Option<TicketId>) {
        if ticket.is_some() {
            self.count();
        }
        self.pass(move |to| to.recheck(ticket));
    }
}
