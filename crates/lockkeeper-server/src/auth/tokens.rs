//! The file of principals: who may come in, by which token or certificate, and what for.
//!
//! It has hashes of tokens only. A token has 256 random bits, so a plain SHA-256 of it cannot be turned back by trying.

use crate::principal::{CredentialId, Grant, Principal};
use percent_encoding::percent_decode_str;
use rand::TryRng as _;
use ring::digest::{SHA256, digest};
use std::{fmt, str::FromStr, time::SystemTime};
use subtle::ConstantTimeEq as _;

/// How a token begins, so that scanners for leaked secrets find it.
const MARK: &str = "lkt_";
/// The longest name of a principal.
const NAME_MAX: usize = 64;

/// All principals of a file.
#[derive(Default)]
pub(crate) struct Principals {
    lines: Vec<Line>,
}

struct Line {
    principal: Principal,
    credential: Credential,
    until: Option<SystemTime>,
}

#[derive(PartialEq, Eq)]
enum Credential {
    /// The SHA-256 of a token.
    Token([u8; 32]),
    /// The common name in the subject of a client's certificate.
    Certificate(String),
}

/// What is wrong with a line of the file. It repeats nothing of the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(crate) struct LineError {
    /// The line's number, from 1.
    pub(crate) line: usize,
    /// What is wrong with it.
    pub(crate) what: &'static str,
}

impl Principals {
    /// The principal with this token. It looks at all lines, and compares in constant time.
    pub(crate) fn by_token(&self, token: &str, now: SystemTime) -> Option<Principal> {
        let hash = hash(token);
        let mut found = None;
        for line in &self.lines {
            let Credential::Token(known) = &line.credential else { continue };
            if bool::from(known.ct_eq(&hash)) {
                found = Some(line);
            }
        }
        found.filter(|line| line.is_good(now)).map(|line| line.principal.clone())
    }

    /// The principal with a certificate of this common name. The certificate itself was verified before.
    pub(crate) fn by_certificate(&self, common_name: &str, now: SystemTime) -> Option<Principal> {
        let is_it = |line: &&Line| match &line.credential {
            Credential::Certificate(known) => known == common_name,
            Credential::Token(_) => false,
        };
        let found = self.lines.iter().find(is_it);
        found.filter(|line| line.is_good(now)).map(|line| line.principal.clone())
    }

    /// Is this principal, with these rights and this credential, still in the file?
    pub(crate) fn has(&self, principal: &Principal, now: SystemTime) -> bool {
        self.lines.iter().any(|line| line.is_good(now) && line.principal == *principal)
    }

    /// How many credentials are good.
    pub(crate) fn count_good(&self, now: SystemTime) -> usize {
        self.lines.iter().filter(|line| line.is_good(now)).count()
    }
}

impl Line {
    fn is_good(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    fn parse(words: &[&str]) -> Result<Self, &'static str> {
        let [name, credential, rest @ ..] = words else {
            return Err("a line is NAME CREDENTIAL SCOPE…, as `lockkeeper token new` prints it");
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
        if name.len() > NAME_MAX || !name.chars().all(fits) {
            return Err("a principal's name has at most 64 letters, digits and . _ @ -");
        }
        let (mut grants, mut until) = (Vec::new(), None);
        for word in rest {
            match word.strip_prefix("until=") {
                Some(time) => until = Some(time_of(time)?),
                None => grants.push(word.parse::<Grant>()?),
            }
        }
        if grants.is_empty() {
            return Err("the principal has no scope: read, lock or admin, as in lock:jobs/*");
        }
        let credential: Credential = credential.parse()?;
        let principal = Principal::admitted((*name).to_owned(), grants, credential.id());
        Ok(Self { principal, credential, until })
    }
}

fn time_of(text: &str) -> Result<SystemTime, &'static str> {
    humantime::parse_rfc3339_weak(text)
        .map_err(|_| "until= needs a time in UTC, as 2027-01-31T00:00:00Z")
}

impl Credential {
    fn id(&self) -> CredentialId {
        CredentialId::new(match self {
            Self::Token(hash) => *hash,
            Self::Certificate(name) => hash(&format!("cert${name}")),
        })
    }
}

impl FromStr for Credential {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if let Some(name) = text.strip_prefix("cert$") {
            let name = percent_decode_str(name).decode_utf8();
            let name = name.map_err(|_| "the certificate's name is not UTF-8")?.into_owned();
            return match name.is_empty() {
                true => Err("behind cert$ stands the common name of the certificate's subject"),
                false => Ok(Self::Certificate(name)),
            };
        }
        let digits = text.strip_prefix("sha256$").filter(|digits| {
            digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        let digits = digits
            .ok_or("a credential is sha256$ with 64 hexadecimal digits, or cert$ with a name")?;
        let mut hash = [0; 32];
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte =
                u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| "no hexadecimal digits")?;
        }
        Ok(Self::Token(hash))
    }
}

