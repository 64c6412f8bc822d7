//! Paths, and the names of nodes: what they say and in which order they stand.
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
//! `_c_UUID-WEIGHT-of-CAPACITY-permits-NUMBER`. These are the names of Curator's and kazoo's recipes,
//! and everything that a line's order and admission rest on is in them: one list of names decides.

use crate::model::{
    admission::{Room, admitted},
    name::Name,
    ticket::{Mode, TicketId},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What stays as it is in a name. A dot does not: `.` and `..` are no names for a node.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// How names and tickets are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Our own folder, any name.
    Own,
    /// Names are paths, and lines are those of `InterProcessMutex` and its like.
    Mutex,
    /// Names are paths, and lines are those of `InterProcessReadWriteLock`.
    ReadWrite,
    /// Names are paths, and lines are those of kazoo's `Lock`.
    Kazoo,
}

#[derive(Clone, Debug)]
pub(super) struct Paths {
    /// Empty or a path.
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

    /// Why a ticket of this mode cannot be taken, in the words of an error: the clients whose lines these
    /// are would not see its node, and would be granted the lock beside it.
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

    /// Whether a ticket of this mode can be taken.
    pub(super) fn knows(&self, mode: Mode) -> bool {
        self.refusal(mode).is_none()
    }

    pub(super) fn cell(&self, name: &Name) -> String {
        format!("{}/cells/{}", self.root, encoded(name.as_str()))
    }

    /// Where to look for names that begin so, and what stands before the nodes' own names there. With
    /// raw names only one folder is looked into.
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

    /// The name of the line whose node is called so.
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

    /// What a ticket is created as; the server appends the number.
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

/// Where the servers keep what is theirs.
const SERVERS: &str = "/zookeeper";

/// Which of ZooKeeper's rules for paths this one breaks, which begins with a slash.
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

/// A ticket as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The node's name within its line.
    pub(super) node: String,
    pub(super) id: TicketId,
    pub(super) mode: Mode,
    /// The number that the server gave it: its parent's count of creations, which wraps.
    number: i32,
}

/// What precedes the number, of our own recipes and others'. What none of them matches and still ends
/// with ten digits is taken for exclusive.
const MARKS: &[(&str, Mode)] = &[
    ("lock-", Mode::Exclusive),
    ("__WRIT__", Mode::Exclusive),
    ("__READ__", Mode::Shared),
    ("__lock__", Mode::Exclusive),
    ("__rlock__", Mode::Shared),
];

impl Spot {
    /// `None` if the node is no ticket.
    pub(super) fn read(node: &str) -> Option<Self> {
        let marked = |(mark, mode): &(&str, Mode)| {
            let (_, number) = node.rsplit_once(mark)?;
            Some((number_of(number)?, *mode))
        };
        let (number, mode) =
            MARKS.iter().find_map(marked).or_else(|| permits(node)).or_else(|| unmarked(node))?;
        Some(Self { node: node.to_owned(), id: id_of(node), mode, number })
    }
}

/// At least ten characters, the minus sign among them: the server's way to write a number.
pub(super) fn number_of(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let fits = text.len() >= 10 && digits.bytes().all(|b| b.is_ascii_digit());
    if fits { text.parse().ok() } else { None }
}

/// A number at the end of a name that says nothing else. A dash before ten digits may be a sign or end
/// what precedes the number.
fn unmarked(node: &str) -> Option<(i32, Mode)> {
    let digits = node.len().checked_sub(10)?;
    let positive = node.get(digits..).and_then(number_of);
    let negative = || node.get(digits.checked_sub(1)?..).and_then(number_of);
    let number = match positive {
        Some(number) if !node[..digits].ends_with("--") => number,
        _ => negative()?,
    };
    Some((number, Mode::Exclusive))
}

fn permits(node: &str) -> Option<(i32, Mode)> {
    let (head, number) = node.rsplit_once("-permits-")?;
    let (head, of) = head.rsplit_once("-of-")?;
    let (_, weight) = head.rsplit_once('-')?;
    let (weight, of) = (weight.parse().ok()?, of.parse().ok()?);
    Some((number_of(number)?, Mode::Permits { weight, of }))
}

