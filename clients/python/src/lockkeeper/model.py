"""What the service shows."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Optional


@dataclass(frozen=True)
class Owner:
    """The program that opened a session, by its own account: to show, not to trust."""

    host: str
    pid: int
    program: str

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})" if self.host else "another client"


@dataclass(frozen=True)
class Ticket:
    """One ticket of a line."""

    id: str
    #: `"exclusive"`, `"shared"` or `{"permits": {"weight": 2, "of": 4}}`.
    mode: Any
    #: The number of its grant; `None` while it waits.
    fence: Optional[int]
    owner: Optional[Owner]
    label: bytes
    #: How long ago it entered the line, in seconds.
    entered_ago: float
    #: How long ago it was granted, if it was and the store has noted it.
    granted_ago: Optional[float]
    #: When it ends unless its session is renewed.
    ends_in: Optional[float]

    @property
    def text(self) -> str:
        """The label as text."""
        return self.label.decode(errors="replace")


@dataclass(frozen=True)
class Line:
    """One lock with its tickets in order, the holders first."""

    name: str
    #: The permits of a semaphore; `None` for a plain lock.
    permits: Optional[int]
    tickets: list[Ticket]
    #: Stands for this state of the line, for a look that waits for the next one.
    change: Optional[str]

    @property
    def holders(self) -> list[Ticket]:
        """The tickets that hold the lock."""
        return [ticket for ticket in self.tickets if ticket.fence is not None]

    @property
    def waiters(self) -> list[Ticket]:
        """The tickets that wait, in their order."""
        return [ticket for ticket in self.tickets if ticket.fence is None]


@dataclass(frozen=True)
class Cell:
    """The small value that belongs to a lock's name."""

    value: bytes
    #: The fence of the grant under which it was written.
    fence: int

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()


@dataclass(frozen=True)
class Leader:
    """Who leads."""

    #: What the leader proclaims.
    value: bytes
    fence: int
    ticket: str
    owner: Optional[Owner]

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode(errors="replace")


def line(shown: dict[str, Any]) -> Line:
    tickets = [_ticket(ticket) for ticket in shown["tickets"]]
    return Line(shown["lock"], shown.get("permits"), tickets, shown.get("change"))


def leader(line: Optional[Line]) -> Optional[Leader]:
    for ticket in line.holders if line else []:
        return Leader(ticket.label, ticket.fence or 0, ticket.id, ticket.owner)
    return None


def fence(shown: dict[str, Any]) -> Optional[int]:
    text = shown.get("fence_text")
    return int(text) if text is not None else shown.get("fence")


def _ticket(shown: dict[str, Any]) -> Ticket:
    owner = shown.get("owner")
    exact = shown.get("label_base64")
    return Ticket(
        id=shown["ticket"],
        mode=shown["mode"],
        fence=fence(shown),
        owner=Owner(owner["host"], owner["pid"], owner["program"]) if owner else None,
        label=base64.b64decode(exact) if exact is not None else shown.get("label", "").encode(),
        entered_ago=shown["entered_ago_ms"] / 1000,
        granted_ago=_seconds(shown.get("granted_ago_ms")),
        ends_in=_seconds(shown.get("ends_in_ms")),
    )


def _seconds(millis: Optional[int]) -> Optional[float]:
    return None if millis is None else millis / 1000
