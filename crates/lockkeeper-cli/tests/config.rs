//! Settings from files and from the environment, and passwords that stay out of sight.

mod support;

use nix::unistd::Uid;
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use support::{Place, eventually};

const USER_FILE: &str = ".config/lockkeeper/config.toml";

/// A folder with files of settings in it, and no store in the environment.
struct Site {
    place: Place,
}

impl Site {
    fn new() -> Self {
        Self { place: Place::new() }
    }

    /// Writes a file, as this user would with the umask 022.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.place.path(name);
        let folder = path.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(&path, text).unwrap();
        for (path, mode) in [(folder, 0o755), (&path, 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        path
    }

    fn lockkeeper(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.lockkeeper(arguments);
        command.env_remove("LOCKKEEPER_STORE");
        command
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        self.lockkeeper(arguments).envs(variables.iter().copied()).output().unwrap()
    }

    /// A command that is ended if it waits for a store that is not there.
    fn bounded(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("5").arg(env!("CARGO_BIN_EXE_lockkeeper")).args(arguments);
        command.env_remove("LOCKKEEPER_STORE").env("HOME", self.place.path(""));
        command.current_dir(self.place.path("")).stdin(Stdio::null());
        command
    }

    /// The URL of the store that a command finds.
    fn store(&self, flags: &[&str], variables: &[(&str, &str)]) -> String {
        let ask = ["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_STORE_URL"];
        let output = self.run(&[flags, &ask].concat(), variables);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn file(&self, name: &str) -> String {
        format!("sqlite:{}", self.place.path(name).display())
    }

    /// Fails with a fault in the settings, and gives what is said about it.
    fn wrong(&self, flags: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.run(&[flags, &["run", "a", "--", "echo", "ran"]].concat(), variables);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(output.stdout.is_empty() && said.starts_with("lockkeeper: "), "{said}");
        said
    }
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_project_s_file_which_beats_the_user_s() {
    let site = Site::new();
    assert_eq!(site.store(&[], &[]), site.file(".local/state/lockkeeper/locks.db"));
    site.write(USER_FILE, "store = 'sqlite:user.db'");
    assert_eq!(site.store(&[], &[]), site.file(".config/lockkeeper/user.db"));
    site.write("lockkeeper.toml", "store = 'sqlite:project.db'");
    assert_eq!(site.store(&[], &[]), site.file("project.db"));
    let from_a_file = site.write("url", "sqlite:from-a-file.db\n");
    let from_a_file = ("LOCKKEEPER_STORE_FILE", from_a_file.to_str().unwrap());
    assert_eq!(site.store(&[], &[from_a_file]), site.file("from-a-file.db"));
    let variable = ("LOCKKEEPER_STORE", "sqlite:variable.db");
    assert_eq!(site.store(&[], &[from_a_file, variable]), site.file("variable.db"));
    let flag = ["--store", "sqlite:flag.db"];
    assert_eq!(site.store(&flag, &[from_a_file, variable]), site.file("flag.db"));
}

#[test]
fn a_store_is_named_by_flag_variable_or_file() {
    let site = Site::new();
    site.write(
        USER_FILE,
        "[stores.dev]\nurl = 'sqlite:user-dev.db'\n[stores.own]\nurl = 'sqlite:own.db'",
    );
    site.write("lockkeeper.toml", "store = 'dev'\n[stores.dev]\nurl = 'sqlite:dev.db?ttl=9s'");
    let dev = site.file("dev.db?ttl=9s");
    assert_eq!(site.store(&[], &[]), dev);
    assert_eq!(site.store(&["--store", "dev"], &[]), dev);
    assert_eq!(site.store(&[], &[("LOCKKEEPER_STORE", "dev")]), dev);
    let own = site.file(".config/lockkeeper/own.db");
    assert_eq!(site.store(&["--store", "own"], &[("LOCKKEEPER_STORE", "dev")]), own);
    let verbose = site.run(&["-v", "--store", "own", "ls"], &[]);
    let said = String::from_utf8(verbose.stderr).unwrap();
    assert!(said.contains(&format!("the store is {own}, from [stores.own] of ")), "{said}");
}

#[test]
fn doctor_and_bench_take_the_name_of_a_store() {
    let site = Site::new();
    site.write(
        "lockkeeper.toml",
        "store = 'dev'\n[stores.dev]\nurl = 'sqlite:dev.db'\n[stores.own]\nurl = 'sqlite:own.db'",
    );
    for arguments in
        [&["doctor", "--json", "own"][..], &["bench", "--json", "--seconds", "0.1", "own"]]
    {
        let output = site.run(arguments, &[]);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["store"], site.file("own.db"), "{output:?}");
    }
}

#[test]
fn a_ticket_file_s_own_store_is_stronger_than_that_of_the_settings() {
    let site = Site::new();
    site.write("lockkeeper.toml", "store = 'sqlite:settings.db'");
    let done = |arguments: &[&str]| {
        let output = site.run(arguments, &[]);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    done(&["acquire", "--store", "sqlite:other.db", "a", "--file", "a.ticket"]);
    done(&["acquire", "a", "--file", "b.ticket"]);
    for ticket in ["a.ticket", "b.ticket"] {
        done(&["renew", ticket]);
        done(&["release", ticket]);
    }
}

#[test]
fn an_unknown_store_is_told_the_known_ones() {
    let site = Site::new();
    let said = site.wrong(&["--store", "prod"], &[]);
    assert!(said.contains("no store is called `prod`; no file defines a store"), "{said}");
    site.write(
        "lockkeeper.toml",
        "[stores.prod]\nurl = 'sqlite:a'\n[stores.dev]\nurl = 'sqlite:b'",
    );
    let said = site.wrong(&[], &[("LOCKKEEPER_STORE", "prd")]);
    assert!(said.contains("`prd` (did you mean `prod`?); known stores: dev, prod"), "{said}");
    assert!(said.contains("hint: a URL looks like sqlite:PATH"), "{said}");
}

#[test]
fn a_store_of_the_settings_is_the_same_for_a_nested_lockkeeper_elsewhere() {
    let site = Site::new();
    site.write("lockkeeper.toml", "store = 'dev'\n[stores.dev]\nurl = 'sqlite:dev.db'");
    fs::create_dir(site.place.path("deep")).unwrap();
    let nested = format!("cd /; {} run -n a -- true", env!("CARGO_BIN_EXE_lockkeeper"));
    let mut run = site.lockkeeper(&["run", "a", "--", "sh", "-c", &nested]);
    let status = run.current_dir(site.place.path("deep")).status().unwrap();
    assert_eq!(status.code(), Some(75), "the outer one holds it");
}

#[test]
fn a_mistake_in_a_file_is_told_with_file_line_and_the_nearest_key() {
    let site = Site::new();
    let path = site.write("lockkeeper.toml", "# ours\n\n[stores.prod]\nurll = 'sqlite:a'\n");
    let said = site.wrong(&[], &[]);
    let want = format!("{}:4: unknown key `stores.prod.urll`; did you mean", path.display());
    assert!(said.contains(&want) && said.contains("`stores.prod.url`"), "{said}");
    site.write("lockkeeper.toml", "store = ");
    assert!(site.wrong(&[], &[]).contains("lockkeeper.toml:1: "));
    let json = site.run(&["--json", "ls"], &[]);
    let error: serde_json::Value = serde_json::from_slice(&json.stderr).unwrap();
    assert_eq!((&error["event"], &error["exit_code"]), (&"error".into(), &78.into()));
    // Verbs that need no store need no settings.
    assert!(site.run(&["completions", "bash"], &[]).status.success());
    assert!(site.run(&["--help"], &[]).status.success());
}

#[test]
fn a_named_file_is_the_only_one_that_is_read_and_an_empty_name_reads_none() {
    let site = Site::new();
    site.write("lockkeeper.toml", "nonsense");
    site.write(USER_FILE, "nonsense");
    let other = site.write("other/settings.toml", "store = 'sqlite:other.db'");
    let other = other.to_str().unwrap();
    assert_eq!(site.store(&["--config", other], &[]), site.file("other/other.db"));
    assert_eq!(site.store(&[], &[("LOCKKEEPER_CONFIG", other)]), site.file("other/other.db"));
    let own = site.file(".local/state/lockkeeper/locks.db");
    assert_eq!(site.store(&["--config", ""], &[]), own);
    assert_eq!(site.store(&[], &[("LOCKKEEPER_CONFIG", "")]), own);
    assert!(site.wrong(&["--config", "absent.toml"], &[]).contains("cannot read "));
}

#[test]
fn a_file_that_others_may_write_never_redirects_locks() {
    let site = Site::new();
    let path = site.write("shared/lockkeeper.toml", "store = 'sqlite:redirected.db'");
    let folder = path.parent().unwrap();
    let refused = |why: &str| {
        let mut run = site.lockkeeper(&["run", "a", "--", "true"]);
        let output = run.current_dir(folder).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains("is not read, because another user could redirect"), "{said}");
        assert!(said.contains(why) && said.contains("--config "), "{said}");
    };
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&path, 0o646);
    refused("lockkeeper.toml can be written by every user");
    mode(&path, 0o644);
    mode(folder, 0o1777);
    refused("shared can be written by every user");
    mode(folder, 0o755);
    let own = site.write(USER_FILE, "store = 'sqlite:redirected.db'");
    mode(&own, 0o666);
    refused("config.toml can be written by every user");
    fs::remove_file(own).unwrap();
    // A link in a folder of ours to a file that others may write.
    let open = site.write("open/settings", "store = 'sqlite:redirected.db'");
    mode(open.parent().unwrap(), 0o777);
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&open, &path).unwrap();
    refused("open can be written by every user");
    assert!(!site.place.path("shared/redirected.db").exists());
    assert!(site.run(&["--config", path.to_str().unwrap(), "ls"], &[]).status.success());
    assert!(site.place.path("shared/redirected.db").exists(), "a named file is believed");
}

