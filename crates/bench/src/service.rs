//! The service in a process of its own, and a bare axum program whose answers are as long.

use crate::{
    args::{Pin, Plan},
    child::{Child, Role, say},
    flavour::Flavour,
    http_client::Sizes,
    machine,
    pair::{At, Boxed, Pair, Ready, Stack},
    source::keeper,
};
use anyhow::Result;
use axum::{
    Router,
    body::Bytes,
    routing::{delete, post},
    serve::ListenerExt as _,
};
use lockkeeper::Keeper;
use lockkeeper_server::{Address, Listener, Options, Service};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::{io::Read as _, sync::Arc};
use tokio::{net::TcpListener, sync::oneshot};

/// About how long the headers are that axum and hyper add to an answer.
const BARE_HEAD: usize = 110;
const ANY_PORT: &str = "127.0.0.1:0";

/// A process that serves on a port of its own, until its parent is gone.
#[derive(Serialize, Deserialize)]
pub(crate) enum Server {
    /// The service in front of this store.
    Service { url: String },
    /// The same two routes, and nothing behind them.
    Echo(Sizes),
}

impl Server {
    pub(crate) fn play(self) -> Result<()> {
        more_files()?;
        Flavour::MultiThread.run(async {
            let gone = parent_gone();
            tokio::select! {
                served = self.serve() => served,
                _ = gone => Ok(()),
            }
        })
    }

    async fn serve(self) -> Result<()> {
        match self {
            Self::Service { url } => {
                let keeper = Keeper::connect(&url).await?;
                let service = Service::new(keeper.store().clone(), Options::default());
                let listener = Listener::bind(&ANY_PORT.parse()?, 0o600).await?;
                tell(&listener.address()?)?;
                Ok(lockkeeper_server::serve(service, vec![listener]).await?)
            }
            Self::Echo(sizes) => {
                let listener = TcpListener::bind(ANY_PORT).await?;
                tell(&Address::Tcp(listener.local_addr()?))?;
                let listener = listener.tap_io(|stream| {
                    let _ = stream.set_nodelay(true);
                });
                Ok(axum::serve(listener, echo(sizes)).await?)
            }
        }
    }
}

/// Reads each body, and answers with so many bytes.
fn echo(sizes: Sizes) -> Router {
    let bytes = |size: usize| Bytes::from(vec![b'x'; size.saturating_sub(BARE_HEAD)]);
    let (take, leave) = (bytes(sizes.take), bytes(sizes.leave));
    Router::new()
        .route("/v1/locks/{name}", post(async move |_: Bytes| take.clone()))
        .route("/v1/locks/{name}/tickets/{ticket}", delete(async move || leave.clone()))
}

fn tell(address: &Address) -> Result<()> {
    say(&())?;
    say(&address.to_string())
}

fn parent_gone() -> oneshot::Receiver<()> {
    let (gone, told) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    told
}

/// Allows this process as many open files as the system lets it have.
pub(crate) fn more_files() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// A server that was started. Ended when dropped.
pub(crate) struct Running {
    child: Child,
    /// The address and the port.
    pub(crate) address: String,
}

impl Running {
    /// The service in front of this store.
    pub(crate) fn service(url: &str) -> Result<Self> {
        Self::start(Server::Service { url: url.to_owned() })
    }

    pub(crate) fn echo(sizes: Sizes) -> Result<Self> {
        Self::start(Server::Echo(sizes))
    }

    fn start(server: Server) -> Result<Self> {
        let mut child = Child::start(&Role::Server(server))?;
        let address = child.hear()?;
        Ok(Self { child, address })
    }

    pub(crate) fn pinned(self, plan: &Plan) -> Result<Self> {
        if plan.pin == Some(Pin::Apart) {
            machine::pin_process(self.pid(), machine::SERVER_CORE)?;
        }
        Ok(self)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Where the library finds the service.
    pub(crate) fn url(&self) -> String {
        format!("lockkeeper+http://{}", self.address)
    }
}

/// The whole library over a service in front of this store.
pub(crate) fn stack_through(at: At) -> Boxed<Ready> {
    Box::pin(async move {
        let service = Arc::new(Running::service(&at.url)?);
        let keeper = keeper(&service.url()).await?;
        let pairs = at.pairs(|name| Through {
            stack: Stack { keeper: keeper.clone(), name },
            _service: Arc::clone(&service),
        })?;
        Ok(Ready { pairs, keeper: Some(keeper) })
    })
}

struct Through {
    stack: Stack,
    /// Ends after the last pair.
    _service: Arc<Running>,
}

impl Pair for Through {
    async fn pair(&mut self) -> Result<()> {
        self.stack.pair().await
    }
}
