"""Three nodes of a region, what runs of them, and what was wrong.

INV-CSS1  a node ends by itself only where its disk failed in that life of its process
Not here: faults (`faults`), clients (`clients`), the judgement (`life`, `watch`).
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from region_broker.controller.metadata_image import MetadataImage
from region_broker.node import START_REFUSALS, Node
from tests.simulation.cluster_swarm.plan import Plan
from tests.simulation.folder_faults import FolderCopy
from tests.simulation.network import Fabric
from tests.simulation.region_cluster import NAMES, Member
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.trace import Trace

ASK_S: Final = 0.02
FORGOTTEN: Final = 0.05
IMAGE_STEP_BYTES: Final = 8_192
IMAGE_PAUSE_MS: Final = 500
ANOMALIES_MAX: Final = 50
"""One fault may show at thousands of offsets."""


class Stage:
    """Everything that faults are done to."""

    def __init__(self, plan: Plan, trace: Trace, say: Callable[[str], None] | None) -> None:
        """Plan the nodes; nothing is started. `say` gets what happens, a line each."""
        chance = plan.stream("stage")
        self.plan, self.trace, self._say = plan, trace, say
        self.fabric = Fabric(random.Random(chance.random()), delay_ms_max=plan.delay_ms_max)
        self.fabric.trace = trace
        self.settings: dict[str, Any] = {
            "tidemark_interval_ms": plan.tidemark_interval_ms,
            "retention_check_interval_ms": 1_000,
        }
        self.nodes = {name: self._member(name, chance) for name in NAMES}
        self.anomalies: list[str] = []
        self.running: set[str] = set()
        self.starting: dict[str, asyncio.Task[None]] = {}
        self.disk_failed: set[str] = set()
        self.paused: set[str] = set()
        self.disturbed: set[str] = set()
        self.copies: dict[str, FolderCopy] = {}
        self.older: set[str] = set()
        """Nodes that were given older copies of their folders, and may be refused for it (INV-MN7)."""
        self.on_kill: Callable[[Member], None] = lambda _: None

    def _member(self, name: str, chance: random.Random) -> Member:
        member = Member(
            name, Path("/simulated") / name, self.fabric, random.Random(chance.random()), NAMES
        )
        member.settings = self.settings
        member.on_open = _rarely_take_images
        member.disk.trace = self.trace
        member.disk.on_sync = _wait_for_disk
        member.disk.forget_by_chance(random.Random(chance.random()), FORGOTTEN)
        return member

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

    def serving(self) -> list[Member]:
        """Return the nodes that run and are joined together."""
        return [
            self.nodes[name]
            for name in NAMES
            if name in self.running and self.nodes[name].member.node is not None
        ]

    def acting(self) -> list[Member]:
        """Return who takes writes, as each says; several where one stands still."""
        return [member for member in self.serving() if member.node.role.acting]

    def image(self) -> MetadataImage | None:
        """Return the metadata of who leads, if exactly one does."""
        acting = [member for member in self.acting() if member.name not in self.paused]
        return acting[0].node.storage.metadata.image if len(acting) == 1 else None

    def in_sync(self) -> int:
        """Return how many are in sync, as who leads knows."""
        image = self.image()
        leadership = None if image is None else image.leadership
        return 0 if leadership is None else len(leadership.in_sync)

    def is_well(self) -> bool:
        """Return whether all three run, one leads, and all are in sync with it."""
        self.check_ends()
        return len(self.serving()) == 3 and self.in_sync() == 3 and not self.disturbed

    def check_ends(self) -> None:
        """Blame nodes that ended by themselves (INV-CSS1)."""
        for name in sorted(self.running):
            member = self.nodes[name]
            if member.died:
                self.running.discard(name)
                if name in self.disk_failed:
                    self.tell(f"  {name} ended, as its disk failed")
                elif name in self.older and "is an older copy" in member.why_died():
                    self.tell(f"  {name} is refused with its older copy")
                else:
                    self.blame(f"{name} ended by itself: {member.why_died()}")

    async def start(self, name: str) -> str:
        """Start it, if it does not run; return why it refuses its folder, empty if it does not."""
        self.check_ends()
        if name in self.running:
            return ""
        member = self.nodes[name]
        if member.died:
            await member.kill()
        self.disk_failed.discard(name)
        if member.disk.room_bytes is not None:
            self.disk_failed.add(name)
        self.tell(f"  {name} starts")
        try:
            await member.begin()
        except START_REFUSALS as error:
            await member.kill()
            return str(error)
        except OSError as error:
            if name not in self.disk_failed:
                raise
            self.tell(f"  {name} does not start, as its disk failed: {error}")
            await member.kill()
            return ""
        self.running.add(name)
        return ""

    async def start_soundly(self, name: str) -> None:
        """Start it; a refusal is blamed."""
        if reason := await self.start(name):
            self.blame(f"{name} refuses its own folder: {reason}")

    async def kill(self, name: str, *, power: random.Random | None = None) -> None:
        """End it as SIGKILL does, or as a power cut, if it runs."""
        self.check_ends()
        member = self.nodes[name]
        if name not in self.running:
            if member.died:
                await member.kill(power=power)
            return
        self.tell(f"  {name} {'is killed' if power is None else 'loses power'}")
        self.running.discard(name)
        self.paused.discard(name)
        self.disk_failed.discard(name)
        await member.kill(power=power)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether it came true in time."""
        deadline_s = self.now_s() + timeout_s
        while not condition():
            if self.now_s() > deadline_s:
                return False
            self.check_ends()
            await asyncio.sleep(ASK_S)
        return True

    def told_state(self) -> str:
        """Return what each node says of itself."""
        found = []
        for name in NAMES:
            member = self.nodes[name]
            if name not in self.running:
                found.append(f"{name} is down")
                continue
            if member.member.node is None:
                quorum = member.member._begun.metadata.quorum
                found.append(f"{name} is joining ({quorum})")
                continue
            node = member.node
            leadership = node.storage.metadata.image.leadership
            found.append(
                f"{name}: acting {node.role.acting} ({node.role.reason_not_acting}), {leadership}, failed"
                f" {node.storage.partitions.failures()}, nodes"
                f" {[(n.node_id, str(n.incarnation)[:4], n.is_eligible) for n in node.storage.metadata.image.nodes.values()]}"
            )
        return "; ".join(found)


def _rarely_take_images(node: Node) -> None:
    node.ledger_images.step_bytes, node.ledger_images.pause_ms = IMAGE_STEP_BYTES, IMAGE_PAUSE_MS


def _wait_for_disk() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.wait_for_disk()
