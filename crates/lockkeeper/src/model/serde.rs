//! How what is shown is serialized: ids and names as text, times in milliseconds, labels as text.

use crate::{Name, Sequencer, TicketId};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::time::Duration;

/// What is written as text and read back from it.
macro_rules! text {
    ($($type:ty),*) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(D::Error::custom)
            }
        }
    )* };
}

text!(Name, Sequencer, TicketId);

/// A time in whole milliseconds; none if it never comes ([`Duration::MAX`]).
pub(crate) fn millis<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    let ms = (*time != Duration::MAX).then(|| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    ms.serialize(to)
}

pub(crate) fn millis_if<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    millis(&time.unwrap_or(Duration::MAX), to)
}

/// A label as text: bytes that are no UTF-8 are replaced, since it is there to be read.
pub(crate) fn label<S: Serializer>(label: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&String::from_utf8_lossy(label))
}
