"""What the tests share: the real service, processes that end with the test, a proxy that loses answers."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import IO, Callable, Optional

import lockkeeper

#: Long enough for the slowest machine: reached only when something is broken.
DEADLINE = 60.0
#: The command that is tested.
COMMAND = os.environ.get("LOCKKEEPER_BIN") or shutil.which("lockkeeper") or ""
# A test that hangs says where.
faulthandler.dump_traceback_later(120, exit=True)
HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"


def eventually(condition: Callable[[], bool], what: str = "a condition") -> None:
    """Waits for a condition."""
    until = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


class Service:
    """`lockkeeper serve` on SQLite, on a port of its own or on a unix socket."""

    def __init__(self, folder: str, listen: str = "127.0.0.1:0") -> None:
        self.store = f"sqlite:{folder}/locks.db"
        self._listen = listen
        self.url = ""
        self._process: Optional[subprocess.Popen[str]] = None
        self.start()

    def start(self) -> None:
        """Starts it, again at the same address."""
        command = [COMMAND, "serve", "--json", "--store", self.store, "--listen", self._listen]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKKEEPER_")}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=None, stdin=subprocess.DEVNULL, text=True, env=environment
        )
        self.url = self._address(self._process)
        self._listen = self.url.removeprefix("http://")

    def _address(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r'"(http://[\d.]+:\d+|unix:/[^"]+)', line)
            if found:
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return found[1]
        raise AssertionError(f"the service has not started: {process.wait()}")

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """Ends it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def client(self, **options: object) -> lockkeeper.Client:
        """A client of it."""
        return lockkeeper.Client(self.url, **options)  # type: ignore[arg-type]


class WithService(unittest.TestCase):
    """Tests that share a service on TCP."""

    folder: str
    service: Service

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.mkdtemp(prefix="lockkeeper-py-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.service = Service(cls.folder)
        cls.addClassCleanup(lambda: cls.service.kill())

    def client(self, url: Optional[str] = None, **options: object) -> lockkeeper.Client:
        """A client that ends with the test."""
        client = lockkeeper.Client(url or self.service.url, **options)  # type: ignore[arg-type]
        self.addCleanup(client.close)
        return client

    def child(self, url: Optional[str] = None, *arguments: str) -> Child:
        """A process with a client, that ends with the test."""
        child = Child(url or self.service.url, *arguments)
        self.addCleanup(child.end)
        return child

    def proxy(self) -> Proxy:
        """A proxy before the service, that ends with the test."""
        proxy = Proxy(self.service.port)
        self.addCleanup(proxy.close)
        return proxy


class Child:
    """A process (`holder.py`) that does with locks what it is told on its stdin."""

    def __init__(self, url: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SRC)}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "holder.py"), url, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def tell(self, text: str) -> None:
        """Says something without waiting for the answer."""
        stdin: Optional[IO[str]] = self.process.stdin
        assert stdin is not None
        stdin.write(text + "\n")
        stdin.flush()

    def line(self) -> str:
        """Its next line."""
        stdout: Optional[IO[str]] = self.process.stdout
        assert stdout is not None
        return stdout.readline().strip()

    def ask(self, text: str) -> str:
        """Says something, and returns the answer."""
        self.tell(text)
        return self.line()

    def stop(self) -> None:
        """Stops it, and waits until it stands."""
        self.process.send_signal(signal.SIGSTOP)
        eventually(lambda: self._state() == "T", "the process to stop")

    def _state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1][0]

    def resume(self) -> None:
        """Lets it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class Proxy:
    """Passes on what comes to a port of its own, until it is told to lose the answer to a request."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        #: The answers to the next requests that begin so are lost, and their connections break.
        self.lose: list[bytes] = []
        #: How many answers were lost.
        self.lost = 0
        #: What was asked for, by the first line of each request.
        self.requests: list[bytes] = []
        #: The same with all headers.
        self.heads: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            losing = threading.Event()
            back = threading.Thread(target=self._back, args=(server, client, losing), daemon=True)
            back.start()
            try:
                while data := client.recv(65536):
                    line = data.split(b"\r\n", 1)[0]
                    if line.endswith(b" HTTP/1.1"):
                        self.requests.append(line)
                        self.heads.append(data.split(b"\r\n\r\n", 1)[0])
                    if self.lose and line.startswith(self.lose[0]):
                        self.lose.pop(0)
                        losing.set()
                    server.sendall(data)
                server.shutdown(socket.SHUT_WR)
                back.join()
            except OSError:
                pass

    def _back(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        try:
            while data := server.recv(65536):
                if losing.is_set():
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        """Ends it."""
        self._listener.close()
