//! The local gate: of all tasks in one process that want a name, one stands in the store's line.
//!
//! The gate is passed on as soon as its holder is granted, not when it releases, so that the next
//! task already waits in the store while the first one works. It keeps a crowd of tasks from
//! becoming a crowd of tickets, and it serves them in the order in which they came.

use crate::{name::Name, outage::Away};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// The doors of one keeper, one for each name that somebody wants.
#[derive(Default)]
pub(crate) struct Gate {
    doors: Mutex<HashMap<Name, Door>>,
}

#[derive(Default)]
struct Door {
    /// The task at the door was told by the store to wait.
    waiting: bool,
    /// The store did not answer the task at the door.
    away: Option<Away>,
    behind: VecDeque<oneshot::Sender<Pass>>,
}

/// The right to stand in the store's line. Dropping it lets the next task go.
pub(crate) struct Pass {
    gate: Option<Arc<Gate>>,
    name: Name,
    /// The store did not answer the task that was at the door before.
    pub(crate) away: Option<Away>,
}

impl Gate {
    fn doors(&self) -> MutexGuard<'_, HashMap<Name, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the tasks that came before.
    ///
    /// Cancel safety: a pass that arrives at a dropped future goes on to the next.
    pub(crate) async fn pass(self: &Arc<Self>, name: &Name) -> Pass {
        let turn = {
            let mut doors = self.doors();
            let door = match doors.entry(name.clone()) {
                Entry::Occupied(door) => door.into_mut(),
                Entry::Vacant(free) => {
                    free.insert(Door::default());
                    return Pass { gate: Some(Arc::clone(self)), name: name.clone(), away: None };
                }
            };
            while door.behind.back().is_some_and(oneshot::Sender::is_closed) {
                door.behind.pop_back();
            }
            let (sender, turn) = oneshot::channel();
            door.behind.push_back(sender);
            turn
        };
        turn.await.expect("a door keeps those behind it until it is passed on")
    }

    /// Does the store leave the task at the door without an answer?
    pub(crate) fn away(&self, name: &Name) -> Option<Away> {
        self.doors().get(name)?.away.clone()
    }

    /// The names whose waiting task gets no answer from the store.
    pub(crate) fn outages(&self) -> Vec<Away> {
        self.doors().values().filter_map(|door| door.away.clone()).collect()
    }

    /// Does anybody in this process wait for the name?
    pub(crate) fn crowded(&self, name: &Name) -> bool {
        let is_awaited = |d: &mut oneshot::Sender<Pass>| !d.is_closed();
        let mut doors = self.doors();
        doors.get_mut(name).is_some_and(|d| d.waiting || d.behind.iter_mut().any(is_awaited))
    }
}

impl Pass {
    /// The store said: wait.
    pub(crate) fn waiting(&self) {
        let Some(gate) = &self.gate else { return };
        if let Some(door) = gate.doors().get_mut(&self.name) {
            door.waiting = true;
        }
    }

    /// How the store answers, for the tasks behind.
    pub(crate) fn tell(&self, away: Option<Away>) {
        let Some(gate) = &self.gate else { return };
        if let Some(door) = gate.doors().get_mut(&self.name) {
            door.away = away;
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let mut doors = gate.doors();
        let Entry::Occupied(mut door) = doors.entry(self.name.clone()) else { return };
        door.get_mut().waiting = false;
        while let Some(next) = door.get_mut().behind.pop_front() {
            let (name, away) = (self.name.clone(), door.get().away.clone());
            let pass = Self { gate: Some(Arc::clone(&gate)), name, away };
            match next.send(pass) {
                Ok(()) => return,
                // That task has gone. Its pass must not open the door a second time.
                Err(mut returned) => returned.gate = None,
            }
        }
        door.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    fn poll<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn name() -> Name {
        Name::new("n").unwrap()
    }

    #[test]
    fn tasks_pass_in_the_order_in_which_they_came() {
        let (gate, name) = (Arc::new(Gate::default()), name());
        let mut first = pin!(gate.pass(&name));
        let mut second = pin!(gate.pass(&name));
        let mut third = pin!(gate.pass(&name));
        let Poll::Ready(pass) = poll(first.as_mut()) else { panic!("the door is free") };
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        drop(pass);
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(pass) = poll(second.as_mut()) else { panic!("the second is next") };
        drop(pass);
        assert!(poll(third.as_mut()).is_ready());
        assert!(gate.doors().is_empty());
    }

    #[test]
    fn a_task_that_gave_up_is_passed_over() {
        let (gate, name) = (Arc::new(Gate::default()), name());
        let Poll::Ready(pass) = poll(pin!(gate.pass(&name))) else { panic!("the door is free") };
        {
            let mut quitter = pin!(gate.pass(&name));
            assert!(poll(quitter.as_mut()).is_pending());
            assert!(gate.crowded(&name));
        }
        assert!(!gate.crowded(&name));
        let mut last = pin!(gate.pass(&name));
        assert!(poll(last.as_mut()).is_pending());
        drop(pass);
        assert!(poll(last.as_mut()).is_ready());
    }

    #[test]
    fn a_pass_that_arrives_at_a_dropped_task_goes_on() {
        let (gate, name) = (Arc::new(Gate::default()), name());
        let Poll::Ready(pass) = poll(pin!(gate.pass(&name))) else { panic!("the door is free") };
        let mut last = {
            let mut quitter = Box::pin(gate.pass(&name));
            assert!(poll(quitter.as_mut()).is_pending());
            let mut last = Box::pin(gate.pass(&name));
            assert!(poll(last.as_mut()).is_pending());
            drop(pass); // sent to the quitter, which never looks
            drop(quitter);
            last
        };
        assert!(poll(last.as_mut()).is_ready());
    }

    #[test]
    fn only_those_told_to_wait_make_a_crowd() {
        let (gate, name) = (Arc::new(Gate::default()), name());
        let Poll::Ready(pass) = poll(pin!(gate.pass(&name))) else { panic!("the door is free") };
        assert!(!gate.crowded(&name));
        pass.waiting();
        assert!(gate.crowded(&name));
        drop(pass);
        assert!(!gate.crowded(&name));
    }

    #[test]
    fn those_who_gave_up_do_not_pile_up() {
        let (gate, name) = (Arc::new(Gate::default()), name());
        let Poll::Ready(_pass) = poll(pin!(gate.pass(&name))) else { panic!("the door is free") };
        for _ in 0..10_000 {
            assert!(poll(pin!(gate.pass(&name))).is_pending());
        }
        assert!(gate.doors()[&name].behind.len() < 100, "{}", gate.doors()[&name].behind.len());
    }
}
