//! Many who want the same lock all the time, and write to a resource that checks fences.

use lockkeeper::{Error, Keeper};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};
use testkit::{register::Register, world::eventually};
use tokio::task::JoinHandle;

const NAME: &str = "wanted by all";

/// Keepers that contend for one lock until they are sent home.
pub(crate) struct Crowd {
    shared: Arc<Shared>,
    members: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    register: Register,
    /// The highest fence that a member has been granted.
    highest: AtomicU64,
    /// How often each member was served.
    rounds: Vec<AtomicU64>,
    over: AtomicBool,
}

impl Crowd {
    /// Each has a connection and a session of its own, as another process would.
    pub(crate) fn of(keepers: Vec<Keeper>) -> Self {
        let rounds = keepers.iter().map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { rounds, ..Shared::default() });
        let member = |(at, keeper)| tokio::spawn(Arc::clone(&shared).work(at, keeper));
        let members = keepers.into_iter().enumerate().map(member).collect();
        Self { shared, members }
    }

    /// Waits until everyone has been served three times from now on.
    pub(crate) async fn all_served(&self, when: &str) {
        let counts = || self.shared.rounds.iter().map(|n| n.load(SeqCst)).collect::<Vec<_>>();
        let before = counts();
        eventually(&format!("all are served {when}"), async || {
            counts().iter().zip(&before).all(|(now, before)| *now >= before + 3)
        })
        .await;
    }

    /// Sends all home. The fences have kept the resource whole.
    pub(crate) async fn go_home(self) {
        self.shared.over.store(true, SeqCst);
        for member in self.members {
            member.await.expect("no member has met with what must not be");
        }
        self.shared.register.assert_no_update_was_lost();
    }
}

impl Shared {
    async fn work(self: Arc<Self>, me: usize, keeper: Keeper) {
        while !self.over.load(SeqCst) {
            let before = self.highest.load(SeqCst);
            let guard = keeper.lock(NAME).await.expect("a lock, sooner or later");
            let fence = guard.fence();
            assert!(fence > before, "{fence} was granted after {before}");
            self.highest.fetch_max(fence, SeqCst);
            // A write that is too late is refused; only the register can do that.
            let _ = self.register.increment(fence).await;
            match guard.release().await {
                Ok(()) => self.rounds[me].fetch_add(1, SeqCst),
                Err(Error::Lost { .. }) => continue,
                Err(e) => panic!("a release fails only if the lock is lost: {e}"),
            };
        }
        keeper.close().await;
    }
}
