"""Rows of Metadata that are written already: a topic's row is written again only when something in it has changed.

A row is used again only if the topic's image is the same object, who leads the region and has its logs is the same, and
existence, leader epoch and health of each of its partitions are what they were when it was written; nobody has to say that
something changed. A topic with a partition that cannot be used, or that nobody leads, has no written row: errors are counted
field by field.

Not here: which topics (`metadata`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from idempotency.identity import NO_LEADER_EPOCH
from region_broker.controller.metadata_image import TopicImage
from region_broker.handlers.dispatch.nodes import NodeFacts
from region_broker.partitions.table import PartitionTable
from region_broker.wire.codec.answers import RowPath, encode_row
from region_broker.wire.codec.struct_writers import EncodedRow

VERSIONS_MAX: Final = 6
"""For how many versions of the protocol rows are kept: those of the clients seen last."""


@dataclass(slots=True)
class _Kept:
    topic: TopicImage
    nodes: NodeFacts
    around: Sequence[NodeFacts]
    leads: tuple[bool, ...]
    leader_epochs: tuple[int, ...]
    row: EncodedRow


@dataclass(frozen=True, slots=True)
class RowsOfVersion:
    """Rows of one version, with or without the operations that clients may do."""

    path: RowPath
    kept: dict[str, _Kept]

    def row(
        self,
        topic: TopicImage,
        nodes: NodeFacts,
        partitions: PartitionTable,
        describe: Callable[[], Mapping[str, Any]],
    ) -> EncodedRow | None:
        """Return a topic's row, written by what `describe` returns if need be; None if it holds an error."""
        found = self.kept.get(topic.name)
        if (
            found is not None
            and found.topic is topic
            and found.nodes is nodes
            and found.leader_epochs == _leader_epochs(topic, partitions, found.leads)
        ):
            return found.row
        around = nodes.around(topic.topic_id)
        if any(group.leader is None for group in around):
            return None
        leads = tuple(group.leads for group in around)
        leader_epochs = _leader_epochs(topic, partitions, leads)
        if leader_epochs is None:
            return None
        if (
            found is not None
            and found.topic is topic
            and found.leader_epochs == leader_epochs
            and found.around == around  # mostly the same objects
        ):
            found.nodes, found.around = nodes, around
            return found.row
        row = encode_row(self.path, describe())
        self.kept[topic.name] = _Kept(topic, nodes, around, leads, leader_epochs, row)
        return row


class TopicRows:
    """One per node."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._versions: dict[tuple[int, bool, str], RowsOfVersion] = {}

    def of(
        self, version: int, *, operations: bool, topic_count: int, listener: str = ""
    ) -> RowsOfVersion:
        """Return the rows of a version; of `topic_count` topics, not many more are kept.

        `listener`: by which those come who do not meet all nodes, and are told of leaders otherwise (INV-HMN2).
        """
        key = (version, operations, listener)
        rows = self._versions.pop(key, None)
        if (
            rows is None or len(rows.kept) > 2 * topic_count
        ):  # most of those are of topics that are gone
            rows = RowsOfVersion(RowPath(3, version, ("topics",)), {})
        self._versions[key] = rows
        if len(self._versions) > VERSIONS_MAX:
            del self._versions[next(iter(self._versions))]
        return rows


def _leader_epochs(
    topic: TopicImage, partitions: PartitionTable, leads: Sequence[bool]
) -> tuple[int, ...] | None:
    """Return the leader epoch of each partition as it is known here; None if one of them cannot be used, and is led here.

    `leads`: whether this node leads the groups that the partitions go round.
    """
    found = []
    groups = len(leads)
    for number in range(topic.partition_count):
        partition = partitions.get(topic.name, number)
        if leads[number % groups] and (partition is None or partition.log.failed is not None):
            return None
        found.append(NO_LEADER_EPOCH if partition is None else partition.sight.leader_epoch)
    return tuple(found)
