//! A bare HTTP client of the service, as a program in any language has one: one connection, one request at a time.

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The longest TTL that the service grants: nothing needs to be renewed.
const TTL_MS: u64 = 86_400_000;

/// How long answers are, headers and all.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sizes {
    pub(crate) take: usize,
    pub(crate) leave: usize,
}

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    /// The answer that has come last.
    answer: Vec<u8>,
    request: String,
}

/// What was answered.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    /// Headers and all.
    pub(crate) size: usize,
}

impl Answer<'_> {
    /// Fails if the service has not done what it was asked for.
    pub(crate) fn done(&self) -> Result<usize> {
        let Self { status, body, size } = self;
        ensure!(*status == 200, "the service has answered {status}: {}", body.escape_ascii());
        Ok(*size)
    }
}

impl Client {
    pub(crate) async fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, answer: Vec::with_capacity(4096), request: String::new() })
    }

    /// Sends a request, and reads the whole answer.
    pub(crate) async fn ask(
        &mut self,
        line: &str,
        headers: &str,
        body: &str,
    ) -> Result<Answer<'_>> {
        self.request.clear();
        let length = body.len();
        write!(
            self.request,
            "{line} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
        )?;
        self.stream.write_all(self.request.as_bytes()).await?;
        self.answer.clear();
        let head = loop {
            self.read().await?;
            if let Some(at) = self.answer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let (status, length) = read_head(&self.answer[..head])?;
        while self.answer.len() < head + length {
            self.read().await?;
        }
        Ok(Answer { status, body: &self.answer[head..], size: self.answer.len() })
    }

    async fn read(&mut self) -> Result<()> {
        ensure!(self.stream.read_buf(&mut self.answer).await? > 0, "the service has hung up");
        Ok(())
    }
}

/// The status, and the length of the body.
fn read_head(head: &[u8]) -> Result<(u16, usize)> {
    let head = std::str::from_utf8(head)?;
    let status = head.split(' ').nth(1).context("an answer without a status")?.parse()?;
    for line in head.split("\r\n") {
        if let Some(("content-length", length)) = line.split_once(": ") {
            return Ok((status, length.parse()?));
        }
    }
    bail!("an answer that does not tell its length")
}

/// A client with a session.
pub(crate) struct Caller {
    client: Client,
    headers: String,
}

impl Caller {
    /// Opens a session.
    pub(crate) async fn open(address: &str) -> Result<Self> {
        let mut client = Client::connect(address).await?;
        let secret = some_id();
        let body = format!(r#"{{"secret":"{secret}","ttl_ms":{TTL_MS}}}"#);
        let answer = client.ask("POST /v1/sessions", JSON, &body).await?;
        answer.done()?;
        let opened: serde_json::Value = serde_json::from_slice(answer.body)?;
        let session = opened["session"].as_str().context("a session has a name")?;
        Ok(Self { headers: headers(session, &secret), client })
    }

    /// Asks a program that knows no sessions.
    pub(crate) async fn of_echo(address: &str) -> Result<Self> {
        let client = Client::connect(address).await?;
        Ok(Self { client, headers: headers(&some_id(), &some_id()) })
    }

    /// Takes the lock, and waits for it if it is taken.
    pub(crate) async fn take(&mut self, name: &str, ticket: &str) -> Result<usize> {
        let body = format!(r#"{{"ticket":"{ticket}","wait_ms":20000}}"#);
        let line = format!("POST /v1/locks/{name}");
        self.client.ask(&line, &self.headers, &body).await?.done()
    }

    pub(crate) async fn leave(&mut self, name: &str, ticket: &str) -> Result<usize> {
        let line = format!("DELETE /v1/locks/{name}/tickets/{ticket}");
        self.client.ask(&line, &self.headers, "").await?.done()
    }
}

pub(crate) const JSON: &str = "content-type: application/json\r\n";

fn headers(session: &str, secret: &str) -> String {
    format!("{JSON}lockkeeper-session: {session}\r\nlockkeeper-secret: {secret}\r\n")
}

/// 32 hexadecimal digits at random: a ticket or a secret.
pub(crate) fn some_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_its_status_and_its_length() {
        let head = b"HTTP/1.1 202 Accepted\r\ncontent-type: x\r\ncontent-length: 17\r\n\r\n";
        assert_eq!(read_head(head).unwrap(), (202, 17));
        assert!(read_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert_eq!(some_id().len(), 32);
    }
}
