"""Commands that change the metadata image, and the one pure function that applies them.

INV-M17 a topic's `copied_count` is 0, or beyond its partition count
INV-M18  what a node writes at its start changes nothing of a domain that is there: lineage, shards, who acts, birth
INV-M4  a domain's region epoch never goes down, and no two lineage entries share one (rule T19)
INV-M24  a lineage entry that is learnt takes the place of another one under its region epoch: who learns it has neither acted under that
         epoch nor followed it
         1. A region takes over, under 17, and is followed. 2. Its folder is exchanged for an older copy; it records 17 once more, and dies
         before it acts. 3. Another one takes over, under 25. 4. It returns, and learns of the first 17, and of 25.
`apply` is deterministic and total: a command that must not take effect raises `CommandRefused` and leaves the image as
it was; nothing else is raised.

Not here: I/O. A replicated state machine will feed the same commands later.
"""

from typing import Final, TypeAlias, assert_never
from uuid import UUID

import msgspec

from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller import refusals
from region_broker.controller.access_commands import (
    AccessCommand,
    ChangeAccess,
    FollowAccess,
    change_access,
)
from region_broker.controller.cluster_changes import change_cluster
from region_broker.controller.cluster_commands import BearDomain, ClusterCommand
from region_broker.controller.feature_levels import RELEARNS_SINCE_LEVEL, allows
from region_broker.controller.metadata_image import (
    ALL_NODES,
    DELETED_MAX,
    DeletedTopic,
    DomainImage,
    LineageEntry,
    MetadataImage,
    RegionImage,
    TopicImage,
)
from region_broker.controller.region_folder import (
    BeginRegionFolder,
    JoinHistory,
    NoteMet,
    RecordFailover,
    RegionFolderCommand,
    change_region_folder,
)
from region_broker.controller.spread_leadership import (
    refuse_while_spread,
    with_topic,
    without_topic,
)

NOT_ACTING: Final = refusals.NOT_ACTING
_ACTS: Final = "it changes who acts, and from where,"
CommandRefused: TypeAlias = refusals.CommandRefused
"""Where the callers of commands look for it."""


class CreateTopic(msgspec.Struct, frozen=True, tag=True):
    """Add a topic with a fixed id; refused if the name or the id is taken."""

    topic: TopicImage


class DeleteTopic(msgspec.Struct, frozen=True, tag=True):
    """Remove the topic with that id and remember it as deleted; refused if there is none or it is internal."""

    topic_id: UUID
    wall_ms: int = 0


class SetTopicConfigs(msgspec.Struct, frozen=True, tag=True):
    """Replace all configs of a topic; refused if they are not `expected` any more (None: whatever they are)."""

    topic_id: UUID
    configs: dict[str, str]
    expected: dict[str, str] | None = None


class SetNodeConfigs(msgspec.Struct, frozen=True, tag=True):
    """Replace all that is set of a node's configuration, or of all nodes' (`ALL_NODES`).

    Refused if what is set is not `expected` any more (None: whatever it is).
    """

    node_id: int
    configs: dict[str, str]
    expected: dict[str, str] | None = None


class ResizeTopic(msgspec.Struct, frozen=True, tag=True):
    """Give a topic another partition count; refused for a ledger, or if it has not `expected` any more.

    A count below the present one is for a mirror only, which follows the primary.
    """

    topic_id: UUID
    partition_count: int
    expected: int


class CopyPartitions(msgspec.Struct, frozen=True, tag=True):
    """Let all nodes of a region that mirrors copy so many partitions of a topic, before its readers know of them (T15); 0: no more.

    Refused if these were not `expected` any more.
    """

    topic_id: UUID
    copied_count: int
    expected: int


class RenameTopic(msgspec.Struct, frozen=True, tag=True):
    """Give a topic another name; refused if that is taken. For a mirror only, where a topic waits for its name."""

    topic_id: UUID
    name: str


class PutRegion(msgspec.Struct, frozen=True, tag=True):
    """Record a region and where its node is met; the ordinal of a known region never changes."""

    region: RegionImage


class PutDomain(msgspec.Struct, frozen=True, tag=True):
    """Put a domain in place of the one of its name; refused if that has another shard count, or a later region epoch.

    It takes the lineage back to what its sender had read, so it is written only where nodes may be there that do not know
    `BearDomain` (`birth_of`).
    """

    domain: DomainImage


