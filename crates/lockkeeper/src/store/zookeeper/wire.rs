//! ZooKeeper's protocol, as far as locks need it: requests as bytes, and bytes as answers.
//!
//! Numbers are big-endian; texts, buffers and lists have their length in front of them.

/// What a request does; the numbers are the protocol's.
mod op {
    pub(super) const DELETE: i32 = 2;
    pub(super) const EXISTS: i32 = 3;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const SYNC: i32 = 9;
    pub(super) const CHECK: i32 = 13;
    pub(super) const MULTI: i32 = 14;
    pub(super) const CREATE2: i32 = 15;
    pub(super) const CREATE_CONTAINER: i32 = 19;
    pub(super) const AUTH: i32 = 100;
    pub(super) const GET_EPHEMERALS: i32 = 103;
    pub(super) const CLOSE_SESSION: i32 = -11;
    pub(super) const END: i32 = -1;
}

/// The number under which a server sends what nobody asked for: a watch has fired.
pub(super) const EVENT_XID: i32 = -1;
/// The number under which credentials are sent.
pub(super) const AUTH_XID: i32 = -4;

/// All rights.
const ALL: i32 = 31;
/// How long the password of a session is.
const PASSWORD: usize = 16;

/// Why a server refuses; the numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

impl Code {
    pub(super) const UNIMPLEMENTED: Self = Self(-6);
    pub(super) const NO_NODE: Self = Self(-101);
    pub(super) const NO_AUTH: Self = Self(-102);
    pub(super) const BAD_VERSION: Self = Self(-103);
    pub(super) const NODE_EXISTS: Self = Self(-110);
    pub(super) const SESSION_EXPIRED: Self = Self(-112);
    pub(super) const INVALID_ACL: Self = Self(-114);
    pub(super) const AUTH_FAILED: Self = Self(-115);
    pub(super) const SESSION_MOVED: Self = Self(-118);
    pub(super) const NOT_READ_ONLY: Self = Self(-119);
    pub(super) const SASL_REQUIRED: Self = Self(-124);
    pub(super) const QUOTA: Self = Self(-125);
    pub(super) const THROTTLED: Self = Self(-127);
}

/// How long a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Persistent,
    /// Until the end of the session; the server appends a number to its name.
    Ticket,
    /// Until some time after its last child has gone.
    Container,
}

/// Who may do what with a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Everybody,
    /// Who has the credentials with which it was made.
    Creator,
}

impl Rights {
    fn write(self, to: &mut Bytes) {
        let (scheme, id) = match self {
            Self::Everybody => ("world", "anyone"),
            Self::Creator => ("auth", ""),
        };
        to.int(1).int(ALL).text(scheme).text(id);
    }
}

/// A request without the number that its connection will give it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    op: i32,
    body: Vec<u8>,
}

impl Request {
    fn new(op: i32, fill: impl FnOnce(&mut Bytes)) -> Self {
        let mut body = Bytes::default();
        fill(&mut body);
        Self { op, body: body.0 }
    }

    /// Answered with path and stat.
    pub(super) fn create(path: &str, data: &[u8], kind: Kind, rights: Rights) -> Self {
        let (op, flags) = match kind {
            Kind::Persistent => (op::CREATE2, 0),
            Kind::Ticket => (op::CREATE2, 3),
            Kind::Container => (op::CREATE_CONTAINER, 4),
        };
        Self::new(op, |body| {
            body.text(path).buffer(data);
            rights.write(body);
            body.int(flags);
        })
    }

    /// Answered with nothing.
    pub(super) fn delete(path: &str, version: i32) -> Self {
        Self::new(op::DELETE, |body| {
            body.text(path).int(version);
        })
    }

    /// Answered with a stat.
    pub(super) fn exists(path: &str) -> Self {
        Self::new(op::EXISTS, |body| {
            body.text(path).flag(false);
        })
    }

    /// The same, and the next change of the node is told; also that it comes to be, if it is not there.
    pub(super) fn watch(path: &str) -> Self {
        Self::new(op::EXISTS, |body| {
            body.text(path).flag(true);
        })
    }

    /// Answered with data and stat. With a watch, the next change of the node is told.
    pub(super) fn data(path: &str, watch: bool) -> Self {
        Self::new(op::GET_DATA, |body| {
            body.text(path).flag(watch);
        })
    }