/// The id in a node's name. Where there is none, one that is always the same for the name.
fn id_of(node: &str) -> TicketId {
    let rest = node.strip_prefix("_c_").unwrap_or(node);
    let dashed = rest.get(..36).map(|id| id.replace('-', ""));
    let plain = rest.get(..32).map(str::to_owned);
    let id = [dashed, plain].into_iter().flatten().find_map(|id| id.parse().ok());
    id.unwrap_or_else(|| {
        // FNV-1a of 128 bits: the same in every process.
        let hash =
            node.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
                (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
            });
        TicketId::from_bytes(hash.to_be_bytes())
    })
}

/// A line, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue(pub(super) Vec<Spot>);

impl Queue {
    /// The tickets among a node's children. Numbers wrap after 2³¹ creations, so they are compared by
    /// their distance from one of them; equal ones (a read under one's own write) by name.
    pub(super) fn of(children: &[String]) -> Self {
        let mut spots: Vec<Spot> = children.iter().filter_map(|node| Spot::read(node)).collect();
        if let Some(origin) = spots.first().map(|spot| spot.number) {
            spots.sort_by(|a, b| {
                let distance = |spot: &Spot| spot.number.wrapping_sub(origin);
                distance(a).cmp(&distance(b)).then_with(|| a.node.cmp(&b.node))
            });
        }
        Self(spots)
    }

    /// What the line has to give; 0 if nobody stands in it.
    pub(super) fn capacity(&self) -> u32 {
        self.0.first().map_or(0, |spot| spot.mode.capacity())
    }

    /// How many at the head are admitted.
    pub(super) fn admitted(&self) -> usize {
        admitted(self.0.iter().map(|spot| spot.mode.weight()), self.capacity())
    }

    /// Would one more ticket be admitted at its end?
    pub(super) fn fits(&self, mode: Mode) -> bool {
        let mut room = Room::of(if self.0.is_empty() { mode.capacity() } else { self.capacity() });
        self.0.iter().all(|spot| room.admit(spot.mode.weight())) && room.admit(mode.weight())
    }

    pub(super) fn position(&self, id: TicketId) -> Option<usize> {
        self.0.iter().position(|spot| spot.id == id)
    }

    /// Where a ticket stands. Once its node is known, it is that node and no other: a creation whose
    /// answer came late can have made another one under the same id.
    pub(super) fn place(&self, id: TicketId, path: Option<&str>) -> Option<usize> {
        let Some(path) = path else { return self.position(id) };
        let node = path.rsplit('/').next();
        self.0.iter().position(|spot| Some(spot.node.as_str()) == node)
    }

