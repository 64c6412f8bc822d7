"""Takes locks of kazoo in a process of its own: the `taker` program's counterpart.

`kazoo_lock.py HOSTS STYLE`, then commands on standard input, answers on standard output:

| command | answer |
|---|---|
| `take NAME` | `granted` when its turn has come |
| `try NAME` | `granted` or `busy` |
| `release` | `released` |
| `count NAME PATH TIMES` | `counted` after so many rounds of take, read, write, release |
| `contenders NAME` | `contenders` and the identifiers of those it sees in the line |

STYLE is `kazoo` for kazoo's own names, with ours told to it as a further pattern, or `curator` for
the names of Curator. It says `ready` first, and ends with its input.
"""

import logging
import sys

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock


class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Taker:
    def __init__(self, hosts, style):
        self.client = KazooClient(hosts=hosts, timeout=2)
        self.client.start()
        self.style = style
        self.held = None

    def lock(self, name):
        if self.style == "curator":
            return CuratorLock(self.client, name, "theirs")
        return Lock(self.client, name, "theirs", extra_lock_patterns=["-lock-"])

    def acquire(self, name, blocking):
        lock = self.lock(name)
        if not lock.acquire(blocking=blocking):
            return "busy"
        self.held = lock
        return "granted"

    def take(self, name):
        return self.acquire(name, True)

    def try_(self, name):
        return self.acquire(name, False)

    def release(self):
        self.held.release()
        return "released"

    def count(self, name, path, times):
        """Counts in a file that checks nothing: only the lock keeps it right."""
        for _ in range(int(times)):
            with self.lock(name):
                with open(path) as file:
                    number = int(file.read())
                with open(path, "w") as file:
                    file.write(str(number + 1))
        return "counted"

    def contenders(self, name):
        return "contenders " + " ".join(self.lock(name).contenders())


def main():
    logging.basicConfig(level=logging.ERROR)
    taker = Taker(*sys.argv[1:])
    actions = {
        "take": taker.take,
        "try": taker.try_,
        "release": taker.release,
        "count": taker.count,
        "contenders": taker.contenders,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        print(actions[command](*words), flush=True)


if __name__ == "__main__":
    main()
