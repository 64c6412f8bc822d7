//! Connecting, the store's root nodes, and reads that belong to no session.

use super::{
    ANSWER_TIMEOUT_MAX, KIND, Zookeeper, advice,
    client::{Answer, Code, Ensemble, Error, NodeKind, OnExpiry, Request, Session},
    config::Config,
    error::{misconfigured, outside_session, unavailable},
    names::Paths,
    session::SessionTable,
    terms::Servers,
};
use crate::{
    clock::Clock,
    error::{ErrorKind, Result, StoreError},
    model::name::Name,
    store::{StoreId, StoreResult, url::StoreUrl},
};
use std::{sync::Arc, time::Duration};

/// The timeout of the common session. Nothing is lost with it.
const COMMON_TIMEOUT: Duration = Duration::from_secs(10);

impl Zookeeper {
    pub(in crate::store) async fn connect(url: StoreUrl) -> Result<Self> {
        let config = Config::read(url)?;
        let facts = advice::facts(&config.ensemble).await;
        let alone = facts.iter().any(|fact| fact.mode == "standalone");
        if alone && config.ensemble.servers.len() > 1 {
            let what = "a server of the URL stands alone and knows nothing of the others: \
                        two could hold the same lock";
            return Err(misconfigured(what).into());
        }
        let (ensemble, timeout) = (&config.ensemble, COMMON_TIMEOUT);
        let no_watches = Arc::new(|_: &str| {});
        let common =
            Session::new(ensemble, OnExpiry::Reopen, timeout, ANSWER_TIMEOUT_MAX, no_watches);
        let new = StoreId(rand::random());
        let id = make_root(&common, &config, new).await.map_err(outside_session)?;
        let shortest = shortest_timeout(ensemble).await.map_err(outside_session)?;
        let servers = Servers { alone, shortest };
        let sessions = SessionTable::default();
        Ok(Self { id, clock: Clock::system(), config, servers, common, sessions })
    }

    /// The node of a line.
    pub(super) fn line(&self, name: &Name) -> StoreResult<String> {
        self.config.paths.line(name).map_err(|rule| {
            let what = format!("{name:?} is no path for a lock with raw names: {rule}");
            StoreError::not_applied(KIND, ErrorKind::Name, what)
        })
    }

    /// Reads over the common session.
    pub(super) async fn read_all(&self, requests: &[Request]) -> StoreResult<Vec<Answer>> {
        self.common.read_all(requests).await.map_err(outside_session)
    }

    /// The same for two reads.
    pub(super) async fn read_two(&self, requests: [Request; 2]) -> StoreResult<[Answer; 2]> {
        self.common.read(requests).await.map_err(outside_session)
    }

    /// Creates the root nodes again after another client has removed them. If others have created them
    /// meanwhile, the data has another identity, and nothing that this handle knows holds there.
    pub(super) async fn restore_root(&self) -> StoreResult<()> {
        let found =
            make_root(&self.common, &self.config, self.id).await.map_err(outside_session)?;
        self.expect_own(Some(found))
    }

    /// Whether the data is still that to which this handle was connected, read over this session.
    pub(super) async fn expect_same_data(&self, session: &Session) -> StoreResult<()> {
        match session.data(self.config.paths.root()).await? {
            Some((data, _)) => self.expect_own(identity(&data)),
            None => Ok(()),
        }
    }

    fn expect_own(&self, found: Option<StoreId>) -> StoreResult<()> {
        if found == Some(self.id) {
            return Ok(());
        }
        let root = self.config.paths.root();
        Err(misconfigured(format!("{root} was removed and made anew by others; connect again")))
    }
}

/// The identity that the root's data tells.
fn identity(data: &[u8]) -> Option<StoreId> {
    let id = u64::from_str_radix(std::str::from_utf8(data).ok()?, 16).ok()?;
    Some(StoreId(id.to_be_bytes()))
}

/// Creates the root nodes with this identity, unless they are there; says which identity they have.
async fn make_root(common: &Session, config: &Config, new: StoreId) -> StoreResult<StoreId> {
    let mut denied = Ok(());
    for _ in 0..3 {
        if let Some(found) = read_root(common, config.paths.root()).await? {
            return Ok(found);
        }
        for answer in common.ask_all(&root_nodes(config, new)).await? {
            if let Err(e @ Error::Refused(Code::NO_AUTH | Code::INVALID_ACL)) = answer {
                denied = Err(e);
            }
        }
    }
    denied?;
    Err(unavailable(format!("{} cannot be made", config.paths.root())))
}

/// The creations of the root nodes and of the folders above them.
fn root_nodes(config: &Config, new: StoreId) -> Vec<Request> {
    let (root, id) = (config.paths.root(), new.to_string());
    let node = |path: &str, data: &str| {
        Request::create(path, data.as_bytes(), NodeKind::Persistent, config.acl)
    };
    let mut nodes: Vec<Request> = Paths::above(root).map(|path| node(path, "")).collect();
    nodes.push(node(root, &id));
    nodes.extend(["lines", "cells"].map(|part| node(&format!("{root}/{part}"), "")));
    nodes
}

/// The identity of the data; `None` if some of the root nodes are missing.
async fn read_root(common: &Session, root: &str) -> StoreResult<Option<StoreId>> {
    let requests = [
        Request::data(root),
        // The last one to be created.
        Request::exists(&format!("{root}/cells")),
        // A server that is too old for this could not say which tickets a session has.
        Request::ephemerals(root),
    ];
    let [data, last, own] = common.ask(requests).await?;
    if let Err(e @ Error::Refused(Code::UNIMPLEMENTED)) = own {
        return Err(e.into());
    }
    let (Ok(data), Ok(_)) = (data, last) else { return Ok(None) };
    let (data, _) = data.data()?;
    let id = identity(&data).ok_or_else(|| {
        misconfigured(format!("{root} is in use for something else; choose another prefix="))
    })?;
    Ok(Some(id))
}

/// The shortest session timeout that the servers grant.
async fn shortest_timeout(ensemble: &Arc<Ensemble>) -> StoreResult<Duration> {
    let (asked, on_watch) = (Duration::from_millis(1), Arc::new(|_: &str| {}));
    let session = Session::new(ensemble, OnExpiry::Stop, asked, ANSWER_TIMEOUT_MAX, on_watch);
    session.connect().await?;
    let shortest = session.granted();
    // A session that stays open ends by itself, after that very time.
    let _ = session.close().await;
    Ok(shortest)
}
