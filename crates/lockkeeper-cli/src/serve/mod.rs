//! `lockkeeper serve`: the lock service on this machine.

mod notify;
mod security;
mod settings;

pub(crate) use security::SecurityArgs;
pub(crate) use settings::{KEYS, Settings, mode, number};

use crate::{
    cli::Common,
    exit_code,
    failure::Failure,
    output::{self, printable, stamped_line},
    run::End,
    store,
};
use anyhow::anyhow;
use clap::Args;
use lockkeeper::{Keeper, TTL_DEFAULT};
use lockkeeper_server::{Address, Listener, Options, Security, Service};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) const HELP: &str = "\
Examples:
  lockkeeper serve                                 the embedded store, on 127.0.0.1:7601
  lockkeeper --store prod serve --listen unix:/run/lockkeeper.sock
                                                   one agent for all programs of this host
  lockkeeper serve --listen 127.0.0.1:0 --json     any free port; one line of JSON says which
  curl -X POST http://127.0.0.1:7601/v1/locks/nightly
                                                   take a lock
  lockkeeper serve --listen 0.0.0.0:7601 --tokens tokens --tls-cert cert.pem --tls-key key.pem
                                                   for other machines; lockkeeper token new makes the tokens

Every flag can also stand in [serve] of a file of settings (socket_mode = \"660\"), or in the environment
(LOCKKEEPER_SERVE_SOCKET_MODE=660). A flag is stronger than the environment, and that than a file.

SIGTERM and SIGINT stop it: long polls are answered, streams end, and no session and no lock ends. SIGHUP reloads
what was read from files. Under systemd use Type=notify.

Exit codes:
  0    stopped by a signal
  69   the store is unavailable
  78   the settings make no sense, or the address cannot be listened on";

/// Where the service listens unless told otherwise.
const DEFAULT: &str = "127.0.0.1:7601";

/// For how long to go on trying to reach a store that is only just starting.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// Serve locks over HTTP, to programs in every language
#[derive(Args, Debug)]
#[command(after_long_help = HELP)]
pub(crate) struct Serve {
    /// Where to listen: IP:PORT or unix:PATH; several times, or with commas [default: 127.0.0.1:7601]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', env = "LOCKKEEPER_SERVE_LISTEN")]
    listen: Vec<Address>,

    /// The access rights of a socket in the file system, in octal [default: 600]
    #[arg(long, value_name = "MODE", env = "LOCKKEEPER_SERVE_SOCKET_MODE")]
    #[arg(value_parser = mode)]
    socket_mode: Option<u32>,

    #[command(flatten)]
    security: SecurityArgs,

    /// Print the settings, with those from files and the environment, as TOML, and end
    #[arg(long)]
    print_config: bool,
}

impl Serve {
    /// Fills in what the flags and the environment leave open.
    pub(crate) fn fill(&mut self, file: &Settings) {
        if self.listen.is_empty() {
            self.listen.clone_from(&file.listen);
        }
        self.socket_mode = self.socket_mode.or(file.socket_mode);
        self.security.fill(&file.security);
    }

    fn addresses(&self) -> Vec<Address> {
        match self.listen.as_slice() {
            [] => DEFAULT.parse().into_iter().collect(),
            said => said.to_vec(),
        }
    }

    fn socket_mode(&self) -> u32 {
        self.socket_mode.unwrap_or(0o600)
    }

    /// The settings as they hold, for a file.
    fn printed(&self, url: &str) -> String {
        let quoted = |text: &str| json!(text).to_string();
        let listen: Vec<String> =
            self.addresses().iter().map(|address| quoted(&address.to_string())).collect();
        let (store, mode) = (quoted(&store::without_secrets(url)), self.socket_mode());
        format!(
            "store = {store}\n\n[serve]\nlisten = [{}]\nsocket_mode = \"{mode:o}\"\n{}",
            listen.join(", "),
            self.security.printed()
        )
    }
}

pub(crate) async fn serve(args: &Serve, common: &Common) -> Result<End, Failure> {
    let url = match common.store.as_deref() {
        // The service alone uses it, for all its clients.
        Some(url) if url.starts_with("memory:") => url.to_owned(),
        said => store::url(said)?,
    };
    if args.print_config {
        return Ok(End::Code(output::answer(&args.printed(&url))));
    }
    let security = Arc::new(security(args)?);
    // Before anything is done: a signal that comes at once must stop us, too.
    let signals = Signals::catch()?;
    let keeper = Keeper::builder().connect_wait(CONNECT_WAIT).connect(&url).await?;
    let mut options = Options::default();
    options.security = security;
    options.ttl = store::ttl(&url).unwrap_or(TTL_DEFAULT);
    options.lock_delay = store::lock_delay(&url).unwrap_or_default();
    let listeners = listen(args).await?;
    let code = output::answer(&greeting(&url, &listeners, options.security.has_tls(), common)?);
    if code != 0 {
        return Ok(End::Code(code));
    }
    let service = Service::new(keeper.store().clone(), options);
    notify::tell("READY=1");
    tokio::select! {
        served = lockkeeper_server::serve(service.clone(), listeners) => served,
        never = signals.heed(&service) => match never {},
    }
    .map_err(|e| Failure::new(exit_code::UNAVAILABLE, anyhow!(e)))?;
    keeper.close().await;
    Ok(End::Code(0))
}

/// Who may come in. An address that lets in more than it should is refused.
fn security(args: &Serve) -> Result<Security, Failure> {
    let security = args.security.open()?;
    for address in args.addresses() {
        let allowed = security.allow(&address);
        allowed.map_err(|e| Failure::new(exit_code::CONFIGURATION, anyhow!(e)))?;
        if let Some(warning) = security.warning(&address) {
            output::warning(&warning);
        }
    }
    Ok(security)
}

async fn listen(args: &Serve) -> Result<Vec<Listener>, Failure> {
    let mut listeners = Vec::new();
    for address in args.addresses() {
        let listener = Listener::bind(&address, args.socket_mode()).await.map_err(|e| {
            Failure::new(exit_code::CONFIGURATION, anyhow!("cannot listen on {address}: {e}"))
                .hint("is another lockkeeper serve running? name another address with --listen")
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// What the service says at its start: where it is, and a line to try.
fn greeting(
    url: &str,
    listeners: &[Listener],
    has_tls: bool,
    common: &Common,
) -> Result<String, Failure> {
    let addresses: Vec<Address> =
        listeners.iter().map(Listener::address).collect::<Result<_, _>>().map_err(Failure::bug)?;
    let store = printable(&store::without_secrets(url));
    let web = addresses.iter().find_map(|address| match address {
        Address::Tcp(at) => Some(format!("http{}://{at}", if has_tls { "s" } else { "" })),
        Address::Unix(_) => None,
    });
    let console = web.as_ref().map(|web| format!("{web}/"));
    if common.json {
        let listen: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        return Ok(stamped_line(json!({
            "event": "serving", "store": store, "listen": listen, "console": console,
            "pid": std::process::id(),
        })));
    }
    if common.quiet {
        return Ok(String::new());
    }
    let listen: Vec<String> = addresses.iter().map(|at| printable(&at.to_string())).collect();
    let curl = match (&web, addresses.first()) {
        (Some(web), _) => format!("curl -X POST {web}/v1/locks/nightly"),
        (None, Some(Address::Unix(path))) => {
            let path = printable(&path.display().to_string());
            format!("curl --unix-socket '{path}' -X POST http://localhost/v1/locks/nightly")
        }
        (None, _) => String::new(),
    };
    let console = console.map(|console| format!("  console   {console}\n")).unwrap_or_default();
    Ok(format!(
        "lockkeeper {} serves {store}\n  listens   {}\n{console}  try       {curl}\n",
        env!("CARGO_PKG_VERSION"),
        listen.join(", "),
    ))
}

/// The signals that the service takes.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn catch() -> Result<Self, Failure> {
        let catch = |kind| signal(kind).map_err(Failure::bug);
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hang_up: catch(SignalKind::hangup())?,
        })
    }

    /// Stops or reloads the service as the signals say.
    async fn heed(mut self, service: &Service) -> std::convert::Infallible {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                _ = self.hang_up.recv() => {
                    service.reload();
                    continue;
                }
            }
            notify::tell("STOPPING=1");
            service.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn parse(line: &str) -> Serve {
        let words = ["serve"].into_iter().chain(line.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words).unwrap().serve
    }

    #[test]
    fn other_machines_are_let_in_only_if_that_is_said_aloud() {
        for line in [
            "",
            "--listen 127.0.0.1:0",
            "--listen [::1]:1,unix:/a",
            "--listen 0.0.0.0:1 --insecure",
        ] {
            assert!(security(&parse(line)).is_ok(), "{line}");
        }
        for line in ["--listen 0.0.0.0:1", "--listen 127.0.0.1:0,10.0.0.1:1", "--listen [::]:1"] {
            assert_eq!(security(&parse(line)).unwrap_err().code(), 78, "{line}");
        }
    }

    #[test]
    fn a_flag_is_stronger_than_a_file() {
        let file = Settings {
            listen: vec!["unix:/file".parse().unwrap()],
            socket_mode: Some(0o660),
            security: SecurityArgs::default(),
        };
        let mut serve = parse("--listen unix:/flag");
        serve.fill(&file);
        assert_eq!(serve.addresses()[0].to_string(), "unix:/flag");
        assert_eq!(serve.socket_mode(), 0o660);
        let mut serve = parse("--socket-mode 0600");
        serve.fill(&file);
        assert_eq!(
            serve.printed("redis://:hunter2@h"),
            "store = \"redis://h\"\n\n[serve]\nlisten = [\"unix:/file\"]\nsocket_mode = \"600\"\n\
             insecure = false\n"
        );
    }
}
