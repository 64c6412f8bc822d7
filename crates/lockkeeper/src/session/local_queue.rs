//! The local queue: of all tasks in one process that want a name, one stands in the store's line.
//!
//! A task passes its turn on as soon as it is granted the lock, not when it releases, so that the next
//! task already waits in the store while the first one works. A hundred waiting tasks are one waiting
//! ticket, and they are served in the order in which they came.

use crate::{model::name::Name, session::outage::Away, sync::Mutex};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, MutexGuard},
};
use tokio::sync::oneshot;

/// A queue that is no longer than this is not swept.
const SWEEP_LEAST: usize = 16;

/// The queues of one keeper, one for each name that a task wants.
#[derive(Default)]
pub(crate) struct LocalQueue {
    queues: Mutex<HashMap<Name, NameQueue>>,
}

#[derive(Default)]
struct NameQueue {
    /// The store has told the task in front to wait.
    waiting: bool,
    /// The store did not answer the task in front.
    away: Option<Away>,
    behind: VecDeque<oneshot::Sender<LocalTurn>>,
    /// The length at which the next sweep takes out the tasks that gave up.
    sweep_at: usize,
}

impl NameQueue {
    /// Takes out the tasks that gave up. A sweep waits until the queue has doubled since the last one, so a new
    /// task costs the same however many wait.
    fn sweep(&mut self) {
        if self.behind.len() >= self.sweep_at {
            self.behind.retain(|task| !task.is_closed());
            self.sweep_at = 2 * self.behind.len() + SWEEP_LEAST;
        }
    }
}

/// The right to stand in the store's line. Dropping it lets the next task go.
pub(crate) struct LocalTurn {
    local_queue: Option<Arc<LocalQueue>>,
    name: Name,
    /// The store did not answer the task that was in front before.
    pub(crate) away: Option<Away>,
}

impl LocalQueue {
    fn queues(&self) -> MutexGuard<'_, HashMap<Name, NameQueue>> {
        self.queues.lock()
    }

    /// Waits for the tasks that came before.
    ///
    /// Cancel safety: a turn that arrives at a dropped future goes on to the next task.
    pub(crate) async fn pass(self: &Arc<Self>, name: &Name) -> LocalTurn {
        let turn = {
            let mut queues = self.queues();
            let queue = match queues.entry(name.clone()) {
                Entry::Occupied(queue) => queue.into_mut(),
                Entry::Vacant(free) => {
                    free.insert(NameQueue::default());
                    return LocalTurn {
                        local_queue: Some(Arc::clone(self)),
                        name: name.clone(),
                        away: None,
                    };
                }
            };
            queue.sweep();
            let (sender, turn) = oneshot::channel();
            queue.behind.push_back(sender);
            turn
        };
        turn.await.expect("a queue keeps its tasks until their turn has come")
    }

    /// Does the store leave the task in front without an answer?
    pub(crate) fn away(&self, name: &Name) -> Option<Away> {
        self.queues().get(name)?.away.clone()
    }

    /// The names whose waiting task gets no answer from the store.
    pub(crate) fn outages(&self) -> Vec<Away> {
        self.queues().values().filter_map(|queue| queue.away.clone()).collect()
    }

    /// Does a task of this keeper wait for the name?
    pub(crate) fn is_contended(&self, name: &Name) -> bool {
        let is_awaited = |d: &mut oneshot::Sender<LocalTurn>| !d.is_closed();
        let mut queues = self.queues();
        queues.get_mut(name).is_some_and(|d| d.waiting || d.behind.iter_mut().any(is_awaited))
    }
}

impl LocalTurn {
    /// The store said: wait.
    pub(crate) fn waiting(&self) {
        let Some(local_queue) = &self.local_queue else { return };
        if let Some(queue) = local_queue.queues().get_mut(&self.name) {
            queue.waiting = true;
        }
    }

