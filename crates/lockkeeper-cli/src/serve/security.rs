//! The flags and settings of `serve` that say who may come in.

use crate::{exit_code, failure::Failure};
use clap::{Args, ValueHint, builder::FalseyValueParser};
use lockkeeper_server::{Quota, Security, SecurityOptions, TlsFiles};
use serde_json::json;
use std::{fmt::Write as _, path::PathBuf};

/// Who may come in, and what for; from flags and the environment, or from a file of settings.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Security")]
pub(crate) struct SecurityArgs {
    /// The file that says who may do what, as `lockkeeper token new --into FILE` writes it
    ///
    /// Without it every caller may do everything, and the service listens on loopback only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "LOCKKEEPER_SERVE_TOKENS")]
    pub(crate) tokens: Option<PathBuf>,

    /// The certificate of the service with its chain, in PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "LOCKKEEPER_SERVE_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "LOCKKEEPER_SERVE_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The authorities that sign clients' certificates; a line NAME cert$COMMON_NAME SCOPE… of --tokens admits one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "LOCKKEEPER_SERVE_CLIENT_CA")]
    pub(crate) client_ca: Option<PathBuf>,

    /// A name under which the service is asked, beside localhost and IP addresses; several times, or with commas
    #[arg(long, value_name = "NAME", env = "LOCKKEEPER_SERVE_HOST", value_delimiter = ',')]
    pub(crate) host: Vec<String>,

    /// The keys that sign sequencers: ID SECRET per line, the first one signs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "LOCKKEEPER_SERVE_SIGNING_KEYS")]
    pub(crate) signing_keys: Option<PathBuf>,

    /// With --signing-keys: accept sequencers without a signature too
    #[arg(long, env = "LOCKKEEPER_SERVE_ACCEPT_PLAIN_SEQUENCERS", value_parser = FalseyValueParser::new())]
    pub(crate) accept_plain_sequencers: bool,

    /// Append evictions, refused requests and reloads to this file, as JSON lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "LOCKKEEPER_SERVE_AUDIT_LOG")]
    pub(crate) audit_log: Option<PathBuf>,

    /// Requests per second and principal, twice as many at once; 0: no limit [default: 2000 with --tokens]
    #[arg(long, value_name = "N", env = "LOCKKEEPER_SERVE_MAX_REQUESTS")]
    pub(crate) max_requests: Option<u32>,

    /// Sessions opened per minute and principal; 0: no limit [default: 6000 with --tokens]
    #[arg(long, value_name = "N", env = "LOCKKEEPER_SERVE_MAX_SESSIONS")]
    pub(crate) max_sessions: Option<u32>,

    /// Requests at the same time per principal, waiting ones included; 0: no limit [default: 5000 with --tokens]
    #[arg(long, value_name = "N", env = "LOCKKEEPER_SERVE_MAX_WAITERS")]
    pub(crate) max_waiters: Option<u32>,

    /// Streams of events at the same time per principal; 0: no limit [default: 1000 with --tokens]
    #[arg(long, value_name = "N", env = "LOCKKEEPER_SERVE_MAX_STREAMS")]
    pub(crate) max_streams: Option<u32>,

    /// Listen beyond this machine although any program that reaches the address may use every lock
    #[arg(long, env = "LOCKKEEPER_SERVE_INSECURE", value_parser = FalseyValueParser::new())]
    pub(crate) insecure: bool,
}

impl SecurityArgs {
    /// Fills in what the flags and the environment leave open.
    pub(crate) fn fill(&mut self, file: &Self) {
        let fill = |own: &mut Option<PathBuf>, other: &Option<PathBuf>| {
            if own.is_none() {
                own.clone_from(other);
            }
        };
        fill(&mut self.tokens, &file.tokens);
        fill(&mut self.tls_cert, &file.tls_cert);
        fill(&mut self.tls_key, &file.tls_key);
        fill(&mut self.client_ca, &file.client_ca);
        fill(&mut self.signing_keys, &file.signing_keys);
        fill(&mut self.audit_log, &file.audit_log);
        if self.host.is_empty() {
            self.host.clone_from(&file.host);
        }
        self.accept_plain_sequencers |= file.accept_plain_sequencers;
        self.insecure |= file.insecure;
        self.max_requests = self.max_requests.or(file.max_requests);
        self.max_sessions = self.max_sessions.or(file.max_sessions);
        self.max_waiters = self.max_waiters.or(file.max_waiters);
        self.max_streams = self.max_streams.or(file.max_streams);
    }

