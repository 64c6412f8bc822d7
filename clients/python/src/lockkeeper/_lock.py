"""A lock to be taken, and the one waiting loop."""

from __future__ import annotations

import logging
import secrets
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar, Union

from ._clock import now
from ._guard import Guard
from ._http import Call, Interrupted, Pauses, jittered, segment, text_or_base64
from ._session import ATTEMPT_MOST, Hold, Session, Terms
from .errors import Busy, Error, Lost, NotAcquired, ServiceError, SessionOver, TryLater, Unavailable

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("lockkeeper")

#: One long poll. Shorter than the time after which common proxies cut one.
POLL_MOST = 20.0
#: A request that is under way when the wait is over is given this time for its answer.
ANSWER_MOST = 1.0
#: Pauses after a session was lost while waiting.
DRIFT_FIRST = 0.02
DRIFT_MOST = 1.0

G = TypeVar("G", bound=Guard)


class Cancelled(Exception):
    """The call was cancelled; its ticket is withdrawn in the background."""


@dataclass(frozen=True)
class Wish:
    """What the caller wants, checked and complete."""

    name: str
    mode: Any
    terms: Terms
    label: Union[str, bytes]
    fair: bool

    def body(self, ticket: str, wait: float, once: bool) -> dict[str, Any]:
        manner = "contend" if once or not self.fair else "queue"
        body: dict[str, Any] = {"ticket": ticket, "mode": self.mode, "manner": manner}
        body["wait_ms"] = 0 if once else round(wait * 1000)
        return {**body, **text_or_base64(self.label, "label")} if self.label else body


class _AsMade:
    """As long as the lock was made to wait."""


patience = _AsMade()
#: How many seconds to wait; `None`: as long as it takes.
Patience = Union[float, None, _AsMade]


