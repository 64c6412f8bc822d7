"""The same for asyncio.

    from lockkeeper import aio

    async with aio.connect("http://127.0.0.1:7601") as client:
        async with client.lock("nightly", wait=30) as g:
            await write(g.fence, rows)

Every request runs in a thread of its own, never in the loop, so the laws of sessions are written once (`_session`) and
a loop that computes for long keeps its locks. A task that waits for a lock costs a thread until it has it. Cancelling
it withdraws its ticket, in the background and at once.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Optional, Sequence, TypeVar, Union

from . import _clock
from . import connect as _connect
from ._guard import Guard as _Guard
from ._http import Call
from ._lock import Cancelled
from ._lock import Lock as _Lock
from ._lock import Patience, patience
from .client import Client as _Client
from .client import Election as _Election
from .client import Term as _Term
from .errors import Error, NotAcquired
from .model import Cell, Leader, Line

T = TypeVar("T")


async def _in_thread(work: Callable[[], T], call: Optional[Call] = None, undo: Optional[Callable[[T], None]] = None) -> T:
    """Runs it in a thread. If the task is cancelled, `call` is; `undo` is given a result that came too late."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def too_late(result: T) -> None:
        if undo is not None:
            undo(result)

    def arrived(result: T) -> None:
        if future.done():
            too_late(result)
        else:
            future.set_result(result)

    def failed(e: BaseException) -> None:
        if not future.done():
            future.set_exception(e)

    def run() -> None:
        try:
            result = work()
        except BaseException as e:
            # The loop may have ended meanwhile.
            _tell(loop, failed, e)
        else:
            if not _tell(loop, arrived, result):
                too_late(result)

    threading.Thread(target=run, name="lockkeeper-aio", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        if call is not None:
            call.cancel()
        if future.done() and not future.cancelled() and future.exception() is None:
            too_late(future.result())
        raise


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[Any], None], value: Any) -> bool:
    try:
        loop.call_soon_threadsafe(what, value)
    except RuntimeError:
        return False
    return True


class LostEvent:
    """Set when the lock is held no more."""

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard

    def is_set(self) -> bool:
        """Is the lock held no more? Exact at the moment of the call."""
        return not self._guard.is_held()

    async def wait(self) -> str:
        """Waits until the lock is held no more, and says why, in one word."""
        hold = self._guard.hold
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def tell() -> None:
            _tell(loop, lambda _: changed.set(), None)

        hold.event.listen(tell)
        try:
            while (why := hold.why()) is None:
                left = hold.session.deadline - _clock.now()
                try:
                    await asyncio.wait_for(changed.wait(), max(0.001, min(left, _clock.NAP_MAX)))
                except asyncio.TimeoutError:
                    pass
            return why
        finally:
            hold.event.unlisten(tell)


class Guard:
    """A lock in hand, as `lockkeeper.Guard`."""

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard
        self.name = guard.name
        self.fence = guard.fence
        self.sequencer = guard.sequencer
        self.ticket = guard.ticket
        #: `await g.lost.wait()` returns when the lock is held no more.
        self.lost = LostEvent(guard)

    @property
    def why(self) -> Optional[str]:
        """Why it is held no more, in one word; `None` while it is held."""
        return self._guard.why

    def is_held(self) -> bool:
        """Is the lock held now? Exact at the moment of the call. Asks no service."""
        return self._guard.is_held()

    def is_in_jeopardy(self) -> bool:
        """A renewal has failed: unless one succeeds soon, the lock will be lost."""
        return self._guard.is_in_jeopardy()

    def remaining(self) -> float:
        """For so many seconds the lock is held for certain, if no further renewal succeeds."""
        return self._guard.remaining()

    def ensure_held(self) -> None:
        """Raises `Lost` if the lock is held no more. Asks no service."""
        self._guard.ensure_held()

    async def check(self) -> None:
        """Asks the service whether the grant stands. Raises `Lost` if it does not."""
        await _in_thread(self._guard.check)

    async def set_label(self, label: Union[str, bytes]) -> None:
        """Changes what others read beside the ticket."""
        await _in_thread(lambda: self._guard.set_label(label))

    async def put(self, value: Union[bytes, str, None]) -> None:
        """Writes the lock's cell if the lock is still held."""
        await _in_thread(lambda: self._guard.put(value))

    async def release(self) -> None:
        """Releases the lock. If the task is cancelled meanwhile, the release goes on in the background."""
        await _in_thread(self._guard.release)

    async def proclaim(self, value: Union[str, bytes]) -> None:
        """Proclaims another value, if this is a leader's term of office."""
        await self.set_label(value)

    async def resign(self) -> None:
        """Steps down, if this is a leader's term of office."""
        await self.release()

    def __repr__(self) -> str:
        return repr(self._guard)


