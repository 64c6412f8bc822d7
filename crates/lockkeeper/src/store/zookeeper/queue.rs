//! A line as one list of its nodes' names tells it: which tickets there are, in which order, and which of
//! them are granted.

use super::client::{self, Answer, Reply, if_there};
use crate::{
    model::{
        admission::{Room, admitted},
        ticket::{Mode, TicketId},
    },
    store::common::text::hashed_id,
};

/// A ticket as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TicketNode {
    /// The node's name within its line.
    pub(super) node: String,
    pub(super) id: TicketId,
    pub(super) mode: Mode,
    /// The number that the server has appended: its parent's count of creations, which wraps.
    number: i32,
}

/// What precedes the number, in our recipes and others'. A name that matches none of these and still ends
/// with ten digits is taken for exclusive.
const MARKS: &[(&str, Mode)] = &[
    ("lock-", Mode::Exclusive),
    ("__WRIT__", Mode::Exclusive),
    ("__READ__", Mode::Shared),
    ("__lock__", Mode::Exclusive),
    ("__rlock__", Mode::Shared),
];

impl TicketNode {
    /// The ticket whose node has this path.
    pub(super) fn at(path: &str) -> Option<Self> {
        path.rsplit('/').next().and_then(Self::read)
    }

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

/// At least ten characters, the minus sign among them: so the server writes a number.
fn number_of(text: &str) -> Option<i32> {
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

/// The id in a node's name. A name without one gets an id that is always the same for the name.
fn id_of(node: &str) -> TicketId {
    let rest = node.strip_prefix("_c_").unwrap_or(node);
    let dashed = rest.get(..36).map(|id| id.replace('-', ""));
    let plain = rest.get(..32).map(str::to_owned);
    let id = [dashed, plain].into_iter().flatten().find_map(|id| id.parse().ok());
    id.unwrap_or_else(|| hashed_id(node.as_bytes()))
}

/// The tickets of a line, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue(pub(super) Vec<TicketNode>);

impl Queue {
    /// The answer to a request for the line's children. A line without a node is empty.
    pub(super) fn read(list: Answer) -> Result<Self, client::Error> {
        Ok(if_there(list, Reply::names)?.map_or_else(Self::default, |names| Self::of(&names)))
    }

    /// The tickets among a node's children. Numbers wrap after 2³¹ creations, so they are compared by
    /// their distance from one of them; equal ones (a read under one's own write) by name.
    pub(super) fn of(children: &[String]) -> Self {
        let mut nodes: Vec<TicketNode> =
            children.iter().filter_map(|node| TicketNode::read(node)).collect();
        if let Some(origin) = nodes.first().map(|node| node.number) {
            nodes.sort_by(|a, b| {
                let distance = |node: &TicketNode| node.number.wrapping_sub(origin);
                distance(a).cmp(&distance(b)).then_with(|| a.node.cmp(&b.node))
            });
        }
        Self(nodes)
    }

    /// The line's capacity; 0 if it is empty.
    pub(super) fn capacity(&self) -> u32 {
        self.0.first().map_or(0, |ticket| ticket.mode.capacity())
    }

    /// How many tickets at the head are granted.
    pub(super) fn admitted(&self) -> usize {
        admitted(self.0.iter().map(|ticket| ticket.mode.weight()), self.capacity())
    }

    /// Would one more ticket be granted at the end?
    pub(super) fn fits(&self, mode: Mode) -> bool {
        let mut room = Room::of(if self.0.is_empty() { mode.capacity() } else { self.capacity() });
        self.0.iter().all(|ticket| room.admit(ticket.mode.weight())) && room.admit(mode.weight())
    }

    /// The path of a ticket's node in this line.
    pub(super) fn path(&self, line: &str, at: usize) -> String {
        format!("{line}/{}", self.0[at].node)
    }

    pub(super) fn position(&self, id: TicketId) -> Option<usize> {
        self.0.iter().position(|ticket| ticket.id == id)
    }

    /// A ticket's place. Once its node is known, it is the place of that node: a creation that was sent twice
    /// can have created a second node under the same id.
    pub(super) fn place(&self, id: TicketId, path: Option<&str>) -> Option<usize> {
        let Some(path) = path else { return self.position(id) };
        let node = path.rsplit('/').next();
        self.0.iter().position(|ticket| Some(ticket.node.as_str()) == node)
    }

    /// The nearest tickets that together keep out the one at this place: as long as all of them are there it
    /// cannot be granted, whatever becomes of the others. In a plain line it is one ticket.
    pub(super) fn blockers(&self, at: usize) -> Vec<&TicketNode> {
        let weight = |ticket: &TicketNode| u64::from(ticket.mode.weight());
        let (capacity, mut sum) = (u64::from(self.capacity()), weight(&self.0[at]));
        let mut found = Vec::new();
        for ticket in self.0[..at].iter().rev() {
            if sum > capacity {
                break;
            }
            sum += weight(ticket);
            found.push(ticket);
        }
        found.retain(|ticket| {
            let spare = sum - weight(ticket) > capacity;
            sum -= if spare { weight(ticket) } else { 0 };
            !spare
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::names::{Dialect, Paths},
        *,
    };
    use crate::model::ticket::PLAIN_CAPACITY;
    use proptest::{collection::vec, prelude::*};

    fn line(nodes: &[&str]) -> Vec<String> {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        Queue::of(&nodes).0.into_iter().map(|ticket| ticket.node).collect()
    }

    #[test]
    fn the_names_of_other_clients_tickets_are_understood() {
        let hex = "00112233445566778899aabbccddeeff";
        let (id, dashed): (TicketId, _) =
            (hex.parse().unwrap(), "00112233-4455-6677-8899-aabbccddeeff");
        for (node, mode) in [
            (format!("_c_{hex}-lock-0000000007"), Mode::Exclusive),
            (format!("{hex}__lock__0000000007"), Mode::Exclusive),
            (format!("{hex}__rlock__0000000007"), Mode::Shared),
            (format!("_c_{dashed}-latch-0000000007"), Mode::Exclusive),
        ] {
            let ticket = TicketNode::read(&node).unwrap();
            assert_eq!((ticket.id, ticket.mode, ticket.number), (id, mode, 7), "{node}");
        }
        let strange = TicketNode::read("x-12345-0000000009").unwrap();
        assert_eq!((strange.mode, strange.number), (Mode::Exclusive, 9));
        assert_eq!(
            Some(strange.id),
            TicketNode::read("x-12345-0000000009").map(|ticket| ticket.id)
        );
        for (node, number) in
            [("x-9--2147483648", i32::MIN), ("x-9--0000000001", -1), ("n-2147483648", i32::MIN)]
        {
            assert_eq!(TicketNode::read(node).map(|ticket| ticket.number), Some(number), "{node}");
        }
        for node in ["leases", "locks", "", "lock-7", "é", "a-lock-00000000x7"] {
            assert_eq!(TicketNode::read(node), None, "{node}");
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
    fn a_waiter_is_blocked_by_the_nearest_tickets_that_leave_it_no_room() {
        let nodes = [
            "a__rlock__0000000001",
            "b-lock-0000000002",
            "c__rlock__0000000003",
            "d__rlock__0000000004",
            "e-lock-0000000005",
        ];
        let queue = Queue::of(&nodes.map(str::to_owned));
        let blockers = |at| {
            let tickets = queue.blockers(at);
            tickets.into_iter().map(|ticket| ticket.node.as_str()).collect::<Vec<_>>()
        };
        assert_eq!((queue.admitted(), queue.capacity()), (1, PLAIN_CAPACITY));
        assert_eq!(blockers(1), [nodes[0]]);
        assert_eq!((blockers(2), blockers(3)), (vec![nodes[1]], vec![nodes[1]]));
        assert_eq!(blockers(4), [nodes[3]]);
    }

    proptest! {
        #[test]
        fn a_ticket_is_read_back_from_its_node(
            bytes in any::<[u8; 16]>(), number in any::<i32>(), weight in 1u32..9, more in 0u32..9,
        ) {
            let (id, paths) = (TicketId::from_bytes(bytes), Paths::new("", "lk", Dialect::Own).unwrap());
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { weight, of: weight + more }] {
                let node = format!("{}{number:010}", paths.ticket("", id, mode));
                let ticket = TicketNode::read(&node[1..]).unwrap();
                prop_assert_eq!((ticket.id, ticket.mode), (id, mode));
                // Rust counts the sign among the ten, and so does the server's Java.
                prop_assert_eq!(ticket.number, number);
            }
        }

        /// With all of its blockers a ticket has to wait; with all but one of them, and no other ticket
        /// before it, it would be granted.
        #[test]
        fn a_waiter_has_only_the_blockers_that_it_takes(
            weights in vec(1u32..5, 1..40), of in 4u32..12,
        ) {
            let node = |(at, weight)| format!("{at}-{weight}-of-{of}-permits-{at:010}");
            let queue = Queue::of(&weights.iter().enumerate().map(node).collect::<Vec<_>>());
            for (at, own) in weights.iter().enumerate().skip(queue.admitted()) {
                let blockers: Vec<u32> =
                    queue.blockers(at).iter().map(|ticket| ticket.mode.weight()).collect();
                let sum = blockers.iter().sum::<u32>() + own;
                prop_assert!(sum > of);
                prop_assert!(blockers.iter().all(|weight| sum - weight <= of));
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
