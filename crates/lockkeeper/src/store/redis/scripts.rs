//! The scripts, each with the common part in it.

use crate::model::name::Name;
use redis::{Cmd, Script};

macro_rules! scripts {
    ($($name:ident),*) => {
        /// All scripts, hashed once.
        pub(super) struct Scripts { $(pub(super) $name: Script),* }

        impl Scripts {
            pub(super) fn new() -> Self {
                let common = include_str!("common.lua");
                Self { $($name: script(common, include_str!(concat!(stringify!($name), ".lua")))),* }
            }
        }
    };
}
scripts!(meta, open, join, renew, close, enter, leave, poll, edit, check, show, evict);

/// Where the common part goes. What stands before it in a script needs nothing from there: the usual
/// case should not pay for functions that it does not use.
const COMMON_HERE: &str = "-- common.lua\n";

/// Comments stay with us: the server keeps and hashes the text as it is sent.
fn script(common: &str, own: &str) -> Script {
    let (first, rest) = own.split_once(COMMON_HERE).unwrap_or(("", own));
    let lines = [first, common, rest].into_iter().flat_map(str::lines);
    let code: Vec<&str> = lines.filter(|line| !line.trim_start().starts_with("--")).collect();
    Script::new(&code.join("\n"))
}

/// A call of a script with so many keys, with room for all that a line of this name needs.
pub(super) fn evalsha(script: &Script, keys: usize, name: &Name, more: usize) -> Cmd {
    let mut call = Cmd::with_capacity(20, 512 + 3 * name.as_str().len() + more);
    call.arg("EVALSHA").arg(script.get_hash()).arg(keys);
    call
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
