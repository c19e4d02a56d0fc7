"""Three Raft groups over real sockets and disks, shortly: a leader, a death, the way back, and a learner that needs a snapshot."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from region_broker.controller.raft.carrying import SNAPSHOT_PIECE_BYTES
from region_broker.controller.raft.effects import MembershipAsked, ReadAsked
from region_broker.controller.raft.entries import Member, Membership
from region_broker.controller.raft.failures import WishFailed
from region_broker.controller.raft.group_setup import GroupSetup
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.raft.shell import RaftGroup
from region_broker.limits import MIB
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.raft_groups import Commands
from tests.fixtures.region_nodes import Addresses, NodeSide, member, real_node, standing_of
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow

FOUNDERS = Membership(tuple(map(member, (1, 2, 3))))
SETTINGS = RaftSettings(kept_entries=0)
SNAPSHOT_AFTER_BYTES = 2 * MIB


class Node:
    """A node whose folder outlives its processes."""

    def __init__(self, me: Member, folder: Path, addresses: Addresses) -> None:
        self.me = me
        self.machine = Commands()
        self.group: RaftGroup | None = None
        self.side: NodeSide | None = None
        self._folder = folder / str(me.node_id)
        self._addresses = addresses
        self._task: asyncio.Task[None] | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        port = self._addresses.get(self.me, ("", 0))[1]
        self.side = real_node(self._addresses, standing_of(self.me, life=SystemChance().uuid()))
        await self.side.start(port=port)
        self.machine = Commands()
        self.group = RaftGroup(
            GroupSetup(
                member=self.me, founders=FOUNDERS if self.me in FOUNDERS.voters else Membership(()), disk=RealDisk(),
                folder=self._folder, clock=SystemClock(), chance=SystemChance(), transport=self.side.group("metadata"),
                settings=SETTINGS, snapshot_after_bytes=SNAPSHOT_AFTER_BYTES,
            ),
            self.machine,
        )  # fmt: skip
        self.side.group("metadata").deliver_to(self.group.request_handler)
        self._task = tasks.create_task(self._run(self.side, self.group))

    async def _run(self, side: NodeSide, group: RaftGroup) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(side.run())
            tasks.create_task(group.run())

    async def end(self) -> None:
        """End its process; its connections are closed, as a kernel does."""
        assert self._task is not None
        assert self.side is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        self.side.server.close()
        await self.side.server.wait_closed()
        self.group = self.side = None


async def leader_of(nodes: Sequence[Node]) -> Node:
    """Return the one that all others of these follow, too."""

    def found() -> list[Node]:
        names = {node.group.leader for node in nodes if node.group is not None}
        return [node for node in nodes if names == {node.me}]

    await until(lambda: bool(found()), "a leader")
    return found()[0]


async def proposed(nodes: Sequence[Node], payload: bytes) -> None:
    """Have it committed by whoever leads."""
    while True:
        leader = await leader_of(nodes)
        assert leader.group is not None
        try:
            await leader.group.propose(payload)
        except WishFailed:
            continue
        return


async def test_a_group_over_loopback_elects_replicates_survives_and_takes_a_learner_in(
    tmp_path: Path,
) -> None:
    addresses: Addresses = {}
    founders = [Node(each, tmp_path, addresses) for each in FOUNDERS.voters]
    joiner = Node(member(4), tmp_path, addresses)
    chance = random.Random(1)
    said = [b"%d " % number + chance.randbytes(1_000).hex().encode() for number in range(40)]
    large = [b"4 MiB %d " % number + bytes(SETTINGS.payload_bytes_max - 100) for number in range(2)]

    def all_have(nodes: Sequence[Node], wanted: Sequence[bytes]) -> Callable[[], bool]:
        return lambda: all(node.machine.taken == [*wanted] for node in nodes)

    async with asyncio.TaskGroup() as tasks:
        for node in founders:
            await node.start(tasks)
        for payload in said[:20]:
            await proposed(founders, payload)
        await until(all_have(founders, said[:20]), "all apply")
        leader = await leader_of(founders)
        await leader.end()
        others = [node for node in founders if node is not leader]
        assert all(leader.me in node.side.watched.lost for node in others if node.side)
        for payload in said[20:]:
            await proposed(others, payload)
        await leader.start(tasks)
        await until(all_have(founders, said), "the former leader comes back")
        for payload in large:
            await proposed(founders, payload)
        await until(all_have(founders, said + large), "4 MiB pass")
        await joiner.start(tasks)
        leader = await leader_of(founders)
        assert leader.group is not None
        wanted = Membership(FOUNDERS.voters, (joiner.me,))
        await leader.group.ask(lambda ticket: MembershipAsked(ticket, wanted))
        await until(all_have([joiner], said + large), "the learner has all of it")
        assert joiner.machine.loaded == 1, "by a snapshot, in pieces"
        assert sum(map(len, large)) > 8 * SNAPSHOT_PIECE_BYTES
        assert await leader.group.ask(ReadAsked) > len(said)
        for node in (*founders, joiner):
            await node.end()