    /// How the store answers, for the tasks behind.
    pub(crate) fn tell(&self, away: Option<Away>) {
        let Some(local_queue) = &self.local_queue else { return };
        if let Some(queue) = local_queue.queues().get_mut(&self.name) {
            queue.away = away;
        }
    }
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        let Some(local_queue) = self.local_queue.take() else { return };
        let mut queues = local_queue.queues();
        let Entry::Occupied(mut queue) = queues.entry(self.name.clone()) else { return };
        queue.get_mut().waiting = false;
        while let Some(next) = queue.get_mut().behind.pop_front() {
            let (name, away) = (self.name.clone(), queue.get().away.clone());
            let pass = Self { local_queue: Some(Arc::clone(&local_queue)), name, away };
            match next.send(pass) {
                Ok(()) => return,
                // That task has gone. Its turn must not open the queue a second time.
                Err(mut returned) => returned.local_queue = None,
            }
        }
        queue.remove();
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
        let (local_queue, name) = (Arc::new(LocalQueue::default()), name());
        let mut first = pin!(local_queue.pass(&name));
        let mut second = pin!(local_queue.pass(&name));
        let mut third = pin!(local_queue.pass(&name));
        let Poll::Ready(pass) = poll(first.as_mut()) else { panic!("the queue is free") };
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        drop(pass);
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(pass) = poll(second.as_mut()) else { panic!("the second is next") };
        drop(pass);
        assert!(poll(third.as_mut()).is_ready());
        assert!(local_queue.queues().is_empty());
    }

    #[test]
    fn a_task_that_gave_up_is_passed_over() {
        let (local_queue, name) = (Arc::new(LocalQueue::default()), name());
        let Poll::Ready(pass) = poll(pin!(local_queue.pass(&name))) else {
            panic!("the queue is free")
        };
        {
            let mut quitter = pin!(local_queue.pass(&name));
            assert!(poll(quitter.as_mut()).is_pending());
            assert!(local_queue.is_contended(&name));
        }
        assert!(!local_queue.is_contended(&name));
        let mut last = pin!(local_queue.pass(&name));
        assert!(poll(last.as_mut()).is_pending());
        drop(pass);
        assert!(poll(last.as_mut()).is_ready());
    }

    #[test]
    fn a_pass_that_arrives_at_a_dropped_task_goes_on() {
        let (local_queue, name) = (Arc::new(LocalQueue::default()), name());
        let Poll::Ready(pass) = poll(pin!(local_queue.pass(&name))) else {
            panic!("the queue is free")
        };
        let mut last = {
            let mut quitter = Box::pin(local_queue.pass(&name));
            assert!(poll(quitter.as_mut()).is_pending());
            let mut last = Box::pin(local_queue.pass(&name));
            assert!(poll(last.as_mut()).is_pending());
            drop(pass); // sent to the quitter, which never looks
            drop(quitter);
            last
        };
        assert!(poll(last.as_mut()).is_ready());
    }

    #[test]
    fn a_name_is_contended_only_once_the_store_said_wait() {
        let (local_queue, name) = (Arc::new(LocalQueue::default()), name());
        let Poll::Ready(pass) = poll(pin!(local_queue.pass(&name))) else {
            panic!("the queue is free")
        };
        assert!(!local_queue.is_contended(&name));
        pass.waiting();
        assert!(local_queue.is_contended(&name));
        drop(pass);
        assert!(!local_queue.is_contended(&name));
    }

    #[test]
    fn tasks_that_gave_up_do_not_pile_up() {
        let (local_queue, name) = (Arc::new(LocalQueue::default()), name());
        let Poll::Ready(_pass) = poll(pin!(local_queue.pass(&name))) else {
            panic!("the queue is free")
        };
        for _ in 0..10_000 {
            assert!(poll(pin!(local_queue.pass(&name))).is_pending());
        }
        assert!(
            local_queue.queues()[&name].behind.len() < 100,
            "{}",
            local_queue.queues()[&name].behind.len()
        );
    }

    /// The task that came last always waits when the next one comes, and the first one never gives up.
    #[test]
    fn tasks_that_gave_up_do_not_pile_up_behind_one_that_waits() {
        let (queue, name) = (Arc::new(LocalQueue::default()), name());
        let length = || queue.queues()[&name].behind.len();
        let Poll::Ready(turn) = poll(pin!(queue.pass(&name))) else { panic!("the queue is free") };
        let mut patient = Box::pin(queue.pass(&name));
        assert!(poll(patient.as_mut()).is_pending());
        let mut last = None;
        for _ in 0..10_000 {
            let mut next = Box::pin(queue.pass(&name));
            assert!(poll(next.as_mut()).is_pending());
            last = Some(next);
        }
        assert!(length() < 100, "{}", length());
        drop(turn);
        let Poll::Ready(turn) = poll(patient.as_mut()) else { panic!("it is its turn") };
        drop(turn);
        assert!(poll(last.unwrap().as_mut()).is_ready());
    }
}
