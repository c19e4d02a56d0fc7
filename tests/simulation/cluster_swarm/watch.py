"""What is looked at all the time while nodes live.

INV-CSW1  a leader epoch is led by one life of one node
INV-CSW3  what was committed once is the same batch wherever it is committed, at every time, also after all nodes lost their power
INV-CSW2  the high watermark of a log never goes back in one life of a node, but where its log starts anew
"""

import asyncio
from collections import defaultdict
from typing import Final
from uuid import UUID

from idempotency.identity import LogKey
from idempotency.record_batch import iter_headers
from region_broker.partitions.partition import Partition
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.cut_judge import whole

LOOK_S: Final = 0.02


class Watch:
    """`run` beside a life."""

    def __init__(self, stage: Stage) -> None:
        """Nothing was seen yet."""
        self._stage = stage
        self._led: dict[int, tuple[str, UUID]] = {}
        self._seen: dict[Partition, int] = {}
        self._committed: dict[LogKey, dict[int, tuple[int, int]]] = defaultdict(dict)
        """Log -> base offset -> CRC and leader epoch of the batch that was committed there."""

    @property
    def leader_epochs(self) -> int:
        """Return under how many leader epochs somebody took writes."""
        return len(self._led)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Look once."""
        stage = self._stage
        for member in stage.serving():
            if member.died:
                continue
            node = member.node
            if node.role.acting:
                here = (member.name, member.member._life)
                first = self._led.setdefault(node.role.leader_epoch, here)
                if first != here:
                    stage.blame(
                        f"leader epoch {node.role.leader_epoch} is led by {first} and {here}"
                    )
            for partition in node.storage.partitions:
                if partition.failed is not None or partition.log.content.closed:
                    continue
                before, now = self._seen.get(partition, 0), partition.high_watermark
                if now < before and partition.log_start_offset < before:
                    stage.blame(
                        f"HW of {partition.tp} at {member.name} goes back from {before} to {now}"
                    )
                self._seen[partition] = now
                if now > before and member.name not in stage.disk_failed:
                    self._compare(member.name, partition, before, now)

    def _compare(self, name: str, partition: Partition, before: int, now: int) -> None:
        """Rule INV-CSW3."""
        known = self._committed[partition.key]
        holes_below = partition.log.cleaning.holes_below
        data = whole(partition, max(before, partition.kept_from), now)
        for _, header in iter_headers(data):
            if header.base_offset < holes_below:
                continue
            here = (header.crc, header.leader_epoch)
            first = known.setdefault(header.base_offset, here)
            if first != here:
                self._stage.blame(
                    f"{partition.tp} at {header.base_offset} was committed as {first}, and is {here} at {name}"
                )
