//! A ZooKeeper session, which outlives its connections.
//!
//! When a connection breaks, the outcome of its pending requests is unknown, and the next request
//! connects to the next server with the same session. There are no pings: the session lives by its
//! owner's requests, and ends when they end.

use super::{
    Answer, Code, Ensemble, Error, Reply, Request, Result, Stat,
    connection::{Connection, Handshake, Handshaken, PushHandler, Settings, shake_hands},
    if_there,
    protocol::{ConnectResponse, Identity},
};
use crate::{clock::Clock, store::common::tls::Stream, sync::Mutex};
use std::{
    io,
    sync::{Arc, MutexGuard, Weak, atomic::Ordering},
    time::Duration,
};
use tokio::sync::watch;

/// How often a read is tried.
const READ_TRIES: usize = 3;

/// What follows when the session has ended on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnExpiry {
    /// Every further request fails.
    Stop,
    /// The next request opens another session, for there is nothing to lose.
    Reopen,
}

/// A session's identity and its timeout, as bytes for another process: the id, the timeout, the password. The
/// password is the session's secret.
pub(crate) struct Resume {
    identity: Identity,
    granted_ms: i32,
}

impl Resume {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Identity { id, password } = &self.identity;
        [&id.to_be_bytes()[..], &self.granted_ms.to_be_bytes(), password].concat()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (granted_ms, password) = rest.split_first_chunk()?;
        let identity = Identity { id: i64::from_be_bytes(*id), password: password.to_vec() };
        // The id 0 would open another session.
        let granted_ms = i32::from_be_bytes(*granted_ms);
        (identity.id != 0 && granted_ms > 0).then_some(Self { identity, granted_ms })
    }

    /// For how long the server keeps the session without a request.
    pub(crate) fn granted(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.granted_ms).unwrap_or(0))
    }
}

/// Dropping it hangs up without a word: the server keeps the session until its timeout.
pub(crate) struct Session(Arc<Shared>);

struct Shared {
    ensemble: Arc<Ensemble>,
    on_expiry: OnExpiry,
    /// What to ask of the server.
    timeout_ms: i32,
    settings: Settings,
    state: Mutex<State>,
    /// One task at a time connects. Keeps why the last attempt failed.
    connecting: tokio::sync::Mutex<String>,
    /// The number of the last connection that broke.
    broken: watch::Sender<u64>,
}

struct State {
    identity: Identity,
    /// What the server has granted.
    granted_ms: i32,
    ended: bool,
    /// The server to try first.
    next_server: usize,
    current: Option<Numbered>,
    /// How many connections were made.
    made: u64,
    /// How many attempts to connect have failed.
    failures: u64,
}

/// A connection and its number among the session's connections.
type Numbered = (u64, Arc<Connection>);

impl Session {
    /// A session that is opened by its first request. `answer_timeout` bounds how long a server may
    /// take to answer.
    pub(crate) fn new(
        ensemble: &Arc<Ensemble>,
        on_expiry: OnExpiry,
        timeout: Duration,
        answer_timeout: Duration,
        on_watch: PushHandler,
    ) -> Self {
        let last_zxid = Arc::clone(&ensemble.last_zxid);
        Self(Arc::new(Shared {
            ensemble: Arc::clone(ensemble),
            on_expiry,
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            settings: Settings { clock: Clock::system(), answer_timeout, on_watch, last_zxid },
            state: Mutex::new(State {
                identity: Identity::none(),
                granted_ms: 0,
                ended: false,
                next_server: rand::random_range(0..ensemble.servers.len()),
                current: None,
                made: 0,
                failures: 0,
            }),
            connecting: tokio::sync::Mutex::default(),
            broken: watch::Sender::default(),
        }))
    }

    /// The same session in another process: its first request connects to it instead of opening one.
    pub(crate) fn resume(self, of: Resume) -> Self {
        {
            let mut state = self.0.state();
            (state.identity, state.granted_ms) = (of.identity, of.granted_ms);
        }
        self
    }

    /// What another process needs to connect to this session.
    pub(crate) fn to_resume(&self) -> Resume {
        let state = self.0.state();
        Resume { identity: state.identity.clone(), granted_ms: state.granted_ms }
    }

    /// Connects, if there is no connection; says the connection's number.
    pub(crate) async fn connect(&self) -> Result<u64> {
        Ok(self.connection().await?.0)
    }

