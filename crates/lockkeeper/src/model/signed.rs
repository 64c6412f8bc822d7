//! A grant as text with a signature, for others to verify without asking.

use crate::model::sequencer::Sequencer;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use std::{
    fmt, fs,
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The longest text that is looked at; the longest signed sequencer has less than 2,400 bytes.
const SIGNED_MAX: usize = 4096;
/// The longest id of a key.
const KID_MAX: usize = 32;
/// The shortest secret of a key: 32 hexadecimal digits are 128 bits.
const SECRET_MIN: usize = 32;
/// The largest file of keys.
const FILE_MAX: u64 = 1 << 20;

/// The keys with which sequencers are signed, and with which the signatures are verified (HMAC-SHA256).
///
/// In a file each key is a line: its id, blanks, and its secret, which is any text of at least 32 characters
/// without blanks, as from `openssl rand -hex 32`. The first key signs and all of them verify, so keys are
/// rotated in three steps: append the new key everywhere, move it to the first line, remove the old one. Empty lines
/// and lines that begin with `#` are skipped.
///
/// ```
/// # use lockkeeper::{Sequencer, SigningKeys}; use std::time::{Duration, SystemTime};
/// let keys: SigningKeys = "k1 9f2c5b0d1e7a48c6b3f0a2d4e6c8b1a3".parse()?;
/// let plain = "lk1:0123456789abcdef:x:7:0123456789abcdef0123456789abcdef:jobs/a".parse::<Sequencer>()?;
/// let now = SystemTime::now();
/// let text = keys.sign(&plain, now, now + Duration::from_secs(30));
/// assert_eq!(keys.verify(&text)?.sequencer, plain);
/// assert!(keys.verify(&text.replace("lk1.k1.", "lk1.k2.")).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SigningKeys {
    keys: Vec<Key>,
}

struct Key {
    kid: String,
    key: hmac::Key,
}

/// A sequencer whose signature was right.
///
/// The signature says that the service which has the key made this grant, and no more: whether it is still held only
/// the store knows, and an overtaken holder is refused by comparing fences at the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signed {
    /// The grant.
    pub sequencer: Sequencer,
    /// The id of the key that signed it.
    pub kid: String,
    /// When it was signed, by the signer's clock.
    pub issued: SystemTime,
    /// When the holder's session ends unless it is renewed after the signing, by the same clock.
    pub until: SystemTime,
}

/// Why a text is not accepted as a signed sequencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignedError {
    /// It is a sequencer without signature.
    #[error("the sequencer is not signed")]
    Unsigned,
    /// It has not the form of one.
    #[error("the text does not have the form lk1.KEY.PAYLOAD.SIGNATURE")]
    Form,
    /// No key has the id that it names.
    #[error("no key has the id that the sequencer names: it is forged, or the key was removed")]
    UnknownKey,
    /// Its signature is wrong: it was forged or changed.
    #[error("the signature is wrong: the sequencer was forged or changed")]
    Forged,
}

/// Why keys cannot be used. It never repeats a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SigningKeysError {
    /// There is no key at all.
    #[error("there is no key; a line is: ID SECRET, as in `k1 $(openssl rand -hex 32)`")]
    Empty,
    /// A line makes no sense.
    #[error("line {line}: {what}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Every user of the machine may read the file.
    #[error("all users of this machine may read the file (mode {0:o}): chmod o-rwx it")]
    Readable(u32),
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
}

