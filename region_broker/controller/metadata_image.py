"""The metadata of one region as one immutable value.

INV-M8  a topic that is gone was deleted by a command, and `deleted` names it by id, the last `DELETED_MAX` of them
        (T34: absence alone is no deletion)
INV-M9  of a topic that is not here it is said that it may have been deleted only where that deletion could have been
        forgotten: one of too many, or one by an older version, which kept none
An image is never changed, only replaced; `version` grows by one with each applied command. An image is a pure function
of the commands applied so far (`metadata_commands.apply`).

Topics carry their id, so that a topic deleted and created again is another topic. A domain carries its
lineage: who acted from which cut (rule T25 of the tidemark protocol).
Not here: where it is stored (`metadata_store`), and the log path, which never waits for it.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Final
from uuid import UUID

import msgspec

from geo_replicator.folder_life import Birth
from idempotency import identity
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_image import (
    MAIN_GROUP,
    AddedNode,
    FolderImage,
    GroupNumber,
    Leadership,
    NodeImage,
    Spread,
)
from region_broker.controller.raft.entries import Member
from region_broker.controller.region_folder import RegionFolder
from region_broker.controller.topic_names import metric_name
from region_broker.security.access import NO_ACCESS, Access

DEFAULT_DOMAIN: Final = "main"
NO_REGION_EPOCH: Final = RegionEpoch(0)
"""The region epoch of a domain in a folder without history: nobody acts (T32)."""
TRANSACTION_LEDGER: Final = identity.TRANSACTION_LEDGER
OFFSETS_LEDGER: Final = identity.OFFSETS_LEDGER
TIDEMARK_LEDGER: Final = identity.TIDEMARK_LEDGER
INTERNAL_TOPICS: Final = identity.INTERNAL_TOPICS
DELETED_MAX: Final = 10_000
ALL_NODES: Final = -1
"""In place of a node's id: what counts for every node of the region that has nothing of its own (KIP-226)."""
LEDGER_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    # What a start replays: small segments, because what lies in the active one is not compacted.
    TRANSACTION_LEDGER: {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)},
    OFFSETS_LEDGER: {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)},
}
"""Configs of ledgers, the same for the life of a Tidemark version; the third is kept for ever (ADR 25)."""


