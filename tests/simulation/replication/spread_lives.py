"""Lives of a region whose leaders are spread, and gathered: real nodes (`tests.fixtures.spread_nodes`), everything around them drawn from a seed.

INV-RPG1 what was acknowledged is in the logs of all, at its offset, once faults have ended
INV-RPG2 of a log one node takes writes under a leader epoch, and HW of a log that a node leads does not go down in it
INV-RPG3 a log is in one instance of a node at a time, at every change (`SpreadRegion.judge`)
INV-RPG4 once faults have ended all members are in sync in every group, and all logs are equal
INV-RPG5 what was acknowledged is durably on every member that the metadata have in sync in the log's group
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from uuid import UUID

from idempotency.identity import LeaderEpoch, LogKey
from region_broker.controller.cluster_commands import FenceNode, UnfenceNode
from region_broker.log.failures import LogError
from region_broker.partitions.partition import Partition
from tests.fixtures.cluster_images import life
from tests.fixtures.node_logs import Topic, batch
from tests.fixtures.replica_nodes import bytes_of
from tests.fixtures.spread_nodes import (
    SpreadNode,
    SpreadRegion,
    gathered,
    group_elected,
    in_sync_in_all,
    unsure,
)
from tests.simulation.simulated_loop import run_simulated

STEPS: Final = 120
SPREAD: Final = Topic(partition_count=6)
KEPT: Final = Topic(topic_id=UUID(int=77, version=4), name="kept", partition_count=1)
WEIGHTS: Final = {
    "write": 40, "wait": 30, "spread": 8, "gather": 3, "group": 5, "kill": 3, "start": 8, "cut": 3, "heal": 8, "hold": 3, "let go": 8,
    "fence": 1.5, "unfence": 5, "doubt": 2, "sure": 4, "control": 25,
}  # fmt: skip


class Violation(Exception):
    """A rule does not hold."""


class Acknowledged(NamedTuple):
    """What a client was told is kept: bytes of a log from an offset on."""

    offset: int
    end: int
    data: bytes


class SpreadLife:
    """One life; `play` it once."""

    def __init__(self, region: SpreadRegion) -> None:
        self.region = region
        self.chance = region.random
        self.kept: dict[LogKey, list[Acknowledged]] = {}
        self.seen: Counter[str] = Counter()
        self._cut: set[tuple[str, str]] = set()
        self._led: dict[tuple[LogKey, LeaderEpoch], int] = {}
        self._shown: dict[tuple[LogKey, LeaderEpoch, int], int] = {}
        self._writers: dict[asyncio.Task[None], SpreadNode] = {}

    # -- what happens ----------------------------------------------------------------------------

    async def step(self) -> None:
        [name] = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        done = await _MOVES[name](self)
        if done:
            self.seen[name] += 1
        self.look()

    async def write(self) -> bool:
        open_logs = [
            (node, log)
            for node in self.region.running
            for log in node.table
            if node.takes_writes(log)
        ]
        if not open_logs:
            return False
        node, log = self.chance.choice(open_logs)
        kind = "main" if node.groups.is_main(log.key) else "data"
        self.seen[f"write {kind}"] += 1
        task = self.region.tasks.create_task(self._write(node, log))
        self._writers[task] = node
        task.add_done_callback(self._writers.pop)
        return True

    async def _write(self, node: SpreadNode, log: Partition) -> None:
        try:
            outcome = log.writer.append(
                batch(self.chance.randint(1, 3), size_bytes=self.chance.randint(1, 90))
            )
            offset, end = outcome.base_offset, outcome.next_offset
            data = bytes(log.reader.read_replica(offset, 1 << 20)[0])
            await log.wait_committed(end)
        except LogError:
            self.seen["unknown outcome"] += 1
            return
        self.seen["acknowledged"] += 1
        self.kept.setdefault(log.key, []).append(Acknowledged(offset, end, data))

    async def wait(self) -> bool:
        await self.region.clock.sleep_ms(self.chance.choice((1, 5, 20, 100)))
        return True

    async def spread(self) -> bool:
        """Spread leaders where the main leader acts, and has heard of all: it asks for that."""
        region, main = self.region, self.region.image.leadership
        if (
            region.image.spread is not None
            or main is None
            or main.leader is None
            or len(main.in_sync) < 2
        ):
            return False
        if not region.node(main.leader.node_id).acts:
            return False
        if not all(self._is_eligible(member.node_id) for member in main.in_sync):
            return False
        region.spread()
        return True

    async def gather(self) -> bool:
        if self.region.image.spread is None:
            return False
        return self._elect_main()

    def _elect_main(self) -> bool:
        region = self.region
        able = [m for m in in_sync_in_all(region.image) if self._is_eligible(m.node_id)]
        if not able:
            return False
        if region.image.spread is not None:
            self.seen["gathered"] += 1
        region.becomes(gathered(region.image, self.chance.choice(able)))
        return True

    async def group(self) -> bool:
        """Elect another leader of a data group: where its leader is heard, too."""
        spread = self.region.image.spread
        return spread is not None and self._elect_group(self.chance.choice(list(spread.groups)))

    def _elect_group(self, number: int) -> bool:
        region = self.region
        row, main = region.image.leadership_in(number), region.image.leadership
        assert row is not None
        assert main is not None
        able = [m for m in row.in_sync if self._is_eligible(m.node_id) and m != main.leader]
        if not able:
            return False
        region.becomes(group_elected(region.image, number, self.chance.choice(able)))
        self.seen["group elected"] += 1
        return True

    async def control(self) -> bool:
        """Elect whoever can be for what nobody leads, as the controller does.

        Data leaders, too, while nobody is in sync in every group: they take the others in, and then somebody is.
        """
        image = self.region.image
        if (image.leadership is None or image.leadership.leader is None) and self._elect_main():
            return True
        rows = {} if image.spread is None else image.spread.groups
        return any(self._elect_group(number) for number, row in rows.items() if row.leader is None)

    def _is_eligible(self, node_id: int) -> bool:
        node = self.region.image.nodes.get(node_id)
        return node is not None and node.is_eligible and self.region.node(node_id).runs

    async def kill(self) -> bool:
        running = self.region.running
        if len(running) < 2:
            return False
        node = self.chance.choice(running)
        for writer in [task for task, at in self._writers.items() if at is node]:
            writer.cancel()
        await node.kill(power=self.chance.random() < 0.5)
        self._fence(node)
        return True

    def _fence(self, node: SpreadNode) -> bool:
        known = self.region.image.nodes.get(node.node_id)
        if known is None or known.fenced:
            return False
        self.region.change(FenceNode(node.node_id, known.life))
        return True

    async def fence(self) -> bool:
        """Fence a node that runs: it was not heard."""
        return bool(self.region.running) and self._fence(self.chance.choice(self.region.running))

    async def unfence(self) -> bool:
        fenced = [n for n in self.region.running if self.region.image.nodes[n.node_id].fenced]
        for node in fenced:
            self.region.change(UnfenceNode(node.node_id, life(node.node_id, node.life)))
        return bool(fenced)

    async def start(self) -> bool:
        down = [self.region.node(n) for n in self.region.nodes if not self.region.nodes[n].runs]
        if down:
            await self.chance.choice(down).start()
        return bool(down)

    async def cut(self) -> bool:
        one, other = self.chance.sample([f"n{number}" for number in self.region.nodes], 2)
        if (one, other) in self._cut or (other, one) in self._cut:
            return False
        self.region.fabric.cut(one, other)
        self._cut.add((one, other))
        return True

    async def heal(self) -> bool:
        was, self._cut = self._cut, set()
        for one, other in sorted(was):
            self.region.fabric.heal(one, other)
        return bool(was)

    async def hold(self) -> bool:
        if self.region.running:
            self.chance.choice(self.region.running).runner.goes.clear()
        return True

    async def let_go(self) -> bool:
        for node in self.region.running:
            node.runner.goes.set()
        return True

    async def doubt(self) -> bool:
        self.region.answer_proposal = unsure
        return True

    async def sure(self) -> bool:
        self.region.answer_proposal = lambda _: None
        return True

    # -- what must hold --------------------------------------------------------------------------

    def look(self) -> None:
        """Judge what can be seen in this moment."""
        for node in self.region.running:
            self.region.judge(node)  # INV-RPG3
            for log in node.table:
                if log.failed is not None:
                    raise Violation(f"INV-RPG4: {log.tp} has stopped at {node.site}: {log.failed}")
                if node.takes_writes(log):
                    self._led_by(node, log)
        self._look_at_in_sync()

    def _led_by(self, node: SpreadNode, log: Partition) -> None:
        epoch = log.sight.leader_epoch
        if self._led.setdefault((log.key, epoch), node.node_id) != node.node_id:
            raise Violation(f"INV-RPG2: {log.tp} is led twice under leader epoch {epoch}")
        place = (log.key, epoch, node.life)
        if log.high_watermark < self._shown.get(place, 0):
            raise Violation(f"INV-RPG2: HW of {log.tp} went down in leader epoch {epoch}")
        self._shown[place] = log.high_watermark

    def _look_at_in_sync(self) -> None:
        image = self.region.image
        for key, kept in self.kept.items():
            row = image.leadership_of(key)
            for member in () if row is None else row.in_sync:
                node = self.region.node(member.node_id)
                if node.runs:
                    log = node.table.by_id(key.topic_id, key.partition)
                    assert log is not None
                    if log.commits.durable_end < max(each.end for each in kept):
                        raise Violation(
                            f"INV-RPG5: {node.site} is in sync, and lacks what was acknowledged of {log.tp}"
                        )

    async def settle(self) -> None:
        """End all faults, and let the region come to rest, spread in some lives, and then gathered."""
        await self.heal()
        await self.sure()
        for node_id in list(self.region.nodes):
            node = self.region.node(node_id)
            if not node.runs:
                await node.start()
        await self.let_go()
        await self.unfence()
        for _ in range(3):
            await self.until_at_rest()
            if not await self.spread():
                break
            self.seen["spread at rest"] += 1
            await self.until_at_rest()
            await self.gather()
        await self.until_at_rest()
        for key, kept in self.kept.items():
            self._judge(key, kept)

    async def until_at_rest(self) -> None:
        for _ in range(2_000):
            await self.control()
            if self._is_at_rest():
                return
            await self.region.clock.sleep_ms(10)
            self.look()
        state = {node.site: node.groups.trouble() for node in self.region.running}
        raise Violation(
            f"INV-RPG4: {self.region.image.leadership} {self.region.image.spread} {state}"
        )

    def _is_at_rest(self) -> bool:
        region, image = self.region, self.region.image
        rows = [image.leadership, *(image.spread.groups.values() if image.spread else ())]
        if any(
            row is None or len(row.in_sync) < len(region.nodes) or row.leader is None
            for row in rows
        ):
            return False
        if self._writers:
            return False
        for log in region.node(1).table:
            copies = [node.table.by_id(*log.key) for node in region.running]
            ends = {
                end for each in copies if each for end in (each.log_end_offset, each.high_watermark)
            }
            if len(ends) > 1 or not any(
                n.takes_writes(p) for n in region.running for p in copies if p
            ):
                return False
        return True

    def _judge(self, key: LogKey, kept: list[Acknowledged]) -> None:
        logs = [node.table.by_id(key.topic_id, key.partition) for node in self.region.running]
        if len({bytes_of(log) for log in logs if log}) != 1:
            raise Violation(f"INV-RPG4: the logs of {key} differ")
        log = logs[0]
        assert log is not None
        for each in kept:
            data = log.reader.read_replica(each.offset, 1 << 20).data
            if not bytes(data).startswith(each.data):
                raise Violation(
                    f"INV-RPG1: {key} has something else at {each.offset} than was acknowledged"
                )


_MOVES: Final[dict[str, Callable[[SpreadLife], Awaitable[bool]]]] = {
    name: getattr(SpreadLife, name.replace(" ", "_")) for name in WEIGHTS
}


class Played(NamedTuple):
    """What was wrong, "" where nothing was, and how often what happened."""

    violation: str
    seen: Counter[str]


def play(seed: int, steps: int = STEPS) -> Played:
    """Play the life of a seed."""
    found: list[Played] = []

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            region = SpreadRegion(tasks, seed, topics=[SPREAD, KEPT])
            life = SpreadLife(region)
            violation = ""
            try:
                await region.start()
                region.delays_ms = (0, life.chance.choice((0, 5, 60)))
                for _ in range(steps):
                    await life.step()
                region.delays_ms = (0, 0)
                await life.settle()
            except (Violation, AssertionError) as error:
                violation = f"{error}"
            found.append(Played(violation, life.seen))
            for node in region.running:
                with contextlib.suppress(AssertionError):
                    await node.kill()
            for task in life._writers:
                task.cancel()

    run_simulated(main(), seed)
    return found[0]
