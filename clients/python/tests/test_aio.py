"""The same for asyncio."""

from __future__ import annotations

import asyncio
import time
import unittest

import lockkeeper
from lockkeeper import aio

from .support import WithService, eventually


class Asyncio(WithService, unittest.IsolatedAsyncioTestCase):
    def connect(self) -> aio.Client:
        client = aio.connect(self.service.url)
        self.addAsyncCleanup(client.close)
        return client

    async def test_tasks_exclude_each_other_and_the_loop_goes_on(self) -> None:
        client = self.connect()
        inside = most = ticks = 0

        async def work() -> None:
            nonlocal inside, most
            async with client.lock("tasks", wait=30) as g:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.02)
                inside -= 1
                self.assertTrue(g.is_held())

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticker = asyncio.create_task(tick())
        await asyncio.gather(*(work() for _ in range(5)))
        ticker.cancel()
        self.assertEqual(most, 1)
        self.assertGreater(ticks, 5)

    async def test_a_cancelled_wait_is_withdrawn(self) -> None:
        client = self.connect()
        async with client.lock("cancelled"):
            task = asyncio.create_task(client.lock("cancelled").acquire())
            while not (await client.get("cancelled")).waiters:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertLess(time.monotonic() - began, 1.0)
            while (await client.get("cancelled")).waiters:
                await asyncio.sleep(0.01)

    async def test_a_cancelled_holder_releases(self) -> None:
        client = self.connect()
        entered = asyncio.Event()

        async def hold() -> None:
            async with client.lock("held"):
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(hold())
        await entered.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual((await client.get("held")).tickets, [])

    async def test_a_time_limit_around_the_wait_withdraws_it(self) -> None:
        client = self.connect()
        async with client.lock("limited"):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.lock("limited").acquire(), 0.2)
            with self.assertRaises(lockkeeper.NotAcquired):
                await client.lock("limited", wait=0.1).acquire()
            self.assertIsNone(await client.lock("limited").try_acquire())
        blocking = client.blocking
        eventually(lambda: not blocking.get("limited").tickets, "the tickets to be withdrawn")

    async def test_a_loss_wakes_a_task(self) -> None:
        client = self.connect()
        guard = await client.lock("lost", ttl=3).acquire()
        lost = asyncio.create_task(guard.lost.wait())
        await asyncio.sleep(0)
        self.assertTrue(await client.evict("lost", guard.ticket))
        self.assertEqual(await asyncio.wait_for(lost, 30), "evicted")
        self.assertFalse(guard.is_held())

    async def test_elections_and_cells_work(self) -> None:
        client = self.connect()
        election = client.election("aio")
        leaders = election.observe()
        self.assertIsNone(await anext(leaders))
        async with election.campaign("one") as term:
            leader = await anext(leaders)
            assert leader is not None
            self.assertEqual(leader.text, "one")
            await term.put("state")
            cell = await client.cell("aio")
            assert cell is not None
            self.assertEqual((cell.text, cell.fence), ("state", term.fence))
        await leaders.aclose()  # type: ignore[attr-defined]
