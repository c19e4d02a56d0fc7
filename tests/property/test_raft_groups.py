"""Whole groups, each with its node, core, store and state machine, through power losses, failing and full disks, and cuts.

After every step all members have applied the beginning of one sequence (State Machine Safety, Raft figure 3), and in the end
all of it, once, with every command that was acknowledged. The core alone is played by `tests.simulation.raft`; here it is
what carries it: restarts from the folder, snapshots in pieces, and what a full disk lets through (INV-RK1, INV-RK2, INV-RK4).
"""

import asyncio
import errno
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from region_broker.controller.raft import carrying
from region_broker.controller.raft.entries import Membership
from region_broker.controller.raft.failures import (
    RaftStoreFailed,
    RaftStoreFull,
    WishFailed,
)
from region_broker.controller.raft.settings import RaftSettings
from tests.fixtures.raft_groups import Bus, Site, led_by, member, until
from tests.simulation.disk import Crashed
from tests.simulation.simulated_loop import run_simulated

STEPS = 60


class Play:
    """A group of some members, and what came of it so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bus = Bus(self.rng)
        count = self.rng.choice([1, 2, 3, 3, 3, 4, 5])
        founders = Membership(tuple(map(member, range(1, count + 1))))
        limits = RaftSettings(kept_entries=self.rng.choice([0, 3, 100]))
        self.sites = [
            Site(self.bus, me, founders, settings=limits, snapshot_after_bytes=2000)
            for me in founders.voters
        ]
        self.acknowledged: set[bytes] = set()
        self.sequence: list[bytes] = []
        self.numbers = 0
        self.tasks = asyncio.TaskGroup()

    async def run(self) -> None:
        async with self.tasks:
            for site in self.sites:
                site.start()
            for _ in range(STEPS):
                await self.step()
                self.check()
            await self.rest()

    async def step(self) -> None:
        site = self.rng.choice(self.sites)
        choice = self.rng.random()
        if choice < 0.5:
            for _ in range(self.rng.choice([1, 1, 5])):
                self.propose(site)
        elif choice < 0.6:
            await self.end(site)
        elif choice < 0.65:
            site.disk.crash_after(self.rng.randrange(20))
        elif choice < 0.7:
            site.disk.fault = self.failing_once()
        elif choice < 0.8:
            site.disk.room_bytes = self.rng.choice([None, None, 0, 5000])
        elif choice < 0.9:
            self.bus.cut = {self.rng.choice(self.sites).me} if self.rng.random() < 0.5 else set()
        await asyncio.sleep(self.rng.choice([0.0005, 0.01, 0.2, 1.0]))
        await self.begin_again(site)

    def failing_once(self) -> Callable[[str, Path], None]:
        left = [self.rng.randrange(10)]

        def fault(operation: str, path: Path) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.EIO, "planted", str(path))

        return fault

    def propose(self, site: Site) -> None:
        self.numbers += 1
        payload = b"%06d" % self.numbers + bytes(self.rng.choice([0, 100, 1000]))
        self.tasks.create_task(self._proposed(site, payload))

    async def _proposed(self, site: Site, payload: bytes) -> None:
        try:
            await site.running.propose(payload)
        except (WishFailed, RaftStoreFull):
            return
        self.acknowledged.add(payload)

    async def end(self, site: Site) -> None:
        """Lose the power, or end as it should."""
        assert site.task is not None
        if self.rng.random() < 0.7:
            await site.crash(self.rng.randrange(1000))
            await self._ended(site)
        else:
            site.running.stop()
            await self._ended(site)

    async def begin_again(self, site: Site) -> None:
        """Start a member that has ended, as it was told to, or as its disk made it."""
        assert site.task is not None
        if site.task.done():
            await self._ended(site)
            self.bus.groups.pop(site.me, None)
            site.disk.power_loss(random.Random(self.rng.randrange(1000)))
            site.disk.room_bytes = None
            site.start()

    async def _ended(self, site: Site) -> None:
        assert site.task is not None
        try:
            await site.task
        except (Crashed, RaftStoreFailed, asyncio.CancelledError):
            return

    async def last(self) -> bytes:
        """Have something taken behind all else: a member whose disk failed just before may end meanwhile, each once, and is started again."""
        for attempt in range(2 * len(self.sites) + 1):
            for site in self.sites:
                await self.begin_again(site)
            await until(lambda: self.ended() or led_by(self.sites))
            if self.ended():
                continue
            with suppress(WishFailed):
                await led_by(self.sites)[0].running.propose(b"last-%d" % attempt)
                return b"last-%d" % attempt
        raise AssertionError("nobody leads who does not end")

    def ended(self) -> bool:
        return any(site.task is None or site.task.done() for site in self.sites)

    def check(self) -> None:
        for site in self.sites:
            taken = site.machine.taken
            known = min(len(taken), len(self.sequence))
            assert taken[:known] == self.sequence[:known], "one sequence"
            self.sequence += taken[known:]

    async def rest(self) -> None:
        """Mend all, and wait until all have all."""
        self.bus.cut = set()
        for site in self.sites:
            site.disk.room_bytes = site.disk.fault = site.disk.crash_at = None
            if site.disk.crashed:
                await until(site.task.done if site.task is not None else bool)
            await self.begin_again(site)
        last = await self.last()
        await until(lambda: all(site.machine.taken[-1:] == [last] for site in self.sites))
        self.check()
        assert len(set(self.sequence)) == len(self.sequence), "each once"
        assert self.acknowledged <= {*self.sequence}, "what was acknowledged is there"
        for site in self.sites:
            await site.stop()


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_every_member_applies_one_sequence_with_all_that_was_acknowledged(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carrying, "SNAPSHOT_PIECE_BYTES", 700)
        run_simulated(Play(seed).run(), seed)
