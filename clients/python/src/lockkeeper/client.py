"""The client of a lock service."""

from __future__ import annotations

import os
import ssl
import threading
import weakref
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, TypeVar, Union
from urllib.parse import urlencode

from . import model
from ._clock import now
from ._guard import Guard
from ._http import Answer, Call, Interrupted, Pauses, Service, segment
from ._lock import ANSWER_MOST, POLL_MOST, Cancelled, Lock, Wish
from ._session import ATTEMPT_MOST, Session, Terms
from .errors import Error, Refused, ServiceError, TryLater, Unavailable
from .model import Cell, Leader, Line

URL_DEFAULT = "http://127.0.0.1:7601"
TTL_DEFAULT = 15.0
NAME_MAX = 512
#: Closing waits so long for a service that does not answer; then its sessions end by themselves.
CLOSE_MOST = 2.0

_clients: weakref.WeakSet[Client] = weakref.WeakSet()
T = TypeVar("T")


class Term(Guard):
    """A leader's term of office: a guard whose release resigns."""

    def proclaim(self, value: Union[str, bytes]) -> None:
        """Proclaims another value; observers see it as a change of the leader."""
        self.set_label(value)

    def resign(self) -> None:
        """Steps down; the next candidate leads."""
        self.release()


class Client:
    """A handle to a lock service. All threads of a program can share one; all its locks share a session for each
    choice of times. A forked child has its own sessions, and holds none of the parent's locks."""

    def __init__(
        self,
        url: Union[str, Sequence[str]],
        *,
        token: Optional[str] = None,
        ttl: float = TTL_DEFAULT,
        lock_delay: float = 0.0,
        timeout: float = 10.0,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self.service = Service(url, token, tls)
        self._terms = _terms(ttl, lock_delay)
        self._timeout = timeout
        self.after_fork()
        _clients.add(self)

    def after_fork(self) -> None:
        """Takes nothing over from the parent process."""
        self.service.after_fork()
        self._lock = threading.RLock()
        self._sessions: dict[Terms, Session] = {}
        self._openings: dict[Terms, threading.Lock] = {}
        self._closed = False

    # Locks.

    def lock(
        self,
        name: str,
        *,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        lock_delay: Optional[float] = None,
        shared: bool = False,
        label: Union[str, bytes] = "",
        fair: bool = True,
    ) -> Lock[Guard]:
        """A lock: `with client.lock("nightly") as g: …`.

        `wait`: how many seconds to wait at most; `None` as long as it takes, 0 one attempt. `ttl`: for how long the
        lock outlives its last renewal. `lock_delay`: for how long after that it stays closed. `shared`: together
        with other readers. `label`: a text for others to read. `fair=False`: contend instead of standing in line.
        """
        mode = "shared" if shared else "exclusive"
        return self._wanted(Guard, name, mode, wait, ttl, lock_delay, label, fair)

    def semaphore(
        self,
        name: str,
        permits: int = 1,
        *,
        of: int,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        lock_delay: Optional[float] = None,
        label: Union[str, bytes] = "",
        fair: bool = True,
    ) -> Lock[Guard]:
        """Some permits `of` so many: `with client.semaphore("gpu", 2, of=4): …`."""
        if not 1 <= permits <= of:
            raise ValueError(f"{permits} permits of {of}: ask for 1 to {of}")
        mode = {"permits": {"weight": permits, "of": of}}
        return self._wanted(Guard, name, mode, wait, ttl, lock_delay, label, fair)

    def election(self, name: str) -> Election:
        """One leader at a time, which all clients can see."""
        return Election(self, _name(name))

    def _wanted(
        self,
        guard: type[Any],
        name: str,
        mode: Any,
        wait: Optional[float],
        ttl: Optional[float],
        lock_delay: Optional[float],
        label: Union[str, bytes],
        fair: bool,
    ) -> Lock[Any]:
        default = self._terms
        terms = _terms(
            default.ttl if ttl is None else ttl, default.lock_delay if lock_delay is None else lock_delay
        )
        return Lock(self, Wish(_name(name), mode, terms, label, fair), wait, guard)

    # Looking, and writing from outside.

    def get(self, name: str) -> Line:
        """A lock with its holders and waiters."""
        return model.line(self._ask("GET", _lock_path(name)).json())

    def list(self, prefix: str = "", *, state: Optional[str] = None) -> Iterator[Line]:
        """The locks whose names begin so. `state`: `held`, `waiting` or `expiring`: only those."""
        query = {"prefix": prefix}
        if state is not None:
            query["state"] = state
        while True:
            page = self._ask("GET", f"/v1/locks?{urlencode(query)}").json()
            yield from map(model.line, page["locks"])
            if page.get("next") is None:
                return
            query["after"] = page["next"]

    def evict(self, name: str, ticket: str, *, fence: Optional[int] = None) -> bool:
        """Ends a ticket of any client by force. Says whether there was one. With `fence`: only if this is its fence
        now; `Refused` (kind `fence_changed`) otherwise."""
        body = {"ticket": ticket} if fence is None else {"ticket": ticket, "fence": fence}
        unknown = False

        def attempt() -> bool:
            nonlocal unknown
            try:
                result = self._once("POST", f"{_lock_path(name)}/evict", body=body).json()["result"]
            except Unavailable as e:
                unknown |= e.outcome == "unknown"
                raise
            # An earlier copy of this very request may have done it.
            return bool(result == "evicted" or unknown)

        return self._repeat(attempt)

    def check(self, sequencer: str) -> bool:
        """Is this grant held now?"""
        return bool(self._ask("POST", "/v1/check", body={"sequencer": sequencer}).json()["held"])

    def cell(self, name: str) -> Optional[Cell]:
        """The small value that belongs to a lock's name; `None` if there is none. `Guard.put` writes it."""
        try:
            answer = self._ask("GET", _cell_path(name))
        except Refused as e:
            if e.status == 404:
                return None
            raise
        return Cell(answer.body, int(answer.headers["lockkeeper-fence"]))

    def put(self, name: str, value: Union[bytes, str], *, sequencer: str) -> None:
        """Writes the cell under another program's grant, which the sequencer stands for. Raises `Stale` if that is
        over. Such a write has no number, so it is never repeated: after `Unavailable` with the outcome `unknown`
        read the cell."""
        data = value.encode() if isinstance(value, str) else value
        headers = {"Lockkeeper-Sequencer": sequencer}
        until = now() + self._timeout
        pauses, call = Pauses(self.service), Call()
        while True:
            try:
                self.service.send("PUT", _cell_path(name), body=data, headers=headers, until=until)
                return
            except (Unavailable, TryLater) as e:
                pause = pauses.after(e)
                if e.outcome == "unknown" or now() + pause >= until:
                    raise
                call.sleep(pause)

    def store(self) -> dict[str, Any]:
        """What the store behind the service is, and what it can do."""
        return self._ask("GET", "/v1/store").json()

    def _ask(self, method: str, path: str, *, body: Optional[Mapping[str, Any]] = None) -> Answer:
        return self._repeat(lambda: self._once(method, path, body=body))

    def _once(self, method: str, path: str, *, body: Optional[Mapping[str, Any]] = None) -> Answer:
        return self.service.send(method, path, body=body, until=now() + min(self._timeout, ATTEMPT_MOST))

    def _repeat(self, attempt: Callable[[], T]) -> T:
        """For what can be repeated: reads, and evictions."""
        until, pauses, call = now() + self._timeout, Pauses(self.service), Call()
        while True:
            try:
                return attempt()
            except (Unavailable, TryLater) as e:
                pause = pauses.after(e)
                if now() + pause >= until:
                    raise
                call.sleep(pause)

    # Sessions.

    def session(
        self, terms: Terms, until: float, call: Call, failed: Callable[[ServiceError], None]
    ) -> Optional[Session]:
        """A live session with these times, opened if there is none; `None` if that took longer than `until`. To be
        given back to `done`."""
        while (session := self._living(terms)) is None:
            with self._lock:
                opening = self._openings.setdefault(terms, threading.Lock())
            if not opening.acquire(timeout=0.05):
                if call.cancelled:
                    raise Cancelled
                if now() >= until:
                    return None
                continue
            try:
                session = self._living(terms) or self._opened(terms, until, call, failed)
                break
            finally:
                opening.release()
        return session

    def _opened(
        self, terms: Terms, until: float, call: Call, failed: Callable[[ServiceError], None]
    ) -> Optional[Session]:
        session = self._new_session(terms)
        while True:
            if call.cancelled:
                raise Cancelled
            call.resume()
            if session.opening_is_old():
                session = self._new_session(terms)
            try:
                session.open(min(max(until, now()) + ANSWER_MOST, now() + ATTEMPT_MOST), call)
            except Interrupted:
                continue
            except (Unavailable, TryLater) as e:
                failed(e)
                if now() >= until:
                    return None
                continue
            if session.why() is None:
                with self._lock:
                    if not self._closed:
                        self._sessions[terms] = session
                        session.users += 1
                        return session
                session.close(CLOSE_MOST)
                raise Error("the client has been closed")

    def _new_session(self, terms: Terms) -> Session:
        return Session(self.service, terms, self._retire)

    def _living(self, terms: Terms) -> Optional[Session]:
        with self._lock:
            if self._closed:
                raise Error("the client has been closed")
            session = self._sessions.get(terms)
            if session is None or session.why() is not None:
                return None
            session.users += 1
            return session

    def done(self, session: Session) -> None:
        """Gives a session back."""
        with self._lock:
            session.users -= 1

    def _retire(self, session: Session) -> bool:
        """Nothing uses the session any more, and nothing will."""
        with self._lock:
            if session.users or not session.is_idle():
                return False
            if self._sessions.get(session.asked) is session:
                del self._sessions[session.asked]
            return True

    def is_closed(self) -> bool:
        """Was it closed?"""
        return self._closed

    def close(self) -> None:
        """Ends all sessions with all their locks, at once for other clients."""
        with self._lock:
            self._closed = True
            sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.close(CLOSE_MOST)
        self.service.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], e: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lockkeeper.Client {self.service!r}>"


