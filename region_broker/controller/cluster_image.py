"""The nodes of a region, and which of them leads its logs: a part of the metadata image.

All logs of a region are led together, by one node at a time (ADR 47), but where the leaders of partitions are spread (ADR 53). Not
here: how it changes (`cluster_changes`), who decides that (`cluster`).
"""

from functools import cached_property
from typing import Final, NewType
from uuid import UUID
from zlib import crc32

import msgspec

from geo_replicator.folder_life import Shown
from idempotency.identity import LeaderEpoch, LogKey
from region_broker.controller.raft.entries import Member

NODES_MAX: Final = 64
"""Nodes that one region may register."""
FOLDERS_MAX: Final = 1_000
"""Folders that are remembered; those of registered nodes, and who is in sync, always are."""
REMEMBERED_MAX: Final = 32
"""Lives, and incarnations, that a node had before and that are remembered of it."""
NO_LEADERSHIP: Final = 0
"""The version of the leadership where there is none yet."""
GroupNumber = NewType("GroupNumber", int)
MAIN_GROUP: Final = GroupNumber(0)
"""The replica group of the ledgers, and of all that is not spread: `MetadataImage.leadership` is its row."""


class NodeImage(msgspec.Struct, frozen=True, kw_only=True):
    """One node as it registered: its folder (`incarnation`), its process (`life`), and where it is met.

    `fenced`: it is not heard, so it neither leads nor is in sync (KIP-841). `draining`: it is about to stop, and takes nothing on.
    `feature_level`, `lowest_level`: the newest and the oldest feature level that its code knows.
    `former_lives`, `former_incarnations`: what stood here before, the oldest first, the last `REMEMBERED_MAX`.
    """

    node_id: int
    incarnation: UUID
    life: UUID
    kafka_host: str
    kafka_port: int
    peer_host: str
    peer_port: int
    http_host: str
    http_port: int
    rack: str = ""
    feature_level: int = 1
    lowest_level: int = 1
    fenced: bool = True
    draining: bool = False
    former_lives: tuple[UUID, ...] = ()
    former_incarnations: tuple[UUID, ...] = ()

    @property
    def member(self) -> Member:
        """Return which folder of which node this is."""
        return Member(self.node_id, self.incarnation)

    @property
    def is_eligible(self) -> bool:
        """Return whether it may be elected, or join the in-sync set (KIP-841)."""
        return not (self.fenced or self.draining)


class AddedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that an operator has added to a region that ran: where the others meet it, each as `host:port`.

    It may not have registered yet. What a node's own file says of that very node goes before this.
    """

    node_id: int
    kafka: str
    peer: str
    http: str
    rack: str = ""

    @property
    def addresses(self) -> tuple[str, str, str]:
        """Return its three addresses."""
        return self.kafka, self.peer, self.http


class FolderImage(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one folder, by its incarnation, for longer than its node is registered.

    `since_version`: of the metadata, before it was heard of. `removed`: an operator removed its node, which does not come back with it.
    """

    node_id: int
    since_version: int
    removed: bool = False
    last_start: Shown | None = None
    """The newest start that registered; None where none told."""


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads the logs of the region, and who may lead next.

    `in_sync` is sorted, and never empty: each of them holds all that was committed. `version` grows with each change. `unclean`
    counts how often an operator let somebody lead who was not in sync: records may have been lost each time.
    """

    leader: Member | None
    leader_epoch: LeaderEpoch
    in_sync: tuple[Member, ...]
    version: int
    unclean: int = 0


class Spread(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How the leaders of partitions are spread over the nodes, while they are (ADR 53).

    `groups`: the rows of the data groups, by number from 1 on. `preferred`: the node that is to lead each group, by number; the first one is
    that of the main group. `topics`: the topics whose partitions are spread, sorted; the others' belong to the main group.
    """

    groups: dict[int, Leadership]
    preferred: tuple[int, ...]
    topics: tuple[UUID, ...]

    @cached_property
    def _spread_topics(self) -> frozenset[UUID]:
        return frozenset(self.topics)

    def group_of(self, key: LogKey) -> GroupNumber:
        """Return the replica group of a log: a topic's partitions go round all groups, beginning anywhere."""
        if key.topic_id not in self._spread_topics:
            return MAIN_GROUP
        return GroupNumber((crc32(key.topic_id.bytes) + key.partition) % len(self.preferred))

    def is_main(self, key: LogKey) -> bool:
        """Return whether a log is of the main group."""
        return self.group_of(key) == MAIN_GROUP