#[test]
fn a_file_of_another_user_never_redirects_locks() {
    if !Uid::effective().is_root() {
        return eprintln!("not tested: only root can give a file away");
    }
    let site = Site::new();
    let path = site.write("theirs/lockkeeper.toml", "store = 'sqlite:redirected.db'");
    let folder = path.parent().unwrap();
    for (given, other) in [(path.as_path(), folder), (folder, path.as_path())] {
        chown(given, Some(65_534), None).unwrap();
        chown(other, Some(0), None).unwrap();
        let mut run = site.lockkeeper(&["run", "a", "--", "true"]);
        let output = run.current_dir(folder).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(&format!("{} belongs to ", given.display())), "{said}");
    }
}

#[test]
fn quiet_and_ttl_are_set_for_every_run() {
    let site = Site::new();
    site.write("lockkeeper.toml", "ttl = '31s'\nquiet = true");
    let terms = |flags: &[&str], variables: &[(&str, &str)]| {
        let run = ["run", "-v", "--json", "a", "--", "true"];
        let output = site.run(&[&run[..3], flags, &run[3..]].concat(), variables);
        let said = String::from_utf8(output.stderr).unwrap();
        let lines = said.lines().filter_map(|line| serde_json::from_str(line).ok());
        let events: Vec<serde_json::Value> = lines.collect();
        let granted = events.iter().find(|event| event["event"] == "granted");
        granted.unwrap_or_else(|| panic!("{said}"))["ttl_ms"].as_u64().unwrap()
    };
    assert_eq!(terms(&[], &[]), 31_000);
    let url = ("LOCKKEEPER_STORE", "sqlite:b.db?ttl=12s");
    assert_eq!(terms(&[], &[url]), 12_000, "a URL speaks of one store, the file of all");
    assert_eq!(terms(&[], &[url, ("LOCKKEEPER_TTL", "21s")]), 21_000);
    assert_eq!(terms(&["--ttl", "11s"], &[url, ("LOCKKEEPER_TTL", "21s")]), 11_000);
    assert!(site.wrong(&[], &[("LOCKKEEPER_TTL", "soon")]).contains("LOCKKEEPER_TTL=soon: "));

    let said = |variables: &[(&str, &str)]| {
        String::from_utf8(site.run(&["ls"], variables).stderr).unwrap()
    };
    assert_eq!(said(&[]), "");
    assert!(said(&[("LOCKKEEPER_QUIET", "0")]).contains("nothing is held"));
    site.write("lockkeeper.toml", "");
    assert!(said(&[]).contains("nothing is held"));
    assert_eq!(said(&[("LOCKKEEPER_QUIET", "1")]), "");
    assert!(site.wrong(&[], &[("LOCKKEEPER_QUIET", "x")]).contains("neither 1 nor 0"));
}

