"""A session: one lease of the service, renewed by one thread, many locks on it.

The laws of the Rust library's sessions hold here too. Belief ends at the send time of the last acknowledged renewal
+ TTL - margin, on a clock that counts suspend. The first code path that sees the deadline passed makes the loss
final. After a loss nothing more is sent for the session, except a close if it never handed out a lock. What may have
been carried out is repeated with the same ids, or withdrawn with `stray`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import secrets
import threading
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ._clock import NAP_MAX, now
from ._http import Call, Interrupted, Pauses, Service, jittered, owner, segment
from .errors import Lost, ServiceError, SessionOver, TryLater, Unavailable

log = logging.getLogger("lockkeeper")

#: For so long the service refuses late copies of a request whose ticket was left with `stray`, and no request may
#: take effect later than this after it was sent.
STRAY_MAX = 120.0
#: One attempt of a request that the service answers at once.
ATTEMPT_MOST = 5.0
#: A session without tickets is closed after so long.
IDLE_MOST = 60.0


@dataclass(frozen=True)
class Terms:
    """The times of a session, in seconds."""

    ttl: float
    lock_delay: float


class LostEvent(threading.Event):
    """Set when the lock is held no more. Exact at every call, whatever the threads do: it reads the clock."""

    def __init__(self, hold: Hold) -> None:
        super().__init__()
        self._hold = hold
        self._listeners: list[Callable[[], None]] = []

    def set(self) -> None:
        """For the package: the lock is held no more."""
        super().set()
        for tell in list(self._listeners):
            tell()

    def listen(self, tell: Callable[[], None]) -> None:
        """Calls it when the event is set early; the deadline passes without a call."""
        self._listeners.append(tell)

    def unlisten(self, tell: Callable[[], None]) -> None:
        """Ends that."""
        self._listeners.remove(tell)

    def is_set(self) -> bool:
        """Is the lock held no more?"""
        return self._hold.why() is not None

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lock is held no more; says whether it is."""
        until = None if timeout is None else now() + timeout
        while not self.is_set():
            at = now()
            if until is not None and at >= until:
                return False
            left = self._hold.session.deadline - at
            nap = min(NAP_MAX, left, NAP_MAX if until is None else until - at)
            super().wait(max(nap, 0.001))
        return True


class Hold:
    """A granted ticket, shared by its guard and its session."""

    def __init__(self, session: Session, name: str, ticket: str, shown: dict[str, Any]) -> None:
        self.session = session
        self.name = name
        self.ticket = ticket
        #: Its mode, as the wire has it.
        self.mode: Any = shown["mode"]
        self.fence: int = shown["fence"]
        self.sequencer: str = shown["sequencer"]
        self.stray: bool = shown["stray"]
        self.event = LostEvent(self)
        self._why: dict[str, str] = {}
        self._edit = 0

    def why(self) -> Optional[str]:
        """Why it is held no more; `None` while it is held."""
        return self._why.get("why") or self.session.why()

    def end(self, why: str) -> None:
        """It is held no more. The first reason stands."""
        self._why.setdefault("why", self.session.why() or why)
        self.event.set()

    def let_go(self) -> None:
        """The same for a finalizer: takes no lock."""
        self._why.setdefault("why", self.session.why() or "released")

    def next_edit(self) -> int:
        """The number of the next change of this ticket's label or of its lock's cell."""
        with self.session.lock:
            self._edit += 1
            return self._edit


