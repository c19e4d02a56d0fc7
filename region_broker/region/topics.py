"""Topics of the primary region: the registry, the open partitions, and everyone who must hear of a change.

INV-TG1  a topic is in the registry, durably, before its partitions are opened; after a crash between the two,
         the next start opens them; a deletion is marked in its folder before the registry forgets the topic, so that
         the next start finishes it. Who asked hears of it once its folder is out of the way, durably; nothing of that waits on the loop (INV-RM7)
INV-TG2  changes of topics that clients ask for take a turn before anything of them is done: one of them is asked of the metadata at a time, and
         beside it only what is left of deletions, on disks, is under way (INV-RR4). Who waits for the turn may go, and meets the gate as it
         is then. Access has a turn of its own (INV-HAC2), and what the node asks for by itself takes none
         1. Somebody sends very many CreateTopics. 2. A follower is lost. 3. The in-sync set would change behind all of them, some minutes
         later; acks=all hangs until then, and a role could not end.
INV-TG4  who may make a change is judged within that turn, too: a right that was taken away counts for all that wait for theirs, as it did while
         all changes stood in one line
INV-TG3  whether there is room for more partitions is looked at within that turn: what came at once would each be the only one
A change that begins where the region does not act is refused, before anything of it is done (INV-RR4); one that was begun is
carried to its end, also where who asked is cancelled (INV-UB1).
Not here: topics of a mirror, which follow the primary (`mirror_log.MirrorTopicStore`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Final
from uuid import UUID

from msgspec import structs

from idempotency.identity import LeaderEpoch, LogKey
from idempotency.ports import Chance
from region_broker.controller.access_commands import ChangeAccess, judge_room
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.controller.metadata_commands import (
    CommandRefused,
    CopyPartitions,
    CreateTopic,
    DeleteTopic,
    RenameTopic,
    ResizeTopic,
    SetTopicConfigs,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.refusals import NOT_ALLOWED, TOO_MANY_PARTITIONS, nobody_asked
from region_broker.controller.topic_names import name_waited_for
from region_broker.limits import ALL_PARTITIONS_MAX
from region_broker.partitions.letting_go import holds_records
from region_broker.partitions.table import PartitionTable
from region_broker.ports.unbroken import to_its_end
from region_broker.region.ports import MetadataSide
from region_broker.security.access import AccessChange

BY_ORDER: Final = "an order to delete it, in this region"
"""Why a topic goes, for people."""
_log: Final = logging.getLogger("tidemark.topics")


class TopicRegistry:
    """What handlers change topics through (`handlers.dispatch.services.MetadataService`).

    `leader_epoch` is that under which this node leads a log, asked at the moment it is opened; None where another node of the region leads
    it by then, and this one follows. Every change is made within
    `change` (`region_role.RegionRole.change`).
    """

    def __init__(
        self, metadata: MetadataSide, partitions: PartitionTable, chance: Chance,
        leader_epoch: Callable[[LogKey], LeaderEpoch | None], change: Callable[[], AbstractContextManager[None]],
    ) -> None:  # fmt: skip
        """Tell nobody yet: `on_change` and `on_delete` are set by the composition root."""
        self._metadata = metadata
        self._partitions = partitions
        self._chance = chance
        self._leader_epoch = leader_epoch
        self._change = change
        self._turn = asyncio.Lock()
        self._told_from: MetadataImage | None = None
        self._told: MetadataImage = metadata.image
        self.on_change: Callable[[], None] = lambda: None
        self.on_delete: Callable[[str, UUID], Awaitable[None]] | None = None

    @property
    def image(self) -> MetadataImage:
        """Return the image as of now, as clients are told it: without topics that wait for their name (T15)."""
        image = self._metadata.image
        if image is not self._told_from:
            self._told_from, self._told = image, _without_waiting(image)
        return self._told

    async def create_topic(
        self, name: str, partition_count: int, configs: Mapping[str, str],
        topic_id: UUID | None = None, still_may: Callable[[], bool] = nobody_asked,
    ) -> TopicImage:  # fmt: skip
        """Create a topic and open its partitions; `CommandRefused` when the name is taken, or there are too many partitions."""
        topic = TopicImage(
            topic_id=topic_id or self._chance.uuid(),
            name=name,
            partition_count=partition_count,
            configs=dict(configs),
        )
        async with self._turn:
            _check_allowed(still_may)
            self._check_room(partition_count)
            return await to_its_end(self._change_partitions(topic, CreateTopic(topic)))

    def _check_room(self, added: int) -> None:
        """Raise `CommandRefused` where all topics together would have more partitions than nodes and mirrors can take (INV-TG3)."""
        present = sum(topic.partition_count for topic in self._metadata.image.topics.values())
        if present + added > ALL_PARTITIONS_MAX:
            raise CommandRefused(
                TOO_MANY_PARTITIONS,
                f"all topics together have {present} partitions, and {ALL_PARTITIONS_MAX} are the most: {added} more do not fit. Delete topics, or use"
                " fewer partitions for each",
            )

    async def _change_partitions(
        self, changed: TopicImage, command: CreateTopic | ResizeTopic
    ) -> TopicImage:
        with self._change():
            topic = _still_there(await self._metadata.apply(command), changed)
            for partition in self._partitions.open_topic(topic):
                leader_epoch = self._leader_epoch(partition.key)
                if leader_epoch is not None:
                    partition.become_leader(leader_epoch)
        self.on_change()
        return topic

    async def change_configs(
        self, name: str, configs: Mapping[str, str], expected: Mapping[str, str],
        still_may: Callable[[], bool] = nobody_asked,
    ) -> TopicImage:  # fmt: skip
        """Replace a topic's configs; its open logs follow at once, its mirrors as soon as they hear of it.

        `CommandRefused` when there is no such topic, or its configs are not `expected` any more.
        """
        async with self._turn:
            _check_allowed(still_may)
            topic = self._known(name)
            command = SetTopicConfigs(topic.topic_id, dict(configs), dict(expected))
            return await to_its_end(self._change_configs(topic, command))

    async def _change_configs(self, changed: TopicImage, command: SetTopicConfigs) -> TopicImage:
        with self._change():
            topic = _still_there(await self._metadata.apply(command), changed)
            self._partitions.update_config(topic)
        self.on_change()
        return topic

    async def change_access(self, change: AccessChange, expected: int | None = None) -> None:
        """Change users' keys, ACLs, quotas or tokens; mirrors follow as soon as they hear of it (INV-SAC1).

        `CommandRefused` when what is there has not the number `expected` any more, or would be too large.
        """
        judge_room(self._metadata.image.access, change)
        await to_its_end(self._change_access(ChangeAccess(change, expected)))

    async def _change_access(self, command: ChangeAccess) -> None:
        with self._change():
            await self._metadata.apply(command)
        self.on_change()

    async def grow_topic(
        self,
        name: str,
        partition_count: int,
        expected: int,
        still_may: Callable[[], bool] = nobody_asked,
    ) -> TopicImage:
        """Give a topic more partitions and open them; mirrors grow at a tidemark that names them (T15).

        `CommandRefused` when there is no such topic, it is a ledger, or has not `expected` partitions any more.
        """
        assert partition_count > expected, (partition_count, expected)
        async with self._turn:
            _check_allowed(still_may)
            topic = self._known(name)
            self._check_room(partition_count - expected)
            command = ResizeTopic(topic.topic_id, partition_count, expected)
            return await to_its_end(self._change_partitions(topic, command))

    def _known(self, name: str) -> TopicImage:
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            raise CommandRefused("unknown-topic", f"there is no topic called {name}")
        return topic

    async def delete_topic(
        self, name: str, still_may: Callable[[], bool] = nobody_asked
    ) -> TopicImage:
        """Delete a topic and drop its partitions; `CommandRefused` when there is none."""
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._turn)
            _check_allowed(still_may)
            return await to_its_end(self._delete_topic(name, turn))

    async def _delete_topic(self, name: str, turn: AsyncExitStack) -> TopicImage:
        with self._change():
            topic = self._known(name)
            await self._forget(topic.topic_id)
            await turn.aclose()  # what is left asks nothing of the metadata, and takes as long as the disk and the groups' ledger do
            if self.on_delete is not None:
                await self.on_delete(name, topic.topic_id)
            await self._partitions.letting_go.finish_of(topic.topic_id)
        return topic

    async def _forget(self, topic_id: UUID) -> None:
        await self._partitions.mark_topic(topic_id, BY_ORDER)
        try:
            await self._metadata.apply(DeleteTopic(topic_id))
        except (CommandRefused, OSError) as error:
            if not isinstance(error, MetadataInDoubt):  # the next start knows what the mark is for
                await self._partitions.unmark_topic(topic_id)
            raise
        self._partitions.drop_topic(topic_id)
        self.on_change()  # in this step: who leads or copies logs has the dropped ones else


def _check_allowed(still_may: Callable[[], bool]) -> None:
    """Raise `CommandRefused` where the right to a change went while it waited for its turn (INV-TG4)."""
    if not still_may():
        raise CommandRefused(NOT_ALLOWED, "the right to it was taken away meanwhile")


def _still_there(image: MetadataImage, changed: TopicImage) -> TopicImage:
    """Return a topic as it is now; raises `CommandRefused` where it is gone.

    1. This node changes a topic, and is away. 2. Another one leads, and the topic is deleted. 3. A snapshot tells this node both.
    """
    topic = image.topic_by_id(changed.topic_id)
    if topic is None:
        raise CommandRefused("unknown-topic", f"topic {changed.name} was deleted meanwhile")
    return topic


async def settle_partitions(metadata: MetadataSide, partitions: PartitionTable) -> None:
    """Make the open partitions those of the registry, before a region acts (T15, INV-UB1).

    1. A topic grows at the primary. 2. The mirror opens the new logs early, and copies. 3. It takes over at a tidemark
    that does not name them: their bytes are in quarantine. So an empty log that no topic has is dropped; one
    that holds records is never: then the topic has it.
    """
    await to_its_end(_settle(metadata, partitions))


async def _settle(metadata: MetadataSide, partitions: PartitionTable) -> None:
    # What was dropped, and what is dropped here, is out of the way before the region acts (INV-RM7).
    await partitions.removal.finish()
    await _settle_names(metadata, partitions)
    for topic in list(metadata.image.topics.values()):
        strays = partitions.beyond(topic.topic_id, topic.partition_count)
        count = max(
            (p.tp.partition + 1 for p in strays if holds_records(p)), default=topic.partition_count
        )
        if count > topic.partition_count:
            _log.warning("topic %s gets %d partitions: they hold records", topic.name, count)
            await metadata.apply(ResizeTopic(topic.topic_id, count, topic.partition_count))
        present = metadata.image.topic_by_id(topic.topic_id)
        if present is not None and present.copied_count:
            await metadata.apply(CopyPartitions(topic.topic_id, 0, present.copied_count))
        partitions.drop_beyond(topic.topic_id, count)
    await partitions.removal.finish()


async def _settle_names(metadata: MetadataSide, partitions: PartitionTable) -> None:
    """Let one topic have a name of which two were waiting for a tidemark: the one that the cut holds records of (T15).

    1. The primary deletes a topic and makes another one of its name. 2. The mirror keeps both until a tidemark is past
       that.
    3. It takes over. What the cut does not hold is in quarantine, and its topic is empty.
    """
    for topic in list(metadata.image.topics.values()):
        wanted = name_waited_for(topic.name)
        if wanted is None:
            continue
        holder = metadata.image.topics.get(wanted)
        loser = topic if holder is not None and not _is_kept(topic, partitions) else holder
        if loser is not None:
            if _is_kept(loser, partitions):
                _log.error("topics %s and %s both hold records: both stay", topic.name, wanted)
                continue
            _log.warning("topic %s (%s) has lost its name to another", wanted, loser.topic_id)
            await partitions.mark_topic(
                loser.topic_id, "a takeover, which found its name with another"
            )
            await metadata.apply(DeleteTopic(loser.topic_id))
            partitions.drop_topic(loser.topic_id)
        if loser is not topic:
            await metadata.apply(RenameTopic(topic.topic_id, wanted))
            partitions.rename_topic(topic.topic_id, wanted)


def _is_kept(topic: TopicImage, partitions: PartitionTable) -> bool:
    return any(map(holds_records, partitions.beyond(topic.topic_id, 0)))


def _without_waiting(image: MetadataImage) -> MetadataImage:
    topics = {name: topic for name, topic in image.topics.items() if name_waited_for(name) is None}
    return image if len(topics) == len(image.topics) else structs.replace(image, topics=topics)