    /// For how long the server keeps the session without a request.
    pub(crate) fn granted(&self) -> Duration {
        let ms = self.0.state().granted_ms;
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    /// The session's id. It is public; the password is the secret.
    pub(crate) fn id(&self) -> i64 {
        self.0.state().identity.id
    }

    /// Waits until this connection has broken.
    pub(crate) async fn broken(&self, connection: u64) {
        let mut broken = self.0.broken.subscribe();
        let _ = broken.wait_for(|last| *last >= connection).await;
    }

    /// Sends requests in one write and awaits all answers.
    ///
    /// # Errors
    /// If nothing was sent, or the session has ended. Every other failure is in the answers.
    pub(crate) async fn ask_all(&self, requests: &[Request]) -> Result<Vec<Answer>> {
        let (number, receivers) = loop {
            let (number, connection) = self.connection().await?;
            match connection.send(requests, self.0.settings.clock.now()) {
                Some(receivers) => break (number, receivers),
                None => self.0.give_up(number),
            }
        };
        let mut answers = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            answers.push(receiver.await.unwrap_or(Err(Error::Broken)));
        }
        let is = |wanted| answers.iter().any(|a| a.as_ref().is_err_and(|e| *e == wanted));
        if is(Error::Refused(Code::SESSION_EXPIRED)) {
            self.0.expire();
            return Err(Error::Expired);
        }
        if is(Error::Broken) {
            self.0.give_up(number);
        }
        Ok(answers)
    }

    /// The same for reads, which change nothing and are therefore repeated, also in another session.
    ///
    /// # Errors
    /// As [`ask_all`](Self::ask_all), and if the connection breaks again and again.
    pub(crate) async fn read_all(&self, requests: &[Request]) -> Result<Vec<Answer>> {
        let mut last = Error::Expired;
        for _ in 0..READ_TRIES {
            match self.ask_all(requests).await {
                Ok(answers) if answers.iter().any(|a| matches!(a, Err(Error::Broken))) => {
                    last = Error::Broken;
                }
                Err(Error::Expired) => last = Error::Expired,
                answers => return answers,
            }
        }
        Err(last)
    }

    /// The same for a number of reads that is known.
    ///
    /// # Errors
    /// As [`read_all`](Self::read_all).
    pub(crate) async fn read<const N: usize>(&self, requests: [Request; N]) -> Result<[Answer; N]> {
        Ok(exactly(self.read_all(&requests).await?))
    }

    /// The same as `ask_all` for a number of requests that is known.
    ///
    /// # Errors
    /// As [`ask_all`](Self::ask_all).
    pub(crate) async fn ask<const N: usize>(&self, requests: [Request; N]) -> Result<[Answer; N]> {
        Ok(exactly(self.ask_all(&requests).await?))
    }

    /// Sends one request; its failures and the session's are one.
    pub(crate) async fn ask_one(&self, request: Request) -> Answer {
        let [answer] = self.ask([request]).await?;
        answer
    }

    /// Deletes a node; says whether it was there.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool> {
        let deleted = self.ask_one(Request::delete(path)).await;
        Ok(if_there(deleted, |_| Ok(()))?.is_some())
    }

    /// A node's stat; `None` if there is no such node.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>> {
        if_there(self.ask_one(Request::exists(path)).await, Reply::stat)
    }

    /// A node's data and stat; `None` if there is no such node.
    pub(crate) async fn data(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        if_there(self.ask_one(Request::data(path)).await, Reply::data)
    }

    /// Ends the session on the server, and its nodes with it.
    pub(crate) async fn close(&self) -> Result<()> {
        match self.ask_one(Request::close_session()).await {
            Ok(_) => self.0.expire(),
            Err(Error::Expired) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Connecting goes on in a task of its own when its caller is cancelled: otherwise callers with short
    /// timeouts would never get a connection to a slow server.
    async fn connection(&self) -> Result<Numbered> {
        let failures = {
            let state = self.0.state();
            if let Some(current) = state.usable()? {
                return Ok(current);
            }
            state.failures
        };
        let made = tokio::spawn(Arc::clone(&self.0).reconnect(failures)).await;
        made.unwrap_or_else(|_| Err(Error::Unreachable("the runtime is shutting down".into())))
    }
}

fn exactly<const N: usize>(answers: Vec<Answer>) -> [Answer; N] {
    answers.try_into().unwrap_or_else(|_| std::array::from_fn(|_| Err(Error::Broken)))
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.ended = true;
        state.current = None;
    }
}

