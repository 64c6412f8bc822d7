//! The layout: the paths of nodes, and the names that tickets are created under.
//!
//! ```text
//! /CHROOT/PREFIX                         its data is the identity of the store
//! /CHROOT/PREFIX/lines/NAME/TICKET       the lines; NAME is percent-encoded
//! /CHROOT/PREFIX/cells/NAME              the cells
//! /CHROOT/NAME/TICKET                    the lines with `raw`, where NAME is a path
//! ```
//!
//! A ticket is `_c_UUID-lock-NUMBER` (exclusive), `_c_UUID-__READ__NUMBER` (shared), with `raw=rw`
//! `_c_UUID-__WRIT__NUMBER` (exclusive), with `raw=kazoo` `HEX__lock__NUMBER` (exclusive), or
//! `_c_UUID-WEIGHT-of-CAPACITY-permits-NUMBER`. Except for the last these are the names of Curator's and
//! kazoo's recipes. A name tells all that a line's order and admission rest on, so that one list of names
//! decides who holds the lock ([`queue`](super::queue)); a node's data is for people.

use crate::model::{
    name::Name,
    ticket::{Mode, TicketId},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What is not percent-encoded in a name. A dot is, because no node can be called `.` or `..`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// How names and tickets are written: in whose lines our tickets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Our own folder, any name.
    Own,
    /// Names are paths, and lines are those of Curator's `InterProcessMutex`.
    Mutex,
    /// Names are paths, and lines are those of Curator's `InterProcessReadWriteLock`.
    ReadWrite,
    /// Names are paths, and lines are those of kazoo's `Lock`.
    Kazoo,
}

#[derive(Clone, Debug)]
pub(super) struct Paths {
    /// Empty, or a path.
    chroot: String,
    root: String,
    dialect: Dialect,
}

