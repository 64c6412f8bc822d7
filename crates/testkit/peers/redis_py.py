"""Takes locks of redis-py in a process of its own: the `taker` program's counterpart.

`redis_py.py URL TIMEOUT_MS` (0 for locks without an end), then commands on standard input, answers on
standard output:

| command | answer |
|---|---|
| `take NAME` | `granted` when it is free |
| `try NAME` | `granted` or `busy` |
| `release`, `extend`, `reacquire` | `done`, or `refused` and the kind of error |
| `owned` | `owned True` or `owned False` |
| `sign NAME PATH TIMES MARK` | `signed` after so many rounds of take, read, write, release |

It says `ready` first, and ends with its input.
"""

import sys
import time

import redis
from redis.exceptions import LockError

import taker


class Taker(taker.Taker):
    def __init__(self, url, timeout_ms):
        self.client = redis.Redis.from_url(url)
        self.client.ping()
        self.timeout = int(timeout_ms) / 1000 or None

    def lock(self, name):
        return self.client.lock(name, timeout=self.timeout, sleep=0.01)

    def _attempt(self, action):
        try:
            action()
        except LockError as error:
            return f"refused {type(error).__name__}"
        return "done"

    def release(self):
        return self._attempt(self.held.release)

    def extend(self):
        return self._attempt(lambda: self.held.extend(60, replace_ttl=True))

    def reacquire(self):
        return self._attempt(self.held.reacquire)

    def owned(self):
        return f"owned {self.held.owned()}"

    def sign(self, name, path, times, mark):
        for _ in range(int(times)):
            self._change(name, path, lambda signed: signed + mark)
            # Time for the others: nobody here stands in a line.
            time.sleep(0.002)
        return "signed"


if __name__ == "__main__":
    Taker(*sys.argv[1:]).serve()
