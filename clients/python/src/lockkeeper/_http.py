"""HTTP/1.1 to one of several services, with deadlines that hold for whole requests and calls that another
thread can interrupt."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import random
import select
import socket
import ssl
import threading
from typing import Any, Mapping, Optional, Sequence, Union
from urllib.parse import quote, urlsplit

from ._clock import NAP_MAX, now
from .errors import Refused, ServiceError, Unavailable, from_problem

#: No attempt to connect takes longer, so that a machine that is gone leaves time for the next base URL.
CONNECT_MAX = 3.0
#: Pauses between attempts.
PAUSE_FIRST = 0.02
PAUSE_MOST = 1.0
#: However long the service wants to be left alone, the client asks again after this time.
RETRY_AFTER_MOST = 5.0
#: So many idle connections are kept to each service.
IDLE_MOST = 8


class Interrupted(Exception):
    """Another thread has interrupted this call."""


class Call:
    """What one thread does, for another thread to interrupt."""

    def __init__(self) -> None:
        self.cancelled = False
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._connection: Optional[Connection] = None

    def cancel(self) -> None:
        """Ends the whole operation."""
        self.cancelled = True
        self.interrupt()

    def interrupt(self) -> None:
        """Ends the request under way, or the pause."""
        with self._lock:
            self._woken.set()
            if self._connection is not None:
                self._connection.abort()

    def resume(self) -> None:
        """An interruption was taken note of; a cancelled call stays so."""
        if not self.cancelled:
            self._woken.clear()

    def attach(self, connection: Connection) -> None:
        with self._lock:
            if self._woken.is_set():
                raise Interrupted
            self._connection = connection

    def detach(self) -> None:
        with self._lock:
            self._connection = None

    def sleep(self, seconds: float) -> None:
        """Pauses, at most until it is interrupted."""
        until = now() + seconds
        while (left := until - now()) > 0 and not self._woken.wait(min(left, NAP_MAX)):
            pass


class _Reader(io.RawIOBase):
    """What `http.client` reads from: every read ends at the request's deadline."""

    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._timed.limit()
        return self._timed.sock.recv_into(buffer)