class RecordLineage(msgspec.Struct, frozen=True, tag=True):
    """A region acts from a cut under a new region epoch (T25); refused behind a later one, but where it is `learnt` (INV-M24).

    1. A region writes down that it takes over, and dies before it acts. 2. Others, who never heard of that, take over
    under a lower region epoch, and then under a higher one. 3. It returns, and learns of both.
    """

    domain: str
    entry: LineageEntry
    learnt: bool = False


class CountNodeStart(msgspec.Struct, frozen=True, tag=True):
    """Count one more start of this node."""


class TakeLeaderEpoch(msgspec.Struct, frozen=True, tag=True):
    """Take a leader epoch to act under; refused unless it is newer than the last one (T1), and where leaders are elected."""

    leader_epoch: LeaderEpoch


Command = (
    CreateTopic
    | DeleteTopic
    | SetTopicConfigs
    | SetNodeConfigs
    | ResizeTopic
    | CopyPartitions
    | RenameTopic
    | PutRegion
    | PutDomain
    | BearDomain
    | RecordLineage
    | CountNodeStart
    | TakeLeaderEpoch
    | ClusterCommand
    | BeginRegionFolder
    | RecordFailover
    | JoinHistory
    | NoteMet
    | ChangeAccess
    | FollowAccess
)


def apply(image: MetadataImage, command: Command) -> MetadataImage:
    """Return the image after `command`; raises `CommandRefused` where it must not take effect."""
    changed = _changed(image, command)
    return msgspec.structs.replace(changed, version=image.version + 1)


def _changed(image: MetadataImage, command: Command) -> MetadataImage:
    match command:
        case RenameTopic(topic_id=topic_id, name=name):
            return _rename_topic(image, topic_id, name)
        case DeleteTopic():
            return _delete_topic(image, command)
        case CreateTopic(topic=topic):
            created = msgspec.structs.replace(image, topics=_create_topic(image, topic))
            return with_topic(created, topic)
        case SetTopicConfigs() | ResizeTopic() | CopyPartitions():
            return msgspec.structs.replace(image, topics=_changed_topics(image, command))
        case SetNodeConfigs():
            return _set_node_configs(image, command)
        case PutRegion(region=region):
            return _put_region(image, region)
        case PutDomain() | BearDomain() | RecordLineage():
            return _change_domain(image, command)
        case CountNodeStart():
            return msgspec.structs.replace(image, node_start_count=image.node_start_count + 1)
        case TakeLeaderEpoch(leader_epoch=leader_epoch):
            return _take_leader_epoch(image, leader_epoch)
        case _:
            return _change_region(image, command)


def _change_domain(
    image: MetadataImage, command: PutDomain | BearDomain | RecordLineage
) -> MetadataImage:
    match command:
        case PutDomain(domain=domain):
            return _put_domain(image, domain)
        case BearDomain(domain=domain):
            return _bear_domain(image, domain)
        case RecordLineage():
            return _record_lineage(image, command)


def _change_region(
    image: MetadataImage, command: ClusterCommand | RegionFolderCommand | AccessCommand
) -> MetadataImage:
    match command:
        case ChangeAccess() | FollowAccess():
            access = change_access(image.access, command)
            return msgspec.structs.replace(image, access=access)
        case BeginRegionFolder() | RecordFailover() | JoinHistory() | NoteMet():
            return _change_region_folder(image, command)
        case _:
            return change_cluster(image, command)


def _change_region_folder(image: MetadataImage, command: RegionFolderCommand) -> MetadataImage:
    leadership = image.leadership
    if (
        leadership is None
        or leadership.leader is None
        or leadership.leader_epoch != command.leader_epoch
    ):  # INV-MRF1
        raise CommandRefused(
            "not-the-leader",
            f"nobody leads this region under leader epoch {command.leader_epoch} (any more): whoever does goes on",
        )
    if isinstance(command, RecordFailover):
        refuse_while_spread(image, "the state of its failover changes")
    folder = change_region_folder(image.region_folder, command)
    return msgspec.structs.replace(image, region_folder=folder)


