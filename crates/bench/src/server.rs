//! A server for one benchmark.

use crate::{
    args::{Pin, Plan},
    machine,
};
use anyhow::{Context as _, Result, bail};
use lockkeeper::Keeper;
use servers::{Recipe, Running};

/// A server of its own, gone when dropped.
pub(crate) struct Server {
    running: Running,
    pid: u32,
}

impl Server {
    pub(crate) fn start(recipe: Recipe, plan: &Plan) -> Result<Self> {
        if let Some(missing) = servers::install_missing(&[recipe]).pop() {
            bail!("{missing}");
        }
        let mut running = recipe.start()?;
        let pid = *running.pids().first().context("the server has ended")?;
        if plan.pin == Some(Pin::Apart) {
            machine::pin_process(pid, machine::SERVER_CORE)?;
        }
        Ok(Self { running, pid })
    }

    pub(crate) fn url(&self) -> &str {
        self.running.url()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }
}

/// A keeper with default options and a connection of its own, its session open.
pub(crate) async fn keeper(url: &str) -> Result<Keeper> {
    let keeper = Keeper::connect(url).await?;
    keeper.lock(format!("warm-up/{}", std::process::id())).await?.release().await?;
    Ok(keeper)
}