    /// Answered with a stat.
    pub(super) fn set(path: &str, data: &[u8], version: i32) -> Self {
        Self::new(op::SET_DATA, |body| {
            body.text(path).buffer(data).int(version);
        })
    }

    /// Answered with names. With a watch, the next child that comes or goes is told.
    pub(super) fn children(path: &str, watch: bool) -> Self {
        Self::new(op::GET_CHILDREN, |body| {
            body.text(path).flag(watch);
        })
    }

    /// What is read after this on the same connection is not older than this.
    pub(super) fn sync(path: &str) -> Self {
        Self::new(op::SYNC, |body| {
            body.text(path);
        })
    }

    /// Only as a part of [`all_or_nothing`](Self::all_or_nothing): the node must be there.
    pub(super) fn check(path: &str) -> Self {
        Self::new(op::CHECK, |body| {
            body.text(path).int(-1);
        })
    }

    /// Several writes as one. Also if nothing changes it has to be agreed upon by the servers, and so
    /// proves that whoever answers it belongs to a majority.
    pub(super) fn all_or_nothing(parts: &[Self]) -> Self {
        Self::new(op::MULTI, |body| {
            for part in parts {
                body.int(part.op).flag(false).int(-1);
                body.0.extend_from_slice(&part.body);
            }
            body.int(op::END).flag(true).int(-1);
        })
    }

    /// Answered with the paths of this session's own nodes below the prefix.
    pub(super) fn ephemerals(prefix: &str) -> Self {
        Self::new(op::GET_EPHEMERALS, |body| {
            body.text(prefix);
        })
    }

    pub(super) fn close_session() -> Self {
        Self::new(op::CLOSE_SESSION, |_| {})
    }

    pub(super) fn auth(scheme: &str, credentials: &[u8]) -> Self {
        Self::new(op::AUTH, |body| {
            body.int(0).text(scheme).buffer(credentials);
        })
    }

    /// The request as it goes over the wire, under this number.
    pub(super) fn frame(&self, xid: i32) -> Vec<u8> {
        let mut frame = Vec::new();
        self.write(xid, &mut frame);
        frame
    }

    /// The same, behind what is there already.
    pub(super) fn write(&self, xid: i32, to: &mut Vec<u8>) {
        let length = u32::try_from(8 + self.body.len()).expect("requests are bounded");
        to.extend_from_slice(&length.to_be_bytes());
        to.extend_from_slice(&xid.to_be_bytes());
        to.extend_from_slice(&self.op.to_be_bytes());
        to.extend_from_slice(&self.body);
    }
}

/// A ZooKeeper session, as its owner must show it to another server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
}

impl Identity {
    /// Asks for a new session.
    pub(super) fn none() -> Self {
        Self { id: 0, password: vec![0; PASSWORD] }
    }
}

/// The first words on a connection.
pub(super) fn hello(identity: &Identity, timeout_ms: i32, last_zxid: i64) -> Vec<u8> {
    frame(|to| {
        to.int(0).long(last_zxid).int(timeout_ms).long(identity.id);
        to.buffer(&identity.password).flag(false);
    })
}

/// What a server answers to them. A session that is over is answered with the number 0.
pub(super) struct Welcome {
    pub(super) identity: Identity,
    pub(super) timeout_ms: i32,
}

impl Welcome {
    pub(super) fn read(from: &[u8]) -> Option<Self> {
        let mut from = Parts(from);
        let _version = from.int()?;
        let (timeout_ms, id) = (from.int()?, from.long()?);
        let password = from.buffer()?.to_vec();
        Some(Self { identity: Identity { id, password }, timeout_ms })
    }
}

fn frame(fill: impl FnOnce(&mut Bytes)) -> Vec<u8> {
    let mut to = Bytes(vec![0; 4]);
    fill(&mut to);
    let length = u32::try_from(to.0.len() - 4).expect("requests are bounded");
    to.0[..4].copy_from_slice(&length.to_be_bytes());
    to.0
}

#[derive(Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    pub(super) fn int(&mut self, n: i32) -> &mut Self {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(super) fn long(&mut self, n: i64) -> &mut Self {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(super) fn flag(&mut self, on: bool) -> &mut Self {
        self.0.push(on.into());
        self
    }

    pub(super) fn buffer(&mut self, bytes: &[u8]) -> &mut Self {
        self.int(i32::try_from(bytes.len()).expect("buffers are bounded"));
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.buffer(text.as_bytes())
    }
}

