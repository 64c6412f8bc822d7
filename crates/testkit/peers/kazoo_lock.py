"""Takes locks of kazoo in a process of its own: the `taker` program's counterpart.

`kazoo_lock.py HOSTS STYLE`, then commands on standard input, answers on standard output:

| command | answer |
|---|---|
| `take NAME` | `granted` when its turn has come |
| `try NAME` | `granted` or `busy` |
| `release` | `released` |
| `count NAME PATH TIMES` | `counted` after so many rounds of take, read, write, release |
| `remove PATH` | `removed`, with all that is below it |
| `contenders NAME` | `contenders` and the identifiers of those it sees in the line |

STYLE is `plain` for kazoo's lock as it is, `told` for the same lock with Curator's names told to it as a
further pattern, or `curator` for one that names its nodes as Curator does. It says `ready` first, and
ends with its input.
"""

import logging
import sys

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

import taker


class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Taker(taker.Taker):
    def __init__(self, hosts, style):
        self.client = KazooClient(hosts=hosts, timeout=2)
        self.client.start()
        self.style = style

    def lock(self, name):
        if self.style == "curator":
            return CuratorLock(self.client, name, "theirs")
        patterns = ["-lock-"] if self.style == "told" else []
        return Lock(self.client, name, "theirs", extra_lock_patterns=patterns)

    def release(self):
        self.held.release()
        return "released"

    def count(self, name, path, times):
        for _ in range(int(times)):
            self._change(name, path, lambda number: str(int(number) + 1))
        return "counted"

    def remove(self, path):
        self.client.delete(path, recursive=True)
        return "removed"

    def contenders(self, name):
        return "contenders " + " ".join(self.lock(name).contenders())


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    Taker(*sys.argv[1:]).serve()
