//! The Python client against the service of the built command, and the examples of `docs/http.md`. Each Python module
//! of tests is a test here, because they can run side by side.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use servers::Require;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// What the client needs.
const VERSION: (u32, u32) = (3, 10);

fn main() -> ExitCode {
    let missing = missing();
    let trials = modules().expect("the folder of the client's tests").into_iter().map(|module| {
        let missing = missing.clone();
        Trial::ignorable_test(module.clone(), move || match missing {
            None => run(&module).map(|()| Completion::Completed),
            Some(reason) if Require::from_env().wants("python") => Err(reason.into()),
            Some(reason) => Ok(Completion::ignored_with(reason)),
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn client() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python")
}

/// The names of the modules with tests.
fn modules() -> io::Result<Vec<String>> {
    let files = fs::read_dir(client().join("tests"))?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let mut modules: Vec<String> = names
        .filter_map(|name| Some(name.strip_suffix(".py")?.to_owned()))
        .filter(|name| name.starts_with("test_"))
        .collect();
    modules.sort();
    Ok(modules)
}

/// Why this machine cannot run them.
fn missing() -> Option<String> {
    let (major, minor) = VERSION;
    let program = format!("import sys; sys.exit(sys.version_info < ({major}, {minor}))");
    match Command::new("python3").args(["-c", &program]).status() {
        Ok(status) if status.success() => None,
        Ok(_) => Some(format!("python3 is older than {major}.{minor}")),
        Err(e) => Some(format!("python3: {e}")),
    }
}

fn run(module: &str) -> Result<(), Failed> {
    let mut python = Command::new("python3");
    python.current_dir(client()).args(["-m", "unittest", "-v", &format!("tests.{module}")]);
    python.env("LOCKKEEPER_BIN", env!("CARGO_BIN_EXE_lockkeeper")).env("PYTHONPATH", "src");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = python.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
}