impl SigningKeys {
    /// Reads the keys from a file. To take up changes, read it again.
    ///
    /// # Errors
    /// [`SigningKeysError`] if the file cannot be read, if all users of the machine may read it, or if a line makes
    /// no sense.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, SigningKeysError> {
        let file = fs::File::open(path)?;
        let meta = file.metadata()?;
        // A pipe, as the shell's <(…), has one reader.
        let mode = meta.permissions().mode() & 0o777;
        if meta.is_file() && mode & 0o004 != 0 {
            return Err(SigningKeysError::Readable(mode));
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text)?;
        text.parse()
    }

    /// Signs a grant with the first key: when it is signed, and when its session ends unless it is renewed.
    ///
    /// The text is printable ASCII without blanks: `lk1.KEY.PAYLOAD.SIGNATURE`. The payload, in base64url, is the
    /// plain sequencer and both times in milliseconds since 1970, separated by blanks. The signature, in base64url,
    /// is the HMAC-SHA256 of all that stands before the last dot.
    #[must_use]
    pub fn sign(&self, sequencer: &Sequencer, issued: SystemTime, until: SystemTime) -> String {
        let Key { kid, key } = &self.keys[0];
        let payload = format!("{sequencer} {} {}", millis(issued), millis(until));
        let mut text = format!("lk1.{kid}.{}", URL_SAFE_NO_PAD.encode(payload));
        let tag = hmac::sign(key, text.as_bytes());
        text.push('.');
        text.push_str(&URL_SAFE_NO_PAD.encode(tag));
        text
    }

    /// Verifies the signature, in a time that does not depend on where it differs from the right one.
    ///
    /// # Errors
    /// [`SignedError`] for every text that none of these keys has signed.
    pub fn verify(&self, text: &str) -> Result<Signed, SignedError> {
        if text.starts_with("lk1:") {
            return Err(SignedError::Unsigned);
        }
        if text.len() > SIGNED_MAX {
            return Err(SignedError::Form);
        }
        let (said, tag) = text.rsplit_once('.').ok_or(SignedError::Form)?;
        let ["lk1", kid, payload] = said.split('.').collect::<Vec<_>>()[..] else {
            return Err(SignedError::Form);
        };
        // The engine refuses padding and stray bits, so each signature has one spelling.
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| SignedError::Form)?;
        let key = self.keys.iter().find(|key| key.kid == kid).ok_or(SignedError::UnknownKey)?;
        hmac::verify(&key.key, said.as_bytes(), &tag).map_err(|_| SignedError::Forged)?;
        read(payload, kid).ok_or(SignedError::Form)
    }

    /// The ids of the keys; the first one signs.
    pub fn kids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.kid.as_str())
    }
}

