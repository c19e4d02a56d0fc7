"""Nodes of regions of several, what runs of them, and what was wrong: what lives of one region and of two have in common.

INV-NFS1  a node ends by itself only where its disk failed, or a bit of its folder has flipped, in that life of its process, or
          where its region refuses its folder
Not here: faults (`folders`, `disks`), who leads (`cluster_swarm.stage`, `regions_swarm.stage`).
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from region_broker.node import START_REFUSALS, Node
from tests.simulation.folder_faults import FolderCopy, copy_of
from tests.simulation.network import Fabric
from tests.simulation.quorum_watch import QuorumWatch
from tests.simulation.region_cluster import Member
from tests.simulation.region_pair import Region
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.swarm.flips import Flips
from tests.simulation.trace import Trace

ASK_S: Final = 0.02
FORGOTTEN: Final = 0.05
IMAGE_STEP_BYTES: Final = 8_192
IMAGE_PAUSE_MS: Final = 500
ANOMALIES_MAX: Final = 50
"""One fault may show at thousands of offsets."""

AnyRegion = TypeVar("AnyRegion", bound=Region)


class NodesStage(Generic[AnyRegion]):
    """Everything that faults are done to."""

    def __init__(
        self, nodes: Mapping[str, AnyRegion], fabric: Fabric, trace: Trace, say: Callable[[str], None] | None, chance: random.Random,
    ) -> None:  # fmt: skip
        """Nothing is started. `say` gets what happens, a line each."""
        self.nodes, self.fabric, self.trace, self._say = dict(nodes), fabric, trace, say
        fabric.trace = trace
        for node in self.nodes.values():
            node.on_open = _rarely_take_images
            node.disk.trace = trace
            node.disk.on_sync = _wait_for_disk
            node.disk.forget_by_chance(random.Random(chance.random()), FORGOTTEN)
        self.anomalies: list[str] = []
        self.running: set[str] = set()
        self.stopping: set[str] = set()
        """Who was asked to end, and may have in this very step."""
        self.disk_failed: set[str] = set()
        self.damaged: set[str] = set()
        """Nodes in whose folders a bit has flipped."""
        self.was_clock_behind = False
        """Whether the clock of a node was behind by more than `message.timestamp.after.max.ms`."""
        self.paused: set[str] = set()
        self.disturbed: set[str] = set()
        self.doubted: dict[str, tuple[str, ...]] = {}
        """Nodes that their regions may refuse, and what they say then."""
        self.copies: dict[str, tuple[FolderCopy, Node | None]] = {}
        """An older copy of each folder, and who ran on it."""
        self.former: dict[str, FolderCopy] = {}
        """A folder that a node had before it was given an empty one."""
        self.flips = Flips()
        self.quorums = QuorumWatch(self.blame)

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

    def siblings(self, name: str) -> list[str]:
        """Return the other nodes of its region."""
        region = name.partition("-")[0]
        return [each for each in self.nodes if each != name and each.partition("-")[0] == region]

    def joined(self, name: str) -> Node | None:
        """Return the node that runs under a name, once it is joined together."""
        if name not in self.running:
            return None
        node = self.nodes[name]
        return node.member.node if isinstance(node, Member) else node.node

    def unsound(self, name: str) -> bool:
        """Return whether what lies on its disk may be wrong."""
        return name in self.disk_failed or name in self.damaged

    def changed(self) -> None:
        """Hear that a node was started or ended."""

    def told_state(self) -> str:
        """Return what each node says of itself."""
        return f"running: {sorted(self.running)}"

    # -- who runs ----------------------------------------------------------------------------------

    def check_ends(self) -> None:
        """Blame nodes that ended by themselves (INV-NFS1)."""
        for name in sorted(self.running):
            node = self.nodes[name]
            if not node.died or name in self.stopping:
                continue
            self.running.discard(name)
            why = node.why_died()
            if self.unsound(name):
                self.tell(f"  {name} ended, as its disk failed")
            elif any(text in why for text in self.doubted.get(name, ())):
                self.tell(f"  {name} is refused by its region")
            else:
                self.blame(f"{name} ended by itself: {why}")
        self.changed()

    async def start(self, name: str) -> str:
        """Start it, if it does not run; return why it refuses its folder, empty if it does not."""
        self.check_ends()
        if name in self.running:
            return ""
        node = self.nodes[name]
        if node.died:
            await node.kill()
        self.disk_failed.discard(name)
        if node.disk.room_bytes is not None:
            self.disk_failed.add(name)
        self.tell(f"  {name} starts")
        try:
            await node.begin()
        except START_REFUSALS as error:
            await node.kill()
            return str(error)
        except OSError as error:
            if not self.unsound(name):
                raise
            self.tell(f"  {name} does not start, as its disk failed: {error}")
            await node.kill()
            return ""
        if isinstance(node, Member):
            self.quorums.watch(node, is_doubted=name in self.doubted or name in self.damaged)
        self.running.add(name)
        self.changed()
        return ""

    async def start_soundly(self, name: str) -> None:
        """Start it; a refusal is blamed."""
        if reason := await self.start(name):
            self.blame(f"{name} refuses its own folder: {reason}")

    async def kill(self, name: str, *, power: random.Random | None = None) -> None:
        """End it as SIGKILL does, or as a power cut, if it runs."""
        self.check_ends()
        node = self.nodes[name]
        if name not in self.running:
            if node.died:
                await node.kill(power=power)
            return
        self.tell(f"  {name} {'is killed' if power is None else 'loses power'}")
        self.running.discard(name)
        self.paused.discard(name)
        self.disk_failed.discard(name)
        await node.kill(power=power)
        self.changed()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether it came true in time."""
        deadline_s = self.now_s() + timeout_s
        while not condition():
            if self.now_s() > deadline_s:
                return False
            self.check_ends()
            await asyncio.sleep(ASK_S)
        return True

    def keep_copy(self, name: str) -> None:
        """Keep a copy of a folder as it is now, whether its node runs or not."""
        if not self.unsound(name) and self.nodes[name].made:
            self.copies[name] = copy_of(self.nodes[name]), self.joined(name)


def _rarely_take_images(node: Node) -> None:
    node.ledger_images.step_bytes, node.ledger_images.pause_ms = IMAGE_STEP_BYTES, IMAGE_PAUSE_MS


def _wait_for_disk() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.wait_for_disk()
