//! What the service counts.

use crate::routes::Route;

/// The routes of this group.
pub(crate) fn routes() -> Vec<Route> {
    Vec::new()
}
