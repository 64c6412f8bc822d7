//! A ZooKeeper session over connections that come and go.
//!
//! When a connection breaks, what was under way is *unknown* and the next request makes another
//! connection, to the next server, with the same session. There are no pings: a session lives by
//! the renewals that the core asks for, and ends when they end.

use super::{
    KIND,
    conn::{Answer, Care, Conn, Ear, Fault, Greeted, Greeting, greet},
    plan::Plan,
    wire::{Code, Identity, Request},
};
use crate::{
    clock::Clock,
    error::{ErrorKind, StoreError},
    store::{StoreResult, common::tls::Stream},
    sync::Mutex,
};
use std::{
    io,
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// What becomes of a link whose session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    /// It is over too: its tickets have gone with the session.
    WithItsSession,
    /// It gets another session: it has nothing to lose.
    ForEver,
}

pub(super) struct Link(Arc<State>);

struct State {
    plan: Arc<Plan>,
    lasting: Lasting,
    /// What to ask of the server.
    timeout_ms: i32,
    care: Care,
    session: Mutex<Session>,
    /// How often connecting has failed, and why the last time.
    connecting: tokio::sync::Mutex<String>,
    failures: AtomicU64,
    made: AtomicU64,
    /// The number of the last connection that broke.
    broken: watch::Sender<u64>,
}

struct Session {
    identity: Identity,
    /// What the server has granted.
    granted_ms: i32,
    over: bool,
    /// The server to try first.
    next: usize,
    /// The present connection and its number.
    current: Option<(u64, Arc<Conn>)>,
}

impl Link {
    pub(super) fn new(
        plan: &Arc<Plan>,
        lasting: Lasting,
        timeout: Duration,
        patience: Duration,
        ear: Ear,
    ) -> Self {
        let last_zxid = Arc::clone(&plan.last_zxid);
        let care = Care { clock: Clock::system(), patience, ear, last_zxid };
        Self(Arc::new(State {
            plan: Arc::clone(plan),
            lasting,
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            care,
            session: Mutex::new(Session {
                identity: Identity::none(),
                granted_ms: 0,
                over: false,
                next: rand::random_range(0..plan.hosts.len()),
                current: None,
            }),
            connecting: tokio::sync::Mutex::default(),
            failures: AtomicU64::new(0),
            made: AtomicU64::new(0),
            broken: watch::Sender::default(),
        }))
    }

    /// Connects, if there is no connection; says which one it is.
    pub(super) async fn connect(&self) -> StoreResult<u64> {
        Ok(self.conn().await?.0)
    }

    /// For how long the server keeps the session.
    pub(super) fn granted(&self) -> Duration {
        let ms = self.0.session().granted_ms;
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// The number of the ZooKeeper session. It is public.
    pub(super) fn number(&self) -> i64 {
        self.0.session().identity.id
    }

    /// Waits until this connection has broken.
    pub(super) async fn broken(&self, number: u64) {
        let mut broken = self.0.broken.subscribe();
        let _ = broken.wait_for(|last| *last >= number).await;
    }

    /// Sends requests at once and awaits all answers.
    ///
    /// # Errors
    /// If nothing was sent, or the session is over. What went wrong after that is in the answers.
    pub(super) async fn ask(&self, requests: &[Request]) -> StoreResult<Vec<Answer>> {
        let (number, receivers) = loop {
            let (number, conn) = self.conn().await?;
            match conn.send(requests, self.0.care.clock.now()) {
                Some(receivers) => break (number, receivers),
                None => self.0.give_up(number),
            }
        };
        let mut answers = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            answers.push(receiver.await.unwrap_or(Err(Fault::Broken)));
        }
        let is = |wanted| answers.iter().any(|a| matches!(a, Err(fault) if *fault == wanted));
        if is(Fault::Refused(Code::SESSION_EXPIRED)) {
            self.0.expired();
            return Err(over());
        }
        if is(Fault::Broken) {
            self.0.give_up(number);
        }
        Ok(answers)
    }

    /// Ends the session on the server, with all that belongs to it.
    pub(super) async fn close(&self) -> StoreResult<()> {
        let answers = match self.ask(&[Request::close_session()]).await {
            Err(e) if e.kind == ErrorKind::SessionOver => return Ok(()),
            answers => answers?,
        };
        for answer in answers {
            answer.map_err(failure)?;
        }
        self.0.expired();
        Ok(())
    }

    /// Connecting goes on when nobody waits for it any more: a caller of little patience would never
    /// get a connection to a slow server.
    async fn conn(&self) -> StoreResult<(u64, Arc<Conn>)> {
        if let Some(present) = self.0.present()? {
            return Ok(present);
        }
        let failures = self.0.failures.load(Ordering::SeqCst);
        let made = tokio::spawn(Arc::clone(&self.0).reconnect(failures)).await;
        made.unwrap_or_else(|_| Err(unavailable("the runtime is shutting down")))
    }
}

impl Drop for Link {
    /// Hangs up and says nothing: the session lives on until its time is over.
    fn drop(&mut self) {
        let mut session = self.0.session();
        session.over = true;
        session.current = None;
    }
}