impl Paths {
    pub(super) fn new(chroot: &str, prefix: &str, dialect: Dialect) -> Result<Self, String> {
        let chroot = chroot.trim_end_matches('/');
        let chroot = if chroot.is_empty() { String::new() } else { format!("/{chroot}") };
        for (what, path) in [("the path of the URL", &chroot), ("prefix=", &format!("/{prefix}"))] {
            if let Some(rule) = broken_rule(path) {
                return Err(format!("{what} cannot be a path in ZooKeeper: {rule}"));
            }
        }
        let root = format!("{chroot}/{prefix}");
        Ok(Self { chroot, root, dialect })
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    pub(super) fn is_raw(&self) -> bool {
        self.dialect != Dialect::Own
    }

    /// The folder below which all lines are.
    pub(super) fn base(&self) -> String {
        if !self.is_raw() {
            return format!("{}/lines", self.root);
        }
        if self.chroot.is_empty() { "/".to_owned() } else { self.chroot.clone() }
    }

    /// The node of a line.
    ///
    /// # Errors
    /// The rule that a raw name breaks.
    pub(super) fn line(&self, name: &Name) -> Result<String, String> {
        if !self.is_raw() {
            return Ok(format!("{}/lines/{}", self.root, encoded(name.as_str())));
        }
        let name = name.as_str();
        let path = format!("{}/{}", self.chroot, name.strip_prefix('/').unwrap_or(name));
        if let Some(rule) = broken_rule(&path) {
            return Err(rule.to_owned());
        }
        let is_in = |folder: &str| {
            path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match [SERVERS, &self.root].into_iter().find(|folder| is_in(folder)) {
            Some(SERVERS) => Err(format!("{SERVERS} is ZooKeeper's own")),
            Some(root) => Err(format!("{root} is lockkeeper's own folder")),
            None => Ok(path),
        }
    }

    /// Why a ticket of this mode is refused, in the words of an error: the clients whose lines these are
    /// ignore names that they do not know, and would be granted the lock beside it.
    pub(super) fn refusal(&self, mode: Mode) -> Option<&'static str> {
        use Dialect::{Kazoo, Mutex, Own, ReadWrite};
        match (self.dialect, mode) {
            (Own, _) | (ReadWrite, Mode::Shared) | (_, Mode::Exclusive) => None,
            (Mutex, Mode::Shared) => Some("read locks with raw=true; use raw=rw"),
            (Kazoo, Mode::Shared) => {
                Some("read locks with raw=kazoo: a kazoo Lock would not see them")
            }
            (_, Mode::Permits { .. }) => Some("semaphores with raw names; use a URL without raw"),
        }
    }

    pub(super) fn cell(&self, name: &Name) -> String {
        format!("{}/cells/{}", self.root, encoded(name.as_str()))
    }

    /// The folder to list for names with this prefix, and what precedes the nodes' own names there. With raw
    /// names only one folder is listed.
    pub(super) fn folder(&self, prefix: &str) -> (String, String) {
        if !self.is_raw() {
            return (self.base(), String::new());
        }
        match prefix.rsplit_once('/') {
            None => (self.base(), String::new()),
            Some((folder, _)) => {
                let path =
                    format!("{}/{}", self.chroot, folder.strip_prefix('/').unwrap_or(folder));
                let path = if path == "/" { path } else { path.trim_end_matches('/').to_owned() };
                (path, format!("{folder}/"))
            }
        }
    }

    /// The name of the line with this node.
    pub(super) fn name(&self, before: &str, node: &str) -> Option<Name> {
        if self.is_raw() {
            return Name::new(&format!("{before}{node}")).ok();
        }
        Name::new(&percent_decode_str(node).decode_utf8().ok()?).ok()
    }

    /// All folders above a node, the outermost first.
    pub(super) fn above(path: &str) -> impl Iterator<Item = &str> {
        path.match_indices('/').map(|(at, _)| &path[..at]).filter(|path| !path.is_empty())
    }

    /// The path to create a ticket under; the server appends the number.
    pub(super) fn ticket(&self, line: &str, id: TicketId, mode: Mode) -> String {
        let uuid = uuid(id);
        match (mode, self.dialect) {
            (Mode::Shared, _) => format!("{line}/_c_{uuid}-__READ__"),
            (Mode::Permits { weight, of }, _) => {
                format!("{line}/_c_{uuid}-{weight}-of-{of}-permits-")
            }
            (Mode::Exclusive, Dialect::ReadWrite) => format!("{line}/_c_{uuid}-__WRIT__"),
            (Mode::Exclusive, Dialect::Kazoo) => format!("{line}/{id}__lock__"),
            (Mode::Exclusive, _) => format!("{line}/_c_{uuid}-lock-"),
        }
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// The servers' own folder.
const SERVERS: &str = "/zookeeper";

/// The rule for paths that this one breaks. It begins with a slash.
fn broken_rule(path: &str) -> Option<&'static str> {
    let any = |is: fn(&str) -> bool| path.split('/').skip(1).any(is);
    let refused = |c| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..);
    if any(str::is_empty) {
        return Some("no part of the path may be empty, as after a slash at its end");
    }
    if any(|part| part == "." || part == "..") {
        return Some("no part of the path may be `.` or `..`");
    }
    let characters =
        "ZooKeeper takes no control characters, none for private use and none above U+FFEF";
    path.chars().any(refused).then_some(characters)
}

/// The id as Curator writes it.
fn uuid(id: TicketId) -> String {
    let hex = id.to_string();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paths(dialect: Dialect) -> Paths {
        Paths::new("", "lk", dialect).unwrap()
    }

    #[test]
    fn the_names_are_those_of_curator_and_kazoo() {
        let id: TicketId = "00112233445566778899aabbccddeeff".parse().unwrap();
        let of = |dialect, mode| paths(dialect).ticket("/l", id, mode);
        let uuid = "00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(of(Dialect::Mutex, Mode::Exclusive), format!("/l/_c_{uuid}-lock-"));
        assert_eq!(of(Dialect::ReadWrite, Mode::Exclusive), format!("/l/_c_{uuid}-__WRIT__"));
        assert_eq!(of(Dialect::ReadWrite, Mode::Shared), format!("/l/_c_{uuid}-__READ__"));
        assert_eq!(of(Dialect::Kazoo, Mode::Exclusive), format!("/l/{id}__lock__"));
    }

    /// Another client's lock is not kept out by names that it ignores.
    #[test]
    fn raw_lines_take_only_what_the_other_clients_see() {
        let permits = Mode::Permits { weight: 1, of: 1 };
        for (dialect, shared, semaphore) in [
            (Dialect::Own, true, true),
            (Dialect::Mutex, false, false),
            (Dialect::ReadWrite, true, false),
            (Dialect::Kazoo, false, false),
        ] {
            let paths = paths(dialect);
            let knows =
                [Mode::Exclusive, Mode::Shared, permits].map(|mode| paths.refusal(mode).is_none());
            assert_eq!(knows, [true, shared, semaphore], "{dialect:?}");
        }
    }

    #[test]
    fn raw_names_are_paths_or_nothing() {
        let raw = Paths::new("app", "lk", Dialect::Mutex).unwrap();
        let line = |name: &str| raw.line(&Name::new(name).unwrap());
        for name in ["a/b", "a", "zookeeper", "lk2", "a/lk"] {
            assert_eq!(line(name), Ok(format!("/app/{name}")));
            assert_eq!(line(&format!("/{name}")), line(name));
        }
        for name in ["a/", "a//b", "//a", "/", "//"] {
            assert!(line(name).unwrap_err().contains("empty"), "{name}");
        }
        for name in [".", "a/..", "/./a"] {
            assert!(line(name).unwrap_err().contains("`.`"), "{name}");
        }
        assert!(line("\u{1f512}").unwrap_err().contains("U+FFEF"));
        assert!(line("lk").unwrap_err().contains("lockkeeper's"));
        assert!(line("/lk/lines/a").unwrap_err().contains("lockkeeper's"));
        let top = |name: &str| paths(Dialect::Mutex).line(&Name::new(name).unwrap());
        assert!(top("zookeeper/quota").unwrap_err().contains("ZooKeeper's"));
        assert_eq!(top("zookeepers").as_deref(), Ok("/zookeepers"));
        assert_eq!(raw.folder("a/b"), ("/app/a".to_owned(), "a/".to_owned()));
        assert_eq!(raw.folder("b"), ("/app".to_owned(), String::new()));
        let above: Vec<&str> = Paths::above("/app/a/b").collect();
        assert_eq!(above, ["/app", "/app/a"]);
        assert!(Paths::new("a/../b", "lk", Dialect::Own).is_err());
        assert!(Paths::new("", "", Dialect::Own).is_err());
    }

    proptest! {
        #[test]
        fn a_name_is_read_back_from_its_node(text in "\\PC{1,60}") {
            let (paths, name) = (paths(Dialect::Own), Name::new(&text).unwrap());
            let line = paths.line(&name).unwrap();
            prop_assert_eq!(broken_rule(&line), None);
            let node = line.strip_prefix("/lk/lines/").unwrap();
            prop_assert!(!node.contains('/'));
            prop_assert_eq!(paths.name("", node), Some(name));
        }
    }
}
