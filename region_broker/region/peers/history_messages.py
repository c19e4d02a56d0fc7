"""What two regions say to each other about the history that one has shown and the other should hold (T33, T34).

INV-PHM1  a message names no more logs than several pieces have, and `LOGS_MAX` where it names all of a region: they are worked on in one step

Evidence goes in pieces of at most `geo_replicator.history.LOGS_PER_PIECE` logs, each judged by itself: no message grows
with the number of partitions.

Not here: framing (`peers.protocol`), the judgement (`geo_replicator.history`), who answers (`primary_side`,
`region_broker.region.failover.steps`).
"""

from typing import Annotated, Final, Self, TypeAlias

import msgspec

from geo_replicator.history import LOGS_PER_PIECE, HistoryDifference, LastBatch, ShownLog
from geo_replicator.lineage import LogKey
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch
from region_broker.region.peers.protocol import LOGS_MAX, PeerMessage

PIECE_MAX: Final = 10 * LOGS_PER_PIECE
"""Logs of one message: another version may make larger pieces."""


class LogEvidence(msgspec.Struct, frozen=True, array_like=True):
    """One log of `ShownLog`; `leader_epoch` is -1 where the mirror has no batch to compare."""

    key: str
    cut_offset: int
    end_offset: int
    whole_from: int
    leader_epoch: LeaderEpoch
    base_offset: int
    crc: int

    @classmethod
    def of(cls, shown: ShownLog) -> Self:
        """Return the wire form."""
        last = shown.last or LastBatch(NO_LEADER_EPOCH, 0, 0)
        return cls(
            shown.key.encode(), shown.cut_offset, shown.end_offset, shown.whole_from,
            last.leader_epoch, last.base_offset, last.crc,
        )  # fmt: skip

    def shown(self) -> ShownLog:
        """Return what is judged; ValueError on a key that is none."""
        last = LastBatch(self.leader_epoch, self.base_offset, self.crc)
        return ShownLog(
            key=LogKey.decode(self.key),
            cut_offset=self.cut_offset,
            end_offset=self.end_offset,
            last=last if self.leader_epoch >= 0 else None,
            whole_from=self.whole_from,
        )


class LogDifference(msgspec.Struct, frozen=True, array_like=True):
    """One `HistoryDifference`."""

    key: str
    agreed_end: int
    shown_end: int
    copied_end: int
    reason: str

    @classmethod
    def of(cls, difference: HistoryDifference) -> Self:
        """Return the wire form."""
        return cls(
            difference.key.encode(), difference.agreed_end, difference.shown_end,
            difference.copied_end, difference.reason,
        )  # fmt: skip

    def difference(self) -> HistoryDifference:
        """Return what it says; ValueError on a key that is none."""
        return HistoryDifference(
            LogKey.decode(self.key), self.agreed_end, self.shown_end, self.copied_end, self.reason
        )


Shown: TypeAlias = Annotated[tuple[LogEvidence, ...], msgspec.Meta(max_length=PIECE_MAX)]


class ProveHistory(PeerMessage, frozen=True, kw_only=True):
    """A mirror that reached a tidemark shows a piece of what it has shown: does the primary region hold it?"""

    region_epoch: RegionEpoch
    reached_region_epoch: RegionEpoch
    number: int
    logs: Shown


class HistoryJudged(PeerMessage, frozen=True, kw_only=True):
    """What the primary region does not hold of the piece; nothing where it holds all of it."""

    differences: Annotated[tuple[LogDifference, ...], msgspec.Meta(max_length=PIECE_MAX)]


class AskDeletions(PeerMessage, frozen=True, kw_only=True):
    """A mirror holds records of logs that the registry has no more: which of their topics were deleted?

    `written_under`: the leader epoch of the newest batch of each; empty from a version that does not tell.
    """

    region_epoch: RegionEpoch
    logs: Annotated[tuple[str, ...], msgspec.Meta(max_length=PIECE_MAX)]
    written_under: Annotated[tuple[int, ...], msgspec.Meta(max_length=PIECE_MAX)] = ()


class DeletionsTold(PeerMessage, frozen=True, kw_only=True):
    """The topics that a command deleted, by id."""

    topic_ids: Annotated[tuple[str, ...], msgspec.Meta(max_length=PIECE_MAX)]


class AskHistory(PeerMessage, frozen=True, kw_only=True):
    """What have you shown? From the log behind `after` on (empty: from the first)."""

    after: str = ""


class HistoryPiece(PeerMessage, frozen=True, kw_only=True):
    """The evidence for one reached tidemark, logs in order of their keys; `after` is empty where no more follow."""

    region_epoch: RegionEpoch
    reached_region_epoch: RegionEpoch
    number: int
    logs: Shown
    after: str = ""


class AskHeld(PeerMessage, frozen=True, kw_only=True):
    """Do your logs hold these batches? Answered by `HistoryJudged`; nothing follows from it."""

    logs: Shown


class AskBeyond(PeerMessage, frozen=True, kw_only=True):
    """What do you hold at and beyond these positions? Logs that are not named are left out."""

    domain: str
    region_epoch: RegionEpoch
    for_region: str
    positions: Annotated[dict[str, int], msgspec.Meta(max_length=LOGS_MAX)]


class BeyondStated(PeerMessage, frozen=True, kw_only=True):
    """The answer: a loss statement as JSON in the attachment."""
