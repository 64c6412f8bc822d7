//! The bearer token: from a file, which may change, or from the environment.

use crate::{
    error::{Error, Result},
    sync::Mutex,
};
use http::HeaderValue;
use std::path::PathBuf;

/// A token, or none. It has no `Debug`: it is a secret.
pub(in crate::store::http) struct Token {
    file: Option<PathBuf>,
    header: Mutex<Option<HeaderValue>>,
}

impl Token {
    pub(in crate::store::http) fn none() -> Self {
        Self { file: None, header: Mutex::default() }
    }

    /// # Errors
    /// If it cannot be sent in a header.
    pub(in crate::store::http) fn fixed(token: &str) -> Result<Self> {
        let header = header(token).ok_or_else(|| Error::url(format!("LOCKKEEPER_TOKEN {FORM}")))?;
        Ok(Self { file: None, header: Mutex::new(Some(header)) })
    }

    /// # Errors
    /// If the file cannot be read, or has no token.
    pub(in crate::store::http) fn from_file(path: PathBuf) -> Result<Self> {
        let bad = |why: String| {
            let what = format!("the file of token_file={} {why}", path.display());
            Error::url_option("token_file", what)
        };
        let text = std::fs::read_to_string(&path).map_err(|e| bad(format!("is not read: {e}")))?;
        let header = header(&text).ok_or_else(|| bad(FORM.into()))?;
        Ok(Self { file: Some(path), header: Mutex::new(Some(header)) })
    }

    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.header.lock().clone()
    }

    /// Reads the file again; says whether the token is another one than a request has used. Another request may
    /// have read the file in the meantime.
    pub(super) fn reload(&self, used: Option<&HeaderValue>) -> bool {
        let text = self.file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let mut header = self.header.lock();
        if let Some(new) = text.and_then(|text| self::header(&text)) {
            *header = Some(new);
        }
        header.as_ref() != used
    }
}

const FORM: &str = "holds no token: one line of visible characters is expected";

fn header(token: &str) -> Option<HeaderValue> {
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_gives_another_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let token = Token::from_file(path.clone()).unwrap();
        assert_eq!(token.header().unwrap(), "Bearer one");
        let used = token.header();
        assert!(!token.reload(used.as_ref()));
        std::fs::write(&path, "two").unwrap();
        assert!(token.reload(used.as_ref()));
        assert!(token.reload(used.as_ref()), "the second of two requests that were refused");
        assert_eq!(token.header().unwrap(), "Bearer two");
    }

    #[test]
    fn a_token_is_one_line_and_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for bad in ["", "\n", "canary one", "canary\none"] {
            std::fs::write(&path, bad).unwrap();
            let e = Token::from_file(path.clone()).err().expect("refused").to_string();
            assert!(e.contains("one line") && !e.contains("canary"), "{e}");
        }
        let e = Token::fixed("canary one").err().expect("refused").to_string();
        assert!(!e.contains("canary"), "{e}");
        let debug = format!("{:?}", Token::fixed("canary").unwrap().header());
        assert!(!debug.contains("canary"), "{debug}");
    }
}
