"""A lock in hand."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union

from ._clock import now
from ._http import Call, Pauses, segment, text_or_base64
from ._session import ATTEMPT_MOST, Hold, Session, log
from .errors import Error, Lost, SessionOver, Stale, TryLater, Unavailable

T = TypeVar("T")


class Guard:
    """A lock in hand. It is renewed by a thread for as long as the guard lives.

    `release` it, use it in a `with` statement, or let it go: then it is released in the background.
    """

    def __init__(self, hold: Hold) -> None:
        #: For this package only.
        self.hold = hold
        self._done = False

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.hold.name

    @property
    def fence(self) -> int:
        """The number of this grant. For one name it grows with every exclusive grant, so a resource that remembers
        the highest it has seen can refuse a holder whose time has passed. 0: the store has no fences."""
        return self.hold.fence

    @property
    def sequencer(self) -> str:
        """The grant as text, for another program to check. No secret, and no right to anything."""
        return self.hold.sequencer

    @property
    def ticket(self) -> str:
        """The ticket's id: public, as listings show it."""
        return self.hold.ticket

    @property
    def lost(self) -> threading.Event:
        """Set when the lock is held no more, at the latest just before another client can get it."""
        return self.hold.event

    @property
    def why(self) -> Optional[str]:
        """Why it is held no more, in one word (`lockkeeper.LOSSES`); `None` while it is held."""
        return self.hold.why()

    def is_held(self) -> bool:
        """Is the lock held now? Exact at the moment of the call, also right after the process was stopped or the
        machine suspended. Asks no service."""
        return self.hold.why() is None

    def is_in_jeopardy(self) -> bool:
        """A renewal has failed: unless one succeeds soon, the lock will be lost."""
        return self.is_held() and self.hold.session.jeopardy

    def remaining(self) -> float:
        """For so many seconds the lock is held for certain, if no further renewal succeeds."""
        return self.hold.session.remaining() if self.is_held() else 0.0

    def ensure_held(self) -> None:
        """Raises `Lost` if the lock is held no more. Asks no service."""
        why = self.hold.why()
        if why is not None:
            raise Lost(self.name, why)

    def check(self) -> None:
        """Asks the service whether the grant stands. Raises `Lost` if it does not."""
        body = {"sequencer": self.sequencer}
        if not self._ask("POST", "/v1/check", body=body)["held"]:
            self.hold.end("evicted")
            self.ensure_held()

    def set_label(self, label: Union[str, bytes]) -> None:
        """Changes what others read beside the ticket; of an election it is the leader's value."""
        path = f"/v1/locks/{segment(self.name)}/tickets/{self.ticket}"
        self._ask("PATCH", path, body={**text_or_base64(label, "label"), "edit": self.hold.next_edit()})

    def put(self, value: Union[bytes, str, None]) -> None:
        """Writes the lock's cell, the small value that belongs to its name, if the lock is still held: check and
        write are one step in the store. `None` empties the cell."""
        data = value.encode() if isinstance(value, str) else value
        headers = {"Lockkeeper-Ticket": self.ticket, "Lockkeeper-Edit": str(self.hold.next_edit())}
        path = f"/v1/cells/{segment(self.name)}"
        self._ask("DELETE" if data is None else "PUT", path, body=data, headers=headers)

    def _ask(
        self, method: str, path: str, *, body: Any, headers: Optional[dict[str, str]] = None
    ) -> dict[str, Any]:
        session = self.hold.session

        def attempt() -> dict[str, Any]:
            self.ensure_held()
            until, all_headers = min(session.deadline, now() + ATTEMPT_MOST), {**session.headers, **(headers or {})}
            answer = session.service.send(method, path, body=body, headers=all_headers, until=until)
            return answer.json() if answer.body else {}

        try:
            return repeated(session, attempt)
        except SessionOver:
            session.lose("session_gone")
            raise Lost(self.name, "session_gone") from None
        except Stale:
            self.hold.end("evicted")
            raise Lost(self.name, self.hold.why() or "evicted") from None

    def release(self) -> None:
        """Releases the lock, and waits until the service has confirmed it. While the service cannot be reached the
        release is repeated until the session's deadline. Raises `Lost` if the lock was lost before: then the work
        done under it was not protected to its end."""
        hold, session = self.hold, self.hold.session
        if self._done:
            return
        self._done = True
        self.ensure_held()
        # The store may grant the lock to others before its answer is here, so nothing must say "held" meanwhile.
        hold.end("released")
        session.leaving(hold.ticket)
        try:
            result = session.leave(hold.name, hold.ticket, hold.stray)
        except Lost:
            session.forget(hold.ticket)
            raise
        except BaseException:
            session.hand_over(hold.name, hold.ticket, True)
            raise
        session.forget(hold.ticket)
        if result == "gone":
            raise Lost(self.name, "evicted")

    def let_go(self) -> None:
        """Releases the lock in the background. Never blocks."""
        if not self._done:
            self._done = True
            hold = self.hold
            hold.let_go()
            hold.session.hand_over(hold.name, hold.ticket, hold.stray)

    def disarm(self) -> None:
        """There is nothing to release."""
        self._done = True

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], e: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self.release()
            return
        try:
            self.release()
        except Error as error:
            # What has gone wrong inside matters more.
            log.warning("%s", error)

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.let_go()

    def __repr__(self) -> str:
        state = self.why or "held"
        return f"<Guard {self.name!r} fence={self.fence} {state}>"


def repeated(session: Session, attempt: Callable[[], T]) -> T:
    """Repeats what may be repeated, until the session's deadline."""
    pauses, call = Pauses(session.service), Call()
    while True:
        try:
            return attempt()
        except (Unavailable, TryLater) as e:
            if session.remaining() <= 0:
                raise
            call.sleep(min(pauses.after(e), session.remaining()))
