"""The nodes of two regions, what runs of them, an operator, and what was wrong.

INV-RSS1  a node ends by itself never: no disk fails here
Not here: faults (`faults`), clients (`spots`), the judgement (`life`, `watch`).
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.judges.contacts import NEVER, Contacts
from chaos.story import Story, Word
from region_broker.node import START_REFUSALS, Node
from region_broker.region.failover.operations import OperationRefused
from region_broker.region.view import RegionService
from tests.simulation.cluster_regions import CUT_OFF, AnyNode, ClusterRegion, NodeAmong, Regions
from tests.simulation.regions_swarm.plan import Plan
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.trace import Trace

ASK_S: Final = 0.02
ORDER_S: Final = 15.0
FORGOTTEN: Final = 0.05
IMAGE_STEP_BYTES: Final = 8_192
IMAGE_PAUSE_MS: Final = 500
ANOMALIES_MAX: Final = 50


class Stage:
    """Everything that faults are done to."""

    def __init__(self, plan: Plan, trace: Trace, say: Callable[[str], None] | None) -> None:
        """Plan the nodes; nothing is started. `say` gets what happens, a line each."""
        chance = plan.stream("stage")
        self.plan, self.trace, self._say = plan, trace, say
        self.all = Regions(
            Path("/simulated"), chance.getrandbits(32), plan.layout, delay_ms_max=plan.delay_ms_max,
            tidemark_interval_ms=plan.tidemark_interval_ms, retention_check_interval_ms=1_000,
        )  # fmt: skip
        self.fabric, self.nodes, self.regions = self.all.fabric, self.all.nodes, self.all.regions
        self.fabric.trace = trace
        for node in self.nodes.values():
            node.on_open = _rarely_take_images
            node.disk.trace = trace
            node.disk.on_sync = _wait_for_disk
            node.disk.forget_by_chance(random.Random(chance.random()), FORGOTTEN)
        self.names = tuple(self.regions)
        self.anomalies: list[str] = []
        self.running: set[str] = set()
        self.paused: set[str] = set()
        self.disturbed: set[str] = set()
        self.cut: set[frozenset[str]] = set()
        self.story = Story()
        self._contacts = Contacts(self.names, self.story.separations)

    @property
    def loop(self) -> SimulatedLoop:
        """Return the loop of this life."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        return loop

    def now_s(self) -> float:
        """Return the simulated time."""
        return asyncio.get_running_loop().time()

    def tell(self, text: str) -> None:
        """Say what happens."""
        self.trace.note("told", text)
        if self._say is not None:
            self._say(f"{self.now_s():8.2f}  {text}")

    def blame(self, text: str) -> None:
        """Note what is wrong, once."""
        if text not in self.anomalies and len(self.anomalies) < ANOMALIES_MAX:
            self.anomalies.append(text)
            self.tell(f"VIOLATION: {text}")

    # -- who runs ----------------------------------------------------------------------------------

    def serving(self, region: ClusterRegion) -> list[AnyNode]:
        """Return the nodes of a region that run and are joined together."""
        return [
            node for name, node in region.nodes.items()
            if name in self.running and not (isinstance(node, NodeAmong) and node.member.node is None)
        ]  # fmt: skip

    def up(self, name: str) -> bool:
        """Return whether somebody speaks for a region."""
        return self.regions[name].leader is not None

    def acting(self) -> list[str]:
        """Return the regions that take writes."""
        return [name for name, region in self.regions.items() if region.acts]

    def given_up(self, name: str) -> int:
        """Count the words that gave up what a region has shown."""
        return sum(each.kind == "accept-loss" and each.target != name for each in self.story.words)

    def view(self, name: str) -> Mapping[str, Any] | None:
        """Return what `GET /v1/region` says at who leads a region."""
        leader = self.regions[name].leader
        return None if leader is None else service_of(leader).describe()

    def note_contacts(self) -> None:
        """Look which regions can talk: those whose leaders do."""
        self._contacts.note(self.now_s(), self._are_apart)

    def end_separations(self) -> None:
        """Close the books."""
        self._contacts.end()

    def _are_apart(self, one: str, other: str) -> bool:
        leaders = [self.regions[name].leader for name in (one, other)]
        names = [node.name for node in leaders if node is not None and node.name not in self.paused]
        return len(names) < 2 or frozenset(names) in self.cut

    def check_ends(self) -> None:
        """Blame nodes that ended by themselves (INV-RSS1)."""
        for name in sorted(self.running):
            node = self.nodes[name]
            if node.died:
                self.running.discard(name)
                self.blame(f"{name} ended by itself: {node.why_died()}")
        self.note_contacts()

    async def start(self, name: str) -> None:
        """Start it, if it does not run; a refusal is blamed."""
        self.check_ends()
        node = self.nodes[name]
        if name in self.running:
            return
        if node.died:
            await node.kill()
        self.tell(f"  {name} starts")
        try:
            await node.begin()
        except START_REFUSALS as error:
            await node.kill()
            self.blame(f"{name} refuses its own folder: {error}")
            return
        self.running.add(name)

    async def kill(self, name: str, *, power: random.Random | None = None) -> None:
        """End it as SIGKILL does, or as a power cut, if it runs."""
        self.check_ends()
        if name not in self.running:
            return
        self.tell(f"  {name} {'is killed' if power is None else 'loses power'}")
        self.running.discard(name)
        self.paused.discard(name)
        await self.nodes[name].kill(power=power)
        self.note_contacts()

    def part(self, one: str, other: str, *, silent: bool) -> None:
        """Part two nodes."""
        (self.fabric.hush if silent else self.fabric.cut)(one, other)
        self.cut.add(frozenset((one, other)))
        self.note_contacts()

    def heal(self, one: str, other: str) -> None:
        """Let two nodes talk again."""
        self.fabric.heal(one, other)
        self.cut.discard(frozenset((one, other)))
        self.note_contacts()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether it came true in time."""
        deadline_s = self.now_s() + timeout_s
        while not condition():
            if self.now_s() > deadline_s:
                return False
            self.check_ends()
            await asyncio.sleep(ASK_S)
        return True

    # -- the operator ------------------------------------------------------------------------------

    async def order(self, kind: str, name: str) -> str:
        """Order what makes a region act; return why it did not work, empty if it did."""
        region = self.regions[name]
        leader = region.leader
        if leader is None or leader.name in self.paused:
            return f"nobody speaks for {name}"
        operations, given_s = leader.node.operations, self.now_s()
        begin = {
            "switch": operations.begin_switch,
            "failover": lambda: operations.begin_failover(confirmed=True),
            "accept-loss": lambda: operations.begin_accept_loss(confirmed=True),
        }[kind]
        try:
            operation = leader.within(begin)
        except OperationRefused as error:
            if not str(error):
                self.blame(f"{kind} to {name} is refused without a reason")
            return str(error)
        number = len(self.story.words)
        if kind != "switch":
            self.story.words.append(Word(kind, name, given_s, NEVER))

        def ended() -> bool:
            given_up = operation.status == "failed" and operation.error not in CUT_OFF
            return region.acts or given_up

        if not await self.until(ended, ORDER_S):
            return f"not done after {ORDER_S:.0f} s: {operation.steps[-1:]}"
        if not region.acts:
            return operation.error
        if kind != "switch":
            self.story.words[number] = Word(kind, name, given_s, self.now_s())
        return ""

    async def order_as_told(self, kind: str, name: str) -> None:
        """Order it, unless all would be lost by it: no operator confirms that."""
        leader = self.regions[name].leader
        if (
            kind == "failover"
            and leader is not None
            and not leader.node.tidemarks.claim().point.number
        ):
            self.tell(f"  not done: {name} has reached no tidemark")
        elif refused := await self.order(kind, name):
            self.tell(f"  not done: {refused[:300]}")


def service_of(node: AnyNode) -> RegionService:
    """Return what serves a node's HTTP routes."""
    found = node.node
    partitions = found.storage.partitions
    return RegionService(
        found.failover, found.operations, partitions.kept, lambda: partitions.room.refusal
    )


def _rarely_take_images(node: Node) -> None:
    node.ledger_images.step_bytes, node.ledger_images.pause_ms = IMAGE_STEP_BYTES, IMAGE_PAUSE_MS


def _wait_for_disk() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.wait_for_disk()
