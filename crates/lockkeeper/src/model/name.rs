//! Names of locks: validated once, then trusted everywhere.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// The longest name, in bytes of UTF-8.
pub const NAME_MAX: usize = 512;

/// The validated name of a lock: 1 to 512 bytes of UTF-8 without control characters.
///
/// A name is data. `/` is allowed and means nothing special, case and blanks count, and no two
/// different names ever share a lock, whatever the store.
///
/// ```
/// use lockkeeper::Name;
/// let name: Name = "invoices/2026-11".parse()?;
/// assert_eq!(name.as_str(), "invoices/2026-11");
/// assert!("".parse::<Name>().is_err());
/// # Ok::<(), lockkeeper::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// Why a text cannot be the name of a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no character at all.
    #[error("a lock name must not be empty")]
    Empty,
    /// The name is longer than [`NAME_MAX`].
    #[error("a lock name has at most {NAME_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// The name contains a control character.
    #[error("a lock name must not contain control characters (found {0:?} at byte {1})")]
    Control(char, usize),
}

impl Name {
    /// Validates `name`.
    ///
    /// # Errors
    /// [`NameError`] if it is empty, too long or contains a control character.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > NAME_MAX {
            return Err(NameError::TooLong(name.len()));
        }
        match name.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, c)) => Err(NameError::Control(c, at)),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        Self::new(s)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What the methods of a [`Keeper`](crate::Keeper) accept as a name: text or a ready [`Name`].
///
/// The check happens when the builder is awaited, so that `keeper.lock("…")` itself cannot fail.
pub trait IntoName {
    /// The name, or why the text cannot be one.
    ///
    /// # Errors
    /// [`NameError`], as [`Name::new`].
    fn into_name(self) -> Result<Name, NameError>;
}

impl IntoName for Name {
    fn into_name(self) -> Result<Name, NameError> {
        Ok(self)
    }
}

impl IntoName for &Name {
    fn into_name(self) -> Result<Name, NameError> {
        Ok(self.clone())
    }
}

impl IntoName for &str {
    fn into_name(self) -> Result<Name, NameError> {
        Name::new(self)
    }
}

impl IntoName for String {
    fn into_name(self) -> Result<Name, NameError> {
        Name::new(&self)
    }
}

impl IntoName for &String {
    fn into_name(self) -> Result<Name, NameError> {
        Name::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_is_never_empty_too_long_or_a_control_sequence() {
        assert_eq!(Name::new(""), Err(NameError::Empty));
        assert_eq!(Name::new(&"x".repeat(513)), Err(NameError::TooLong(513)));
        assert_eq!(Name::new("a\u{1b}[2J"), Err(NameError::Control('\u{1b}', 1)));
        assert_eq!(Name::new("a\0"), Err(NameError::Control('\0', 1)));
        assert!(Name::new(&"x".repeat(512)).is_ok());
    }

    proptest! {
        #[test]
        fn a_valid_name_is_kept_as_it_was_given(text in "\\PC{1,100}") {
            let name = Name::new(&text).unwrap();
            prop_assert_eq!(name.as_str(), text.as_str());
        }
    }
}
