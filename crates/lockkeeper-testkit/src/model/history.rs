//! Random histories.

use super::reference::{Model, NAMES, Reply, SESSIONS, Shape};
use proptest::{prelude::*, sample::select};
use proptest_state_machine::ReferenceStateMachine;

/// One request. Tickets are named by the order in which they were made.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names are those of the store's operations")]
pub enum Step {
    Open(usize),
    Close(usize),
    Renew(usize),
    /// A new ticket.
    Enter {
        session: usize,
        name: usize,
        shape: Shape,
        queue: bool,
    },
    /// The same ticket once more.
    EnterAgain {
        ticket: usize,
        queue: bool,
    },
    /// By the ticket's session, or by a stranger.
    Leave {
        ticket: usize,
        own: bool,
        stray: bool,
    },
    Evict(usize),
    Annotate {
        ticket: usize,
        edit: u64,
        note: u8,
    },
    Write {
        ticket: usize,
        edit: u64,
        value: Option<u8>,
    },
}

impl Model {
    /// What the reference does and answers.
    pub fn apply(&mut self, step: &Step) -> Reply {
        match *step {
            Step::Open(session) => self.open(session),
            Step::Close(session) => self.close(session),
            Step::Renew(session) => self.renew(session),
            Step::Enter { session, name, shape, queue } => {
                self.enter_new(session, name, shape, queue)
            }
            Step::EnterAgain { ticket, queue } => self.enter(ticket, queue),
            Step::Leave { ticket, own, stray } => self.leave(ticket, own, stray),
            Step::Evict(ticket) => self.evict(ticket),
            Step::Annotate { ticket, edit, note } => self.annotate(ticket, edit, note),
            Step::Write { ticket, edit, value } => self.write(ticket, edit, value),
        }
    }
}

/// Makes histories.
#[derive(Debug)]
pub struct Histories;

impl ReferenceStateMachine for Histories {
    type State = Model;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Model> {
        let mut model = Model::default();
        for session in 0..SESSIONS {
            model.open(session);
        }
        Just(model).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Step> {
        let session = 0..SESSIONS;
        let shape = select(vec![
            Shape::EXCLUSIVE,
            Shape::EXCLUSIVE,
            Shape::SHARED,
            Shape::SHARED,
            Shape { weight: 1, capacity: 3 },
            Shape { weight: 2, capacity: 3 },
            Shape { weight: 3, capacity: 3 },
        ]);
        let enter = (session.clone(), 0..NAMES, shape, prop::bool::weighted(0.8))
            .prop_map(|(session, name, shape, queue)| Step::Enter { session, name, shape, queue });
        if model.tickets.is_empty() {
            return enter.boxed();
        }
        prop_oneof![
            1 => session.clone().prop_map(Step::Open),
            1 => session.clone().prop_map(Step::Close),
            1 => session.prop_map(Step::Renew),
            8 => enter,
            12 => about(model.tickets.len()),
        ]
        .boxed()
    }

    fn apply(mut model: Model, step: &Step) -> Model {
        model.apply(step);
        model
    }

    fn preconditions(model: &Model, step: &Step) -> bool {
        match *step {
            Step::EnterAgain { ticket, .. }
            | Step::Leave { ticket, .. }
            | Step::Evict(ticket)
            | Step::Annotate { ticket, .. }
            | Step::Write { ticket, .. } => ticket < model.tickets.len(),
            Step::Open(_) | Step::Close(_) | Step::Renew(_) | Step::Enter { .. } => true,
        }
    }
}

/// A request about a ticket that was made before, the later the likelier.
fn about(tickets: usize) -> impl Strategy<Value = Step> {
    let ticket = prop_oneof![0..tickets, tickets.saturating_sub(4)..tickets];
    let what = prop_oneof![
        2 => any::<bool>().prop_map(|queue| Step::EnterAgain { ticket: 0, queue }),
        6 => (prop::bool::weighted(0.85), any::<bool>())
            .prop_map(|(own, stray)| Step::Leave { ticket: 0, own, stray }),
        2 => Just(Step::Evict(0)),
        2 => (1..4u64, any::<u8>())
            .prop_map(|(edit, note)| Step::Annotate { ticket: 0, edit, note }),
        2 => (1..4u64, any::<Option<u8>>())
            .prop_map(|(edit, value)| Step::Write { ticket: 0, edit, value }),
    ];
    (ticket, what).prop_map(|(chosen, mut step)| {
        match &mut step {
            Step::EnterAgain { ticket, .. }
            | Step::Leave { ticket, .. }
            | Step::Evict(ticket)
            | Step::Annotate { ticket, .. }
            | Step::Write { ticket, .. } => *ticket = chosen,
            Step::Open(_) | Step::Close(_) | Step::Renew(_) | Step::Enter { .. } => {}
        }
        step
    })
}