class _Timed:
    """A socket as far as `http.client` needs one, with one deadline for all that a request does."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.until = 0.0

    def limit(self) -> None:
        left = self.until - now()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self.sock.settimeout(left)

    def sendall(self, data: Any) -> None:
        self.limit()
        self.sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self.sock.close()


class Endpoint:
    """One base URL: `http://HOST:PORT/PREFIX`, `https://…` or `unix:/PATH`."""

    def __init__(self, url: str, tls: Optional[ssl.SSLContext]) -> None:
        self.url = url
        parts = urlsplit(url)
        self.path = ""
        self.tls: Optional[ssl.SSLContext] = None
        if parts.scheme == "unix":
            self.path, self.prefix, self.host, self.port = parts.path, "", "localhost", 80
            if not self.path.startswith("/") or parts.netloc:
                raise ValueError(f"{url}: write unix:/PATH, with the whole path of the socket")
            return
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the URL of the service is http://HOST:PORT, https://HOST:PORT or unix:/PATH")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("the URL of the service has no user, query or fragment; give the token as token=")
        self.host = parts.hostname
        self.prefix = parts.path.rstrip("/")
        if parts.scheme == "https":
            self.tls = tls or ssl.create_default_context()
        self.port = parts.port or (443 if self.tls else 80)

    def dial(self, until: float) -> socket.socket:
        timeout = min(until - now(), CONNECT_MAX)
        if timeout <= 0:
            raise TimeoutError("no time is left to connect")
        if self.path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout)
                sock.connect(self.path)
            except BaseException:
                sock.close()
                raise
            return sock
        sock = socket.create_connection((self.host, self.port), timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self.tls.wrap_socket(sock, server_hostname=self.host) if self.tls else sock
        except BaseException:
            sock.close()
            raise


class Connection(http.client.HTTPConnection):
    """One connection to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self.endpoint = endpoint
        self.default_port = 443 if endpoint.tls else 80
        self.until = 0.0
        self._timed: Optional[_Timed] = None

    def connect(self) -> None:
        self._timed = _Timed(self.endpoint.dial(self.until))
        self._timed.until = self.until
        self.sock = self._timed

    def limit(self, until: float) -> None:
        self.until = until
        if self._timed is not None:
            self._timed.until = until

    def is_good(self) -> bool:
        """Is the idle connection still open, as far as this end knows?"""
        if self._timed is None or self.sock is None:
            return False
        sock = self._timed.sock
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return False
        try:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return not poll.poll(0)
        except AttributeError:
            return not select.select([sock], [], [], 0)[0]

    def abort(self) -> None:
        """Ends a request that another thread awaits here."""
        timed = self._timed
        if timed is not None:
            try:
                timed.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Answer:
    """What the service said."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Refused("the answer is no JSON: is this the URL of a lockkeeper service?", status=self.status)
        return value

    def error(self) -> ServiceError:
        problem = None
        if "json" in self.headers.get("content-type", ""):
            try:
                problem = self.json()
            except Refused:
                pass
        after = self.headers.get("retry-after", "")
        retry_after = min(float(after), RETRY_AFTER_MOST) if after.isdigit() else None
        return from_problem(self.status, problem, retry_after)


class Service:
    """The services behind one client: the same store, one or several base URLs."""

    def __init__(self, urls: Union[str, Sequence[str]], token: Optional[str], tls: Optional[ssl.SSLContext]) -> None:
        texts = urls.split(",") if isinstance(urls, str) else list(urls)
        self.endpoints = [Endpoint(text.strip(), tls) for text in texts]
        if not self.endpoints:
            raise ValueError("at least one URL of the service is needed")
        self._token = token
        self._idle: list[Connection] = []
        self.after_fork()

    def after_fork(self) -> None:
        """Takes nothing over from the parent process: no lock that one of its threads had, no connection."""
        self._lock = threading.Lock()
        self._current = 0
        self._closed = False
        # This closes the child's end only; the parent's connections go on.
        for connection in self._idle:
            connection.close()
        self._idle = []

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        until: float,
        body: Union[None, bytes, Mapping[str, Any]] = None,
        headers: Optional[Mapping[str, str]] = None,
        call: Optional[Call] = None,
    ) -> Answer:
        """One request, with one attempt. Raises `ServiceError`s, `Unavailable` if no answer came."""
        answer = self._exchange(method, path, until, body, headers or {}, call)
        if answer.status >= 400:
            error = answer.error()
            if isinstance(error, Unavailable):
                self._next_endpoint()
            raise error
        if not 200 <= answer.status < 300:
            raise from_problem(answer.status, None, None)
        return answer

    def _exchange(
        self,
        method: str,
        path: str,
        until: float,
        body: Union[None, bytes, Mapping[str, Any]],
        headers: Mapping[str, str],
        call: Optional[Call],
    ) -> Answer:
        connection, used = self._connection()
        sending = keep = False
        try:
            connection.limit(until)
            if call is not None:
                call.attach(connection)
            if not used:
                connection.connect()
                if call is not None:
                    call.attach(connection)
            sending = True
            data, all_headers = self._encoded(body, headers)
            connection.request(method, connection.endpoint.prefix + path, body=data, headers=all_headers)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, received, response.read())
            keep = not response.will_close
            return answer
        except (OSError, http.client.HTTPException) as e:
            idle = used and isinstance(e, ConnectionError)
            if not idle:
                self._next_endpoint(connection.endpoint)
            what = f"{connection.endpoint.url} does not answer: {e or type(e).__name__}"
            failed = Unavailable(what, outcome="unknown" if sending else "not_applied")
            failed.idle = idle
            raise failed from e
        finally:
            if call is not None:
                call.detach()
            self._give_back(connection, keep)

    def _encoded(
        self, body: Union[None, bytes, Mapping[str, Any]], headers: Mapping[str, str]
    ) -> tuple[Optional[bytes], dict[str, str]]:
        all_headers = {"Accept": "application/json", **headers}
        if self._token is not None:
            all_headers["Authorization"] = f"Bearer {self._token}"
        if body is None or isinstance(body, bytes):
            if body is not None:
                all_headers.setdefault("Content-Type", "application/octet-stream")
            return body, all_headers
        all_headers["Content-Type"] = "application/json"
        return json.dumps(body).encode(), all_headers

    def _connection(self) -> tuple[Connection, bool]:
        """An idle connection to the current endpoint, or a new one that is not yet made. Says whether it is used."""
        while True:
            with self._lock:
                endpoint = self.endpoints[self._current]
                idle = [c for c in self._idle if c.endpoint is endpoint]
                if not idle:
                    return Connection(endpoint), False
                self._idle.remove(idle[-1])
            if idle[-1].is_good():
                return idle[-1], True
            idle[-1].close()

    def _give_back(self, connection: Connection, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed and len(self._idle) < IDLE_MOST * len(self.endpoints):
                self._idle.append(connection)
                return
        connection.close()

    def _next_endpoint(self, failed: Optional[Endpoint] = None) -> None:
        with self._lock:
            if failed is None or self.endpoints[self._current] is failed:
                self._current = (self._current + 1) % len(self.endpoints)

    def __repr__(self) -> str:
        return ",".join(endpoint.url for endpoint in self.endpoints)


class Pauses:
    """How long to wait before the next attempt: not at all for another base URL, then longer and longer."""

    def __init__(self, service: Service) -> None:
        self._endpoints = len(service.endpoints)
        self._failed = 0
        self._idle = False
        self._pause = PAUSE_FIRST

    def after(self, error: ServiceError) -> float:
        """The pause after this failure."""
        if isinstance(error, Unavailable) and error.idle and not self._idle:
            self._idle = True
            return 0.0
        self._failed += 1
        if self._failed % self._endpoints:
            return 0.0
        pause, self._pause = self._pause, min(self._pause * 2, PAUSE_MOST)
        return max(error.retry_after or 0.0, jittered(pause))


def jittered(pause: float) -> float:
    """Between half of it and all of it, so that clients that failed together do not come back together."""
    return pause * random.uniform(0.5, 1.0)


def segment(name: str) -> str:
    """A name as one segment of a path, also one that intermediaries would take for a step up."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def text_or_base64(value: Union[str, bytes], field: str) -> dict[str, str]:
    """Text as text, other bytes as base64."""
    if isinstance(value, bytes):
        try:
            return {field: value.decode()}
        except UnicodeDecodeError:
            return {f"{field}_base64": base64.b64encode(value).decode()}
    return {field: value}


def owner() -> dict[str, Any]:
    """This process, to show in listings."""
    import sys

    program = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")
    return {"host": socket.gethostname(), "pid": os.getpid(), "program": program[:64]}
