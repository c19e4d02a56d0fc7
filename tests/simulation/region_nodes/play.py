"""One life of a region's nodes from its seed: four of them, of which one joins later; faults of the network and of processes.

INV-SNP1  a seed is one run: what arrives where, and when, is the same in every process
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from region_broker.controller.raft.effects import (
    MembershipAsked,
    Proposed,
    ReadAsked,
    TransferAsked,
)
from region_broker.controller.raft.entries import Member, Membership
from region_broker.controller.raft.failures import RaftStoreFull, WishFailed
from region_broker.controller.raft.group_setup import GroupSetup
from region_broker.controller.raft.memberships import membership_payload
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.raft.shell import RaftGroup
from tests.fixtures.raft_groups import FOLDER, Commands
from tests.fixtures.region_nodes import Addresses, NodeSide, member, standing_of
from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import Fabric
from tests.simulation.raft.durable_state import DurableState
from tests.simulation.raft.judge import Judge, Violated, Wish
from tests.simulation.region_nodes.judged import JudgedMember
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import PROCESS, LoopClock, SimulatedLoop, run_simulated
from tests.simulation.trace import Trace

GROUP = "metadata"
PORT = 9_000
FOUNDERS = Membership(tuple(map(member, (1, 2, 3))))
SETTINGS = RaftSettings(kept_entries=0, append_entries_max=32)
SNAPSHOT_AFTER_BYTES = 400_000
TROUBLE_S = 12.0
SETTLE_S = 20.0
PAYLOADS_BYTES = (10, 100, 5_000, 60_000)


@dataclass(frozen=True, slots=True)
class Life:
    """How a life went. `violation`: empty, or the rule that did not hold."""

    seed: int
    violation: str
    digest: str
    counted: Counter[str]


class SimNode:
    """One node: its disk and its place outlive its processes."""

    def __init__(self, me: Member, region: "Region") -> None:
        self.me = me
        self.site = f"node{me.node_id}"
        self.disk = SimulatedDisk()
        first = FOUNDERS if me in FOUNDERS.voters else Membership(())
        self.judged = JudgedMember(me, first, region.judge, region.disks)
        self.machine = Commands()
        self.group: RaftGroup | None = None
        self.side: NodeSide | None = None
        self._first = first
        self._region = region
        self._lives = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Begin a life, as a process of its own."""
        if self._task is None:
            context = copy_context()
            context.run(PROCESS.set, self.site)
            self._lives += 1
            self._task = asyncio.get_running_loop().create_task(self._live(), context=context)

    async def _live(self) -> None:
        region = self._region
        chance = SeededChance(random.Random(repr((region.seed, self.me.node_id, self._lives))))
        standing = standing_of(self.me, life=UUID(int=self._lives))
        network = region.fabric.site(self.site)
        self.side = side = NodeSide(
            standing, network, region.addresses, clock=LoopClock(), chance=chance
        )
        await side.start(self.site, PORT)
        self.machine = Commands()
        setup = GroupSetup(
            member=self.me, founders=self._first, disk=self.disk, folder=FOLDER, clock=LoopClock(), chance=chance,
            transport=side.group(GROUP), settings=SETTINGS, snapshot_after_bytes=SNAPSHOT_AFTER_BYTES,
        )  # fmt: skip
        self.group = group = RaftGroup(setup, self.machine)
        self.judged.watch(group, self.machine)
        side.group(GROUP).deliver_to(group.request_handler)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(side.run())
            tasks.create_task(group.run())

    async def crash(self) -> None:
        """Lose the power."""
        if self._task is None:
            return
        task, self._task, self.group, self.side = self._task, None, None, None
        region = self._region
        region.loop.resume(self.site)
        region.fabric.kill(self.site)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            task.result()
        self.disk.power_loss(region.chance)
        self.judged.crash()

    def failed(self) -> BaseException | None:
        """Return what ended its process, if something did."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()


class Region:
    """All nodes, what is between them, and who wants something of them."""

    def __init__(self, seed: object) -> None:
        self.seed = seed
        self.chance = random.Random(repr((seed, "faults")))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.loop = loop
        self.fabric = Fabric(random.Random(repr((seed, "network"))), delay_ms_max=3.0)
        self.fabric.trace = Trace()
        self.judge = Judge()
        self.disks: dict[Member, DurableState] = {}
        self.addresses: Addresses = {}
        self.nodes = [SimNode(member(number), self) for number in (1, 2, 3, 4)]
        self._wishes = 0
        self.is_quiet = False

    def up(self) -> list[SimNode]:
        return [node for node in self.nodes if node.group is not None]

    def leader(self) -> SimNode | None:
        """Return who leads, as itself says; of several, the first."""
        leaders = [node for node in self.up() if node.group and node.group.leader == node.me]
        return leaders[0] if leaders else None

    async def wish(
        self, node: SimNode, wish: Wish, make: Callable[[int], object], payload: bytes = b""
    ) -> bool:
        """Want something of a node; return whether it was done."""
        group = node.group
        if group is None:
            return False
        self._wishes += 1
        number = self._wishes
        try:
            await group.ask(node.judged.wish(number, wish, make, payload))
        except (WishFailed, RaftStoreFull):
            return False
        return True

    async def propose(self, node: SimNode) -> bool:
        size_bytes = self.chance.choice(PAYLOADS_BYTES)
        payload = f"{self._wishes + 1} ".encode().ljust(size_bytes, b".")
        return await self.wish(
            node, Wish.PROPOSE, lambda ticket: Proposed(ticket, payload), payload
        )

    async def read(self, node: SimNode) -> bool:
        return await self.wish(node, Wish.READ, ReadAsked)

    async def change(self, node: SimNode, wanted: Membership) -> bool:
        payload = membership_payload(wanted)
        return await self.wish(
            node, Wish.MEMBERSHIP, lambda ticket: MembershipAsked(ticket, wanted), payload
        )

    # -- who wants something ---------------------------------------------------------------------

    async def callers(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self.is_quiet:
                await asyncio.sleep(self.chance.uniform(0.005, 0.06))
                up = self.up()
                if up:
                    leader = self.leader()
                    often = leader is not None and self.chance.random() < 0.9
                    node = leader if often and leader else self.chance.choice(up)
                    wanted = self.propose if self.chance.random() < 0.8 else self.read
                    tasks.create_task(self._bounded(wanted(node)))

    async def _bounded(self, wanted: Coroutine[Any, Any, bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await wanted

    async def joiner(self) -> None:
        """Let the fourth node be a learner, then a voter, as soon as somebody leads."""
        await asyncio.sleep(TROUBLE_S / 3)
        learner = Membership(FOUNDERS.voters, (member(4),))
        voter = Membership((*FOUNDERS.voters, member(4)))
        for wanted in (learner, voter):
            while True:
                leader = self.leader()
                group = leader.group if leader is not None else None
                if leader is not None and group is not None:
                    if group.membership == wanted:
                        break
                    with suppress(TimeoutError):
                        async with asyncio.timeout(2):
                            await self.change(leader, wanted)
                await asyncio.sleep(0.1)

    # -- faults ----------------------------------------------------------------------------------

    async def troubles(self) -> None:
        acts = (
            self._crash, self._crash, self._cut, self._hush, self._reset, self._reset, self._drop, self._sever,
            self._pause, self._transfer,
        )  # fmt: skip
        end = self.loop.time() + TROUBLE_S
        while self.loop.time() < end:
            await asyncio.sleep(self.chance.uniform(0.05, 0.7))
            act = self.chance.choice(acts)
            self.judge.counted[act.__name__] += 1
            await act()
            self.expect_all_well()

    def expect_all_well(self) -> None:
        """Raise what ended a node."""
        for node in self.nodes:
            if (failure := node.failed()) is not None:
                raise failure

    def _victim(self) -> SimNode:
        leader = self.leader()
        return leader if leader and self.chance.random() < 0.4 else self.chance.choice(self.nodes)

    def _two(self) -> tuple[str, str]:
        one = self._victim()
        other = self.chance.choice([node for node in self.nodes if node is not one])
        return one.site, other.site

    async def _crash(self) -> None:
        victim = self._victim()
        await victim.crash()
        await asyncio.sleep(self.chance.uniform(0.01, 0.8))
        victim.start()

    async def _cut(self) -> None:
        two = self._two()
        self.fabric.cut(*two, silent=self.chance.random() < 0.5)
        await asyncio.sleep(self.chance.uniform(0.01, 1.5))
        self.fabric.heal(*two)

    async def _hush(self) -> None:
        two = self._two()
        self.fabric.hush(*two)
        await asyncio.sleep(self.chance.uniform(0.01, 2.5))
        self.fabric.heal(*two)

    async def _reset(self) -> None:
        self.fabric.reset(self._victim().site)

    async def _drop(self) -> None:
        self.fabric.drop(*self._two())

    async def _sever(self) -> None:
        self.fabric.sever(self._victim().site)

    async def _pause(self) -> None:
        victim = self._victim()
        self.loop.pause(victim.site)
        await asyncio.sleep(self.chance.uniform(0.05, 1.5))
        self.loop.resume(victim.site)

    async def _transfer(self) -> None:
        leader = self.leader()
        if leader is not None:
            target = self.chance.choice(FOUNDERS.voters)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self.wish(
                        leader, Wish.TRANSFER, lambda ticket: TransferAsked(ticket, target)
                    )

    # -- rest ------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Hold the region to its promise, once nothing disturbs it: all nodes have all that was committed."""
        for node in self.nodes:
            node.start()
        try:
            async with asyncio.timeout(SETTLE_S):
                while not await self._serves():
                    self.expect_all_well()
                    await asyncio.sleep(0.1)
                while not self._is_at_rest():
                    self.expect_all_well()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            says = [(n.me.node_id, n.judged.applied, len(n.machine.taken)) for n in self.nodes]
            raise Violated(f"INV-RSJ10: no rest within {SETTLE_S} s: {says}") from None

    async def _serves(self) -> bool:
        leader = self.leader()
        if leader is None or leader.group is None or len(leader.group.membership.voters) < 4:
            return False
        return await self.propose(leader) and await self.read(leader)

    def _is_at_rest(self) -> bool:
        return all(node.machine.taken == self.judge.commands for node in self.nodes)


async def _play(seed: int) -> Life:
    region = Region(seed)
    violation = ""
    try:
        for node in region.nodes:
            node.start()
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(region.joiner())
            calling = tasks.create_task(region.callers())
            await region.troubles()
            region.is_quiet = True
            await calling
            await asyncio.wait([joining], timeout=SETTLE_S)
            if not joining.done():
                raise Violated(f"INV-RSJ10: nobody lets a node join within {SETTLE_S} s")
        await region.settle()
    except* AssertionError as errors:
        violation = repr(errors.exceptions)
    for node in region.nodes:
        try:
            await node.crash()
        except* AssertionError as errors:
            violation = violation or repr(errors.exceptions)
    assert region.fabric.trace is not None
    return Life(seed, violation, region.fabric.trace.digest, region.judge.counted)


def play(seed: int) -> Life:
    """Play a seed; raises what is no judgement."""
    return run_simulated(_play(seed), seed)