#[test]
fn a_password_file_is_found_beside_the_settings_and_in_the_environment() {
    let site = Site::new();
    let beside = "[stores.prod]\nurl = 'redis://127.0.0.1:1'\npassword_file = 'pw'";
    site.write("lockkeeper.toml", beside);
    let said = site.wrong(&["--store", "prod"], &[]);
    let pw = site.place.path("pw");
    assert!(said.contains(&format!("password_file={}", pw.display())), "{said}");
    // The environment is stronger than a file, but not than a URL that says it itself.
    let variable = ("LOCKKEEPER_PASSWORD_FILE", "/nowhere/else");
    assert!(site.wrong(&["--store", "prod"], &[variable]).contains("=/nowhere/else"));
    let url = "redis://127.0.0.1:1?password_file=/here";
    assert!(site.wrong(&["--store", url], &[variable]).contains("=/here"));
    assert!(site.wrong(&["--store", "redis://127.0.0.1:1"], &[variable]).contains("=/nowhere"));
    // A store in a file has no password.
    assert_eq!(site.store(&["--store", "sqlite:a.db"], &[variable]), site.file("a.db"));
    // With the password at hand the store is asked, and is not there.
    site.write("pw", "hunter2\n");
    let output = site.run(&["-vv", "--store", "prod", "run", "-n", "a", "--", "true"], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_password_given_as_an_argument_is_not_in_the_list_of_processes() {
    let site = Site::new();
    // A store that is not there is waited for.
    let url = "redis://me:hunter2@127.0.0.1:1";
    let mut run = site.lockkeeper(&["run", "--store", url, "-w", "60", "a", "--", "true"]);
    let running = support::Running::start(&mut run);
    let shown = || fs::read_to_string(format!("/proc/{}/cmdline", running.pid())).unwrap();
    eventually(|| shown().contains("redis://me@127.0.0.1:1"));
    let shown = shown();
    assert!(!shown.contains("hunter2") && shown.contains("-w\u{0}60\u{0}a"), "{shown:?}");
    let name = || fs::read_to_string(format!("/proc/{}/comm", running.pid())).unwrap();
    eventually(|| name() == "lockkeeper\n");
    for entry in fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("arguments"), "{target:?}");
    }
}

