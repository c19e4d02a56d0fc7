"""The topics of a mirror, as its link has them follow the primary's: registry, open partitions, and who copies them.

INV-MT1  where the region has several nodes, a log is in the registry before it is opened (`TopicImage.copied_count`), so that all of
         them copy it: without them no tidemark that names it is reached, and no topic grows before one is (T15)
INV-MT2  the replication inside the region hears of logs that are opened or dropped in the step in which they are
A tidemark does not wait for the folders of what it drops: they are marked before, and put away beside the link (INV-RM7).
A link may be cancelled at any moment: what changes registry and partitions is carried to its end (INV-UB1).

Not here: when (`geo_replicator.link`), how the other nodes follow (`cluster.registry_following`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID

from msgspec import structs

from geo_replicator.ports import LinkFailed, LogHalted
from geo_replicator.topology import MirrorTopic
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import (
    CommandRefused,
    CopyPartitions,
    CreateTopic,
    DeleteTopic,
    RenameTopic,
    ResizeTopic,
    SetTopicConfigs,
)
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, TopicImage
from region_broker.controller.topic_names import waiting_name
from region_broker.log.failures import LogError
from region_broker.partitions.table import PartitionTable
from region_broker.ports.unbroken import to_its_end
from region_broker.region.mirror.mirror_log import MirrorPartitions
from region_broker.region.ports import MetadataSide

BY_TIDEMARK: Final = "a tidemark past its deletion at the primary"
"""Why a topic goes, for people."""
TopicCommand: TypeAlias = (
    CreateTopic | DeleteTopic | RenameTopic | ResizeTopic | CopyPartitions | SetTopicConfigs
)


def mirror_topic(image: TopicImage) -> MirrorTopic:
    """Return the topic as the replicator sees it."""
    return MirrorTopic(
        topic_id=image.topic_id,
        name=image.name,
        partition_count=image.partition_count,
        domain=image.domain,
        internal=image.internal,
        configs=dict(image.configs),
    )


class MirrorTopicStore:
    """The port `geo_replicator.ports.MirrorTopics` on metadata and partition table."""

    def __init__(
        self,
        metadata: MetadataSide,
        partitions: PartitionTable,
        logs: MirrorPartitions,
        logs_changed: Callable[[], None],
    ) -> None:
        """Keep `logs` told of what is opened and dropped, and whoever copies it inside the region (INV-MT2)."""
        self._metadata = metadata
        self._partitions = partitions
        self._logs = logs
        self._logs_changed = logs_changed
        self._naming = asyncio.Lock()

    def mirrored(self) -> tuple[MirrorTopic, ...]:
        """Return the domain's topics as they are here."""
        topics = self._metadata.image.topics.values()
        return tuple(mirror_topic(topic) for topic in topics if topic.domain == DEFAULT_DOMAIN)

    async def create(self, topic: MirrorTopic) -> None:
        """Create the topic with the primary's id; open its logs as mirrors that show nothing (INV-ML2)."""
        await to_its_end(self._create(topic))

    async def _create(self, topic: MirrorTopic) -> None:
        image = TopicImage(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_count=topic.partition_count,
            domain=topic.domain,
            internal=topic.internal,
            configs=dict(topic.configs),
        )
        if self._metadata.image.topic_by_id(topic.topic_id) is None:
            if topic.name in self._metadata.image.topics:
                # 1. The primary deletes a topic and creates another one of its name. 2. The mirror drops the old one
                # at once.
                # 3. The primary is lost, and the last tidemark reached still names the old one's records (T15).
                waiting = waiting_name(topic.name, topic.topic_id)
                image = structs.replace(image, name=waiting)
            await self._ask(CreateTopic(image))
        await self._open_logs(topic)
        # 1. The name is another topic's. 2. This one is being written into the registry, to wait for it. 3. Meanwhile that
        # other one is dropped, and who waits is looked for: nobody yet. 4. No deletion follows, so nobody looks again.
        await self._rename({topic.topic_id: topic.name})

    async def open_logs(self, topic: MirrorTopic) -> None:
        """Open all logs of the topic as mirrors that show nothing, also those that it has not yet here (T15)."""
        await to_its_end(self._open_logs(topic))

    async def _open_logs(self, topic: MirrorTopic) -> None:
        """Have all nodes of the region copy them (INV-MT1), and open them."""
        image = self._metadata.image
        known = image.topic_by_id(topic.topic_id)
        if (
            image.leadership is not None
            and known is not None
            and known.as_kept.partition_count < topic.partition_count
        ):
            count = topic.partition_count
            await self._ask(CopyPartitions(topic.topic_id, count, known.copied_count))
        self._open(topic)

    def _open(self, topic: MirrorTopic) -> None:
        image = self._still_there(topic)
        here = {key for key in topic.logs() if self._partitions.by_id(key.topic_id, key.partition)}
        try:
            self._partitions.open_topic(replace(topic, name=image.name))
        except LogError as error:
            raise LogHalted(f"topic {topic.name} cannot be opened: {error}") from error
        opened = [
            partition
            for key in topic.logs()
            if (partition := self._partitions.by_id(key.topic_id, key.partition)) is not None
        ]
        assert len(opened) == topic.partition_count, topic
        for partition in opened:
            self._logs.take_on(partition, is_new=partition.key not in here)
        self._logs_changed()  # before anybody asks how far they are durable
        for partition in opened:
            self._logs.opened(partition)

    async def rename(self, names: Mapping[UUID, str]) -> bool:
        """Give topics that wait for their name the one that the primary knows them by, where it is free; tell if any
        got it."""
        return await to_its_end(self._rename(names))

    async def _rename(self, names: Mapping[UUID, str]) -> bool:
        renamed = False
        async with self._naming:  # two look for names: at a drop, and at a new topic
            for topic in list(self._metadata.image.topics.values()):
                wanted = names.get(topic.topic_id, topic.name)
                if wanted != topic.name and wanted not in self._metadata.image.topics:
                    await self._ask(RenameTopic(topic.topic_id, wanted))
                    self._partitions.rename_topic(topic.topic_id, wanted)
                    renamed = True
        return renamed

    async def grow(self, topic_id: UUID, partition_count: int) -> None:
        """Give the topic at least `partition_count` partitions; one that is gone already is fine."""
        topic = self._metadata.image.topic_by_id(topic_id)
        if topic is not None and topic.partition_count < partition_count:
            await self._apply(ResizeTopic(topic_id, partition_count, topic.partition_count))

    async def shrink(self, topic_id: UUID, partition_count: int) -> None:
        """Take the partitions from `partition_count` on away: they are in quarantine, if there was anything."""
        await to_its_end(self._shrink(topic_id, partition_count))

    async def _shrink(self, topic_id: UUID, partition_count: int) -> None:
        topic = self._metadata.image.topic_by_id(topic_id)
        if topic is None or topic.partition_count <= partition_count:
            return
        beyond = self._partitions.beyond(topic_id, partition_count)
        if any(partition.log_end_offset > partition.kept_from for partition in beyond):
            raise LinkFailed(
                f"topic {topic.name} holds records in partitions that no deletion names"
            )
        await self._partitions.mark_beyond(topic_id, partition_count)
        try:
            await self._apply(ResizeTopic(topic_id, partition_count, topic.partition_count))
        except (LinkFailed, OSError) as error:
            if not isinstance(error, MetadataInDoubt):  # the next start knows what the mark is for
                await self._partitions.unmark_beyond(topic_id, partition_count)
            raise
        self._logs.dropped(topic_id, partition_count)
        self._partitions.drop_beyond(topic_id, partition_count)
        self._logs_changed()

    async def update_configs(self, topic: MirrorTopic) -> None:
        """Make the topic's configs the primary's, in the registry and in the open logs."""
        await to_its_end(self._update_configs(topic))

    async def _update_configs(self, topic: MirrorTopic) -> None:
        await self._ask(SetTopicConfigs(topic.topic_id, dict(topic.configs)))
        image = self._still_there(topic)
        try:
            self._partitions.update_config(image)
        except LogError as error:
            raise LogHalted(
                f"topic {topic.name} has configs that are not served: {error}"
            ) from error

    async def delete(self, topic: MirrorTopic) -> None:
        """Delete the topic and its logs; one that is gone already is fine."""
        await to_its_end(self._delete(topic))

    async def _delete(self, topic: MirrorTopic) -> None:
        if self._metadata.image.topic_by_id(topic.topic_id) is not None:
            await self._partitions.mark_topic(topic.topic_id, BY_TIDEMARK)
            try:
                await self._apply(DeleteTopic(topic.topic_id))
            except (LinkFailed, OSError) as error:
                if not isinstance(error, MetadataInDoubt):
                    await self._partitions.unmark_topic(topic.topic_id)
                raise
        self._logs.dropped(topic.topic_id)
        self._partitions.drop_topic(topic.topic_id)
        self._logs_changed()

    def _still_there(self, topic: MirrorTopic) -> TopicImage:
        """Return a topic as it is here; what was asked of it may have come with its deletion, by another node."""
        image = self._metadata.image.topic_by_id(topic.topic_id)
        if image is None:
            raise LinkFailed(f"topic {topic.name} was deleted here meanwhile")
        return image

    async def _ask(self, command: TopicCommand) -> None:
        """Apply what a session of the link needs: it waits, and asks again, while the region's other nodes do not settle it."""
        try:
            await self._apply(command)
        except MetadataUnwritable as error:
            if self._metadata.image.leadership is None:
                raise
            raise LinkFailed(f"the registry of topics of this region: {error}") from error

    async def _apply(self, command: TopicCommand) -> None:
        try:
            await self._metadata.apply(command)
        except CommandRefused as refused:
            raise LinkFailed(f"the topic registry of this mirror refused: {refused}") from refused
