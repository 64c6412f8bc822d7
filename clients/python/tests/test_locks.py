"""What a lock promises while nothing fails."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

import lockkeeper

from .support import Service, WithService, eventually


class Locks(WithService):
    def test_two_processes_exclude_each_other_and_fences_grow(self) -> None:
        path = Path(self.folder) / "number"
        path.write_text("0")
        children = [self.child() for _ in range(2)]
        for child in children:
            child.tell(f"count exclusion {path} 25")
        for child in children:
            self.assertEqual(child.line(), "done")
        self.assertEqual(path.read_text(), "50")
        fences = [int(line) for line in Path(f"{path}.fences").read_text().split()]
        self.assertEqual(fences, sorted(set(fences)))

    def test_a_renewal_holds_a_lock_beyond_its_ttl(self) -> None:
        client, other = self.client(), self.client()
        with client.lock("renewed", ttl=1.0) as g:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                self.assertTrue(g.is_held())
                self.assertIsNone(other.lock("renewed").try_acquire())
            g.check()
            self.assertTrue(other.check(g.sequencer))
        self.assertEqual((g.is_held(), g.why), (False, "released"))
        self.assertFalse(other.check(g.sequencer))

    def test_a_wait_that_ends_leaves_no_ticket_and_names_the_holder(self) -> None:
        client, other = self.client(), self.client()
        with client.lock("taken", label="nightly"):
            with self.assertRaises(lockkeeper.NotAcquired) as caught:
                other.lock("taken", wait=0.2).acquire()
            self.assertIn(f"pid {os.getpid()}", caught.exception.holder or "")
            self.assertIn("nightly", caught.exception.holder or "")
            eventually(lambda: not client.get("taken").waiters, "the ticket to be withdrawn")

    def test_locks_are_granted_in_the_order_of_arrival(self) -> None:
        client, order = self.client(), []
        with client.lock("order"):
            threads = []
            for number in range(3):

                def take(number: int = number) -> None:
                    with client.lock("order"):
                        order.append(number)

                threads.append(threading.Thread(target=take))
                threads[-1].start()
                waiting = number + 1
                eventually(lambda: len(client.get("order").waiters) == waiting, "a waiter")
        for thread in threads:
            thread.join()
        self.assertEqual(order, [0, 1, 2])

    def test_readers_share_and_writers_do_not(self) -> None:
        client = self.client()
        with client.lock("index", shared=True), client.lock("index", shared=True, wait=5):
            self.assertEqual([t.mode for t in client.get("index").holders], ["shared", "shared"])
            self.assertIsNone(client.lock("index").try_acquire())
        with client.lock("index", wait=5):
            self.assertIsNone(client.lock("index", shared=True).try_acquire())

    def test_a_semaphore_gives_no_more_permits_than_it_has(self) -> None:
        client = self.client()
        with client.semaphore("gpu", 2, of=3):
            with client.semaphore("gpu", of=3, wait=5):
                self.assertIsNone(client.semaphore("gpu", of=3).try_acquire())
                self.assertEqual(client.get("gpu").permits, 3)
            with self.assertRaises(lockkeeper.Refused) as caught:
                client.semaphore("gpu", of=4).try_acquire()
            self.assertEqual((caught.exception.kind, caught.exception.capacity), ("capacity", 3))
        with self.assertRaises(ValueError):
            client.semaphore("gpu", 4, of=3)

    def test_names_are_data(self) -> None:
        client = self.client()
        names = ["a/b", "../x", "a?b=c#d", "100 %", "ключ/键", "a%2Fb", "."]
        for name in names:
            with client.lock(f"names:{name}", wait=5):
                self.assertEqual(client.get(f"names:{name}").name, f"names:{name}")
        held = [client.lock(f"names:{name}", wait=5).acquire() for name in names]
        found = [line.name for line in client.list("names:", state="held")]
        self.assertEqual(sorted(found), sorted(f"names:{name}" for name in names))
        for guard in held:
            guard.release()

    def test_an_evicted_holder_is_told_and_its_release_says_so(self) -> None:
        client, other = self.client(), self.client()
        guard = client.lock("evicted", ttl=3).acquire()
        with self.assertRaises(lockkeeper.Refused) as caught:
            other.evict("evicted", guard.ticket, fence=guard.fence + 1)
        self.assertEqual((caught.exception.kind, caught.exception.fence), ("fence_changed", guard.fence))
        self.assertTrue(other.evict("evicted", guard.ticket, fence=guard.fence))
        self.assertFalse(other.evict("evicted", guard.ticket))
        self.assertTrue(guard.lost.wait(30))
        self.assertEqual(guard.why, "evicted")
        with self.assertRaises(lockkeeper.Lost):
            guard.release()

    def test_check_notices_an_eviction_at_once(self) -> None:
        client = self.client()
        guard = client.lock("checked", ttl=60).acquire()
        client.evict("checked", guard.ticket)
        with self.assertRaises(lockkeeper.Lost):
            guard.check()
        self.assertTrue(guard.lost.is_set())

    def test_a_cell_is_written_only_under_the_lock(self) -> None:
        client = self.client()
        self.assertIsNone(client.cell("orders"))
        with client.lock("orders") as g:
            g.put("up to 4711")
            cell = client.cell("orders")
            assert cell is not None
            self.assertEqual((cell.text, cell.fence), ("up to 4711", g.fence))
            client.put("orders", b"\0\xff", sequencer=g.sequencer)
            old = g.sequencer
        with client.lock("orders", wait=5) as g:
            cell = client.cell("orders")
            assert cell is not None
            self.assertEqual(cell.value, b"\0\xff")
            with self.assertRaises(lockkeeper.Stale):
                client.put("orders", b"late", sequencer=old)
            client.evict("orders", g.ticket)
            with self.assertRaises(lockkeeper.Lost):
                g.put(b"late")
            self.assertFalse(g.is_held())
            with self.assertRaises(lockkeeper.Lost):
                g.release()
        with client.lock("orders", wait=5) as g:
            g.put(None)
            self.assertIsNone(client.cell("orders"))

    def test_observers_follow_who_leads(self) -> None:
        client = self.client()
        election = client.election("scheduler")
        leaders = election.observe()
        self.assertIsNone(next(leaders))
        with election.campaign("host-7") as term:
            leader = next(leaders)
            assert leader is not None
            self.assertEqual((leader.text, leader.fence), ("host-7", term.fence))
            term.proclaim("host-7, draining")
            leader = next(leaders)
            assert leader is not None
            self.assertEqual(leader.text, "host-7, draining")
        self.assertIsNone(next(leaders))
        self.assertIsNone(election.leader())

    def test_listings_show_holders_and_waiters(self) -> None:
        client = self.client()
        with client.lock("list/a", label="one"), client.lock("list/b"):
            thread = threading.Thread(target=lambda: client.lock("list/b").acquire().release())
            thread.start()
            eventually(lambda: len(client.get("list/b").waiters) == 1, "a waiter")
            lines = list(client.list("list/"))
            self.assertEqual([line.name for line in lines], ["list/a", "list/b"])
            self.assertEqual(lines[0].holders[0].text, "one")
            self.assertEqual([line.name for line in client.list("list/", state="waiting")], ["list/b"])
        thread.join()


class Secrets(WithService):
    def test_tokens_and_session_secrets_travel_in_headers_only(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.url, token="canary")
        with client.lock("secret", wait=5) as g:
            g.check()
            g.put("value")
            secret = g.hold.session.secret.encode()
        self.assertGreater(len(proxy.heads), 4)
        for head in proxy.heads:
            line, _, headers = head.partition(b"\r\n")
            self.assertIn(b"Authorization: Bearer canary", headers)
            self.assertNotIn(secret, line)
            self.assertNotIn(b"canary", line)


class Programs(WithService):
    """How a lock ends with what holds it."""

    def test_an_interrupt_releases_what_is_held(self) -> None:
        client = self.client()
        with self.assertRaises(KeyboardInterrupt):
            with client.lock("interrupted"):
                signal.raise_signal(signal.SIGINT)
        self.assertEqual(client.get("interrupted").tickets, [])

    def test_an_interrupt_withdraws_what_waits(self) -> None:
        client = self.client()
        with client.lock("waiting"):

            def interrupt() -> None:
                eventually(lambda: len(client.get("waiting").waiters) == 1, "a waiter")
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                client.lock("waiting").acquire()
            thread.join()
            eventually(lambda: not client.get("waiting").waiters, "the ticket to be withdrawn")

    def test_a_guard_that_is_dropped_is_released(self) -> None:
        client = self.client()
        client.lock("dropped").acquire()
        gc.collect()
        with client.lock("dropped", wait=30):
            pass

    def test_the_end_of_a_program_frees_its_locks_at_once(self) -> None:
        for arguments, command in (((), "exit"), (("terminate",), "")):
            child = self.child(None, *arguments)
            self.assertTrue(child.ask("lock ended 60"))
            if command:
                child.tell(command)
            else:
                child.process.terminate()
            with self.client().lock("ended", wait=30):
                pass
            self.assertEqual(child.process.wait(), 0 if command else 143)

    def test_a_forked_child_never_uses_the_parents_session(self) -> None:
        client = self.client()
        with client.lock("forked") as g:
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    told: list[object] = [g.is_held(), g.lost.is_set(), g.why]
                    try:
                        g.release()
                    except lockkeeper.Lost as e:
                        told.append(e.why)
                    with client.lock("forked by the child") as own:
                        told += [own.is_held(), client.lock("forked").try_acquire()]
                    client.close()
                    os.write(write, repr(told).encode())
                finally:
                    os._exit(0)
            os.close(write)
            with os.fdopen(read) as answer:
                self.assertEqual(answer.read(), "[False, True, 'forked', 'forked', True, None]")
            os.waitpid(pid, 0)
            g.check()

    def test_a_closed_client_frees_its_locks_and_takes_no_others(self) -> None:
        client = self.client()
        guard = client.lock("closed").acquire()
        client.close()
        self.assertEqual((guard.is_held(), guard.why), (False, "closed"))
        with self.assertRaises(lockkeeper.Error):
            client.lock("closed").acquire()
        self.assertIsNotNone(self.client().lock("closed").try_acquire())

    def test_the_module_uses_the_client_that_was_connected_first(self) -> None:
        client = lockkeeper.connect(self.service.url)
        self.addCleanup(client.close)
        with lockkeeper.lock("default", wait=5, ttl=5) as g:
            self.assertEqual(client.get("default").holders[0].id, g.ticket)
        self.assertIs(lockkeeper.default_client(), client)


class Options(unittest.TestCase):
    def test_what_makes_no_sense_is_refused_before_anything_is_sent(self) -> None:
        for url in ("ftp://a", "http://", "unix:socket", "http://user@host", "http://a?b=c", ""):
            with self.assertRaises(ValueError, msg=url):
                lockkeeper.Client(url)
        client = lockkeeper.Client("http://127.0.0.1:1", token="canary")
        self.assertNotIn("canary", repr(client) + repr(vars(client)))
        for ttl, lock_delay in ((0.05, 0.0), (1e6, 0.0), (15.0, -1.0)):
            with self.assertRaises(ValueError):
                client.lock("a", ttl=ttl, lock_delay=lock_delay)
        for name in ("", "x" * 513):
            with self.assertRaises(ValueError):
                client.lock(name)


class UnixSocket(unittest.TestCase):
    def test_a_client_works_over_a_unix_socket(self) -> None:
        with tempfile.TemporaryDirectory(prefix="lockkeeper-py-") as folder:
            service = Service(folder, f"unix:{folder}/socket")
            self.addCleanup(service.kill)
            with lockkeeper.Client(f"unix:{folder}/socket") as client:
                with client.lock("a", wait=5) as g:
                    self.assertTrue(client.check(g.sequencer))


if __name__ == "__main__":
    unittest.main()
