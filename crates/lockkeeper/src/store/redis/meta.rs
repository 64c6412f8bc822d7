//! What is written once for all data under a prefix: its identity, its layout and its number of buckets.

use super::{
    KIND,
    connection::Connection,
    exec::{Call, explained},
    keys::Keys,
    scripts::SCRIPTS,
};
use crate::{
    error::{ErrorKind, StoreError},
    store::StoreResult,
};

/// The number of the layout that common.lua describes. It grows when clients that know only the older one
/// would misread the data.
const LAYOUT: u32 = 2;

/// The identity of the data. The first client writes it, as `fresh`; every other client takes the one that is
/// there. All clients must know the same layout and the same number of buckets.
pub(super) async fn meta(
    connection: &Connection,
    prefix: &str,
    buckets: u32,
    fresh: u64,
) -> StoreResult<u64> {
    let key = Keys::new(prefix, 0).meta();
    let mut call = Call::new(&SCRIPTS.meta, &[&key]);
    call.arg(format!("{fresh:016x}")).arg(LAYOUT).arg(buckets);
    type Found = (Option<String>, Option<String>, Option<String>);
    let (id, layout, found): Found = match connection.run(&call).await {
        Err(e) => return Err(explained(connection, e, [(key, "hash")]).await),
        Ok(found) => found,
    };
    let refuse = |what: String| Err(StoreError::not_applied(KIND, ErrorKind::Misconfigured, what));
    if layout.as_deref() != Some(&LAYOUT.to_string()) {
        let layout = layout.unwrap_or_else(|| "1".to_owned());
        return refuse(format!(
            "the locks under this prefix have the layout {layout}, and this version of lockkeeper knows \
             the layout {LAYOUT}; use the version that wrote them, or another prefix="
        ));
    }
    if found.as_deref() != Some(&buckets.to_string()) {
        let found = found.unwrap_or_default();
        return refuse(format!(
            "the locks under this prefix are spread over {found} buckets, and this kind of URL \
             uses {buckets}; use the same kind of URL everywhere, or another prefix"
        ));
    }
    let Some(id) = id.and_then(|id| u64::from_str_radix(&id, 16).ok()) else {
        return refuse(format!("the key {key:?} is damaged; choose another prefix=, or remove it"));
    };
    Ok(id)
}
