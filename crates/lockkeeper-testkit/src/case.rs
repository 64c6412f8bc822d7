//! A case: one promise, and how it is put to the test.

use crate::{subject::Subject, world::World};
use anyhow::Context as _;
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    pin::Pin,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};

/// No case runs longer. It fails then, instead of holding up the others for ever.
const LIMIT: Duration = Duration::from_secs(60);

/// What a case returns. Most fail by a panic; the others by an error.
pub type Verdict = anyhow::Result<()>;

/// What a case needs of the store; without it the case is ignored, with this as the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the capabilities")]
pub enum Need {
    Fair,
    Fenced,
    Shared,
    Permits,
    Cells,
    AtLeast,
    Wakes,
    Durable,
    SurvivesFailover,
    SessionsShared,
    RenewalShowsTickets,
    WaitersEndAtTtl,
    /// Data that other processes can reach, and the `taker` program.
    Processes,
    /// A `leave_now` that works.
    LeaveNow,
}

impl Need {
    /// The needs that are declared as capabilities. Each one that a store claims must be put to the
    /// test by some case.
    pub const CAPABILITIES: [Self; 12] = [
        Self::Fair,
        Self::Fenced,
        Self::Shared,
        Self::Permits,
        Self::Cells,
        Self::AtLeast,
        Self::Wakes,
        Self::Durable,
        Self::SurvivesFailover,
        Self::SessionsShared,
        Self::RenewalShowsTickets,
        Self::WaitersEndAtTtl,
    ];
}

/// One promise, and how it is put to the test.
#[derive(Clone)]
pub struct Case {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) needs: Vec<Need>,
    body: Body,
}

/// A case begins and ends on one thread, so its future need not move.
pub type Local = Pin<Box<dyn Future<Output = Verdict>>>;

#[derive(Clone)]
enum Body {
    /// Runs on a runtime of its own.
    Task { workers: usize, body: Arc<dyn Fn(World) -> Local + Send + Sync> },
    /// Runs on a bare thread and makes its own runtimes.
    Thread(fn(&Subject) -> Verdict),
}

impl Case {
    /// A case in `group`. It runs on a runtime with two workers of its own, with fresh data.
    pub fn new<F, V>(group: &'static str, name: impl Into<String>, needs: &[Need], body: F) -> Self
    where
        F: Fn(World) -> V + Send + Sync + 'static,
        V: Future<Output = Verdict> + 'static,
    {
        let body = Arc::new(move |world| Box::pin(body(world)) as Local);
        Self {
            group,
            name: name.into(),
            needs: needs.to_vec(),
            body: Body::Task { workers: 2, body },
        }
    }

    /// A case that makes its own runtimes.
    pub(crate) fn on_a_thread(
        group: &'static str,
        name: &str,
        needs: &[Need],
        body: fn(&Subject) -> Verdict,
    ) -> Self {
        Self { group, name: name.to_owned(), needs: needs.to_vec(), body: Body::Thread(body) }
    }

    /// Runs it on a runtime with one thread instead.
    #[must_use]
    pub fn on_one_thread(mut self) -> Self {
        if let Body::Task { workers, .. } = &mut self.body {
            *workers = 1;
        }
        self
    }

    /// What the store lacks for this case.
    pub(crate) fn lacks(&self, subject: &Subject, taker: bool) -> Option<Need> {
        let lacks = |need: &&Need| !subject.has(**need) || (**need == Need::Processes && !taker);
        self.needs.iter().find(lacks).copied()
    }

    /// Runs the case on a thread of its own and gives up on it after a minute.
    pub(crate) fn run(&self, subject: &Subject, taker: Option<PathBuf>) -> Result<(), String> {
        let (case, subject) = (self.clone(), subject.clone());
        let (done, verdict) = mpsc::channel();
        let body = move || {
            let verdict = catch_unwind(AssertUnwindSafe(|| case.body.run(&subject, taker)));
            // The receiver may have given up.
            let _ = done.send(verdict);
        };
        let name = format!("{}::{}", self.group, self.name);
        thread::Builder::new().name(name).spawn(body).map_err(|e| e.to_string())?;
        match verdict.recv_timeout(LIMIT) {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(e))) => Err(format!("{e:#}")),
            Ok(Err(panic)) => Err(words(panic.as_ref()).to_owned()),
            Err(_) => Err(format!("the case did not end within {LIMIT:?}")),
        }
    }
}

impl Body {
    fn run(&self, subject: &Subject, taker: Option<PathBuf>) -> Verdict {
        match self {
            Self::Thread(body) => body(subject),
            Self::Task { workers, body } => {
                let runtime = runtime(*workers)?;
                let verdict = runtime.block_on(async {
                    let world = World::new(subject, taker).await.context("no fresh store")?;
                    body(world).await
                });
                runtime.shutdown_timeout(Duration::from_secs(5));
                verdict
            }
        }
    }
}

/// A runtime with so many workers.
pub(crate) fn runtime(workers: usize) -> std::io::Result<Runtime> {
    match workers {
        1 => Builder::new_current_thread().enable_all().build(),
        n => Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => words,
        (_, Some(words)) => words,
        _ => "the case panicked",
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{} {:?}", self.group, self.name, self.needs)
    }
}

/// The cases of one group: `cases!("group": [needs] one, two; [other needs] three;)`. The name of a
/// case is that of its function.
macro_rules! cases {
    ($group:literal: $( [$($need:ident),*] $($body:ident),+ );+ $(;)?) => {{
        let mut cases: Vec<$crate::case::Case> = Vec::new();
        $(
            let needs: &[$crate::case::Need] = &[$($crate::case::Need::$need),*];
            $( cases.push($crate::case::Case::new($group, stringify!($body), needs, $body)); )+
        )+
        cases
    }};
}
pub(crate) use cases;