/// Reads a payload whose signature was right.
fn read(payload: &str, kid: &str) -> Option<Signed> {
    let payload = String::from_utf8(URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    let [sequencer, issued, until] = payload.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let time = |ms: &str| UNIX_EPOCH.checked_add(Duration::from_millis(ms.parse().ok()?));
    Some(Signed {
        sequencer: sequencer.parse().ok()?,
        kid: kid.to_owned(),
        issued: time(issued)?,
        until: time(until)?,
    })
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl FromStr for SigningKeys {
    type Err = SigningKeysError;

    fn from_str(text: &str) -> Result<Self, SigningKeysError> {
        let mut keys: Vec<Key> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let wrong = |what| SigningKeysError::Line { line: at + 1, what };
            let words: Vec<&str> = line.split_whitespace().collect();
            let (kid, secret) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [kid, secret] => (kid, secret),
                _ => return Err(wrong("a line is an id and a secret without blanks")),
            };
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if kid.len() > KID_MAX || !kid.chars().all(fits) {
                return Err(wrong("an id has at most 32 letters, digits, dashes and underscores"));
            }
            if secret.len() < SECRET_MIN {
                return Err(wrong("a secret has at least 32 characters: openssl rand -hex 32"));
            }
            if keys.iter().any(|key| key.kid == kid) {
                return Err(wrong("an earlier line has the same id"));
            }
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
            keys.push(Key { kid: kid.to_owned(), key });
        }
        if keys.is_empty() { Err(SigningKeysError::Empty) } else { Ok(Self { keys }) }
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kids()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{name::Name, ticket::Mode, ticket::TicketId},
        store::{Claim, StoreId},
    };
    use proptest::prelude::*;

    const OLD: &str = "2024-11 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const NEW: &str = "2025-01 bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const NOW: Duration = Duration::from_millis(1_794_000_000_123);

    fn keys(lines: &[&str]) -> SigningKeys {
        lines.join("\n").parse().unwrap()
    }

    fn sequencer(store: u8, name: &str, mode: Mode, fence: u64) -> Sequencer {
        let ticket = TicketId::from_bytes([9; 16]);
        let claim = Claim { name: Name::new(name).unwrap(), ticket, mode, fence };
        Sequencer::of(StoreId([store; 8]), claim)
    }

    fn sign(keys: &SigningKeys, sequencer: &Sequencer) -> String {
        keys.sign(sequencer, UNIX_EPOCH + NOW, UNIX_EPOCH + NOW + Duration::from_secs(30))
    }

    #[test]
    fn the_first_key_signs_and_all_keys_verify() {
        let grant = sequencer(1, "a", Mode::Exclusive, 7);
        let old = sign(&keys(&[OLD]), &grant);
        let both = keys(&[NEW, "", "# the old one", OLD]);
        assert_eq!(both.verify(&old).unwrap().kid, "2024-11");
        let new = sign(&both, &grant);
        assert_eq!(both.verify(&new).unwrap().kid, "2025-01");
        assert_eq!(keys(&[OLD]).verify(&new), Err(SignedError::UnknownKey));
        assert_eq!(keys(&[NEW]).verify(&old), Err(SignedError::UnknownKey));
    }

    /// Another grant's payload under this grant's signature, and the other way round.
    #[test]
    fn a_grant_of_another_name_store_mode_fence_or_time_has_another_signature() {
        let keys = keys(&[NEW]);
        let parts = |text: &str| -> Vec<String> { text.split('.').map(str::to_owned).collect() };
        let good = parts(&sign(&keys, &sequencer(1, "a", Mode::Exclusive, 7)));
        let other = [
            sequencer(1, "b", Mode::Exclusive, 7),
            sequencer(2, "a", Mode::Exclusive, 7),
            sequencer(1, "a", Mode::Shared, 7),
            sequencer(1, "a", Mode::Permits { weight: 1, of: 2 }, 7),
            sequencer(1, "a", Mode::Exclusive, 8),
        ];
        let mut others: Vec<String> = other.iter().map(|other| sign(&keys, other)).collect();
        let grant = sequencer(1, "a", Mode::Exclusive, 7);
        others.push(keys.sign(&grant, UNIX_EPOCH + NOW, UNIX_EPOCH + NOW));
        for other in others {
            assert!(keys.verify(&other).is_ok());
            let [_, kid, payload, _] = &parts(&other)[..] else { panic!("{other}") };
            let forged = format!("lk1.{kid}.{payload}.{}", good[3]);
            assert_eq!(keys.verify(&forged), Err(SignedError::Forged), "{forged}");
        }
    }

    #[test]
    fn a_signature_by_another_secret_under_the_same_id_is_forged() {
        let grant = sequencer(1, "a", Mode::Exclusive, 7);
        let stranger = keys(&["2025-01 cccccccccccccccccccccccccccccccc"]);
        let [ours, both] = [keys(&[NEW]), keys(&[NEW, OLD])];
        assert_eq!(ours.verify(&sign(&stranger, &grant)), Err(SignedError::Forged));
        let moved = sign(&ours, &grant).replace("2025-01", "2024-11");
        assert_eq!(both.verify(&moved), Err(SignedError::Forged), "another key's id");
    }

    #[test]
    fn a_plain_sequencer_is_not_taken_for_a_signed_one() {
        let plain = sequencer(1, "a", Mode::Exclusive, 7);
        assert_eq!(keys(&[NEW]).verify(&plain.to_string()), Err(SignedError::Unsigned));
        assert!(sign(&keys(&[NEW]), &plain).parse::<Sequencer>().is_err());
    }

    #[test]
    fn keys_that_make_no_sense_are_refused_without_repeating_them() {
        let secret = "dddddddddddddddddddddddddddddddd";
        for bad in [
            String::new(),
            "# nothing".to_owned(),
            secret.to_owned(),
            format!("k1 {}", &secret[1..]),
            format!("k.1 {secret}"),
            format!("k1 {secret}\nk1 {secret}e"),
            format!("k1 {secret} more"),
        ] {
            let error = bad.parse::<SigningKeys>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains(&secret[..8]), "{error}");
        }
        assert!(!format!("{:?}", keys(&[NEW])).contains("bbbb"));
    }

    #[test]
    fn keys_that_all_users_may_read_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, NEW).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(SigningKeys::read(&path), Err(SigningKeysError::Readable(0o644))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(SigningKeys::read(&path).unwrap().kids().collect::<Vec<_>>(), ["2025-01"]);
    }

    proptest! {
        #[test]
        fn what_was_signed_reads_back_and_no_changed_character_passes(
            name in "\\PC{1,80}", store: u8, fence: u64, at: prop::sample::Index, to in "[!-~]",
        ) {
            let keys = keys(&[NEW, OLD]);
            let grant = sequencer(store, &name, Mode::Exclusive, fence);
            let text = sign(&keys, &grant);
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic()));
            let signed = keys.verify(&text).unwrap();
            prop_assert_eq!((signed.sequencer, signed.issued), (grant, UNIX_EPOCH + NOW));
            let at = at.index(text.len());
            let changed = format!("{}{to}{}", &text[..at], &text[at + 1..]);
            prop_assert_eq!(keys.verify(&changed).is_ok(), changed == text, "{}", changed);
            prop_assert!(keys.verify(&text[..at]).is_err());
            let longer = format!("{text}{to}");
            prop_assert!(keys.verify(&longer).is_err());
        }

        #[test]
        fn no_text_makes_the_verifier_panic(text in "(lk1\\.)?\\PC{0,80}") {
            prop_assert!(keys(&[NEW]).verify(&text).is_err());
        }
    }
}
