//! A store around a store that counts renewals and times requests.

use crate::{machine::now, stats::millis_between};
use anyhow::Result;
use lockkeeper::{
    Keeper,
    store::{AnyStore, StoreResult},
};
use lockkeeper_testkit::layer::{Call, Layer, Layered, Op};
use std::sync::{Arc, Mutex};

/// What a [`Meter`] has counted.
#[derive(Default)]
pub(crate) struct Count {
    /// How many renewals were sent.
    pub(crate) renewals: u64,
    /// How long the slowest enter, leave or renewal took.
    pub(crate) worst_ms: f64,
}

/// Passes everything on to the store inside.
pub(crate) struct Meter {
    inside: AnyStore,
    count: Arc<Mutex<Count>>,
}

impl Meter {
    pub(crate) async fn around(url: &str) -> Result<(AnyStore, Arc<Mutex<Count>>)> {
        let (inside, count) = (Keeper::connect(url).await?.store().clone(), Arc::default());
        let meter = Self { inside, count: Arc::clone(&count) };
        Ok((AnyStore::new(Layered(meter)), count))
    }
}

impl Layer for Meter {
    fn inner(&self) -> &AnyStore {
        &self.inside
    }

    async fn around<T: Send, F>(
        &self,
        call: Call,
        send: impl Fn() -> F + Send + Sync,
    ) -> StoreResult<T>
    where
        F: Future<Output = StoreResult<T>> + Send,
    {
        let began = now();
        let answer = send().await;
        let mut count = self.count.lock().expect("not poisoned");
        count.renewals += u64::from(call.op == Op::Renew);
        if matches!(call.op, Op::Enter | Op::Leave | Op::Renew) {
            count.worst_ms = count.worst_ms.max(millis_between(began, now()));
        }
        answer
    }
}
