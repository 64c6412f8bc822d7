"""What the takers of other libraries share: commands on standard input, answers on standard output.

Every public method of a taker is a command, with the words behind it as its arguments. It says
`ready` first, and ends with its input.
"""

import sys


class Taker:
    held = None

    def lock(self, name):
        """The library's lock of that name."""
        raise NotImplementedError

    def _acquire(self, name, blocking):
        lock = self.lock(name)
        if not lock.acquire(blocking=blocking):
            return "busy"
        self.held = lock
        return "granted"

    def take(self, name):
        return self._acquire(name, True)

    def try_(self, name):
        return self._acquire(name, False)

    def _change(self, name, path, change):
        """Changes a file that checks nothing: only the lock keeps it right."""
        with self.lock(name):
            with open(path) as file:
                before = file.read()
            with open(path, "w") as file:
                file.write(change(before))

    def serve(self):
        print("ready", flush=True)
        for line in sys.stdin:
            command, *words = line.split()
            action = getattr(self, "try_" if command == "try" else command)
            print(action(*words), flush=True)
