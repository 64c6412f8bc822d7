//! Labels: bytes, which JSON has no form for.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};

/// A label as text, and as base64 beside it if its bytes are no UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The text.
    #[serde(default)]
    pub label: String,
    /// The exact bytes, where the text cannot have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_base64: Option<String>,
}

impl Label {
    /// A label of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let label_base64 = std::str::from_utf8(bytes).is_err().then(|| to_base64(bytes));
        Self { label: String::from_utf8_lossy(bytes).into_owned(), label_base64 }
    }

    /// The exact bytes; nothing if the base64 is none.
    #[must_use]
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self.label_base64 {
            Some(text) => from_base64(&text),
            None => Some(self.label.into_bytes()),
        }
    }
}

/// The standard alphabet, with padding.
#[must_use]
pub fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes behind such a text.
#[must_use]
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}
