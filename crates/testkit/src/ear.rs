//! What becomes of hints on their way from a store to the core.

use crate::tap::locked;
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
pub enum Hearing {
    /// They arrive.
    #[default]
    Good,
    /// None arrives.
    Deaf,
    /// Each arrives twice, among others that mean nothing.
    Noisy,
    /// They are kept back until they are delivered by hand.
    Late,
}

type Hint = Box<dyn Fn(&dyn Hints) + Send + Sync>;

/// Stands between the store and those who listen, and counts what it hears.
#[derive(Default)]
pub struct Ear {
    hearing: Mutex<Hearing>,
    heard: AtomicUsize,
    late: Mutex<Vec<(Arc<dyn Hints>, Hint)>>,
}

impl Ear {
    pub(crate) fn set(&self, hearing: Hearing) {
        *locked(&self.hearing) = hearing;
    }

    /// How many hints have come from the store that a ticket was granted or may stand differently.
    #[must_use]
    pub fn heard(&self) -> usize {
        self.heard.load(Ordering::SeqCst)
    }

    /// Delivers what was kept back.
    pub fn deliver(&self) {
        let late = std::mem::take(&mut *locked(&self.late));
        for (to, hint) in late {
            hint(&*to);
        }
    }

    pub(crate) fn before(self: &Arc<Self>, to: Arc<dyn Hints>) -> Arc<dyn Hints> {
        Arc::new(Between { ear: Arc::clone(self), to })
    }
}

impl fmt::Debug for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ear({:?})", locked(&self.hearing))
    }
}

struct Between {
    ear: Arc<Ear>,
    to: Arc<dyn Hints>,
}

impl Between {
    fn pass(&self, hint: impl Fn(&dyn Hints) + Send + Sync + 'static) {
        let hearing = *locked(&self.ear.hearing);
        match hearing {
            Hearing::Good => hint(&*self.to),
            Hearing::Deaf => {}
            Hearing::Noisy => {
                self.babble();
                hint(&*self.to);
                hint(&*self.to);
            }
            Hearing::Late => {
                locked(&self.ear.late).push((Arc::clone(&self.to), Box::new(hint)));
            }
        }
    }

    /// Hints that concern nobody here.
    fn babble(&self) {
        let nobody = TicketId::random();
        self.to.granted(nobody, 1);
        self.to.ended(nobody);
        self.to.freed(&Name::new("nobody's").expect("a good name"));
        self.to.recheck(Some(nobody));
        self.to.recheck(None);
    }

    fn count(&self) {
        self.ear.heard.fetch_add(1, Ordering::SeqCst);
    }
}

impl Hints for Between {
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
