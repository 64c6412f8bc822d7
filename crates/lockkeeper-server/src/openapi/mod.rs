//! `GET /openapi.json`: the API in the form of OpenAPI 3.1.
//!
//! The document is checked in as `openapi.json`. It is made of the table of routes, of `operations.json` and of
//! `schemas.json`, and a test says when it differs from them.

use crate::{
    principal::Scope,
    routes::{Route, route},
};
use axum::response::IntoResponse;
use http::{HeaderValue, Method, header};

/// As it is served.
pub const DOCUMENT: &str = include_str!("../../openapi.json");

/// The routes of this group.
pub(crate) fn routes() -> Vec<Route> {
    vec![route(Method::GET, "/openapi.json", Scope::Open, show)]
}

/// `GET /openapi.json`.
async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT)
}

#[cfg(test)]
mod build;

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs, path::Path};

    #[test]
    fn the_document_is_that_of_the_routes() {
        let built = build::document();
        let text = format!("{}\n", serde_json::to_string_pretty(&built).unwrap());
        if env::var_os("LOCKKEEPER_WRITE_OPENAPI").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
            fs::write(file, &text).unwrap();
            return;
        }
        assert!(
            text == DOCUMENT,
            "openapi.json is not what the routes say: run this test with LOCKKEEPER_WRITE_OPENAPI=1"
        );
    }
}
