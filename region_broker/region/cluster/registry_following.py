"""Topics that other nodes of the region changed: the open partitions follow the registry.

INV-RGF1  a partition is open in the step in which its topic is in the image, with those that a mirror copies early (INV-MT1), and goes in the step in which it is not; what a disk
          refused is tried again
INV-RGF2  what is about to go is marked before the database of the metadata forgets it: a crash leaves no folder that no topic has, and that no
          start takes for a deletion's
Not here: changes that this node asks for itself (`region.topics`), roles (whoever is handed in takes what is opened).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_store import Going
from region_broker.controller.topic_names import waiting_name
from region_broker.log.failures import LogError
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable

_log: Final = logging.getLogger("tidemark.topics")


class RegistryFollowing:
    """Hand `take` to `MetadataStore.on_foreign`."""

    def __init__(
        self,
        partitions: PartitionTable,
        opened: Callable[[Partition], None],
        why_deleted: Callable[[], str],
    ) -> None:
        """Tell `opened` of each partition that is opened. `why_deleted`: why topics go now, for people."""
        self._partitions = partitions
        self._opened = opened
        self._why_deleted = why_deleted
        self.is_behind = False
        """Whether a disk kept something from being done."""

    def take(self, old: MetadataImage, new: MetadataImage) -> None:
        """Carry out what has changed (INV-RGF1)."""
        if old.topics is new.topics:
            return
        for topic in old.topics.values():
            if new.topic_by_id(topic.topic_id) is None:
                self._try(topic, self._drop)
        changed = [
            topic for topic in new.topics.values() if old.topics.get(topic.name) is not topic
        ]
        self._free_names(changed)
        for topic in changed:
            self._try(topic, self._make)

    def _free_names(self, changed: list[TopicImage]) -> None:
        """Let topics that are to have names which others have still, and are to lose, wait for them.

        1. A topic is renamed, and another one gets its name. 2. A snapshot tells both at once, the second one first.
        """
        for topic in changed:
            if self._has_other_name(topic):
                waits = waiting_name(topic.name, topic.topic_id)
                self._partitions.rename_topic(topic.topic_id, waits)

    def _has_other_name(self, topic: TopicImage) -> bool:
        held = self._partitions.beyond(topic.topic_id, 0)
        return any(partition.tp.topic != topic.name for partition in held)

    def again(self, image: MetadataImage) -> None:
        """Try what a disk refused again."""
        if self.is_behind:
            self.is_behind = False
            for topic in image.topics.values():
                self._try(topic, self._make)

    def _try(self, topic: TopicImage, change: Callable[[TopicImage], None]) -> None:
        try:
            change(topic)
        except (LogError, OSError) as error:
            self.is_behind = True
            _log.error(
                "what another node did to topic %s is not done here yet: %s", topic.name, error
            )

    def _make(self, topic: TopicImage) -> None:
        partitions = self._partitions
        if self._has_other_name(topic):
            partitions.rename_topic(topic.topic_id, topic.name)
        topic = topic.as_kept
        partitions.drop_beyond(topic.topic_id, topic.partition_count)
        before = len(partitions.beyond(topic.topic_id, 0))
        partitions.open_topic(topic)
        partitions.update_config(topic)
        for partition in partitions.beyond(topic.topic_id, before):
            self._opened(partition)

    def _drop(self, topic: TopicImage) -> None:
        self._partitions.drop_topic(topic.topic_id, self._why_deleted())

    async def mark_going(self, going: Sequence[Going]) -> None:
        """Mark what is about to go: an entry says so that is committed (INV-RGF2); see `MetadataStore.on_going`."""
        for each in going:
            topic_id = each.topic.topic_id
            if each.keeps:
                await self._partitions.mark_beyond(topic_id, each.keeps, asks=False)
            else:
                await self._partitions.mark_topic(topic_id, self._why_deleted(), asks=False)
