//! Who calls, and whether the route is for this caller.
//!
//! | file | holds |
//! |---|---|
//! | `admission` | the one check before every route: caller, scope, the name in the path, limits |
//! | `tokens` | the file of principals |
//! | `front` | what holds for all requests: the header Host, the origin of a page, the headers of answers |
//! | `limits`, `stream` | what one principal may take; streams that end with its rights |
//! | `signing` | sequencers, plain and signed |
//! | `tls` | TLS and the certificates of clients |
//! | `audit` | the log of evictions, refused requests and reloads |
//! | `live_file`, `files` | files that are read again when they change; their rights |

mod admission;
pub(crate) mod audit;
mod files;
mod front;
mod limits;
mod live_file;
mod signing;
mod stream;
pub(crate) mod tls;
mod tokens;

pub(crate) use admission::{Forced, Gate, admit};
pub(crate) use front::front;
pub use limits::Quota;
pub use tls::TlsFiles;
pub use tokens::NewToken;

use crate::{listen::Address, principal::Principal};
use audit::{Audit, Entry};
use limits::Usages;
use live_file::LiveFile;
use lockkeeper::SigningKeys;
use rustls::ServerConfig;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokens::{LineError, Principals};
use tokio::sync::watch;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a service is told about its security.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SecurityOptions {
    /// The file of principals. Without it, every caller may do everything.
    pub principals: Option<PathBuf>,
    /// The keys that sign sequencers.
    pub signing_keys: Option<PathBuf>,
    /// With keys: accept sequencers without signature too.
    pub accept_plain_sequencers: bool,
    /// The files of TLS. Without them, connections are in the clear.
    pub tls: Option<TlsFiles>,
    /// The names of this service in the header Host, beside `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// Limits per principal. Without them, the default with principals, and no limits without.
    pub quota: Option<Quota>,
    /// Where the audit log is appended.
    pub audit_log: Option<PathBuf>,
    /// Listen beyond loopback even without authentication.
    pub insecure: bool,
}

/// Why a service cannot be started as it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecurityError(String);

/// The security of a service: who may come in, what it signs with, and what it writes down.
#[derive(Debug)]
pub struct Security {
    principals: Option<LiveFile<Principals>>,
    keys: Option<LiveFile<SigningKeys>>,
    tls: Option<LiveFile<ServerConfig>>,
    accept_plain_sequencers: bool,
    pub(crate) hosts: Vec<String>,
    quota: Quota,
    usages: Usages,
    audit: Audit,
    insecure: bool,
    /// How many credentials are good; sent with every change of the principals.
    good: watch::Sender<usize>,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            principals: None,
            keys: None,
            tls: None,
            accept_plain_sequencers: false,
            hosts: Vec::new(),
            quota: Quota::unlimited(),
            usages: Usages::default(),
            audit: Audit::default(),
            insecure: false,
            good: watch::channel(0).0,
        }
    }
}

impl Security {
    /// Reads all files.
    ///
    /// # Errors
    /// What cannot be read or makes no sense, and what to do.
    pub fn open(options: SecurityOptions) -> Result<Self, SecurityError> {
        let principals = options.principals.map(open_principals).transpose();
        let keys = options.signing_keys.map(open_keys).transpose();
        let tls = options.tls;
        let needs_principals = tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let tls = tls.map(|tls| LiveFile::open(tls.paths(), move || tls.read())).transpose();
        let (principals, keys, tls) = match (principals, keys, tls) {
            (Ok(principals), Ok(keys), Ok(tls)) => (principals, keys, tls),
            (Err(e), ..) | (_, Err(e), _) | (.., Err(e)) => return Err(SecurityError(e)),
        };
        if needs_principals && principals.is_none() {
            let what = "certificates of clients name principals: give the file that says what each may do (--tokens)";
            return Err(SecurityError(what.to_owned()));
        }
        let audit = Audit::open(options.audit_log.as_deref())
            .map_err(|e| SecurityError(format!("the audit log cannot be opened: {e}")))?;
        let quota = options.quota.unwrap_or_else(|| match &principals {
            Some(_) => Quota::default(),
            None => Quota::unlimited(),
        });
        let security = Self {
            principals,
            keys,
            tls,
            accept_plain_sequencers: options.accept_plain_sequencers,
            hosts: options.hosts,
            quota,
            usages: Usages::default(),
            audit,
            insecure: options.insecure,
            good: watch::channel(0).0,
        };
        security.good.send_replace(security.count_good());
        Ok(security)
    }

