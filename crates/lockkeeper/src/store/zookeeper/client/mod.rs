//! A ZooKeeper client. It knows nothing of locks.
//!
//! | file | holds |
//! |---|---|
//! | `protocol` | requests as bytes, and answers read from bytes |
//! | `ensemble` | the servers and how to reach them |
//! | `connection` | one connection to one server |
//! | `session` | a ZooKeeper session, which outlives its connections |
//! | `error` | what refusals mean, and whether the request may have been carried out |
//!
//! Two things set it apart from other clients. It sends no pings: a session lives by the requests of its
//! owner alone, so that its owner decides what keeps it alive. And it sends requests that belong together
//! in one write, so that they cost one round trip.

mod connection;
mod ensemble;
mod error;
mod protocol;
mod session;

#[cfg(test)]
pub(super) use protocol::Bytes;

pub(super) use connection::PushHandler;
pub(super) use ensemble::Ensemble;
pub(super) use error::Error;
pub(super) use protocol::{Acl, Code, NodeKind, Request, Stat};
pub(super) use session::{OnExpiry, Resume, Session};

use protocol::Parts;

type Result<T> = std::result::Result<T, Error>;

/// What a server answers to one request.
pub(super) type Answer = Result<Reply>;

/// The body of a good answer. Each kind of request has its own reader.
#[derive(Debug)]
pub(super) struct Reply(Vec<u8>);

impl Reply {
    fn read<T>(&self, read: impl FnOnce(&mut Parts<'_>) -> Option<T>) -> Result<T> {
        read(&mut Parts(&self.0)).ok_or(Error::Broken)
    }

    /// To a create.
    pub(super) fn created(&self) -> Result<(String, Stat)> {
        self.read(|parts| Some((parts.text()?, parts.stat()?)))
    }

    /// To a request for data.
    pub(super) fn data(&self) -> Result<(Vec<u8>, Stat)> {
        self.read(|parts| Some((parts.buffer()?.to_vec(), parts.stat()?)))
    }

    /// To a request for children or ephemerals.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        self.read(|parts| parts.texts())
    }

    pub(super) fn stat(&self) -> Result<Stat> {
        self.read(|parts| parts.stat())
    }

    /// To a multi.
    pub(super) fn multi(&self) -> Result<()> {
        self.read(|parts| parts.multi())?.map_err(Error::Refused)
    }
}

/// An answer about a node; `None` if there is no such node.
pub(super) fn if_there<T>(
    answer: Answer,
    read: impl FnOnce(&Reply) -> Result<T>,
) -> Result<Option<T>> {
    match answer {
        Ok(reply) => read(&reply).map(Some),
        Err(Error::Refused(Code::NO_NODE)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An answer about a node; `None` if there is no such node, or this client must not read it.
pub(super) fn if_readable<T>(
    answer: Answer,
    read: impl FnOnce(&Reply) -> Result<T>,
) -> Result<Option<T>> {
    match answer {
        Err(Error::Refused(Code::NO_AUTH)) => Ok(None),
        answer => if_there(answer, read),
    }
}