impl State {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }

    fn present(&self) -> StoreResult<Option<(u64, Arc<Conn>)>> {
        let session = self.session();
        if session.over { Err(over()) } else { Ok(session.current.clone()) }
    }

    /// This connection is good for nothing any more.
    fn give_up(&self, number: u64) {
        let gone = self.session().current.take_if(|(present, _)| *present == number);
        if let Some((_, conn)) = gone {
            conn.hang_up();
        }
        self.broken.send_if_modified(|last| {
            let news = *last < number;
            *last = number.max(*last);
            news
        });
    }

    /// The session has ended on the server.
    fn expired(&self) {
        let mut session = self.session();
        session.current = None;
        match self.lasting {
            Lasting::WithItsSession => session.over = true,
            Lasting::ForEver => session.identity = Identity::none(),
        }
    }

    /// The connection that somebody else has made meanwhile, or a new one. `failures` is how often it had
    /// failed when this was asked for: who has waited for an attempt that failed makes none of its own.
    async fn reconnect(self: Arc<Self>, failures: u64) -> StoreResult<(u64, Arc<Conn>)> {
        let mut why = self.connecting.lock().await;
        if self.failures.load(Ordering::SeqCst) > failures {
            self.present()?;
            return Err(unavailable(why.clone()));
        }
        let mut last = unavailable("there is no server");
        for _ in 0..=self.plan.hosts.len() {
            // Also between two servers: whoever is over must not say hello to the next one.
            if let Some(present) = self.present()? {
                return Ok(present);
            }
            match self.connect_next().await {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(e) if e.is_transient() => last = e,
                Err(e) => return Err(e),
            }
        }
        why.clone_from(&last.what);
        self.failures.fetch_add(1, Ordering::SeqCst);
        Err(last)
    }

    /// Tries the next server. `None` if it has said that the session is over, and there may be another.
    async fn connect_next(self: &Arc<Self>) -> StoreResult<Option<(u64, Arc<Conn>)>> {
        let (at, identity) = {
            let mut session = self.session();
            let at = session.next % self.plan.hosts.len();
            session.next = at + 1;
            (at, session.identity.clone())
        };
        let (host, port) = &self.plan.hosts[at];
        let met = tokio::time::timeout(self.care.patience, self.meet(at, &identity)).await;
        let (stream, greeted) = match met {
            Ok(Ok(met)) => met,
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                let what = match self.has_seen_writes() {
                    false => "hangs up: it has no leader yet, or too many clients",
                    true => {
                        "hangs up: it has no leader now, or it is behind what was seen here before, \
                         because it lags, or for good because its data was removed or restored"
                    }
                };
                return Err(unavailable(format!("{host}:{port} {what}")));
            }
            Ok(Err(e)) => return Err(unavailable(format!("{host}:{port}: {e}"))),
            Err(_) => return Err(unavailable(format!("{host}:{port} does not answer"))),
        };
        match greeted {
            Greeted::Welcome(welcome) => {
                let mut session = self.session();
                let known = session.identity.id == welcome.identity.id;
                if known && welcome.timeout_ms < session.granted_ms {
                    // From now on the servers keep the session for less than its owner relies on.
                    session.over |= self.lasting == Lasting::WithItsSession;
                }
                (session.identity, session.granted_ms) = (welcome.identity, welcome.timeout_ms);
                // The next one to try is this one, as long as it lives.
                session.next = at;
                if session.over {
                    return Err(over());
                }
                let made = self.install(stream);
                session.current = Some(made.clone());
                Ok(Some(made))
            }
            Greeted::Over => {
                self.expired();
                self.present()?;
                Ok(None)
            }
            Greeted::Denied => {
                let what = "the server does not accept the user and its password";
                Err(StoreError::not_applied(KIND, ErrorKind::Denied, what))
            }
        }
    }

    fn has_seen_writes(&self) -> bool {
        self.care.last_zxid.load(Ordering::Relaxed) > 0
    }

    async fn meet(
        &self,
        at: usize,
        identity: &Identity,
    ) -> std::io::Result<(Box<dyn Stream>, Greeted)> {
        let mut stream = self.plan.reach(at, self.care.patience).await?;
        if self.session().over {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let greeting = Greeting {
            identity,
            timeout_ms: self.timeout_ms,
            last_zxid: self.care.last_zxid.load(Ordering::Relaxed),
            credentials: self.plan.credentials.as_deref(),
        };
        let greeted = greet(&mut *stream, &greeting).await?;
        Ok((stream, greeted))
    }

    fn install(self: &Arc<Self>, stream: Box<dyn Stream>) -> (u64, Arc<Conn>) {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        // The connection is in the state, so the state must not be kept by the connection.
        let state: Weak<Self> = Arc::downgrade(self);
        let broke = move || {
            if let Some(state) = state.upgrade() {
                state.give_up(number);
                state.session().next += 1;
            }
        };
        (number, Arc::new(Conn::new(stream, self.care.clone(), broke)))
    }
}

pub(super) fn over() -> StoreError {
    StoreError::session_over(KIND)
}

pub(super) fn unavailable(what: impl Into<String>) -> StoreError {
    StoreError::not_applied(KIND, ErrorKind::Unavailable, what)
}

/// What a fault means for a request that may have changed something.
pub(super) fn failure(fault: Fault) -> StoreError {
    let code = match fault {
        Fault::Broken => {
            let what = "the connection broke before the answer came";
            return StoreError::unknown(KIND, ErrorKind::Unavailable, what);
        }
        Fault::Refused(code) => code,
    };
    let (kind, what) = match code {
        Code::SESSION_EXPIRED => return over(),
        Code::SESSION_MOVED | Code::THROTTLED | Code::NOT_READ_ONLY => {
            (ErrorKind::Unavailable, "the server cannot serve this now")
        }
        Code::NO_AUTH | Code::AUTH_FAILED | Code::SASL_REQUIRED | Code::INVALID_ACL => (
            ErrorKind::Denied,
            "the server refuses; check the user, its password and the nodes' ACL",
        ),
        Code::QUOTA => (ErrorKind::Full, "the quota of the server is used up"),
        Code::UNIMPLEMENTED => {
            (ErrorKind::Misconfigured, "the server is too old; ZooKeeper 3.6 or newer is needed")
        }
        _ => (ErrorKind::Other, "the server refuses"),
    };
    StoreError::not_applied(KIND, kind, format!("{what} (code {})", code.0))
}
