//! The wire protocol: requests as bytes, and answers read from bytes.
//!
//! Only the operations that the store uses are here. Numbers are big-endian; texts, buffers and lists
//! are preceded by their length.

/// The protocol's numbers of the operations.
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

/// A server sends a fired watch under this number, which no request has.
pub(super) const EVENT_XID: i32 = -1;
/// Credentials are sent under this number.
pub(super) const AUTH_XID: i32 = -4;

/// Read, write, create, delete and administer.
const ALL_RIGHTS: i32 = 31;
const SESSION_PASSWORD_BYTES: usize = 16;

/// The protocol's number for why a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

impl Code {
    pub(crate) const UNIMPLEMENTED: Self = Self(-6);
    pub(crate) const NO_NODE: Self = Self(-101);
    pub(crate) const NO_AUTH: Self = Self(-102);
    pub(crate) const BAD_VERSION: Self = Self(-103);
    pub(crate) const NODE_EXISTS: Self = Self(-110);
    pub(crate) const SESSION_EXPIRED: Self = Self(-112);
    pub(crate) const INVALID_ACL: Self = Self(-114);
    pub(crate) const AUTH_FAILED: Self = Self(-115);
    pub(crate) const SESSION_MOVED: Self = Self(-118);
    pub(crate) const NOT_READ_ONLY: Self = Self(-119);
    pub(crate) const SASL_REQUIRED: Self = Self(-124);
    pub(crate) const QUOTA: Self = Self(-125);
    pub(crate) const THROTTLED: Self = Self(-127);
}

/// How long a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Persistent,
    /// Until its session ends; the server appends a number to its name.
    EphemeralSequential,
    /// Until some time after its last child has gone.
    Container,
}

/// Who may do what with a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acl {
    /// Everything, by every client.
    Open,
    /// Everything, by clients with the credentials of the connection that created the node.
    Creator,
}

impl Acl {
    fn write(self, to: &mut Bytes) {
        let (scheme, id) = match self {
            Self::Open => ("world", "anyone"),
            Self::Creator => ("auth", ""),
        };
        to.int(1).int(ALL_RIGHTS).text(scheme).text(id);
    }
}

/// A request without the number that its connection will give it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    op: i32,
    body: Vec<u8>,
}

impl Request {
    fn new(op: i32, fill: impl FnOnce(&mut Bytes) -> &mut Bytes) -> Self {
        let mut body = Bytes::default();
        fill(&mut body);
        Self { op, body: body.0 }
    }

    /// Answered with path and stat.
    pub(crate) fn create(path: &str, data: &[u8], kind: NodeKind, acl: Acl) -> Self {
        let (op, flags) = match kind {
            NodeKind::Persistent => (op::CREATE2, 0),
            NodeKind::EphemeralSequential => (op::CREATE2, 3),
            NodeKind::Container => (op::CREATE_CONTAINER, 4),
        };
        Self::new(op, |body| {
            acl.write(body.text(path).buffer(data));
            body.int(flags)
        })
    }

    /// Answered with nothing.
    pub(crate) fn delete(path: &str) -> Self {
        Self::delete_version(path, -1)
    }

    /// The same, if the node still has this version.
    pub(crate) fn delete_version(path: &str, version: i32) -> Self {
        Self::new(op::DELETE, |body| body.text(path).int(version))
    }

    /// Answered with a stat. A watch tells of the next change of the node, also that it is created.
    pub(crate) fn exists(path: &str) -> Self {
        Self::read(op::EXISTS, path)
    }

    /// Answered with data and stat. A watch tells of the next change of the node.
    pub(crate) fn data(path: &str) -> Self {
        Self::read(op::GET_DATA, path)
    }

    /// Answered with names. A watch tells of the next child that is created or deleted.
    pub(crate) fn children(path: &str) -> Self {
        Self::read(op::GET_CHILDREN, path)
    }

    fn read(op: i32, path: &str) -> Self {
        Self::new(op, |body| body.text(path).flag(false))
    }

    /// The same read, with a watch or without.
    pub(crate) fn watching(mut self, watch: bool) -> Self {
        debug_assert!(matches!(self.op, op::EXISTS | op::GET_DATA | op::GET_CHILDREN));
        *self.body.last_mut().expect("a read ends with its watch flag") = watch.into();
        self
    }

    /// Answered with a stat.
    pub(crate) fn set(path: &str, data: &[u8], version: i32) -> Self {
        Self::new(op::SET_DATA, |body| body.text(path).buffer(data).int(version))
    }

    /// What is read after this on the same connection is not older than this.
    pub(crate) fn sync(path: &str) -> Self {
        Self::new(op::SYNC, |body| body.text(path))
    }

