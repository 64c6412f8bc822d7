"""What a lock promises when processes, answers and services are lost."""

from __future__ import annotations

import time

import lockkeeper

from .support import Service, WithService, eventually


class Faults(WithService):
    def test_a_stopped_holder_knows_its_loss_before_it_can_do_anything(self) -> None:
        child, client = self.child(), self.client()
        fence = int(child.ask("lock stopped 0.8"))
        child.stop()
        with client.lock("stopped", wait=30) as g:
            self.assertGreater(g.fence, fence)
            # What it does first is to read these words.
            child.tell("look")
            child.resume()
            self.assertEqual(child.line(), "False True expired")
            self.assertTrue(g.is_held())

    def test_a_killed_holder_frees_its_lock_after_its_ttl(self) -> None:
        child, client = self.child(), self.client()
        began = time.monotonic()
        child.ask("lock killed 1.5")
        child.process.kill()
        with client.lock("killed", wait=30):
            self.assertGreaterEqual(time.monotonic() - began, 1.4)

    def test_a_lost_answer_to_a_lock_is_asked_for_again_with_the_same_ticket(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.url)
        proxy.lose = [b"POST /v1/locks/lost"]
        with client.lock("lost", wait=30) as g:
            self.assertEqual(proxy.lost, 1)
            line = self.client().get("lost")
            self.assertEqual([(t.id, t.fence) for t in line.tickets], [(g.ticket, g.fence)])

    def test_a_lost_answer_to_a_release_is_no_loss(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.url)
        guard = client.lock("left", wait=30).acquire()
        proxy.lose = [b"DELETE /v1/locks/left"]
        guard.release()
        self.assertEqual((proxy.lost, self.client().get("left").tickets), (1, []))

    def test_one_attempt_whose_answer_is_lost_leaves_no_ticket(self) -> None:
        proxy = self.proxy()
        client = self.client(proxy.url)
        proxy.lose = [b"POST /v1/locks/once"] * 2
        with self.assertRaises(lockkeeper.Unavailable) as caught:
            client.lock("once", wait=0).acquire()
        self.assertEqual(caught.exception.outcome, "unknown")
        looker = self.client()
        eventually(lambda: not looker.get("once").tickets, "the ticket to be withdrawn")
        self.assertTrue([r for r in proxy.requests if r.startswith(b"DELETE") and b"stray=true" in r])

    def test_a_write_from_outside_with_an_unknown_outcome_is_not_repeated(self) -> None:
        proxy = self.proxy()
        with self.client().lock("outside", wait=5) as g:
            proxy.lose = [b"PUT /v1/cells/outside"]
            with self.assertRaises(lockkeeper.Unavailable) as caught:
                self.client(proxy.url).put("outside", b"once", sequencer=g.sequencer)
            self.assertEqual(caught.exception.outcome, "unknown")
            self.assertEqual(len(proxy.requests), 1)
            proxy.lose = [b"PUT /v1/cells/outside"]
            client = self.client(proxy.url)
        with client.lock("outside", wait=5) as g:
            # Under its own lock a write has a number, and is repeated.
            g.put(b"again")
            cell = client.cell("outside")
            assert cell is not None
            self.assertEqual((cell.value, proxy.lost), (b"again", 2))

    def test_a_service_that_is_restarted_keeps_the_lock(self) -> None:
        client = self.client()
        with client.lock("restarted", ttl=6) as g:
            self.service.kill()
            eventually(g.is_in_jeopardy, "a renewal to fail")
            self.service.start()
            eventually(lambda: not g.is_in_jeopardy(), "a renewal")
            g.check()
            looker = self.client()
            self.assertEqual(looker.get("restarted").holders[0].fence, g.fence)

    def test_a_service_that_stays_away_loses_the_lock_at_its_deadline(self) -> None:
        client = self.client()
        guard = client.lock("away", ttl=1).acquire()
        self.service.kill()
        self.addCleanup(self.service.start)
        began = time.monotonic()
        self.assertTrue(guard.lost.wait(30))
        self.assertLess(time.monotonic() - began, 2.0)
        self.assertEqual((guard.why, guard.remaining()), ("expired", 0.0))
        with self.assertRaises(lockkeeper.Lost):
            guard.release()
        with self.assertRaises(lockkeeper.Unavailable):
            client.lock("away", wait=0.3).acquire()
        with self.assertRaises(lockkeeper.Unavailable):
            client.lock("away", wait=0).acquire()

    def test_a_waiter_whose_session_was_lost_enters_again(self) -> None:
        child, client = self.child(), self.client()
        with client.lock("again", ttl=30):
            child.tell("lock again 0.8")
            eventually(lambda: len(client.get("again").waiters) == 1, "a waiter")
            first = client.get("again").waiters[0].id
            child.stop()
            eventually(lambda: not client.get("again").waiters, "its ticket to expire")
            child.resume()
            eventually(lambda: len(client.get("again").waiters) == 1, "a waiter")
            self.assertNotEqual(client.get("again").waiters[0].id, first)
        self.assertTrue(int(child.line()))


class TwoServices(WithService):
    def test_a_client_moves_to_another_service_in_mid_hold_and_in_mid_wait(self) -> None:
        other = Service(self.folder)
        self.addCleanup(other.kill)
        urls = f"{self.service.url},{other.url}"
        client = self.client(urls)
        dead_first = self.client(f"http://127.0.0.1:1,{other.url}")
        child = self.child(urls)
        with client.lock("moved", ttl=6) as g:
            child.tell("lock moved 6")
            eventually(lambda: len(dead_first.get("moved").waiters) == 1, "a waiter")
            waiter = dead_first.get("moved").waiters[0].id
            self.service.kill()
            g.check()
            self.assertEqual(dead_first.get("moved").waiters[0].id, waiter)
        self.assertGreater(int(child.line()), g.fence)