def _take_leader_epoch(image: MetadataImage, leader_epoch: LeaderEpoch) -> MetadataImage:
    if image.leadership is not None:
        raise CommandRefused(
            "leader-epoch-by-election",
            "the leader of this region's logs is elected, and has its leader epoch from that: ask for an election",
        )
    if leader_epoch <= image.last_leader_epoch:
        raise CommandRefused(
            "leader-epoch-taken",
            f"leader epoch {leader_epoch} is not newer than {image.last_leader_epoch}",
        )
    return msgspec.structs.replace(image, last_leader_epoch=leader_epoch)


def _changed_topics(
    image: MetadataImage, command: SetTopicConfigs | ResizeTopic | CopyPartitions
) -> dict[str, TopicImage]:
    match command:
        case SetTopicConfigs():
            topic = _reconfigured(image, command)
        case ResizeTopic():
            topic = _resized(image, command)
        case CopyPartitions():
            topic = _copied(image, command)
        case _:
            assert_never(command)
    return {**image.topics, topic.name: topic}


def _topic(image: MetadataImage, topic_id: UUID) -> TopicImage:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise CommandRefused("unknown-topic", f"no topic has the id {topic_id}")
    return topic


def _create_topic(image: MetadataImage, topic: TopicImage) -> dict[str, TopicImage]:
    if topic.name in image.topics:
        raise CommandRefused("topic-exists", f"Topic '{topic.name}' already exists.")
    if image.topic_by_id(topic.topic_id) is not None:
        raise CommandRefused("topic-exists", f"a topic with id {topic.topic_id} already exists")
    return {**image.topics, topic.name: topic}


def _rename_topic(image: MetadataImage, topic_id: UUID, name: str) -> MetadataImage:
    topic = _topic(image, topic_id)
    if name in image.topics:
        raise CommandRefused("topic-exists", f"topic {name} exists already")
    others = {key: kept for key, kept in image.topics.items() if key != topic.name}
    renamed = msgspec.structs.replace(topic, name=name)
    return msgspec.structs.replace(image, topics={**others, name: renamed})


def _delete_topic(image: MetadataImage, command: DeleteTopic) -> MetadataImage:
    topic = _topic(image, command.topic_id)
    if topic.internal:
        raise CommandRefused("internal-topic", f"topic {topic.name} is a ledger and stays")
    remembered = list(image.deleted.items())[-(DELETED_MAX - 1) :]
    topic = msgspec.structs.replace(topic, copied_count=0)
    deleted = DeletedTopic(
        topic=topic, metadata_version=image.version + 1, deleted_wall_ms=command.wall_ms
    )
    left = msgspec.structs.replace(
        image,
        topics={name: kept for name, kept in image.topics.items() if name != topic.name},
        deleted={**dict(remembered), topic.topic_id: deleted},
    )
    return without_topic(left, topic.topic_id)


def _reconfigured(image: MetadataImage, command: SetTopicConfigs) -> TopicImage:
    topic = _topic(image, command.topic_id)
    if command.expected is not None and command.expected != topic.configs:
        raise CommandRefused(
            "topic-configs-changed", f"the configs of topic {topic.name} changed meanwhile"
        )
    return msgspec.structs.replace(topic, configs=dict(command.configs))


def _set_node_configs(image: MetadataImage, command: SetNodeConfigs) -> MetadataImage:
    present = image.node_configs.get(command.node_id, {})
    if command.expected is not None and command.expected != present:
        who = "all nodes" if command.node_id == ALL_NODES else f"node {command.node_id}"
        raise CommandRefused("node-configs-changed", f"the configs of {who} changed meanwhile")
    kept = {key: each for key, each in image.node_configs.items() if key != command.node_id}
    if command.configs:
        kept[command.node_id] = dict(command.configs)
    return msgspec.structs.replace(image, node_configs=kept)


def _resized(image: MetadataImage, command: ResizeTopic) -> TopicImage:
    topic = _topic(image, command.topic_id)
    if topic.internal:
        raise CommandRefused(
            "internal-topic", f"topic {topic.name} is a ledger: its shards are fixed"
        )
    if topic.partition_count != command.expected:
        raise CommandRefused(
            "topic-resized", f"topic {topic.name} has {topic.partition_count} partitions by now"
        )
    count = command.partition_count
    still_copied = topic.partition_count <= count < topic.copied_count
    return msgspec.structs.replace(
        topic, partition_count=count, copied_count=topic.copied_count if still_copied else 0
    )