#[test]
fn a_password_given_as_an_argument_is_warned_of_once() {
    let site = Site::new();
    let url = "redis://me:hunter2@127.0.0.1:1";
    let warned = |flags: &[&str], variables: &[(&str, &str)]| {
        let output = site.run(&[flags, &["run", "-n", "a", "--", "true"]].concat(), variables);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
        said.matches("the password in --store").count()
    };
    assert_eq!(warned(&["--store", url], &[]), 1);
    assert_eq!(warned(&["-q", "--store", url], &[]), 0);
    assert_eq!(warned(&[], &[("LOCKKEEPER_STORE", url)]), 0);
    let settings = format!("[stores.prod]\nurl = '{url}'");
    site.write("lockkeeper.toml", &settings);
    assert_eq!(warned(&["--store", "prod"], &[]), 0);
}

#[test]
fn no_verb_shows_a_password_wherever_it_came_from() {
    let site = Site::new();
    let url = "redis://me:hunter2@127.0.0.1:1/0";
    site.write("lockkeeper.toml", &format!("[stores.prod]\nurl = '{url}'"));
    let file = site.write("url", url);
    let file = ("LOCKKEEPER_STORE_FILE", file.to_str().unwrap());
    let help = String::from_utf8(site.run(&["--help"], &[]).stdout).unwrap();
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs = verbs.take_while(|line| !line.is_empty());
    let verbs: Vec<&str> = verbs.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(verbs.contains(&"run") && verbs.contains(&"ls"), "{help}");
    for verb in verbs {
        let arguments = match verb {
            "run" => vec!["run", "-n", "a", "--", "env"],
            "ls" | "migrate" | "man" | "help" => vec![verb],
            "completions" => vec![verb, "bash"],
            _ => vec![verb, "a"],
        };
        for tone in [&["-vv"][..], &["--json"], &["-vv", "--json"]] {
            for (store, variables) in [
                (&["--store", url][..], &[][..]),
                (&["--store", "prod"], &[]),
                (&[], &[("LOCKKEEPER_STORE", url)]),
                (&[], &[file]),
            ] {
                let arguments = [tone, store, &arguments].concat();
                let output = site.bounded(&arguments).envs(variables.iter().copied()).output();
                let output = output.unwrap();
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8_lossy(&said);
                assert!(!said.contains("hunter2"), "{verb} {tone:?} {store:?}: {said}");
            }
        }
    }
}

