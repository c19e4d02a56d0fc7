"""What is looked at all the time while nodes live.

INV-CSW1  a leader epoch is led by one life of one node
INV-CSW3  what was committed once is the same batch wherever it is committed, at every time, also after all nodes lost their power
INV-CSW2  the high watermark of a log never goes back in one life of a node, but where its log starts anew
INV-CSW4  a topic that a node has dropped does not come again there, in one life of the node
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from idempotency.identity import LogKey
from idempotency.identity import Member as Folder
from idempotency.record_batch import iter_headers
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.partition import Partition
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.cut_judge import whole
from tests.simulation.region_cluster import Member
from tests.simulation.spread_facts import epochs_led, in_sync_everywhere

LOOK_S: Final = 0.02


def _identity(member: Member) -> Folder:
    return member.member._begun.member


class Watch:
    """`run` beside a life."""

    def __init__(self, stage: Stage, broken: Callable[[list[Member]], Iterator[str]]) -> None:
        """Nothing was seen yet. `broken` says what is wrong with nodes that may lead, by what clients were answered."""
        self._stage, self._broken = stage, broken
        self._newest_epoch = 0
        self._topics: dict[tuple[str, UUID], tuple[object, frozenset[UUID]]] = {}
        self._dropped: dict[tuple[str, UUID], frozenset[UUID]] = defaultdict(frozenset)
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
            here = (member.name, member.member._life)
            self._look_at_topics(here, node.storage.metadata.image)
            epochs = {node.role.leader_epoch} if node.role.acting else set()
            for epoch in sorted({*epochs, *epochs_led(node)}):
                first = self._led.setdefault(epoch, here)
                if first != here:
                    stage.blame(f"leader epoch {epoch} is led by {first} and {here}")
            for partition in node.storage.partitions:
                if partition.failed is not None or partition.log.content.closed:
                    continue
                before, now = self._seen.get(partition, 0), partition.high_watermark
                if now < before and partition.log_start_offset < before:
                    stage.blame(
                        f"HW of {partition.tp} at {member.name} goes back from {before} to {now}"
                    )
                self._seen[partition] = now
                if now > before and not stage.unsound(member.name):
                    self._compare(member.name, partition, before, now)
        self._look_at_who_may_lead()

    def _look_at_topics(self, here: tuple[str, UUID], image: MetadataImage) -> None:
        """Rule INV-CSW4."""
        known, before = self._topics.get(here, (None, frozenset[UUID]()))
        if known is image.topics:
            return
        now = frozenset(topic.topic_id for topic in image.topics.values())
        self._topics[here] = image.topics, now
        self._dropped[here] |= before - now
        for topic_id in sorted(self._dropped[here] & now):
            self._stage.blame(f"topic {topic_id} is there again at {here[0]}")

    def _look_at_who_may_lead(self) -> None:
        """Have who leads under the newest leader epoch judged, and whoever is in sync with it."""
        serving = [member for member in self._stage.serving() if not member.died]
        for member in serving:
            leadership = member.node.storage.metadata.image.leadership
            if leadership is not None:
                self._newest_epoch = max(self._newest_epoch, leadership.leader_epoch)
        for member in serving:
            leadership = member.node.storage.metadata.image.leadership
            if leadership is None or leadership.leader_epoch < self._newest_epoch:
                continue
            if member.node.role.acting and leadership.leader == _identity(member):
                everywhere = in_sync_everywhere(member.node.storage.metadata.image)
                in_sync = [each for each in serving if _identity(each) in everywhere]
                for text in self._broken(in_sync):
                    self._stage.blame(text)

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