def _copied(image: MetadataImage, command: CopyPartitions) -> TopicImage:
    topic = _topic(image, command.topic_id)
    if topic.copied_count != command.expected:
        raise CommandRefused(
            "topic-copies-changed",
            f"{topic.copied_count} partitions of topic {topic.name} are copied by now",
        )
    is_more = command.copied_count > topic.partition_count  # INV-M17
    return msgspec.structs.replace(topic, copied_count=command.copied_count if is_more else 0)


def _put_region(image: MetadataImage, region: RegionImage) -> MetadataImage:
    known = image.regions.get(region.name)
    if known is not None and known.ordinal != region.ordinal:
        raise CommandRefused(
            "region-ordinal",
            f"region {region.name} has ordinal {known.ordinal}, not {region.ordinal}: the ordinal"
            " is part of every producer id it gave out and never changes",
        )
    for other in image.regions.values():
        if other.name != region.name and other.ordinal == region.ordinal:
            raise CommandRefused(
                "region-ordinal", f"ordinal {region.ordinal} belongs to region {other.name}"
            )
    return msgspec.structs.replace(image, regions={**image.regions, region.name: region})


def _put_domain(image: MetadataImage, domain: DomainImage) -> MetadataImage:
    known = image.domains.get(domain.name)
    if known is not None and known.shard_count != domain.shard_count:
        raise CommandRefused(
            "shard-count",
            f"domain {domain.name} has {known.shard_count} ledger shards for life, not"
            f" {domain.shard_count}",
        )
    if known is not None and known.region_epoch > domain.region_epoch:
        raise CommandRefused(
            refusals.STALE_REGION_EPOCH,
            f"domain {domain.name} is at region epoch {known.region_epoch}, beyond"
            f" {domain.region_epoch}",
        )
    if known is not None and _who_acts(known) != _who_acts(domain):
        refuse_while_spread(image, _ACTS)
    return msgspec.structs.replace(image, domains={**image.domains, domain.name: domain})


def _who_acts(domain: DomainImage) -> tuple[str, RegionEpoch, tuple[LineageEntry, ...]]:
    return domain.acting_region, domain.region_epoch, domain.lineage


def birth_of(image: MetadataImage, domain: DomainImage) -> PutDomain | BearDomain:
    """Return what lets a domain have what its birth says, as all nodes of the region know it (INV-FL1)."""
    born = BearDomain(domain)
    return born if allows(image.feature_level, born) else PutDomain(domain)


def _bear_domain(image: MetadataImage, born: DomainImage) -> MetadataImage:
    domain = image.domains.get(born.name, born)  # INV-M18
    if domain.birth is None:
        domain = msgspec.structs.replace(domain, birth=born.birth)
    never_acted = not domain.lineage and image.spread is None
    if never_acted and domain.region_epoch < born.region_epoch:
        domain = msgspec.structs.replace(
            domain, acting_region=born.acting_region, region_epoch=born.region_epoch
        )
    return msgspec.structs.replace(image, domains={**image.domains, born.name: domain})


def _record_lineage(image: MetadataImage, command: RecordLineage) -> MetadataImage:
    domain, entry = image.domains.get(command.domain), command.entry
    if domain is None:
        raise CommandRefused("unknown-domain", f"no domain is called {command.domain}")
    if entry in domain.lineage:
        return image
    refuse_while_spread(image, _ACTS)
    others = [known for known in domain.lineage if known.region_epoch != entry.region_epoch]
    is_newest = entry.region_epoch > domain.region_epoch
    takes_a_place = len(others) < len(domain.lineage)
    if not is_newest and (not command.learnt or (takes_a_place and not _may_relearn(image))):
        raise CommandRefused(
            refusals.STALE_REGION_EPOCH,
            f"domain {domain.name} is at region epoch {domain.region_epoch};"
            f" {entry.region_epoch} comes too late",
        )
    lineage = sorted((*others, entry), key=lambda known: known.region_epoch)
    domain = msgspec.structs.replace(
        domain,
        acting_region=entry.acting_region if is_newest else domain.acting_region,
        region_epoch=max(entry.region_epoch, domain.region_epoch),
        lineage=tuple(lineage),
    )
    return msgspec.structs.replace(image, domains={**image.domains, domain.name: domain})


def _may_relearn(image: MetadataImage) -> bool:
    """Return whether all that apply the same commands know INV-M24 (INV-FL4): an only node has no others."""
    return image.leadership is None or image.feature_level >= RELEARNS_SINCE_LEVEL