class Election:
    """One leader at a time. Candidates stand in the same line as the callers that lock the name; what a leader proclaims is
    the label of its ticket."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def campaign(
        self,
        value: Union[str, bytes] = "",
        *,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        lock_delay: Optional[float] = None,
    ) -> Lock[Term]:
        """A candidacy: `with election.campaign("host-7") as term: …` leads when its turn comes."""
        return self._client._wanted(Term, self.name, "exclusive", wait, ttl, lock_delay, value, True)

    def leader(self) -> Optional[Leader]:
        """The leader; `None` while there is none."""
        return model.leader(self._client.get(self.name))

    def observe(self, *, call: Optional[Call] = None) -> Iterator[Optional[Leader]]:
        """Follows who leads: at first how it stands, then whenever it changes. Changes that follow each other
        quickly may be seen as one. Goes on through an absence of the service."""
        call, pauses = call or Call(), Pauses(self._client.service)
        change: Optional[str] = None
        first, seen = True, None
        while not call.cancelled:
            try:
                line = self._look(change, call)
            except Interrupted:
                return
            except (Unavailable, TryLater) as e:
                call.sleep(pauses.after(e))
                continue
            pauses = Pauses(self._client.service)
            change, leader = line.change, model.leader(line)
            if first or leader != seen:
                first, seen = False, leader
                yield leader
            elif change is None:
                # The service does not tell of changes.
                call.sleep(1.0)

    def _look(self, change: Optional[str], call: Call) -> Line:
        query = {} if change is None else {"wait_change": change, "wait_ms": round(POLL_MOST * 1000)}
        path = _lock_path(self.name) + (f"?{urlencode(query)}" if query else "")
        until = now() + POLL_MOST + ATTEMPT_MOST
        return model.line(self._client.service.send("GET", path, until=until, call=call).json())


def _name(name: str) -> str:
    if not name:
        raise ValueError("a lock's name must not be empty")
    if len(name.encode()) > NAME_MAX:
        raise ValueError(f"a lock's name has at most {NAME_MAX} bytes")
    return name


def _lock_path(name: str) -> str:
    return f"/v1/locks/{segment(_name(name))}"


def _cell_path(name: str) -> str:
    return f"/v1/cells/{segment(_name(name))}"


def _terms(ttl: float, lock_delay: float) -> Terms:
    if not 0.1 <= ttl <= 86_400:
        raise ValueError(f"the TTL must be 0.1 s to 1 day, not {ttl} s")
    if not 0 <= lock_delay <= 86_400:
        raise ValueError(f"the lock-delay must be 0 to 1 day, not {lock_delay} s")
    return Terms(float(ttl), float(lock_delay))


def close_all() -> None:
    """At the end of the program: what it holds is free at once."""
    for client in list(_clients):
        client.close()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
