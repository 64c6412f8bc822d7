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


class Taker:
    def __init__(self, url, timeout_ms):
        self.client = redis.Redis.from_url(url)
        self.client.ping()
        self.timeout = int(timeout_ms) / 1000 or None
        self.held = None

    def lock(self, name):
        return self.client.lock(name, timeout=self.timeout, sleep=0.01)

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

    def attempt(self, action):
        try:
            action()
        except LockError as error:
            return f"refused {type(error).__name__}"
        return "done"

    def release(self):
        return self.attempt(self.held.release)

    def extend(self):
        return self.attempt(lambda: self.held.extend(60, replace_ttl=True))

    def reacquire(self):
        return self.attempt(self.held.reacquire)

    def owned(self):
        return f"owned {self.held.owned()}"

    def sign(self, name, path, times, mark):
        """Adds to a file that checks nothing: only the lock keeps it right."""
        for _ in range(int(times)):
            with self.lock(name):
                with open(path) as file:
                    signed = file.read()
                with open(path, "w") as file:
                    file.write(signed + mark)
            # Time for the others: nobody here stands in a line.
            time.sleep(0.002)
        return "signed"


def main():
    taker = Taker(*sys.argv[1:])
    actions = {
        "take": taker.take,
        "try": taker.try_,
        "release": taker.release,
        "extend": taker.extend,
        "reacquire": taker.reacquire,
        "owned": taker.owned,
        "sign": taker.sign,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        print(actions[command](*words), flush=True)


if __name__ == "__main__":
    main()
