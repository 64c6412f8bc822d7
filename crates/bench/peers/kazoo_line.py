"""Takes one lock of kazoo in turn with others: a child of the benchmarks, see `child.rs`.

`kazoo_line.py HOSTS PATH TAKERS HOLD_MS AWAY_MS`. Each taker is a thread with a client of its own.
"""

import json
import logging
import sys
import threading
import time

from kazoo.client import KazooClient


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def sleep_until(moment):
    time.sleep(max(0, moment - now()) / 1e9)


def take_turns(client, path, hold, away, shift, turns):
    lock = client.Lock(path, "peer")
    sleep_until(shift["begin"])
    while now() < shift["end"]:
        # It tells nobody that it must wait, so it counts as waiting from the call on.
        called = now()
        with lock:
            granted = now()
            if granted >= shift["end"]:
                break
            time.sleep(hold)
            turns.append({"queued": called, "granted": granted, "releasing": now()})
        time.sleep(away)


def main():
    logging.basicConfig(level=logging.ERROR)
    hosts, path, takers, hold, away = sys.argv[1:]
    clients = [KazooClient(hosts=hosts, timeout=60) for _ in range(int(takers))]
    for client in clients:
        client.start()
        client.ensure_path(path)
    print("null", flush=True)
    shift = json.loads(sys.stdin.readline())
    turns = []
    times = (int(hold) / 1e3, int(away) / 1e3)
    threads = [
        threading.Thread(target=take_turns, args=(client, path, *times, shift, turns))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(turns), flush=True)
    for client in clients:
        client.stop()


if __name__ == "__main__":
    main()
