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
scripts!(open, renew, close, enter, leave, poll, edit, check, show, evict, sweep);

/// Comments stay with us: the server keeps and hashes the text as it is sent.
fn script(common: &str, own: &str) -> Script {
    let lines = common.lines().chain(own.lines());
    let code: Vec<&str> = lines.filter(|line| !line.trim_start().starts_with("--")).collect();
    Script::new(&code.join("\n"))
}