    /// May the service listen there?
    ///
    /// # Errors
    /// Why not, and what to do: beyond loopback it needs authentication.
    pub fn allow(&self, address: &Address) -> Result<(), SecurityError> {
        if address.is_local() || self.principals.is_some() || self.insecure {
            return Ok(());
        }
        Err(SecurityError(format!(
            "without authentication every machine that reaches {address} could take and evict locks: give --tokens \
             FILE (see lockkeeper token new), listen on loopback, or say --insecure"
        )))
    }

    /// What an operator should know about listening there.
    #[must_use]
    pub fn warning(&self, address: &Address) -> Option<String> {
        let is_tcp = matches!(address, Address::Tcp(_));
        match () {
            () if address.is_local() => None,
            () if self.principals.is_none() => Some(format!(
                "--insecure: every machine that reaches {address} may take and evict locks"
            )),
            () if is_tcp && self.tls.is_none() => Some(format!(
                "tokens and secrets travel to {address} in the clear: give --tls-cert and --tls-key, or put a proxy \
                 with TLS before it"
            )),
            () => None,
        }
    }

    /// Is there a file of principals?
    #[must_use]
    pub fn has_principals(&self) -> bool {
        self.principals.is_some()
    }

    /// Are connections encrypted?
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// TLS as it is set up now.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(LiveFile::get)
    }

    /// Reads files that have changed, or all of them. What is broken stays as it was, and the log says so.
    pub fn refresh(&self, all: bool) {
        if all && let Err(e) = self.audit.reopen() {
            tracing::error!(error = %e, "the audit log cannot be opened again");
        }
        self.look(self.principals.as_ref(), all);
        self.look(self.keys.as_ref(), all);
        self.look(self.tls.as_ref(), all);
        let good = self.count_good();
        self.good.send_if_modified(|before| std::mem::replace(before, good) != good);
    }

    fn look<T>(&self, file: Option<&LiveFile<T>>, all: bool) {
        let Some(file) = file else { return };
        let names = file.names();
        match file.refresh(all) {
            None => {}
            Some(Ok(())) => {
                tracing::info!(files = names, "read again");
                self.audit.note(&Entry::new("reloaded").detail(names));
                self.good.send_modify(|_| {});
            }
            Some(Err(e)) => {
                tracing::error!(
                    error = e,
                    "the change is not taken up; what was read before stays in force"
                );
                self.audit.note(&Entry::new("reload_failed").detail(e));
            }
        }
    }

    /// Reads the files when they change, until it is dropped.
    pub(crate) async fn watch(&self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            look.tick().await;
            self.refresh(false);
        }
    }

    /// Resolves when the principal has lost its rights, or has others.
    async fn revoked(self: Arc<Self>, principal: Principal) {
        let mut changes = self.good.subscribe();
        while self.admits(&principal) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn admits(&self, principal: &Principal) -> bool {
        let now = SystemTime::now();
        self.principals.as_ref().is_none_or(|all| all.get().has(principal, now))
    }

    fn count_good(&self) -> usize {
        let now = SystemTime::now();
        self.principals.as_ref().map_or(0, |all| all.get().count_good(now))
    }

    /// Notes a request that was refused.
    pub(crate) fn note_refused(&self, entry: Entry) {
        self.audit.refused(entry, Instant::now());
    }

    /// Notes what has happened.
    pub(crate) fn note(&self, entry: &Entry) {
        self.audit.note(entry);
    }
}

fn open_principals(path: PathBuf) -> Result<LiveFile<Principals>, String> {
    if files::is_readable_by_all(&path) {
        tracing::warn!(path = %path.display(), "all users of this machine may read the principals' names and rights");
    }
    LiveFile::open(vec![path.clone()], move || {
        files::refuse_writable_by_all(&path)?;
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        text.parse().map_err(|e: LineError| format!("{}: {e}", path.display()))
    })
}

fn open_keys(path: PathBuf) -> Result<LiveFile<SigningKeys>, String> {
    LiveFile::open(vec![path.clone()], move || {
        SigningKeys::read(&path).map_err(|e| format!("{}: {e}", path.display()))
    })
}