class Session:
    """One session. `open` it first; its thread runs until it is over."""

    def __init__(self, service: Service, asked: Terms, retire: Callable[[Session], bool]) -> None:
        self.service = service
        self.asked = asked
        self._retire = retire
        self.lock = threading.RLock()
        self.secret = secrets.token_hex(16)
        self.public = hashlib.sha256(self.secret.encode()).hexdigest()[:32]
        self.headers = {"Lockkeeper-Session": self.public, "Lockkeeper-Secret": self.secret}
        self.deadline = 0.0
        self.jeopardy = False
        #: How many callers without a ticket use the session. Guarded by the client's lock.
        self.users = 0
        self._pid = os.getpid()
        self._why: dict[str, str] = {}
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._belief = 0.0
        self._interval = 0.0
        self._sent = 0.0
        self._busy_at = now()
        self._used = False
        self._held: dict[str, Hold] = {}
        #: Tickets on their way to a grant; true from the moment in which the service must have them.
        self._waiting: dict[str, bool] = {}
        self._calls: dict[str, Call] = {}
        self._leaving: set[str] = set()
        self._left: Optional[set[str]] = None
        self._version: Optional[str] = None
        self._verified: Optional[str] = None
        self.changes = 0

    # How it stands.

    def why(self) -> Optional[str]:
        """Why it is lost; `None` while it may be believed in. Takes no lock, so anything may call it: a signal's
        handler, a finalizer, a forked child."""
        why = self._why.get("why")
        if why is not None:
            return why
        if self._pid != os.getpid():
            return self._why.setdefault("why", "forked")
        if now() < self.deadline:
            return None
        why = self._why.setdefault("why", "expired")
        # The thread sets the events and wakes the waiters.
        self._work.put(lambda: None)
        return why

    def lose(self, why: str) -> None:
        """It is lost. The first reason stands."""
        if self._why.setdefault("why", why) == "forked":
            return
        self._work.put(lambda: None)
        self._notify_all()

    def _may_be_gone(self) -> bool:
        """May the service have ended it? Then nothing more is sent for it."""
        return self.why() not in (None, "closed")

    def remaining(self) -> float:
        """For so many seconds it is held for certain, if no further renewal succeeds."""
        return max(0.0, self.deadline - now()) if self.why() is None else 0.0

    def _notify_all(self) -> None:
        with self.lock:
            holds, calls = list(self._held.values()), list(self._calls.values())
        for hold in holds:
            hold.event.set()
        for call in calls:
            call.interrupt()

    # What it does.

    def open(self, until: float, call: Call) -> None:
        """Opens it with one attempt, and starts its thread. An opening that is repeated must be repeated on this
        object: its belief counts from the first attempt, because opening twice renews nothing."""
        self._sent = self._sent or now()
        ask = {
            "secret": self.secret,
            "ttl_ms": round(self.asked.ttl * 1000),
            "lock_delay_ms": round(self.asked.lock_delay * 1000),
            "owner": owner(),
        }
        terms = self.service.send("POST", "/v1/sessions", body=ask, until=until, call=call).json()
        self._belief = (terms["ttl_ms"] - terms["margin_ms"]) / 1000
        self._interval = min(terms["renew_after_ms"] / 1000, self._belief / 2)
        self.deadline = self._sent + self._belief
        self._busy_at = now()
        threading.Thread(target=self._run, name="lockkeeper", daemon=True).start()

    def opening_is_old(self) -> bool:
        """Was it asked for so long ago that a late answer would be worth little?"""
        return self._sent > 0 and now() - self._sent > self.asked.ttl / 3

    def _run(self) -> None:
        try:
            self._renewal_loop()
        finally:
            # Whatever ends the thread ends the belief in the locks.
            self._why.setdefault("why", "expired")
        self._ended()

    def _renewal_loop(self) -> None:
        pauses = Pauses(self.service)
        due = self._sent + self._interval
        while self.why() is None:
            at = now()
            if at < due:
                try:
                    self._work.get(timeout=max(0.0, min(due - at, self.deadline - at, NAP_MAX)))()
                except queue.Empty:
                    pass
                continue
            if self.is_idle() and self._retire(self):
                self.close(ATTEMPT_MOST)
                return
            try:
                due = self._renew(at)
                pauses = Pauses(self.service)
            except SessionOver:
                self.lose("session_gone")
            except (ServiceError, LookupError) as e:
                self.jeopardy = True
                log.warning("a renewal failed, %.1f s are left: %s", self.remaining(), e)
                pause = pauses.after(e) if isinstance(e, ServiceError) else self._interval
                due = now() + (max(pause, jittered(self._interval / 8)) if pause else 0.0)

    def _renew(self, sent: float) -> float:
        """One attempt. Returns when the next one is due."""
        expected = self._digest()
        until = min(self.deadline, sent + self._interval)
        path, body = f"/v1/sessions/{self.public}/renew", {"tickets": False}
        answer = self.service.send("POST", path, body=body, headers=self.headers, until=until).json()
        version, digest = str(answer["version"]), answer.get("digest")
        # Lost is final, also when the answer was only late: others have been told.
        if self.why() is None:
            self.deadline = sent + self._belief
            self.jeopardy = False
            self._compare_digest(version, digest, expected)
        return sent + self._interval

    def _ended(self) -> None:
        why = self._why["why"]
        self._notify_all()
        with self.lock:
            used = self._used
        if why == "closed":
            return
        if self._held:
            log.warning("a session was lost (%s) with %d locks", why, len(self._held))
        # A session that never handed out a lock protected no work. It is closed, or this very process would wait
        # behind its tickets until they expire. A late copy of a renewal may prolong it for so long.
        if not used:
            self._close_until(now() + STRAY_MAX)

    def close(self, seconds: float) -> None:
        """Ends the session and all its tickets."""
        if self._may_be_gone():
            return
        self.lose("closed")
        self._close_until(min(now() + seconds, max(self.deadline, now() + 0.1)))

    def _close_until(self, until: float) -> None:
        pauses, call = Pauses(self.service), Call()
        while now() < until:
            try:
                self.service.send(
                    "DELETE", f"/v1/sessions/{self.public}", headers=self.headers, until=min(until, now() + ATTEMPT_MOST)
                )
                return
            except (Unavailable, TryLater) as e:
                call.sleep(min(pauses.after(e), max(0.0, until - now())))
            except ServiceError as e:
                if not isinstance(e, SessionOver):
                    log.warning("a session could not be closed: %s", e)
                return

    def is_idle(self) -> bool:
        """Has it had no tickets for a while?"""
        with self.lock:
            if self._held or self._waiting or self._leaving:
                self._busy_at = now()
            return now() - self._busy_at > max(IDLE_MOST, 2 * self.asked.ttl)

    # Its tickets.

    def enter(self, ticket: str, call: Call) -> int:
        """Notes that a ticket is about to enter a line. Returns how often another server has answered so far."""
        with self.lock:
            self._waiting[ticket] = False
            self._calls[ticket] = call
            return self.changes

    def queued(self, ticket: str) -> None:
        with self.lock:
            if ticket in self._waiting:
                self._waiting[ticket] = True

    def hold(self, hold: Hold, changes: int) -> bool:
        """Notes a granted ticket. Says no if the session was lost before."""
        with self.lock:
            self._calls.pop(hold.ticket, None)
            if self.why() is not None:
                return False
            self._waiting.pop(hold.ticket, None)
            self._used = True
            self._held[hold.ticket] = hold
            # The grant may come late from the server of before a failover, while the new one has the ticket as one
            # that waits. No digest shows that.
            if changes != self.changes:
                self._verified = None
            return True

    def leaving(self, ticket: str) -> None:
        """From now on a ticket that is missing in the store is no loss."""
        with self.lock:
            self._waiting.pop(ticket, None)
            self._calls.pop(ticket, None)
            self._held.pop(ticket, None)
            self._leaving.add(ticket)

    def forget(self, ticket: str) -> None:
        """The ticket is in no line."""
        with self.lock:
            self._waiting.pop(ticket, None)
            self._calls.pop(ticket, None)
            self._held.pop(ticket, None)
            if ticket in self._leaving:
                self._leaving.discard(ticket)
                if self._left is not None:
                    self._left.add(ticket)

    def leave(self, name: str, ticket: str, stray: bool) -> str:
        """Leaves, however often it takes, and says with what result. Raises `Lost` when the session is over first:
        then its tickets end with it."""
        path = f"/v1/locks/{segment(name)}/tickets/{ticket}" + ("?stray=true" if stray else "")
        pauses, call, repeated = Pauses(self.service), Call(), False
        with self.lock:
            self._calls[f"leave {ticket}"] = call
        try:
            while now() < self.deadline and not self._may_be_gone():
                try:
                    until = min(self.deadline, now() + ATTEMPT_MOST)
                    answer = self.service.send("DELETE", path, headers=self.headers, until=until, call=call)
                    result = str(answer.json().get("result", ""))
                    # An earlier copy of this very request has done it.
                    return "released" if result == "gone" and repeated else result
                except SessionOver:
                    self.lose("session_gone")
                    break
                except Interrupted:
                    call.resume()
                except (Unavailable, TryLater) as e:
                    repeated |= e.outcome == "unknown"
                    call.sleep(max(0.0, min(pauses.after(e), self.deadline - now())))
        finally:
            with self.lock:
                self._calls.pop(f"leave {ticket}", None)
        if self.why() == "closed":
            # The close ends all tickets of the session.
            return "released"
        raise Lost(name, self.why() or "expired")

    def hand_over(self, name: str, ticket: str, stray: bool) -> None:
        """Lets a thread of the session leave the ticket. Never blocks and takes no lock: a finalizer may call it."""
        if self._why.get("why") is None:
            self._work.put(lambda: self._spawn_leave(name, ticket, stray))

    def _spawn_leave(self, name: str, ticket: str, stray: bool) -> None:
        def work() -> None:
            try:
                if held is not None:
                    held.event.set()
                self.leave(name, ticket, stray)
            except Lost:
                pass
            except ServiceError as e:
                log.warning("ticket %s of lock %r stays until its session ends: %s", ticket, name, e)
            finally:
                self.forget(ticket)

        with self.lock:
            held = self._held.get(ticket)
        self.leaving(ticket)
        try:
            threading.Thread(target=work, name="lockkeeper-leave", daemon=True).start()
        except RuntimeError:
            # The program is ending, and then the session is closed.
            pass

    # Comparing its tickets with those that the store has.

    def _expected(self) -> list[str]:
        with self.lock:
            return list(self._held) + [ticket for ticket, stands in self._waiting.items() if stands]

    def _digest(self) -> tuple[int, int]:
        """Count and sum of the first four bytes of the ids, as a renewal's answer has them."""
        tickets = self._expected()
        return len(tickets), sum(int(ticket[:8], 16) for ticket in tickets)

    def _compare_digest(self, version: str, digest: Optional[dict[str, Any]], before: tuple[int, int]) -> None:
        # Tickets may have come and gone meanwhile, before or after the store looked. If it looked in between, all
        # are polled in vain.
        there = None if digest is None else (int(digest["count"]), int(digest["sum"]))
        agree = there is None or there == before or there == self._digest()
        with self.lock:
            if self._version != version:
                self._version = version
                self.changes += 1
            needed = self._verified != version or not agree
        if needed:
            self._work.put(lambda: self._verify(version))

    def _verify(self, version: str) -> None:
        with self.lock:
            expected = list(self._held.values())
            self._left = set()
        try:
            until = min(self.deadline, now() + self._interval)
            path = f"/v1/sessions/{self.public}/poll"
            answer = self.service.send("POST", path, body={}, headers=self.headers, until=until).json()
        except SessionOver:
            self.lose("session_gone")
            return
        except ServiceError as e:
            log.warning("the tickets of a session could not be compared: %s", e)
            self._left = None
            return
        there = {ticket["ticket"]: ticket for ticket in answer["tickets"]}
        for hold in expected:
            self._compare(hold, there.get(hold.ticket))
        with self.lock:
            # A waiter whose long poll has not been answered yet stands in line, as we see here.
            self._waiting.update((ticket, True) for ticket in there if ticket in self._waiting)
            left, self._left = self._left or set(), None
            known = {*self._held, *self._waiting, *self._leaving, *left, *(hold.ticket for hold in expected)}
            self._verified = version
        for ticket in there.values():
            if ticket["ticket"] not in known and ticket["state"] != "gone":
                self._spawn_leave(ticket["lock"], ticket["ticket"], True)

    def _compare(self, hold: Hold, there: Optional[dict[str, Any]]) -> None:
        granted = there is not None and there["state"] == "granted"
        # Without fences the store has 0 for all.
        if granted and there is not None and (not hold.fence or there["fence"] == hold.fence):
            return
        with self.lock:
            lost = self._held.pop(hold.ticket, None)
        if lost is not None:
            log.warning("lock %r was lost: its ticket was evicted", hold.name)
            hold.end("evicted")