impl FromStr for Principals {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let mut lines: Vec<Line> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first().is_none_or(|first| first.starts_with('#')) {
                continue;
            }
            let wrong = |what| LineError { line: at + 1, what };
            let line = Line::parse(&words).map_err(wrong)?;
            if lines.iter().any(|other| other.credential == line.credential) {
                return Err(wrong("an earlier line has the same token or certificate"));
            }
            lines.push(line);
        }
        Ok(Self { lines })
    }
}

impl fmt::Debug for Principals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lines.iter().map(|line| line.principal.name())).finish()
    }
}

fn hash(token: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A fresh token, and the line for the file of principals that admits it.
pub struct NewToken {
    /// The token: a secret, for its owner alone.
    pub token: String,
    /// The line.
    pub line: String,
}

impl NewToken {
    /// Draws a token from the operating system's randomness, for a principal with these scopes.
    ///
    /// # Errors
    /// What is wrong with the name, a scope or the time, in words.
    ///
    /// # Panics
    /// If the operating system has no randomness to give.
    pub fn draw(
        name: &str,
        scopes: &[String],
        until: Option<SystemTime>,
    ) -> Result<Self, &'static str> {
        let mut secret = [0; 32];
        rand::rngs::SysRng.try_fill_bytes(&mut secret).expect("the system has randomness");
        let token = format!("{MARK}{}", hex(&secret));
        let mut line = format!("{name} sha256${} {}", hex(&hash(&token)), scopes.join(" "));
        if let Some(until) = until {
            line += &format!(" until={}", humantime::format_rfc3339_seconds(until));
        }
        // A scope with a blank in it would be two.
        if name.starts_with('#')
            || [name].into_iter().chain(scopes.iter().map(String::as_str)).any(has_blanks)
        {
            return Err("a name or scope has no blanks; write %20 for that of a lock's name");
        }
        Line::parse(&line.split_whitespace().collect::<Vec<_>>())?;
        Ok(Self { token, line })
    }
}

fn has_blanks(text: &str) -> bool {
    text.is_empty() || text.contains(char::is_whitespace)
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewToken(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Scope;
    use std::time::{Duration, UNIX_EPOCH};

    const NOW: SystemTime = UNIX_EPOCH;

    fn draw(name: &str, scopes: &[&str]) -> NewToken {
        let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        NewToken::draw(name, &scopes, None).unwrap()
    }

    #[test]
    fn a_token_names_its_own_principal_and_no_other_text_does() {
        let [ci, web] = [draw("ci", &["lock:jobs/*"]), draw("web", &["read", "admin:web/*"])];
        let text = format!("# who may come in\n\n{}\n{}\n", ci.line, web.line);
        let all: Principals = text.parse().unwrap();
        assert_eq!(all.by_token(&ci.token, NOW).unwrap().name(), "ci");
        let found = all.by_token(&web.token, NOW).unwrap();
        assert!(found.name() == "web" && found.has(Scope::Admin) && !found.has(Scope::Lock));
        for wrong in ["", "lkt_", &ci.token[1..], &format!("{} ", ci.token), &ci.line[3..]] {
            assert!(all.by_token(wrong, NOW).is_none(), "{wrong}");
        }
        assert!(!text.contains(&ci.token) && !format!("{ci:?} {all:?}").contains("lkt_"));
    }

    #[test]
    fn a_credential_ends_at_its_time() {
        let until = NOW + Duration::from_secs(3600);
        let token = NewToken::draw("ci", &["read".to_owned()], Some(until)).unwrap();
        assert!(token.line.ends_with(" until=1970-01-01T01:00:00Z"), "{}", token.line);
        let all: Principals = token.line.parse().unwrap();
        let principal = all.by_token(&token.token, NOW).unwrap();
        assert!(all.has(&principal, NOW) && !all.has(&principal, until));
        assert!(all.by_token(&token.token, until).is_none());
    }

    #[test]
    fn a_certificate_names_its_principal_by_its_subject() {
        let all: Principals = "ci cert$build%20farm lock:jobs/*".parse().unwrap();
        assert_eq!(all.by_certificate("build farm", NOW).unwrap().name(), "ci");
        assert!(all.by_certificate("build", NOW).is_none());
        assert!(all.by_token("build farm", NOW).is_none());
    }

    #[test]
    fn a_line_that_makes_no_sense_is_refused_without_repeating_it() {
        let good = draw("ci", &["read"]);
        let secret = good.line.split_whitespace().nth(1).unwrap();
        for (bad, line) in [
            ("ci".to_owned(), 1),
            (format!("ci {secret}"), 1),
            (format!("c/i {secret} read"), 1),
            (format!("\n#\nci {secret} write"), 3),
            (format!("ci {} read", &secret[..70]), 1),
            (format!("ci {secret} read until=tomorrow"), 1),
            ("ci cert$ read".to_owned(), 1),
            (format!("{0}\n{0}", good.line), 2),
        ] {
            let error = bad.parse::<Principals>().unwrap_err();
            assert_eq!(error.line, line, "{bad}");
            assert!(!error.to_string().contains(&secret[7..15]), "{error}");
        }
        for (name, scope) in [("a b", "read"), ("#a", "read"), ("a", "lock:a b"), ("", "read")] {
            assert!(NewToken::draw(name, &[scope.to_owned()], None).is_err(), "{name} {scope}");
        }
    }
}