    /// Those who keep a waiting ticket out: as long as all of them stand it cannot go, whatever becomes of
    /// the others. The nearest ones, and none too many: in a plain line it is one node.
    pub(super) fn obstacles(&self, at: usize) -> Vec<&Spot> {
        let weight = |spot: &Spot| u64::from(spot.mode.weight());
        let (capacity, mut sum) = (u64::from(self.capacity()), weight(&self.0[at]));
        let mut found = Vec::new();
        for spot in self.0[..at].iter().rev() {
            if sum > capacity {
                break;
            }
            sum += weight(spot);
            found.push(spot);
        }
        found.retain(|spot| {
            let spare = sum - weight(spot) > capacity;
            sum -= if spare { weight(spot) } else { 0 };
            !spare
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ticket::PLAIN_CAPACITY;
    use proptest::{collection::vec, prelude::*};

    fn paths(dialect: Dialect) -> Paths {
        Paths::new("", "lk", dialect).unwrap()
    }

    fn line(nodes: &[&str]) -> Vec<String> {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        Queue::of(&nodes).0.into_iter().map(|spot| spot.node).collect()
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

    /// What another client's lock does not look for would not keep it out.
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
            let knows = [Mode::Exclusive, Mode::Shared, permits].map(|mode| paths.knows(mode));
            assert_eq!(knows, [true, shared, semaphore], "{dialect:?}");
        }
    }

    #[test]
    fn what_others_write_is_understood() {
        let hex = "00112233445566778899aabbccddeeff";
        let id: TicketId = hex.parse().unwrap();
        for (node, mode) in [
            (format!("_c_{hex}-lock-0000000007"), Mode::Exclusive),
            (format!("{hex}__lock__0000000007"), Mode::Exclusive),
            (format!("{hex}__rlock__0000000007"), Mode::Shared),
            (format!("_c_{}-latch-0000000007", uuid(id)), Mode::Exclusive),
        ] {
            let spot = Spot::read(&node).unwrap();
            assert_eq!((spot.id, spot.mode, spot.number), (id, mode, 7), "{node}");
        }
        let strange = Spot::read("x-12345-0000000009").unwrap();
        assert_eq!((strange.mode, strange.number), (Mode::Exclusive, 9));
        assert_eq!(Some(strange.id), Spot::read("x-12345-0000000009").map(|spot| spot.id));
        for (node, number) in
            [("x-9--2147483648", i32::MIN), ("x-9--0000000001", -1), ("n-2147483648", i32::MIN)]
        {
            assert_eq!(Spot::read(node).map(|spot| spot.number), Some(number), "{node}");
        }
        for node in ["leases", "locks", "", "lock-7", "é", "a-lock-00000000x7"] {
            assert_eq!(Spot::read(node), None, "{node}");
        }
    }

    #[test]
    fn numbers_that_wrap_keep_their_order() {
        let wrapped =
            ["a-lock-2147483646", "b-lock-2147483647", "c-lock--2147483648", "d-lock--2147483647"];
        let mixed = [wrapped[2], wrapped[0], wrapped[3], wrapped[1]];
        assert_eq!(line(&mixed), wrapped);
        let around_zero = ["b-lock--000000001", "a-lock-0000000000"];
        assert_eq!(line(&[around_zero[1], around_zero[0]]), around_zero);
    }

    #[test]
    fn a_waiter_watches_only_who_stands_in_its_way() {
        let nodes = [
            "a__rlock__0000000001",
            "b-lock-0000000002",
            "c__rlock__0000000003",
            "d__rlock__0000000004",
            "e-lock-0000000005",
        ];
        let queue = Queue::of(&nodes.map(str::to_owned));
        let obstacles = |at| {
            let spots = queue.obstacles(at);
            spots.into_iter().map(|spot| spot.node.as_str()).collect::<Vec<_>>()
        };
        assert_eq!((queue.admitted(), queue.capacity()), (1, PLAIN_CAPACITY));
        assert_eq!(obstacles(1), [nodes[0]]);
        assert_eq!((obstacles(2), obstacles(3)), (vec![nodes[1]], vec![nodes[1]]));
        assert_eq!(obstacles(4), [nodes[3]]);
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

        #[test]
        fn a_ticket_is_read_back_from_its_node(
            bytes in any::<[u8; 16]>(), number in any::<i32>(), weight in 1u32..9, more in 0u32..9,
        ) {
            let id = TicketId::from_bytes(bytes);
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { weight, of: weight + more }] {
                let node = format!("{}{number:010}", paths(Dialect::Own).ticket("", id, mode));
                let spot = Spot::read(&node[1..]).unwrap();
                prop_assert_eq!((spot.id, spot.mode), (id, mode));
                // Rust counts the sign among the ten, and so does the server's Java.
                prop_assert_eq!(spot.number, number);
            }
        }

        /// With all of its obstacles it must wait, and without any one of them it could go if only the
        /// others of them stood there.
        #[test]
        fn a_waiter_has_as_many_obstacles_as_it_takes(
            weights in vec(1u32..5, 1..40), of in 4u32..12,
        ) {
            let node = |(at, weight)| format!("{at}-{weight}-of-{of}-permits-{at:010}");
            let queue = Queue::of(&weights.iter().enumerate().map(node).collect::<Vec<_>>());
            for (at, own) in weights.iter().enumerate().skip(queue.admitted()) {
                let obstacles: Vec<u32> =
                    queue.obstacles(at).iter().map(|spot| spot.mode.weight()).collect();
                let sum = obstacles.iter().sum::<u32>() + own;
                prop_assert!(sum > of);
                prop_assert!(obstacles.iter().all(|weight| sum - weight <= of));
            }
        }

        #[test]
        fn the_order_does_not_depend_on_where_the_count_stands(
            start in any::<i32>(), gaps in vec(1i32..1000, 1..40), seed in any::<u64>(),
        ) {
            let mut number = start;
            let mut nodes = Vec::new();
            for (at, gap) in gaps.iter().enumerate() {
                nodes.push(format!("{at}-lock-{number:010}"));
                number = number.wrapping_add(*gap);
            }
            let wanted = nodes.clone();
            let turn = usize::try_from(seed % nodes.len() as u64).unwrap();
            nodes.rotate_left(turn);
            let seen: Vec<String> = Queue::of(&nodes).0.into_iter().map(|s| s.node).collect();
            prop_assert_eq!(seen, wanted);
        }
    }
}