class TopicImage(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: fixed id, name, partition count and domain; `configs` holds only what was set.

    `copied_count`: how many partitions all nodes of a region copy that mirrors, where its readers do not know of all of them
    yet (T15); 0 where they do.
    """

    topic_id: UUID
    name: str
    partition_count: int
    domain: str = DEFAULT_DOMAIN
    internal: bool = False
    configs: dict[str, str] = {}
    copied_count: int = 0

    @property
    def as_kept(self) -> "TopicImage":
        """Return it with all partitions that a node of its region has a log of."""
        count = max(self.partition_count, self.copied_count)
        return msgspec.structs.replace(self, partition_count=count, copied_count=0)


class DeletedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that a command deleted, as it was; `metadata_version` is that of the deletion, in this region."""

    topic: TopicImage
    metadata_version: int
    deleted_wall_ms: int = 0


class RegionImage(msgspec.Struct, frozen=True, kw_only=True):
    """One region: its ordinal (0-7, in producer ids and region epochs), and where its node is met."""

    name: str
    ordinal: int
    node_id: int
    kafka_host: str
    kafka_port: int
    peer_host: str
    peer_port: int
    http_host: str
    http_port: int


class LineageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Region `acting_region` acted under `region_epoch` from tidemark `base_number` of the epoch before.

    `positions` maps ``topic_id-hex/partition`` to the first offset that the base does not hold: D for
    data, L for ledgers, one past the tidemark record for `__tidemarks`.
    """

    region_epoch: RegionEpoch
    acting_region: str
    base_region_epoch: RegionEpoch
    base_number: int
    positions: dict[str, int] = {}
    decided_wall_ms: int = 0


class DomainImage(msgspec.Struct, frozen=True, kw_only=True):
    """What fails over as one: who acts, under which region epoch, and who acted before."""

    name: str
    acting_region: str
    region_epoch: RegionEpoch
    shard_count: int
    lineage: tuple[LineageEntry, ...] = ()
    birth: Birth | None = None
    """The cluster's birth, where a region with several nodes was founded: its later nodes have it from here (T32)."""


class MetadataImage(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything a region's nodes agree on. `topics`, `regions`, `domains` are keyed by name, `deleted` by topic id, `nodes` by
    node id.

    `dict=True` keeps what is derived from an image with it (`topic_by_id`, `colliding_topic`); it is no part of the image.
    """

    version: int
    cluster_id: str
    topics: dict[str, TopicImage] = {}
    regions: dict[str, RegionImage] = {}
    domains: dict[str, DomainImage] = {}
    node_start_count: int = 0
    last_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """The newest leader epoch that this region took, -1 before its first one: none is taken twice (T1, T19)."""
    deleted: dict[UUID, DeletedTopic] = {}
    deletions_unknown_to: int = -1
    """The newest leader epoch of the time when an older version kept no deletions, -1 where all were kept."""
    nodes: dict[int, NodeImage] = {}
    folders: dict[UUID, FolderImage] = {}
    """What is remembered of folders, by incarnation, the last `FOLDERS_MAX`."""
    leadership: Leadership | None = None
    """Who leads the logs of the region; None where nobody was ever elected: a region of one node that does not register."""
    node_configs: dict[int, dict[str, str]] = {}
    """What was set of the configuration while nodes ran, by node id or `ALL_NODES`; nodes with nothing set have no entry."""

    feature_level: int = 1
    """What all nodes of the region know, and so may be written (INV-FL1); 1 where nothing is said."""
    grown_to: int = 0
    """How many members have been in sync at once, in a region that was one of one node (INV-MH7); 0 in one that began with several."""
    added_nodes: dict[int, AddedNode] = {}
    """Nodes that were added to the region while it ran, by node id: every node knows them, whatever its file says (INV-MN8)."""
    region_folder: RegionFolder | None = None
    """What a region of several nodes knows of itself; None in one of one node, whose folder says it."""
    spread: Spread | None = None
    """How the leaders of partitions are spread; None while one node leads all logs (ADR 53)."""
    spread_wanted: bool = False
    """Whether an operator has ordered that they are to be spread whenever the region acts steadily."""
    access: Access = NO_ACCESS
    """Users' keys, ACLs, quotas and tokens: the domain's, the same in all regions."""

    def group_of(self, key: identity.LogKey) -> GroupNumber:
        """Return the replica group that a log belongs to now."""
        return MAIN_GROUP if self.spread is None else self.spread.group_of(key)

    def leadership_in(self, group: int) -> Leadership | None:
        """Return the row of a replica group, None for one that there is none of."""
        if group == MAIN_GROUP:
            return self.leadership
        return None if self.spread is None else self.spread.groups.get(group)

    def leadership_of(self, key: identity.LogKey) -> Leadership | None:
        """Return who leads a log, and who is in sync; None where nobody was ever elected."""
        return self.leadership_in(self.group_of(key))

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """Return the topic with that id, or None."""
        return self._topics_by_id.get(topic_id)

    @cached_property
    def _topics_by_id(self) -> dict[UUID, TopicImage]:
        return {topic.topic_id: topic for topic in self.topics.values()}

    def colliding_topic(self, name: str) -> str | None:
        """Return the topic that is called as `name` would be in names of metrics, or None."""
        if "." not in name and "_" not in name:  # nothing in it is written in two ways
            return name if name in self.topics else None
        return self._topics_by_metric_name.get(metric_name(name))

    @cached_property
    def _topics_by_metric_name(self) -> dict[str, str]:
        return {metric_name(name): name for name in reversed(self.topics)}

    def node_of(self, member: Member) -> NodeImage | None:
        """Return the node that is registered with that very folder, or None."""
        node = self.nodes.get(member.node_id)
        return node if node is not None and node.incarnation == member.incarnation else None

    def has_removed(self, member: Member) -> bool:
        """Return whether an operator removed that very folder's node (INV-MN6)."""
        folder = self.folders.get(member.incarnation)
        return folder is not None and folder.removed

    def may_have_deleted(self, topic_id: UUID, written_under: int) -> bool:
        """Return whether a topic that is not here may have been deleted by a command that is not remembered (INV-M9).

        `written_under`: the leader epoch of a batch that another region holds of it, -1 where none is known. What an older
        version deleted holds no batch of a leader epoch that was taken after the upgrade.
        """
        if topic_id in self.deleted:
            return True
        by_an_older_version = 0 <= self.deletions_unknown_to >= written_under
        forgets = len(self.deleted) >= DELETED_MAX or by_an_older_version
        return forgets and self.topic_by_id(topic_id) is None

    @property
    def main_domain(self) -> DomainImage:
        """Return the default domain; KeyError before the cluster was initialised."""
        return self.domains[DEFAULT_DOMAIN]