#[test]
fn completions_know_verbs_stores_and_locks() {
    let site = Site::new();
    // A server that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let stores = "store = 'dev'\n[stores.dev]\nurl = 'sqlite:dev.db'\n[stores.slow]";
    site.write("lockkeeper.toml", &format!("{stores}\nurl = 'redis://{address}'"));
    let completed = |words: &[&str]| {
        let arguments = [&["--", "lockkeeper"], words].concat();
        let variables =
            [("LOCKKEEPER_COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", &(words.len()).to_string())];
        let output = site.run(&arguments, &variables);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let listed = |words: &[&str]| {
        completed(words).into_iter().filter(|word| !word.starts_with('-')).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["sho"]), ["show"]);
    assert_eq!(completed(&["ls", "--store", ""]), ["dev", "slow"]);
    assert!(listed(&["show", ""]).is_empty(), "there is no store yet");
    assert!(!site.place.path("dev.db").exists(), "a completion makes nothing");
    let mut holders: Vec<_> = ["deploy", "orders/1", "$(reboot)", "a:b"]
        .map(|name| {
            let script = "echo in; read _ || :";
            let mut hold = site.lockkeeper(&["run", name, "--", "sh", "-c", script]);
            let mut holder = support::Running::start(&mut hold);
            assert_eq!(holder.line(), "in");
            holder
        })
        .into();
    assert_eq!(listed(&["show", ""]), ["deploy", "orders/1"]);
    assert_eq!(listed(&["run", "-n", "dep"]), ["deploy"]);
    assert_eq!(listed(&["--store", "dev", "ls", "o"]), ["orders/1"]);
    let asked = Instant::now();
    assert!(listed(&["--store", "slow", "show", ""]).is_empty(), "a store that is silent");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}: a store has 300 ms, and seconds to connect");
    assert!(listed(&["--store", "nope", "show", ""]).is_empty());
    for holder in &mut holders {
        assert!(holder.end().success());
    }
}

#[test]
fn a_variable_that_asks_for_completions_keeps_no_command_from_running() {
    let site = Site::new();
    let ran = site.run(&["run", "a", "--", "echo", "ran"], &[("LOCKKEEPER_COMPLETE", "bash")]);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "ran\n", "{ran:?}");
}

#[test]
fn bash_completes_with_the_script() {
    let site = Site::new();
    site.write("lockkeeper.toml", "store = 'dev'\n[stores.dev]\nurl = 'sqlite:dev.db'");
    let mut hold = site.lockkeeper(&["run", "deploy", "--", "sh", "-c", "echo in; read _ || :"]);
    let mut holder = support::Running::start(&mut hold);
    assert_eq!(holder.line(), "in");
    let folder = Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let script = "source <(lockkeeper completions bash) && COMP_WORDS=(lockkeeper show dep) \
                  COMP_CWORD=2 && _clap_complete_lockkeeper lockkeeper dep show 2>/dev/null; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script]).env("PATH", path).env("HOME", site.place.path(""));
    let output = bash.env_remove("LOCKKEEPER_STORE").current_dir(site.place.path("")).output();
    let output = output.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "deploy\n", "{output:?}");
    assert!(holder.end().success());
}

#[test]
fn pages_of_the_manual_are_printed_and_written() {
    let site = Site::new();
    let page = |arguments: &[&str]| {
        String::from_utf8(site.run(&[&["man"], arguments].concat(), &[]).stdout).unwrap()
    };
    assert!(page(&[]).contains(".TH lockkeeper 1"), "{}", page(&[]));
    let run = page(&["run"]);
    assert!(
        run.contains(".TH lockkeeper\\-run 1") || run.contains(".TH lockkeeper-run 1"),
        "{run}"
    );
    assert!(run.contains("lockkeeper run") && run.contains("kill\\-after"), "{run}");
    assert_eq!(site.run(&["man", "nope"], &[]).status.code(), Some(64));
    assert!(site.run(&["man", "--into", "pages"], &[]).status.success());
    for name in ["lockkeeper.1", "lockkeeper-run.1", "lockkeeper-ls.1"] {
        assert!(site.place.path("pages").join(name).exists(), "{name}");
    }
}
