"""Distributed locks with fences: the client of the lockkeeper service.

    import lockkeeper

    lockkeeper.connect("http://127.0.0.1:7601")
    with lockkeeper.lock("nightly", wait=30) as g:
        write(g.fence, rows)

`lockkeeper.aio` has the same for asyncio.
"""

from __future__ import annotations

import atexit
import logging
import os
import ssl
import threading
from typing import Optional, Sequence, Union

from . import client as _client
from ._guard import Guard
from ._lock import Lock
from .client import URL_DEFAULT, Client, Election, Term
from .errors import (
    LOSSES,
    Denied,
    Error,
    Lost,
    NotAcquired,
    Refused,
    ServiceError,
    Stale,
    TryLater,
    Unavailable,
)
from .model import Cell, Leader, Line, Owner, Ticket

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "Cell",
    "Client",
    "Denied",
    "Election",
    "Error",
    "Guard",
    "Leader",
    "Line",
    "Lock",
    "Lost",
    "NotAcquired",
    "Owner",
    "Refused",
    "ServiceError",
    "Stale",
    "Term",
    "Ticket",
    "TryLater",
    "Unavailable",
    "connect",
    "default_client",
    "election",
    "lock",
    "semaphore",
]

_default: Optional[Client] = None
_default_lock = threading.Lock()


def connect(
    url: Union[str, Sequence[str], None] = None,
    token: Optional[str] = None,
    *,
    ttl: float = 15.0,
    lock_delay: float = 0.0,
    timeout: float = 10.0,
    tls: Optional[ssl.SSLContext] = None,
) -> Client:
    """A client of the service at `url`: `http://HOST:PORT`, `https://…`, `unix:/PATH`, or several of them (a list, or
    one text with commas) that serve the same store. Without arguments: `$LOCKKEEPER_URL` and `$LOCKKEEPER_TOKEN`, or
    the service's usual address on this machine. Nothing is sent before the first lock.

    The first client that is connected, and not closed, is the one that `lockkeeper.lock` uses.
    """
    global _default
    url = url or os.environ.get("LOCKKEEPER_URL") or URL_DEFAULT
    token = token or os.environ.get("LOCKKEEPER_TOKEN") or None
    made = Client(url, token=token, ttl=ttl, lock_delay=lock_delay, timeout=timeout, tls=tls)
    with _default_lock:
        if _default is None or _default.is_closed():
            _default = made
    return made


def default_client() -> Client:
    """The client that `lockkeeper.lock` uses."""
    client = _default
    if client is None or client.is_closed():
        client = connect()
    return _default or client


def lock(
    name: str,
    *,
    wait: Optional[float] = None,
    ttl: Optional[float] = None,
    lock_delay: Optional[float] = None,
    shared: bool = False,
    label: Union[str, bytes] = "",
    fair: bool = True,
) -> Lock[Guard]:
    """As `Client.lock`."""
    return default_client().lock(
        name, wait=wait, ttl=ttl, lock_delay=lock_delay, shared=shared, label=label, fair=fair
    )


def semaphore(
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
    """As `Client.semaphore`."""
    return default_client().semaphore(
        name, permits, of=of, wait=wait, ttl=ttl, lock_delay=lock_delay, label=label, fair=fair
    )


def election(name: str) -> Election:
    """As `Client.election`."""
    return default_client().election(name)


# A program that sets up no logging hears of losses by exceptions and events.
logging.getLogger(__name__).addHandler(logging.NullHandler())
atexit.register(_client.close_all)
