//! Names of keys. The keys of one bucket share a hash tag, so a cluster keeps them in one slot.

use crate::model::name::Name;

/// Buckets on a cluster. One server needs one.
pub(super) const CLUSTER_BUCKETS: u32 = 64;

/// The keys of one bucket; `common.lua` says what each of them holds.
#[derive(Clone)]
pub(super) struct Keys {
    stem: String,
    pub(super) ends: String,
    pub(super) sessions: String,
    pub(super) numbers: String,
    pub(super) own: String,
    pub(super) closed: String,
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

    pub(super) fn meta(&self) -> String {
        format!("{}meta", self.stem)
    }

    /// The keys that the scripts over a whole bucket begin with.
    pub(super) fn bucket(&self) -> [&str; 5] {
        [&self.ends, &self.sessions, &self.numbers, &self.own, &self.closed]
    }

    /// The keys of a name's line.
    pub(super) fn line(&self, name: &Name) -> [String; 2] {
        [self.of_name("z", name), self.tickets(name)]
    }

    pub(super) fn tickets(&self, name: &Name) -> String {
        self.of_name("t", name)
    }

    pub(super) fn cell(&self, name: &Name) -> String {
        self.of_name("c", name)
    }

    /// The keys of this bucket and of this name, each with the type that locks keep there.
    pub(super) fn types(&self, name: Option<&Name>) -> Vec<(String, &'static str)> {
        let of_bucket = self.bucket().map(str::to_owned);
        let mut types: Vec<_> =
            of_bucket.into_iter().zip(["zset", "hash", "zset", "zset", "zset"]).collect();
        if let Some(name) = name {
            let [order, tickets] = self.line(name);
            types.extend([(order, "zset"), (tickets, "hash"), (self.cell(name), "hash")]);
        }
        types
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
            let [key, _] = keys.line(&Name::new(name).unwrap());
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
                for (key, _) in keys.types(None) {
                    assert!(seen.insert(key));
                }
                for name in names.map(|name| Name::new(name).unwrap()) {
                    let [order, tickets] = keys.line(&name);
                    for key in [order, tickets, keys.cell(&name)] {
                        assert!(seen.insert(key.clone()), "{key} stands for two things");
                    }
                }
            }
        }
    }

    #[test]
    fn the_bucket_of_a_name_never_changes() {
        let of = |name| bucket(&Name::new(name).unwrap(), 64);
        assert_eq!((of("a"), of("orders/42"), of("é")), (44, 31, 1));
        assert_eq!(bucket(&Name::new("a").unwrap(), 1), 0);
    }
}