class Lock:
    """A lock to be taken: by `async with`, or by `acquire`. It can be taken again and again, from several tasks."""

    def __init__(self, lock: _Lock[Any]) -> None:
        self._lock = lock
        self._taken: dict[Optional[asyncio.Task[Any]], list[Guard]] = {}

    async def acquire(self, wait: Patience = patience) -> Guard:
        """Takes the lock, waiting at most so many seconds. Raises `NotAcquired` when the wait is over."""
        call = Call()

        def take() -> _Guard:
            guard: _Guard = self._lock.acquire(wait, call=call)
            return guard

        try:
            return Guard(await _in_thread(take, call, lambda guard: guard.let_go()))
        except Cancelled:
            raise Error("the wait was cancelled") from None

    async def try_acquire(self) -> Optional[Guard]:
        """Takes the lock if it is free; `None` otherwise."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> Guard:
        guard = await self.acquire()
        self._taken.setdefault(asyncio.current_task(), []).append(guard)
        return guard

    async def __aexit__(
        self, kind: Optional[type[BaseException]], e: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        task = asyncio.current_task()
        guard = self._taken[task].pop()._guard
        if not self._taken[task]:
            del self._taken[task]
        await _in_thread(lambda: guard.__exit__(kind, e, at))


class Election:
    """One leader at a time, as `lockkeeper.Election`."""

    def __init__(self, election: _Election) -> None:
        self._election = election
        self.name = election.name

    def campaign(
        self, value: Union[str, bytes] = "", *, wait: Optional[float] = None, ttl: Optional[float] = None
    ) -> Lock:
        """A candidacy: `async with election.campaign("host-7") as term: …`."""
        return Lock(self._election.campaign(value, wait=wait, ttl=ttl))

    async def leader(self) -> Optional[Leader]:
        """The leader; `None` while there is none."""
        return await _in_thread(self._election.leader)

    async def observe(self) -> AsyncIterator[Optional[Leader]]:
        """Follows who leads."""
        call = Call()
        leaders = self._election.observe(call=call)
        end = object()
        try:
            while (leader := await _in_thread(lambda: next(leaders, end), call)) is not end:
                yield leader  # type: ignore[misc]
        finally:
            call.cancel()


class Client:
    """A handle to a lock service, as `lockkeeper.Client`."""

    def __init__(self, client: _Client) -> None:
        #: The same client for threads: they share sessions.
        self.blocking = client

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
    ) -> Lock:
        """A lock: `async with client.lock("nightly") as g: …`; the options as in `lockkeeper.Client.lock`."""
        client = self.blocking
        return Lock(
            client.lock(
                name, wait=wait, ttl=ttl, lock_delay=lock_delay, shared=shared, label=label, fair=fair
            )
        )

    def semaphore(
        self,
        name: str,
        permits: int = 1,
        *,
        of: int,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        label: Union[str, bytes] = "",
    ) -> Lock:
        """Some permits `of` so many."""
        return Lock(self.blocking.semaphore(name, permits, of=of, wait=wait, ttl=ttl, label=label))

    def election(self, name: str) -> Election:
        """One leader at a time, which all clients can see."""
        return Election(self.blocking.election(name))

    async def get(self, name: str) -> Line:
        """A lock with its holders and waiters."""
        return await _in_thread(lambda: self.blocking.get(name))

    async def list(self, prefix: str = "", *, state: Optional[str] = None) -> list[Line]:
        """The locks whose names begin so."""
        return await _in_thread(lambda: list(self.blocking.list(prefix, state=state)))

    async def evict(self, name: str, ticket: str, *, fence: Optional[int] = None) -> bool:
        """Ends a ticket of any client by force. Says whether there was one."""
        return await _in_thread(lambda: self.blocking.evict(name, ticket, fence=fence))

    async def check(self, sequencer: str) -> bool:
        """Is this grant held now?"""
        return await _in_thread(lambda: self.blocking.check(sequencer))

    async def cell(self, name: str) -> Optional[Cell]:
        """The small value that belongs to a lock's name."""
        return await _in_thread(lambda: self.blocking.cell(name))

    async def put(self, name: str, value: Union[bytes, str], *, sequencer: str) -> None:
        """Writes the cell under another program's grant."""
        await _in_thread(lambda: self.blocking.put(name, value, sequencer=sequencer))

    async def close(self) -> None:
        """Ends all sessions with all their locks, at once for other clients."""
        await _in_thread(self.blocking.close)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], e: Optional[BaseException], at: Optional[TracebackType]
    ) -> None:
        await self.close()


def connect(
    url: Union[str, Sequence[str], None] = None,
    token: Optional[str] = None,
    *,
    ttl: float = 15.0,
    lock_delay: float = 0.0,
    timeout: float = 10.0,
    tls: Optional[ssl.SSLContext] = None,
) -> Client:
    """A client of the service; the arguments as in `lockkeeper.connect`."""
    return Client(_connect(url, token, ttl=ttl, lock_delay=lock_delay, timeout=timeout, tls=tls))