class Lock(Generic[G]):
    """A lock to be taken: by `with`, or by `acquire`. It can be taken again and again, from several threads."""

    def __init__(self, client: Client, wish: Wish, wait: Optional[float], guard: type[G]) -> None:
        self._client = client
        self._wish = wish
        self._wait = wait
        self._guard = guard
        self._taken = threading.local()

    def acquire(self, wait: Patience = patience, *, call: Optional[Call] = None) -> G:
        """Takes the lock, waiting at most so many seconds (`None`: as long as it takes; 0: one attempt). Raises
        `NotAcquired` when the wait is over, and `Unavailable` if the service cannot be reached then."""
        seconds = self._wait if isinstance(wait, _AsMade) else wait
        return _Taking(self._client, self._wish, seconds, call or Call(), self._guard).take()

    def try_acquire(self) -> Optional[G]:
        """Takes the lock if it is free; `None` otherwise."""
        try:
            return self.acquire(0)
        except NotAcquired:
            return None

    def __enter__(self) -> G:
        guard = self.acquire()
        try:
            stack = self._taken.guards
        except AttributeError:
            stack = self._taken.guards = []
        stack.append(guard)
        return guard

    def __exit__(
        self, kind: Optional[type[BaseException]], e: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        guard: Guard = self._taken.guards.pop()
        guard.__exit__(kind, e, at)


class _Taking(Generic[G]):
    """One attempt to come to a lock, until it is had or the patience ends."""

    def __init__(self, client: Client, wish: Wish, wait: Optional[float], call: Call, guard: type[G]) -> None:
        self.client = client
        self.wish = wish
        self.call = call
        self.guard = guard
        self.began = now()
        self.once = wait is not None and wait <= 0
        self.until = float("inf") if wait is None else self.began + max(0.0, wait)
        self.pauses = Pauses(client.service)
        #: What the last attempt failed with, if it was the service's absence.
        self.away: Optional[ServiceError] = None
        self.holder: Optional[str] = None
        self.ahead: Optional[int] = None

    def take(self) -> G:
        drift = 0.0
        while True:
            session = self.client.session(self.wish.terms, self.opening_until(), self.call, self.failed)
            if session is None:
                raise self.gave_up()
            try:
                guard = _Stay(self, session).stand()
            finally:
                self.client.done(session)
            if guard is not None:
                return guard
            self.check_cancelled()
            if self.once:
                raise Lost(self.wish.name, session.why() or "session_gone")
            if now() >= self.until:
                raise self.gave_up()
            # A session that is lost again and again must not keep this program, or the service, busy.
            drift = min(max(drift * 2, DRIFT_FIRST), DRIFT_MOST)
            self.sleep(jittered(drift))

    def opening_until(self) -> float:
        return self.began + ATTEMPT_MOST if self.once else self.until

    def left(self) -> float:
        return max(0.0, self.until - now())

    def check_cancelled(self) -> None:
        if self.call.cancelled:
            raise Cancelled
        self.call.resume()

    def sleep(self, seconds: float) -> None:
        self.call.sleep(min(seconds, self.left()))
        self.check_cancelled()

    def failed(self, e: ServiceError) -> None:
        """An attempt has failed. Pauses before the next one, or raises if there will be none."""
        self.away = e
        pause = self.pauses.after(e)
        if self.once and not (isinstance(e, Unavailable) and e.idle and pause == 0.0):
            raise e
        if now() + pause > self.until and pause > 0:
            pause = self.left()
        self.sleep(pause)

    def answered(self) -> None:
        self.away = None
        self.pauses = Pauses(self.client.service)

    def waits(self, waiting: dict[str, Any]) -> None:
        holder = waiting.get("holder")
        self.ahead = waiting.get("ahead")
        self.holder = None
        if holder:
            owner = holder.get("owner") or {}
            label = f", {holder['label']!r}" if holder.get("label") else ""
            self.holder = f"{owner.get('program') or 'a program'} on {owner.get('host') or 'another host'}"
            self.holder += f" (pid {owner.get('pid', 0)}{label})"

    def gave_up(self) -> Error:
        if self.away is not None:
            return self.away
        return NotAcquired(self.wish.name, now() - self.began, self.holder, self.ahead)


class _Stay(Generic[G]):
    """One ticket, from its first request to its grant. A stay that ends otherwise leaves no ticket behind."""

    def __init__(self, taking: _Taking[G], session: Session) -> None:
        self.taking = taking
        self.session = session

    def enter(self) -> None:
        """Begins with a new ticket."""
        self.ticket = secrets.token_hex(16)
        #: The ticket may stand in the line.
        self.present = False
        #: A copy of its request may still be under way.
        self.stray = False
        self.changes = self.session.enter(self.ticket, self.taking.call)

    def stand(self) -> Optional[G]:
        """The lock in hand; `None` if the session was lost before."""
        guard: Optional[G] = None
        self.enter()
        try:
            while self.session.why() is None:
                self.taking.check_cancelled()
                shown = self.ask()
                if shown is not None and shown["held"]:
                    # From here on its finalizer leaves the ticket, whatever exception comes.
                    granted = self.taking.guard(self.granted(shown))
                    if self.session.hold(granted.hold, self.changes):
                        guard = granted
                    else:
                        granted.disarm()
                    break
                if shown is not None and self.is_over():
                    raise self.taking.gave_up()
            return guard
        finally:
            if guard is None:
                self.withdraw()

    def is_over(self) -> bool:
        return self.taking.once or now() >= self.taking.until

    def ask(self) -> Optional[dict[str, Any]]:
        """One request. `None` if it was not answered, or so that another one must follow."""
        taking, session = self.taking, self.session
        wait = min(taking.left(), POLL_MOST)
        path = f"/v1/locks/{segment(taking.wish.name)}"
        body = taking.wish.body(self.ticket, wait, taking.once)
        until = now() + wait + (ATTEMPT_MOST if taking.once or wait == POLL_MOST else ANSWER_MOST)
        present, self.present, stray, self.stray = self.present, True, self.stray, True
        try:
            answer = session.service.send(
                "POST", path, body=body, headers=session.headers, until=until, call=taking.call
            )
            shown = answer.json()
        except Interrupted:
            # Nothing was sent.
            self.present, self.stray = present, stray
            return None
        except SessionOver:
            session.lose("session_gone")
            return None
        except Busy as e:
            self.present, self.stray = stray, stray
            taking.answered()
            taking.waits(e.problem)
            if self.is_over():
                raise taking.gave_up() from None
            taking.sleep(jittered(min(e.problem.get("recheck_ms", 250) / 1000, 0.25)))
            return None
        except ServiceError as e:
            if e.outcome == "not_applied":
                self.present, self.stray = present, stray
            # It was left before, or evicted while it waited: a new stay has a new ticket.
            if e.kind in ("ticket_closed", "gone") and not taking.once:
                self.withdraw()
                self.enter()
                return None
            if not isinstance(e, (Unavailable, TryLater)):
                raise
            if session.why() is not None or taking.call.cancelled:
                return None
            taking.failed(e)
            if now() >= taking.until and not taking.once:
                raise taking.gave_up() from None
            return None
        self.stray = stray
        taking.answered()
        if not shown["held"]:
            session.queued(self.ticket)
            taking.waits(shown)
        return shown

    def granted(self, shown: dict[str, Any]) -> Hold:
        fence = int(shown.get("fence_text") or shown.get("fence") or 0)
        all_of_it = {
            "mode": self.taking.wish.mode,
            "fence": fence,
            "sequencer": shown.get("sequencer") or "",
            "stray": self.stray,
        }
        return Hold(self.session, self.taking.wish.name, self.ticket, all_of_it)

    def withdraw(self) -> None:
        """Leaves the ticket, in the background."""
        if self.present:
            self.session.hand_over(self.taking.wish.name, self.ticket, self.stray)
        else:
            self.session.forget(self.ticket)
