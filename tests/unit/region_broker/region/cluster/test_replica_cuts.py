"""Logs of a follower that are to be cut: given up at any moment, they are in a session again (INV-RCT1, INV-RCT2)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from region_broker.partitions.partition import Partition
from region_broker.region.cluster.replica_cuts import ReplicaCuts
from tests.fixtures.node_logs import Fixture, fixture


class Cuts:
    """Cuts of one log, which take until `may_end` is set; counts those that have begun, and those that were told as ended."""

    def __init__(self) -> None:
        self.node: Fixture = fixture(leads=False)
        self.log: Partition = self.node.partition
        self.begun = self.ended = 0
        self.may_end = asyncio.Event()
        self.cuts = ReplicaCuts(self.node.clock, self._note_end)

    def _note_end(self) -> None:
        self.ended += 1

    async def _cut(self, log: Partition, meets_at: int) -> None:
        assert (log, meets_at) == (self.log, 3)
        self.begun += 1
        await self.may_end.wait()

    def begin(self) -> None:
        self.cuts.begin(self.log, 3, self._cut)

    @property
    def is_being_cut(self) -> bool:
        return self.log.key in self.cuts


@asynccontextmanager
async def running() -> AsyncIterator[Cuts]:
    made = Cuts()
    run = asyncio.get_running_loop().create_task(made.cuts.run())
    await turns(2)
    yield made
    run.cancel()
    await asyncio.wait([run])


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("after_turns", range(6))
async def test_INV_RCT1_a_cut_that_is_given_up_in_any_turn_of_the_loop_leaves_the_log_to_the_next_session(
    after_turns: int,
) -> None:
    """Also between the turn in which its task is made and that in which it begins: a log would be in no session any more, for good."""
    async with running() as made:
        made.begin()
        await turns(after_turns)
        made.cuts.stop()
        await turns(6)
        assert not made.is_being_cut
        made.begin()
        made.may_end.set()
        await turns(6)
        assert not made.is_being_cut
        assert made.begun > 0
        assert made.ended > 0


async def test_INV_RCT1_a_log_is_being_cut_until_its_cut_has_ended() -> None:
    async with running() as made:
        made.begin()
        await turns(6)
        assert (made.is_being_cut, made.begun, made.ended) == (True, 1, 0)
        made.may_end.set()
        await turns(6)
        assert (made.is_being_cut, made.ended) == (False, 1)
