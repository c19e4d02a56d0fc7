"""What lives of one region of several nodes and of two have in common: what runs beside them, trouble by a plan, and what it came to.

Whatever ends by itself beside a life, a client or a callback of the loop, is a violation.
Not here: what a fault does (`plays`), when all is well, what is judged (`cluster_swarm.life`, `regions_swarm.life`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tests.simulation.node_faults.drawn import Gust
from tests.simulation.node_faults.stage import NodesStage
from tests.simulation.swarm.clients import Clients

AnyGust = TypeVar("AnyGust", bound=Gust)
AnyStage = TypeVar("AnyStage", bound=NodesStage[Any])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a life came to. `counted`: faults by kind, and what clients did."""

    seed: int
    trace: str
    events: int
    violations: tuple[str, ...]
    simulated_s: float
    counted: Counter[str]


class NodesLife(ABC, Generic[AnyStage, AnyGust]):
    """`run` it once."""

    progress_s: float
    """How long a client may need to get on."""

    def __init__(self, seed: int, stage: AnyStage, clients: Clients) -> None:
        """Nothing is started."""
        self.seed: Final = seed
        self.stage = stage
        self.clients = clients
        self.counted: Counter[str] = Counter()
        self.tasks: set[asyncio.Task[Any]] = set()
        """The clients that run."""

    # -- what a life is --------------------------------------------------------------------------

    @abstractmethod
    async def live(self) -> None:
        """Begin, be in trouble, and end."""

    @abstractmethod
    async def watch(self) -> None:
        """Look at what must hold at all times, until cancelled."""

    @abstractmethod
    def told_character(self) -> str:
        """Return what the seed has drawn."""

    @abstractmethod
    def gust(self, number: int) -> AnyGust:
        """Return fault `number`."""

    @abstractmethod
    def victim(self, gust: AnyGust) -> str:
        """Return the node that it happens to."""

    @abstractmethod
    def disturbed_by(self, gust: AnyGust, name: str) -> set[str]:
        """Return what must not be disturbed otherwise meanwhile."""

    @abstractmethod
    def may(self, gust: AnyGust, name: str, disturbed: set[str]) -> bool:
        """Return whether it may happen now."""

    @abstractmethod
    async def play(self, gust: AnyGust, name: str) -> None:
        """Let it happen."""

    @abstractmethod
    def count(self) -> None:
        """Note in `counted` what the watch has seen."""

    # -- what runs -------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Live it, and return what it came to."""
        stage, trace, loop = self.stage, self.stage.trace, asyncio.get_running_loop()
        stage.tell(self.told_character())
        loop.set_exception_handler(self._unhandled)
        watching = loop.create_task(self.watch())
        life = loop.create_task(self.live())
        trace.when_full = life.cancel
        await asyncio.wait([life, watching], return_when=asyncio.FIRST_COMPLETED)
        try:
            if watching.done():
                watching.result()
            if not trace.is_full:
                life.result()
        finally:
            life.cancel()
            watching.cancel()
            self.clients.stop_reading()
            for task in sorted(self.tasks, key=hash):
                task.cancel()
            for node in stage.nodes.values():
                await node.kill()
        self.count()
        self.counted["metadata entries"] = stage.quorums.committed
        return Outcome(self.seed, trace.digest, trace.events, tuple(stage.anomalies), stage.now_s(), self.counted)  # fmt: skip

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.stage.blame(f"{context.get('message')}: {context.get('exception')!r}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a client run beside everything."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._client_ended)
        return task

    def _client_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.stage.blame(f"a client ended: {task.exception()!r}")

    # -- trouble ---------------------------------------------------------------------------------

    async def trouble(self, minutes: float) -> None:
        """Let fault after fault happen for so long."""
        stage, number = self.stage, 0
        ends_s = stage.now_s() + 60 * minutes
        async with asyncio.TaskGroup() as lasting:
            while stage.now_s() < ends_s:
                number += 1
                gust = self.gust(number)
                await asyncio.sleep(gust.gap_s)
                name = self.victim(gust)
                disturbed = self.disturbed_by(gust, name)
                if not self.may(gust, name, disturbed):
                    continue
                self.counted[str(gust.fault)] += 1
                stage.tell(f"{number}: {gust.fault} {name}, {gust.for_s:.2f} s")
                await self.begin(gust, name, disturbed, lasting)

    async def begin(
        self, gust: AnyGust, name: str, disturbed: set[str], lasting: asyncio.TaskGroup
    ) -> None:
        """Let it happen beside what happens else."""
        lasting.create_task(self.disturb(gust, name, disturbed))

    async def disturb(self, gust: AnyGust, name: str, disturbed: set[str]) -> None:
        """Let it happen; returns when it has ended."""
        self.stage.disturbed |= disturbed
        await self.play(gust, name)
        self.stage.disturbed -= disturbed

    async def all_get_on(self, when: str) -> bool:
        """Return whether each client gets something through; whoever does not is blamed."""
        before = self.clients.progress()

        def stuck() -> list[str]:
            now = self.clients.progress()
            return [name for name, count in before.items() if now[name] <= count]

        if await self.stage.until(lambda: not stuck(), self.progress_s):
            return True
        errors = self.clients.last_errors()
        told = "; ".join(f"{name} ({errors.get(name)})" for name in stuck())
        self.stage.blame(f"these get nothing through {when}: {told}; {self.stage.told_state()}")
        return False
