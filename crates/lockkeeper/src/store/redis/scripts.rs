//! The scripts, each with the common part in it.

use redis::Script;
use std::sync::LazyLock;

macro_rules! scripts {
    ($($name:ident),*) => {
        pub(super) struct Scripts { $(pub(super) $name: Script),* }

        /// All scripts, hashed once.
        pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
            let common = include_str!("common.lua");
            Scripts { $($name: script(common, include_str!(concat!(stringify!($name), ".lua")))),* }
        });
    };
}
scripts!(meta, open, join, renew, close, enter, leave, poll, edit, put, check, show, evict);

/// The line of a script that the common part replaces. What stands before it needs no function from there:
/// making these functions costs the server about as much as a command, and the usual case uses none of them.
const COMMON_HERE: &str = "-- common.lua\n";

/// Leaves the comments out, because the server keeps and hashes the text as it is sent.
fn script(common: &str, own: &str) -> Script {
    let (first, rest) = own.split_once(COMMON_HERE).unwrap_or(("", own));
    let lines = [first, common, rest].into_iter().flat_map(str::lines);
    let code: Vec<&str> = lines.filter(|line| !line.trim_start().starts_with("--")).collect();
    Script::new(&code.join("\n"))
}

#[cfg(test)]
mod tests {
    /// `redis.call('ZADD', …)` needs `+zadd`.
    #[test]
    fn every_command_of_the_scripts_is_among_the_documented_rights() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
        let rights = include_str!("../../../../../docs/redis.md");
        let rights: Vec<&str> = rights.split([' ', '\n', '`']).collect();
        let mut commands = 0;
        for folder in ["redis", "redlock", "redlock/string"].map(|part| folder.join(part)) {
            for file in std::fs::read_dir(folder).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_none_or(|extension| extension != "lua") {
                    continue;
                }
                let script = std::fs::read_to_string(&path).unwrap();
                for call in script.split("redis.call('").skip(1) {
                    let command = call.split('\'').next().unwrap().to_lowercase();
                    let right = format!("+{command}");
                    assert!(rights.contains(&right.as_str()), "{right} for {}", path.display());
                    commands += 1;
                }
            }
        }
        assert!(commands > 50, "{commands}");
    }
}
