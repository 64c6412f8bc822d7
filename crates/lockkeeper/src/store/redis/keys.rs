//! Names of keys. One bucket's keys share a hash tag, so that they live in one slot of a cluster.

use crate::model::name::Name;

/// Buckets on a cluster. One server needs one.
pub(super) const CLUSTER_BUCKETS: u32 = 64;

/// The keys of one bucket.
#[derive(Clone)]
pub(super) struct Keys {
    stem: String,
    ends: String,
    sessions: String,
    numbers: String,
    own: String,
    closed: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, bucket: u32) -> Self {
        let stem = format!("{prefix}:{{{bucket}}}:");
        let of_bucket = |kind| format!("{stem}{kind}");
        Self {
            ends: of_bucket("e"),
            sessions: of_bucket("s"),
            numbers: of_bucket("n"),
            own: of_bucket("o"),
            closed: of_bucket("x"),
            stem,
        }
    }

    fn of_name(&self, kind: &str, name: &Name) -> String {
        [&self.stem, kind, ":", name.as_str()].concat()
    }

    pub(super) fn ends(&self) -> &str {
        &self.ends
    }

    pub(super) fn sessions(&self) -> &str {
        &self.sessions
    }

    pub(super) fn numbers(&self) -> &str {
        &self.numbers
    }

    pub(super) fn own(&self) -> &str {
        &self.own
    }

    pub(super) fn closed(&self) -> &str {
        &self.closed
    }

    pub(super) fn meta(&self) -> String {
        format!("{}meta", self.stem)
    }

    /// The keys of this bucket and of this name, each with the type that belongs there.
    pub(super) fn kinds(&self, name: Option<&Name>) -> Vec<(String, &'static str)> {
        let of_bucket = [
            (self.ends(), "zset"),
            (self.sessions(), "hash"),
            (self.numbers(), "zset"),
            (self.own(), "zset"),
            (self.closed(), "zset"),
        ];
        let mut kinds: Vec<_> = of_bucket.map(|(key, kind)| (key.to_owned(), kind)).into();
        if let Some(name) = name {
            let of_name = [(self.order(name), "zset"), (self.tickets(name), "hash")];
            kinds.extend(of_name.into_iter().chain([(self.cell(name), "hash")]));
        }
        kinds
    }

    pub(super) fn order(&self, name: &Name) -> String {
        self.of_name("z", name)
    }

    pub(super) fn tickets(&self, name: &Name) -> String {
        self.of_name("t", name)
    }

    pub(super) fn cell(&self, name: &Name) -> String {
        self.of_name("c", name)
    }
}

/// The bucket of a name: the same for every client of every version (FNV-1a).
pub(super) fn bucket(name: &Name, buckets: u32) -> u32 {
    let hash = name
        .as_str()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_braces_stay_in_the_slot_of_their_bucket() {
        let keys = Keys::new("lk", 7);
        for name in ["a", "{b}", "}{", "{}"] {
            let key = keys.order(&Name::new(name).unwrap());
            let tag = &key[key.find('{').unwrap() + 1..key.find('}').unwrap()];
            assert_eq!(tag, "7");
        }
    }

    /// The keys of a bucket have no colon behind their letter, those of a line have one; and no prefix has the
    /// brace that ends it.
    #[test]
    fn no_name_and_no_prefix_leads_to_the_key_of_another() {
        let names =
            ["a", "e", "s", "meta", ":e", "e:", "z:a", "t:a", "{0}:s", "lk:{0}:s", "lk:{0}:t:a"];
        let mut seen = std::collections::BTreeSet::new();
        for prefix in ["lk", "lk:", "lk:z", "z", ":"] {
            for bucket in [0, 1] {
                let keys = Keys::new(prefix, bucket);
                assert!(seen.insert(keys.meta()));
                for (key, _) in keys.kinds(None) {
                    assert!(seen.insert(key));
                }
                for name in names.map(|name| Name::new(name).unwrap()) {
                    for key in [keys.order(&name), keys.tickets(&name), keys.cell(&name)] {
                        assert!(seen.insert(key.clone()), "{key} stands for two things");
                    }
                }
            }
        }
    }

    #[test]
    fn the_bucket_of_a_name_never_changes() {
        let of = |name| bucket(&Name::new(name).unwrap(), 64);
        assert_eq!((of("a"), of("orders/42"), of("é")), (of("a"), of("orders/42"), of("é")));
        assert_eq!(bucket(&Name::new("a").unwrap(), 1), 0);
    }
}
