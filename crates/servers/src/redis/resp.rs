//! As much of Redis's protocol as it takes to look after a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a server may take for an answer before it counts as not answering.
const PATIENCE: Duration = Duration::from_secs(1);

/// An answer that is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// A text, a number in digits, or the empty text in place of nothing.
    Text(String),
    /// Several answers in one.
    List(Vec<Self>),
}

impl Reply {
    /// The text, or the empty one for a list.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::List(_) => "",
        }
    }

    /// The parts of a list; none for a text.
    pub(super) fn parts(&self) -> &[Self] {
        match self {
            Self::Text(_) => &[],
            Self::List(parts) => parts,
        }
    }

    /// The value of a field, empty if there is none: of a text with a line `name:value` for every
    /// field, or of a list in which names and values take turns.
    pub(super) fn field(&self, name: &str) -> &str {
        let found = match self {
            Self::Text(text) => {
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            }
            Self::List(parts) => {
                let mut pairs = parts.chunks_exact(2);
                pairs.find(|pair| pair[0].text() == name).map(|pair| pair[1].text())
            }
        };
        found.unwrap_or_default()
    }
}

/// Puts one question to the server at this port. An answer that is an error is an error here.
pub(super) fn ask(port: u16, command: &str) -> Result<Reply> {
    exchange(port, command).with_context(|| format!("{command} to port {port}"))
}

fn exchange(port: u16, command: &str) -> Result<Reply> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    read(&mut BufReader::new(stream))
}

fn read(stream: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").context("the answer breaks off")?;
    match line.split_at_checked(1).context("the answer is an empty line")? {
        ("+" | ":", text) => Ok(Reply::Text(text.to_owned())),
        ("-", error) => bail!("{error}"),
        ("$", "-1") | ("*", "-1") => Ok(Reply::Text(String::new())),
        ("$", length) => read_text(stream, length.parse()?),
        ("*", count) => {
            let parts = (0..count.parse::<usize>()?).map(|_| read(stream));
            Ok(Reply::List(parts.collect::<Result<_>>()?))
        }
        _ => bail!("the answer begins with {line:?}"),
    }
}

fn read_text(stream: &mut impl BufRead, length: u64) -> Result<Reply> {
    let mut text = String::new();
    stream.take(length).read_to_string(&mut text)?;
    let mut end = [0; 2];
    stream.read_exact(&mut end).context("the answer breaks off")?;
    Ok(Reply::Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    fn parse(answer: &str) -> Result<Reply> {
        read(&mut answer.as_bytes())
    }

    #[test]
    fn reads_every_kind_of_answer() {
        assert_eq!(parse("+PONG\r\n").unwrap(), text("PONG"));
        assert_eq!(parse(":12\r\n").unwrap(), text("12"));
        assert_eq!(parse("$4\r\na\r\nb\r\n").unwrap(), text("a\r\nb"));
        assert_eq!(parse("$-1\r\n").unwrap(), text(""));
        let list = Reply::List(vec![text("a"), Reply::List(vec![]), text("1")]);
        assert_eq!(parse("*3\r\n$1\r\na\r\n*0\r\n:1\r\n").unwrap(), list);
    }

    #[test]
    fn an_error_or_half_an_answer_is_an_error() {
        let error = parse("-LOADING the data\r\n").unwrap_err();
        assert_eq!(error.to_string(), "LOADING the data");
        for answer in ["", "\r\n", "+PO", "$4\r\na", "$4\r\nabcd", "*2\r\n+a\r\n", "?\r\n"] {
            assert!(parse(answer).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn finds_fields_in_texts_and_in_lists() {
        let info = text("# Replication\r\nrole:master\r\nrole_of_all:none\r\n");
        assert_eq!(info.field("role"), "master");
        assert_eq!(info.field("link"), "");
        let list = Reply::List(["name", "flags", "flags", "slave"].map(text).to_vec());
        assert_eq!(list.field("flags"), "slave");
    }
}
