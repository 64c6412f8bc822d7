"""The one place that reads the clock by which leases are measured.

It goes on while the machine is suspended: a laptop that wakes up must not believe in a lock that other clients
have taken over meanwhile.
"""

from __future__ import annotations

import sys
import time

# Timers of threads stop during a suspend. No sleep is longer than this, so a sleeper notices within a second of
# waking up that its time has come.
NAP_MAX = 1.0

if sys.platform == "linux":

    def now() -> float:
        """Seconds on a clock that counts suspend."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def now() -> float:
        """Seconds on a clock that counts suspend: on macOS CLOCK_MONOTONIC does, time.monotonic() does not."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def now() -> float:
        """Seconds on the best clock that the platform has."""
        return time.monotonic()