    /// Reads the files.
    pub(crate) fn open(&self) -> Result<Security, Failure> {
        let wrong = |what: &str| {
            Failure::new(exit_code::CONFIGURATION, anyhow::Error::msg(what.to_owned()))
        };
        let mut options = SecurityOptions::default();
        options.tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                let mut tls = TlsFiles::new(cert, key);
                tls.client_ca.clone_from(&self.client_ca);
                Some(tls)
            }
            (None, None) if self.client_ca.is_some() => {
                return Err(wrong("--client-ca needs TLS: give --tls-cert and --tls-key"));
            }
            (None, None) => None,
            _ => return Err(wrong("--tls-cert and --tls-key belong together")),
        };
        options.principals.clone_from(&self.tokens);
        options.signing_keys.clone_from(&self.signing_keys);
        options.accept_plain_sequencers = self.accept_plain_sequencers;
        options.hosts.clone_from(&self.host);
        options.quota = Some(self.quota());
        options.audit_log.clone_from(&self.audit_log);
        options.insecure = self.insecure;
        Security::open(options).map_err(|e| wrong(&e.to_string()))
    }

    fn quota(&self) -> Quota {
        let mut quota = match self.tokens {
            Some(_) => Quota::default(),
            None => Quota::unlimited(),
        };
        let limit = |flag: Option<u32>, to: &mut Option<u32>| {
            if let Some(most) = flag {
                *to = Some(most).filter(|most| *most > 0);
            }
        };
        limit(self.max_requests, &mut quota.requests_per_second);
        limit(self.max_sessions, &mut quota.sessions_per_minute);
        limit(self.max_waiters, &mut quota.waiters);
        limit(self.max_streams, &mut quota.streams);
        quota
    }

    /// What is set, as lines of `[serve]`.
    pub(crate) fn printed(&self) -> String {
        let mut text = String::new();
        let files = [
            ("tokens", &self.tokens),
            ("tls_cert", &self.tls_cert),
            ("tls_key", &self.tls_key),
            ("client_ca", &self.client_ca),
            ("signing_keys", &self.signing_keys),
            ("audit_log", &self.audit_log),
        ];
        for (key, path) in files {
            if let Some(path) = path {
                let _ = writeln!(text, "{key} = {}", json!(path.to_string_lossy()));
            }
        }
        if !self.host.is_empty() {
            let _ = writeln!(text, "host = {}", json!(self.host));
        }
        let numbers = [
            ("max_requests", self.max_requests),
            ("max_sessions", self.max_sessions),
            ("max_waiters", self.max_waiters),
            ("max_streams", self.max_streams),
        ];
        for (key, number) in numbers {
            if let Some(number) = number {
                let _ = writeln!(text, "{key} = \"{number}\"");
            }
        }
        if self.accept_plain_sequencers {
            text.push_str("accept_plain_sequencers = true\n");
        }
        let _ = writeln!(text, "insecure = {}", self.insecure);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        security: SecurityArgs,
    }

    fn parse(line: &str) -> SecurityArgs {
        Flags::try_parse_from(line.split(' ')).unwrap().security
    }

    #[test]
    fn flags_that_belong_together_are_given_together() {
        for line in ["serve --tls-cert a", "serve --tls-key a", "serve --client-ca a --tokens b"] {
            let failure = parse(line).open().unwrap_err();
            assert!(failure.code() == exit_code::CONFIGURATION, "{line}");
            assert!(failure.line().contains("--tls-cert"), "{}", failure.line());
        }
        assert!(parse("serve").open().is_ok());
    }

    #[test]
    fn limits_are_for_principals_unless_they_are_asked_for() {
        let quota = |line: &str| parse(line).quota();
        assert_eq!(quota("serve").requests_per_second, None);
        assert_eq!(quota("serve --max-requests 5").requests_per_second, Some(5));
        let with_tokens = quota("serve --tokens a --max-waiters 0");
        assert_eq!((with_tokens.waiters, with_tokens.streams), (None, Some(1_000)));
    }

    #[test]
    fn a_flag_is_stronger_than_a_file_and_all_is_printed() {
        let mut args = parse("serve --tokens flag --host a,b");
        args.fill(&parse("serve --tokens file --max-streams 7 --host c --audit-log d"));
        assert_eq!(
            args.printed(),
            "tokens = \"flag\"\naudit_log = \"d\"\nhost = [\"a\",\"b\"]\nmax_streams = \"7\"\ninsecure = false\n"
        );
    }
}
