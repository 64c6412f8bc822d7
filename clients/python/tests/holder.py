"""A process that does with locks what it is told on its stdin, one line each, and answers with one line."""

from __future__ import annotations

import os
import signal
import sys

import lockkeeper


def main() -> None:
    client = lockkeeper.connect(sys.argv[1])
    if len(sys.argv) > 2 and sys.argv[2] == "terminate":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    guard = None
    for text in sys.stdin:
        command, *words = text.split()
        if command == "lock":
            name, ttl = words
            guard = client.lock(name, ttl=float(ttl)).acquire()
            say(guard.fence)
        elif command == "with":
            name, ttl = words
            with client.lock(name, ttl=float(ttl)) as held:
                say(held.fence)
                held.lost.wait()
        elif command == "look":
            assert guard is not None
            say(guard.is_held(), guard.lost.is_set(), guard.why)
        elif command == "wait":
            assert guard is not None
            say(guard.lost.wait(30), guard.why)
        elif command == "count":
            count(client, *words)
        elif command == "exit":
            return
        elif command == "abort":
            os._exit(1)


def count(client: lockkeeper.Client, name: str, path: str, times: str) -> None:
    """Adds to a number in a file, which only the lock protects. Writes the fences beside it."""
    for _ in range(int(times)):
        with client.lock(name, ttl=5) as g:
            with open(path) as file:
                number = int(file.read())
            with open(path, "w") as file:
                file.write(str(number + 1))
            with open(path + ".fences", "a") as file:
                file.write(f"{g.fence}\n")
    say("done")


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    main()
