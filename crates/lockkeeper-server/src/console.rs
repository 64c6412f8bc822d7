//! The page for people: the files of `console/`, embedded.
//!
//! The page has no rights of its own. It asks the same API as every other client, with the token that its user types
//! in, so its files are open to every caller, and hold nothing that a lock's name or label could change. The policy below
//! forbids scripts and styles that are not one of these files.

use crate::{
    principal::Scope::Open,
    problem::Problem,
    routes::{Route, route},
};
use axum::{
    extract::Path,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::{fmt::Write as _, sync::LazyLock};

/// What the page may load, run and ask: these files and this service.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The page itself, served at `/`.
const PAGE: &str = "index.html";

/// The routes of this group.
pub(crate) fn routes() -> Vec<Route> {
    vec![route(Method::GET, "/", Open, page), route(Method::GET, "/console/{file}", Open, file)]
}

async fn page(headers: HeaderMap) -> Response {
    find(PAGE).map_or_else(|| no_file(PAGE), |file| file.answer(&headers))
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match find(&name) {
        Some(file) if name != PAGE => file.answer(&headers),
        _ => no_file(&name),
    }
}

fn no_file(name: &str) -> Response {
    let what = format!("the console has no file {name:?}; it begins at /");
    Problem::new("no_route", what).into_response()
}

/// One embedded file.
struct File {
    name: &'static str,
    bytes: &'static [u8],
    /// A strong tag: the digest of the bytes.
    tag: HeaderValue,
}

macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("../console/", $name)) as &[u8])),*]
    };
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let all = files![
        "index.html" "style.css" "icon.svg" "theme.js" "app.js" "api.js" "feed.js" "state.js" "i18n.js" "dom.js"
        "words.js" "table.js" "overview.js" "locks.js" "lock.js" "line.js" "timeline.js" "sessions.js" "events.js"
        "cells.js" "sheets.js" "evict.js" "token.js" "empty.js"
    ];
    all.into_iter().map(|(name, bytes)| File { name, bytes, tag: tag_of(bytes) }).collect()
});

fn tag_of(bytes: &[u8]) -> HeaderValue {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut tag = String::from("\"");
    for byte in &digest.as_ref()[..16] {
        let _ = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    HeaderValue::try_from(tag).expect("hexadecimal digits are fit for a header")
}

fn find(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

impl File {
    fn answer(&self, request: &HeaderMap) -> Response {
        let known = request.get_all(header::IF_NONE_MATCH).iter().any(|tags| self.is_among(tags));
        let mut response = match known {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => ([(header::CONTENT_TYPE, self.media_type())], self.bytes).into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.tag.clone());
        for (name, value) in [
            // The files refer to each other, so a new version of the service must replace all of them at once.
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }

    /// A proxy that compresses weakens the tag: `W/"…"` names the same bytes.
    fn is_among(&self, tags: &HeaderValue) -> bool {
        let (tags, own) = (tags.as_bytes(), self.tag.as_bytes());
        tags.split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == own)
    }

    fn media_type(&self) -> &'static str {
        match self.name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests;
