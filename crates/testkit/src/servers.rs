//! The stores that need a server: started when the first case asks for them, ended with the program.

use crate::subject::{Site, Subject};
use lockkeeper::Capabilities;
use servers::{Recipe, Running};
use std::sync::{Arc, Mutex, OnceLock};

/// Redis in every topology.
#[must_use]
pub fn redis() -> Vec<Subject> {
    let can = Capabilities { durable: true, ..Capabilities::LINES };
    let of = |recipe| subject(recipe, can).across_processes();
    vec![of(servers::REDIS), of(servers::REDIS_SENTINEL), of(servers::REDIS_CLUSTER).sharded()]
}

/// A store of one server, which all cases share; each has a prefix of its own.
fn subject(recipe: Recipe, can: Capabilities) -> Subject {
    let server = Arc::new(Server::of(recipe));
    let subject = Subject::new(recipe.name, can, move || {
        let server = Arc::clone(&server);
        async move {
            let url = tokio::task::spawn_blocking(move || server.url()).await??;
            Ok(Site::url(format!("{url}?prefix=t{:016x}", rand::random::<u64>())))
        }
    });
    match recipe.first_missing() {
        Some(missing) => subject.unavailable(format!("{missing} is not installed")),
        None => subject,
    }
}

/// A server, or why it did not start.
struct Server {
    recipe: Recipe,
    running: OnceLock<Result<Mutex<Running>, String>>,
}

impl Server {
    fn of(recipe: Recipe) -> Self {
        Self { recipe, running: OnceLock::new() }
    }

    fn url(&self) -> anyhow::Result<String> {
        let start = || self.recipe.start().map(Mutex::new).map_err(|e| format!("{e:#}"));
        let running = self.running.get_or_init(start);
        match running {
            Ok(running) => Ok(running.lock().expect("not poisoned").url().to_owned()),
            Err(e) => anyhow::bail!("{} did not start: {e}", self.recipe.name),
        }
    }
}
