"""How much memory offsets of groups take, so that clients cannot fill it by committing.

INV-GOR1  what groups have committed, and what open transactions have staged, is bounded by `committed_offsets_max`, over all shards of a node: an offset that
          adds to it beyond that is not taken, but for the few of each group, so that who has filled it keeps nobody out. Metadata count, too, and
          what is lighter makes no room for what is heavier in the same commit: what a transaction stages may come to nothing in part, by a later commit
INV-GOR2  an offset in the place of one that is not lighter is taken always, also beside others that are not. So is all that the ledger has: at a load, and at
          the end of a transaction, whose offsets are judged as they are staged

Beyond it a commit is told what clients give to their application, and one in a transaction that it is to be aborted; a client too old for that is told to ask
again, as by INV-GO7, where the room comes back as others end. Kafka bounds neither.
Not here: what the tables count (`offsets`), when offsets go (`coordinator.expire_offsets`, KIP-211).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from idempotency.identity import NO_PRODUCER_ID, ProducerId, TopicPartition
from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom
from region_broker.groups.offsets import WEIGHED_CHARS, OffsetsToPut, OffsetTable
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import Shard
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import FEW_OFFSETS, PENDING_OFFSETS_MAX

_log: Final = logging.getLogger("tidemark.groups")


@dataclass(slots=True)
class GroupRoom:
    """What offsets of one group may add, as of one moment."""

    table: OffsetTable
    group_id: str
    left: int
    """Of all groups together."""
    added: int = 0
    refused: int = 0
    """How many offsets were not taken."""
    _few: int | None = None
    """What the group may have in any case, as of when that first mattered."""

    def takes(self, by: int) -> bool:
        """Return whether so much more is taken, and count it if so."""
        added = self.added + by
        if by > 0 and added > self.left and added > self._few_left():
            return False
        self.added = added
        return True

    def takes_offset(self, tp: TopicPartition, metadata: str) -> bool:
        """Return whether one more offset is taken, and count it."""
        taken = self.takes(self.table.growth(self.group_id, tp, metadata))
        self.refused += not taken
        return taken

    def _few_left(self) -> int:
        if self._few is None:
            has = self.table.weight_of_group(self.group_id, up_to=FEW_OFFSETS)
            self._few = FEW_OFFSETS - has
        return self._few


class OffsetRoom:
    """One for all shards of a node."""

    def __init__(self, shards: Sequence[Shard], clock: Clock, settings: GroupSettings) -> None:
        """Count what `shards` have. The limit in `settings` may change meanwhile."""
        self._shards = shards
        self._settings = settings
        self._refused = 0
        self._said = SaidSeldom(clock)

    def figures(self) -> Mapping[str, int]:
        """Return what offsets take of `committed_offsets_max`, and how many were refused for it since the start."""
        return {"taken": self._taken(), "refused": self._refused}

    def of_group(self, shard: Shard, group_id: str) -> GroupRoom:
        """Return what offsets of a group may add now."""
        left = self._settings.committed_offsets_max - self._taken()
        return GroupRoom(shard.table, group_id, left)

    def judge(
        self, shard: Shard, offsets: OffsetsToPut, producer_id: ProducerId = NO_PRODUCER_ID
    ) -> GroupVerdict:
        """Judge a commit as a whole: TOO_MANY_OFFSETS (INV-GOR1), NOT_AVAILABLE for one that is to be staged later (INV-GO7), or OK."""
        room = self.of_group(shard, offsets.group_id)
        if offsets.weight > room.left and not room.takes(shard.table.added(offsets, producer_id)):
            self.refuse(offsets.group_id, len(offsets.places))
            return GroupVerdict.TOO_MANY_OFFSETS
        if producer_id != NO_PRODUCER_ID and self._has_staged_much(shard, offsets, producer_id):
            return GroupVerdict.NOT_AVAILABLE
        return GroupVerdict.OK

    def refuse(self, group_id: str, count: int) -> None:
        """Note that so many offsets were not taken, and say so."""
        self._refused += count
        if self._said.is_due():
            _log.warning(
                "offsets of the group %.200r are refused: all groups have as many as committed_offsets_max = %d allows (%d letters of metadata count as one more), and"
                " this one has more than %d. Those of groups without members go when they are over seven days old; `kafka-consumer-groups.sh --delete` deletes"
                " a group at once. Said once a minute",
                group_id, self._settings.committed_offsets_max, WEIGHED_CHARS, FEW_OFFSETS,
            )  # fmt: skip

    def _taken(self) -> int:
        return sum(
            shard.table.committed_weight + shard.table.pending_weight for shard in self._shards
        )

    def _has_staged_much(
        self, shard: Shard, offsets: OffsetsToPut, producer_id: ProducerId
    ) -> bool:
        """Return whether open transactions have staged so much that these must wait, as their own has a few by now (INV-GO7)."""
        added = shard.table.staged_weight(offsets, producer_id)
        tables = [each.table for each in self._shards]
        return (
            added > 0
            and sum(each.pending_weight for each in tables) + added > PENDING_OFFSETS_MAX
            and sum(each.staged_by(producer_id) for each in tables) + added > FEW_OFFSETS
        )
