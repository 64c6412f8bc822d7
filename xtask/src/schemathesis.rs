//! `cargo xtask schemathesis`: requests made from `/openapi.json`, among them many that make no sense, to a real
//! `lockkeeper serve`. No answer may be a fault of the server, or one that the document does not describe.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// What every answer must be.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance";

/// A stream never ends, and a change may not come: a request must not wait for them.
const ENDLESS: &str = "/events$|/hints$";

pub(crate) fn run(args: &[&str]) -> Result<ExitCode> {
    if let Some(missing) = servers::install_peers(&[servers::SCHEMATHESIS]).first() {
        bail!("{missing}");
    }
    let python = servers::SCHEMATHESIS.python().context("schemathesis is not installed")?;
    let built = workspace::cargo(&["build", "--package", "lockkeeper-cli"])?;
    if built != ExitCode::SUCCESS {
        return Ok(built);
    }
    let service = Service::start()?;
    let mut tester = Command::new(python.with_file_name("schemathesis"));
    tester
        .arg("run")
        .arg(format!("{}openapi.json", service.url))
        .args(["--checks", CHECKS, "--exclude-path-regex", ENDLESS])
        .args(["--request-timeout", "70", "--no-color"])
        .args(args)
        .current_dir(workspace::target());
    workspace::run(&mut tester)
}

/// A service that ends with this.
struct Service {
    process: Child,
    url: String,
}

impl Service {
    fn start() -> Result<Self> {
        let mut process = Command::new(workspace::target().join("debug/lockkeeper"))
            .args([
                "--store",
                "memory://schemathesis",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--json",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .context("lockkeeper cannot be run")?;
        let stdout = process.stdout.take().context("it has a standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.split("\"console\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let Some(url) = url.map(str::to_owned) else {
            let _ = process.kill();
            bail!("lockkeeper serve said: {line}");
        };
        Ok(Self { process, url })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