    /// Only as a part of [`multi`](Self::multi): the node must be there.
    pub(crate) fn check(path: &str) -> Self {
        Self::new(op::CHECK, |body| body.text(path).int(-1))
    }

    /// Several writes, all or none of which are carried out. Even if nothing changes, a majority of the
    /// servers has to agree, so the answer proves that the answering server belongs to a majority.
    pub(crate) fn multi(parts: &[Self]) -> Self {
        Self::new(op::MULTI, |body| {
            for part in parts {
                body.int(part.op).flag(false).int(-1).0.extend_from_slice(&part.body);
            }
            body.int(op::END).flag(true).int(-1)
        })
    }

    /// Answered with the paths of this session's own nodes below the prefix.
    pub(crate) fn ephemerals(prefix: &str) -> Self {
        Self::new(op::GET_EPHEMERALS, |body| body.text(prefix))
    }

    pub(super) fn close_session() -> Self {
        Self::new(op::CLOSE_SESSION, |body| body)
    }

    pub(super) fn auth(scheme: &str, credentials: &[u8]) -> Self {
        Self::new(op::AUTH, |body| body.int(0).text(scheme).buffer(credentials))
    }

    /// The request as it goes over the wire, under this number.
    pub(super) fn frame(&self, xid: i32) -> Vec<u8> {
        let mut frame = Vec::new();
        self.write(xid, &mut frame);
        frame
    }

    /// Appends the frame.
    pub(super) fn write(&self, xid: i32, to: &mut Vec<u8>) {
        let length = u32::try_from(8 + self.body.len()).expect("requests are bounded");
        to.extend_from_slice(&length.to_be_bytes());
        to.extend_from_slice(&xid.to_be_bytes());
        to.extend_from_slice(&self.op.to_be_bytes());
        to.extend_from_slice(&self.body);
    }
}

/// A ZooKeeper session as its owner must show it to the next server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
}

impl Identity {
    /// Asks for a new session.
    pub(super) fn none() -> Self {
        Self { id: 0, password: vec![0; SESSION_PASSWORD_BYTES] }
    }
}

/// The client's first frame on a connection.
pub(super) fn connect_request(identity: &Identity, timeout_ms: i32, last_zxid: i64) -> Vec<u8> {
    let mut body = Bytes::default();
    body.int(0).long(last_zxid).int(timeout_ms).long(identity.id);
    body.buffer(&identity.password).flag(false);
    let mut frame = Bytes::default();
    frame.buffer(&body.0);
    frame.0
}

/// The server's answer to it. A session that has ended is answered with the id 0.
pub(super) struct ConnectResponse {
    pub(super) identity: Identity,
    pub(super) timeout_ms: i32,
}

impl ConnectResponse {
    pub(super) fn read(from: &[u8]) -> Option<Self> {
        let mut from = Parts(from);
        let _version = from.int()?;
        let (timeout_ms, id) = (from.int()?, from.long()?);
        let password = from.buffer()?.to_vec();
        Some(Self { identity: Identity { id, password }, timeout_ms })
    }
}

/// A body that is being written.
#[derive(Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Bytes {
    pub(crate) fn int(&mut self, n: i32) -> &mut Self {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(crate) fn long(&mut self, n: i64) -> &mut Self {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(crate) fn flag(&mut self, on: bool) -> &mut Self {
        self.0.push(on.into());
        self
    }

    pub(crate) fn buffer(&mut self, bytes: &[u8]) -> &mut Self {
        self.int(i32::try_from(bytes.len()).expect("buffers are bounded"));
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
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

/// What the server tells of a node besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The number of the write that created the node. Numbers grow over all nodes and for ever.
    pub(crate) czxid: u64,
    /// When the node was created, on the server's wall clock.
    pub(crate) ctime_ms: u64,
    pub(crate) version: i32,
    /// The session that the node ends with, or 0.
    pub(crate) owner: i64,
}

/// An answer that is read part by part. `None` if it is too short.
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

    /// The path of the watch that has fired.
    pub(super) fn event(&mut self) -> Option<String> {
        let (_kind, _state) = (self.int()?, self.int()?);
        self.text()
    }

    /// The outcome of a `multi`: nothing if all writes were carried out, or why none was. The server
    /// answers the parts before the failed one as successful and those after it as not tried, so the
    /// first other code is the reason.
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
    fn a_frame_begins_with_its_length() {
        let frame = Request::delete("/a").frame(7);
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
    fn a_failed_multi_is_reported_with_the_code_of_the_part_that_failed() {
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