/// What precedes every answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) xid: i32,
    pub(super) zxid: i64,
    pub(super) code: Code,
}

/// What is known of a node besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// The number of the write that made it: it only grows, whatever becomes of its parent.
    pub(super) czxid: u64,
    /// When it was made, on the server's wall clock.
    pub(super) ctime_ms: u64,
    pub(super) version: i32,
    /// The session that it ends with, or 0.
    pub(super) owner: i64,
}

/// The parts of an answer, taken one after the other. `None` if it is too short.
pub(super) struct Parts<'a>(pub(super) &'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A length of -1 means that there is nothing.
    pub(super) fn buffer(&mut self) -> Option<&'a [u8]> {
        let length = self.int()?.max(0);
        self.take(usize::try_from(length).ok()?)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?.to_vec()).ok()
    }

    pub(super) fn texts(&mut self) -> Option<Vec<String>> {
        let count = self.int()?.max(0);
        (0..count).map(|_| self.text()).collect()
    }

    pub(super) fn header(&mut self) -> Option<Header> {
        Some(Header { xid: self.int()?, zxid: self.long()?, code: Code(self.int()?) })
    }

    pub(super) fn stat(&mut self) -> Option<Stat> {
        let czxid = u64::try_from(self.long()?).ok()?;
        let (_mzxid, ctime_ms) = (self.long()?, u64::try_from(self.long()?).unwrap_or(0));
        let (_mtime, version) = (self.long()?, self.int()?);
        let (_cversion, _aversion, owner) = (self.int()?, self.int()?, self.long()?);
        let (_data_length, _children, _pzxid) = (self.int()?, self.int()?, self.long()?);
        Some(Stat { czxid, ctime_ms, version, owner })
    }

    /// The path of a watch that has fired.
    pub(super) fn event(&mut self) -> Option<String> {
        let (_kind, _state) = (self.int()?, self.int()?);
        self.text()
    }

    /// What became of writes as one: nothing if all were done, or why not. The parts before the one
    /// that failed are told as fine and those after it as not tried, so the first real reason counts.
    pub(super) fn multi(&mut self) -> Option<Result<(), Code>> {
        const NOT_TRIED: i32 = -2;
        let mut refusal = None;
        loop {
            let (kind, done, _) = (self.int()?, self.take(1)?[0] != 0, self.int()?);
            if done {
                return Some(refusal.map_or(Ok(()), Err));
            }
            match kind {
                op::END => match self.int()? {
                    0 | NOT_TRIED => {}
                    code => refusal = refusal.or(Some(Code(code))),
                },
                op::SET_DATA => drop(self.stat()?),
                op::CREATE2 => drop((self.text()?, self.stat()?)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_how_long_it_is() {
        let frame = Request::delete("/a", -1).frame(7);
        assert_eq!(frame[..4], (frame.len() as u32 - 4).to_be_bytes());
        let mut parts = Parts(&frame[4..]);
        assert_eq!((parts.int(), parts.int()), (Some(7), Some(op::DELETE)));
        assert_eq!((parts.text().as_deref(), parts.int()), (Some("/a"), Some(-1)));
    }

    #[test]
    fn an_answer_that_is_too_short_is_none() {
        assert!(Parts(&[0, 0, 0, 9, 1]).buffer().is_none());
        assert!(Parts(&[0; 40]).stat().is_none() && Parts(&[]).header().is_none());
        assert!(Parts(&[0, 0, 0, 2, 0, 0, 0, 1, b'a']).texts().is_none());
        assert_eq!(Parts(&[0xff; 4]).buffer(), Some(&[][..]), "no buffer at all");
    }

    #[test]
    fn the_first_reason_counts_among_several_writes() {
        let mut reply = Bytes::default();
        for code in [0, -103, -2] {
            reply.int(op::END).flag(false).int(code).int(code);
        }
        reply.int(op::END).flag(true).int(-1);
        assert_eq!(Parts(&reply.0).multi(), Some(Err(Code::BAD_VERSION)));
        let mut fine = Bytes::default();
        fine.int(op::CHECK).flag(false).int(0).int(op::END).flag(true).int(-1);
        assert_eq!(Parts(&fine.0).multi(), Some(Ok(())));
    }
}
