//! The scripts, each with the common part before its own.

use redis::Script;

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
scripts!(open, renew, close, enter, leave, poll, strays, edit, check, show, evict, sweep);

/// Comments stay with us: the server keeps and hashes the text as it is sent.
fn script(common: &str, own: &str) -> Script {
    let lines = common.lines().chain(own.lines());
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