impl State {
    /// The current connection, if the session has not ended.
    fn usable(&self) -> Result<Option<Numbered>> {
        if self.ended { Err(Error::Expired) } else { Ok(self.current.clone()) }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// This connection is used no more.
    fn give_up(&self, number: u64) {
        let gone = self.state().current.take_if(|(current, _)| *current == number);
        if let Some((_, connection)) = gone {
            connection.hang_up();
        }
        self.broken.send_if_modified(|last| {
            let is_later = *last < number;
            *last = number.max(*last);
            is_later
        });
    }

    /// The session has ended on the server.
    fn expire(&self) {
        let mut state = self.state();
        state.current = None;
        match self.on_expiry {
            OnExpiry::Stop => state.ended = true,
            OnExpiry::Reopen => state.identity = Identity::none(),
        }
    }

    /// The connection that another task has made meanwhile, or a new one. `failures` is how many attempts
    /// had failed when this was asked for: a task that has waited for an attempt which failed makes none of
    /// its own.
    async fn reconnect(self: Arc<Self>, failures: u64) -> Result<Numbered> {
        let mut last_failure = self.connecting.lock().await;
        let has_failed = self.state().failures > failures;
        if has_failed {
            self.state().usable()?;
            return Err(Error::Unreachable(last_failure.clone()));
        }
        let mut why = "there is no server".to_owned();
        for _ in 0..=self.ensemble.servers.len() {
            // Also between two servers: a handshake would prolong a session that was given up meanwhile.
            let usable = self.state().usable()?;
            if let Some(current) = usable {
                return Ok(current);
            }
            match self.try_next_server().await {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => {}
                Err(Error::Unreachable(failure)) => why = failure,
                Err(e) => return Err(e),
            }
        }
        last_failure.clone_from(&why);
        self.state().failures += 1;
        Err(Error::Unreachable(why))
    }

    /// `None` if the server says that the session has ended, and another may be opened.
    async fn try_next_server(self: &Arc<Self>) -> Result<Option<Numbered>> {
        let (at, identity) = {
            let mut state = self.state();
            let at = state.next_server % self.ensemble.servers.len();
            state.next_server = at + 1;
            (at, state.identity.clone())
        };
        let handshake = self.shake_hands(at, &identity);
        let handshake = crate::clock::timeout(self.settings.answer_timeout, handshake).await;
        match handshake.unwrap_or_else(|_| Err(io::Error::other("it does not answer"))) {
            Ok((stream, Handshaken::Accepted(response))) => {
                self.install(at, stream, response).map(Some)
            }
            Ok((_, Handshaken::Expired)) => {
                self.expire();
                self.state().usable()?;
                Ok(None)
            }
            Ok((_, Handshaken::Denied)) => Err(Error::Denied),
            Err(e) => Err(Error::Unreachable(self.why(at, &e))),
        }
    }

    async fn shake_hands(
        &self,
        at: usize,
        identity: &Identity,
    ) -> io::Result<(Box<dyn Stream>, Handshaken)> {
        let mut stream = self.ensemble.dial(at, self.settings.answer_timeout).await?;
        if self.state().ended {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let handshake = Handshake {
            identity,
            timeout_ms: self.timeout_ms,
            last_zxid: self.settings.last_zxid.load(Ordering::Relaxed),
            credentials: self.ensemble.credentials.as_deref(),
        };
        let handshaken = shake_hands(&mut *stream, &handshake).await?;
        Ok((stream, handshaken))
    }

    /// Why a server could not be reached, for people.
    fn why(&self, at: usize, e: &io::Error) -> String {
        let (host, port) = &self.ensemble.servers[at];
        let has_seen_writes = self.settings.last_zxid.load(Ordering::Relaxed) > 0;
        match e.kind() {
            io::ErrorKind::UnexpectedEof if has_seen_writes => format!(
                "{host}:{port} hangs up: it has no leader now, or it is behind what was seen here \
                 before, because it lags, or for good because its data was removed or restored"
            ),
            io::ErrorKind::UnexpectedEof => {
                format!("{host}:{port} hangs up: it has no leader yet, or too many clients")
            }
            _ => format!("{host}:{port}: {e}"),
        }
    }

    /// Makes a connection of the stream, unless the session ends with what the server grants.
    fn install(
        self: &Arc<Self>,
        at: usize,
        stream: Box<dyn Stream>,
        response: ConnectResponse,
    ) -> Result<Numbered> {
        let mut state = self.state();
        let is_known = state.identity.id == response.identity.id;
        if is_known && response.timeout_ms < state.granted_ms {
            // From now on the servers keep the session for less time than its owner relies on.
            state.ended |= self.on_expiry == OnExpiry::Stop;
        }
        (state.identity, state.granted_ms) = (response.identity, response.timeout_ms);
        // Stay with this server as long as it serves.
        state.next_server = at;
        if state.ended {
            return Err(Error::Expired);
        }
        state.made += 1;
        let number = state.made;
        // Weak, because the state holds the connection.
        let shared: Weak<Self> = Arc::downgrade(self);
        let on_end = move || {
            if let Some(shared) = shared.upgrade() {
                shared.give_up(number);
                shared.state().next_server += 1;
            }
        };
        let connection = Connection::new(stream, self.settings.clone(), on_end);
        let made = (number, Arc::new(connection));
        state.current = Some(made.clone());
        Ok(made)
    }
}
