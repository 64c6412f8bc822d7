//! A real server that is reached directly, or through proxies that can fall silent.

use super::{DEADLINE, Place, Running};
use anyhow::{Result, ensure};
use servers::{FaultProxy, Running as Server};
use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
};

/// A server with a proxy before each of its ports, and a folder for what the command needs.
pub(crate) struct Proxied {
    pub(crate) server: Server,
    pub(crate) place: Place,
    proxies: Vec<FaultProxy>,
    /// What is added to the server's URL.
    options: &'static str,
}

impl Proxied {
    pub(crate) fn of(server: Server, options: &'static str) -> Result<Self> {
        let ports = server.ports().iter().filter(|port| server.url().contains(&address(**port)));
        let proxies = ports.map(|port| FaultProxy::to(*port)).collect::<Result<Vec<_>>>()?;
        ensure!(!proxies.is_empty(), "no port of the server is in {}", server.url());
        Ok(Self { server, place: Place::new(), proxies, options })
    }

    /// The URL that leads to the server itself.
    pub(crate) fn direct(&self) -> String {
        format!("{}{}", self.server.url(), self.options)
    }

    /// The URL that leads through the proxies.
    pub(crate) fn through(&self) -> String {
        let ports =
            self.server.ports().iter().filter(|p| self.server.url().contains(&address(**p)));
        let swap = |url: String, (port, proxy): (&u16, &FaultProxy)| {
            url.replace(&address(*port), &address(proxy.port()))
        };
        ports.zip(&self.proxies).fold(self.direct(), swap)
    }

    /// From now on nothing comes through the proxies: the server is silent, and no connection breaks.
    pub(crate) fn silence(&self) {
        self.proxies.iter().for_each(FaultProxy::close);
    }

    /// Ends the silence.
    pub(crate) fn open(&self) {
        self.proxies.iter().for_each(FaultProxy::open);
    }

    /// The command, with this store in its environment.
    pub(crate) fn lockkeeper(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.place.lockkeeper(arguments);
        command.env("LOCKKEEPER_STORE", url);
        command
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// What a command says on stderr, line by line.
pub(crate) struct Words(Receiver<String>);

impl Words {
    /// The next line; empty at the end.
    pub(crate) fn line(&self) -> String {
        match self.0.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("waited for words in vain"),
        }
    }

    /// The next line with this text in it, which has to come.
    pub(crate) fn find(&self, text: &str) -> String {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "no {text:?} to the end");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// All that is left to its end.
    pub(crate) fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| Some(self.line()).filter(|line| !line.is_empty())).collect()
    }
}

/// Starts a command with pipes on all sides.
pub(crate) fn start(command: &mut Command) -> (Running, Words) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn(command);
    let lines = BufReader::new(running.take_stderr()).lines().map_while(Result::ok);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || lines.map(|line| sender.send(line)).all(|sent| sent.is_ok()));
    (running, Words(receiver))
}
