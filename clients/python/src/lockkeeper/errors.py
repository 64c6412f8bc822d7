"""What can go wrong, so that a program can act on it."""

from __future__ import annotations

from typing import Any, Literal, Optional

Outcome = Literal["not_applied", "unknown"]


class Error(Exception):
    """The base of all errors of this package."""


class NotAcquired(Error, TimeoutError):
    """The wait ended before the lock was granted. The ticket has been withdrawn."""

    def __init__(self, name: str, waited: float, holder: Optional[str], ahead: Optional[int]) -> None:
        by = f"; held by {holder}" if holder else ""
        super().__init__(f"lock {name!r} was not acquired within {waited:.1f} s{by}")
        self.name = name
        self.waited = waited
        #: The program that holds it, as text, if the service told.
        self.holder = holder
        #: How many tickets stood before ours, holders included.
        self.ahead = ahead


#: Why a lock is held no more, in words.
LOSSES = {
    "expired": "no renewal was answered in time",
    "session_gone": "the session has ended",
    "evicted": "its ticket was ended by another client, or lost by the store",
    "closed": "the client was closed",
    "released": "the lock was released",
    "forked": "the lock belongs to the parent process",
}


class Lost(Error):
    """The lock was held, and is no more: what was done under it since is not protected."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"lock {name!r} was lost: {LOSSES.get(why, why)}")
        self.name = name
        #: One word: a key of `LOSSES`.
        self.why = why


class ServiceError(Error):
    """The service did not do what it was asked for."""

    def __init__(self, detail: str, *, kind: str = "", status: int = 0, outcome: Outcome = "not_applied") -> None:
        super().__init__(detail)
        #: The problem document's `kind`; empty if the answer was none.
        self.kind = kind
        #: The status of the answer; 0 if none came.
        self.status = status
        #: Did the request change anything? `unknown`: it may have.
        self.outcome: Outcome = outcome
        #: After so many seconds the service wants to be asked again, if it said so.
        self.retry_after: Optional[float] = None
        #: How much the line has (kind `capacity`).
        self.capacity: Optional[int] = None
        #: The fence as it is now (kinds `stale` and `fence_changed`).
        self.fence: Optional[int] = None
        #: The rest of the problem document.
        self.problem: dict[str, Any] = {}


class Unavailable(ServiceError):
    """The service, or the store behind it, does not answer. Trying again can help."""

    #: The connection was an idle one that the other end had closed: no sign that the service is away.
    idle = False


class TryLater(ServiceError):
    """A limit of the service is reached (429)."""


class Denied(ServiceError):
    """The token is missing, wrong, or does not suffice (401, 403)."""


class Stale(ServiceError):
    """A write under a grant that is over: `fence` is that of the newer one, if there is one."""


class Refused(ServiceError):
    """The request makes no sense, or the store cannot do it; see `kind`."""


class SessionOver(ServiceError):
    """The session is over, for ever. The client opens another one by itself."""


class Busy(ServiceError):
    """The lock is taken, and no ticket was left in its line."""


def from_problem(status: int, problem: Optional[dict[str, Any]], retry_after: Optional[float]) -> ServiceError:
    """The error for an answer with status 400 or more."""
    known = problem is not None
    problem = problem or {}
    kind = str(problem.get("kind", ""))
    detail = str(problem.get("detail") or problem.get("title") or f"status {status}")
    error = _class(kind, status, known)(detail, kind=kind, status=status)
    outcome = problem.get("outcome")
    if outcome in ("not_applied", "unknown"):
        error.outcome = outcome
    elif not known:
        # Not our service's words: a proxy's. The service may have done it.
        error.outcome = "unknown" if status >= 500 else "not_applied"
    error.retry_after = retry_after
    error.capacity = problem.get("capacity")
    error.fence = problem.get("fence")
    error.problem = problem
    return error


def _class(kind: str, status: int, known: bool) -> type[ServiceError]:
    if kind == "host":
        return Refused
    if kind == "unavailable" or status in (408, 421, 503) or (not known and status in (502, 504)):
        return Unavailable
    if kind == "session_over":
        return SessionOver
    if kind == "busy":
        return Busy
    if kind in ("stale", "not_held"):
        return Stale
    by_status: dict[int, type[ServiceError]] = {401: Denied, 403: Denied, 429: TryLater}
    return by_status.get(status, Refused)
