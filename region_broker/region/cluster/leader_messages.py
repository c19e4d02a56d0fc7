"""What the leader of the main group and those of data groups say to each other while leaders are spread (ADR 53).

INV-ALM1 each message names the leader epoch of the main group under which it is said, and that of the group of each log that it names: it
         counts where both are the present ones, at who takes it, and, of an answer, at who had asked, when it comes
Verdicts and results travel by name: another version may number them otherwise. A name that is not known is taken for one after which
is asked again.
Not here: the connections (`leader_lines`), what is done (`txn_asking`, `txn_answering`, `marker_sending`, `marker_taking`).
"""

from uuid import UUID

import msgspec

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    LogKey,
    Member,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
)
from region_broker.controller.metadata_image import MetadataImage
from region_broker.region.peers.protocol import PeerMessage
from txn_coordinator.ports import MarkerResult
from txn_coordinator.verdicts import TxnVerdict


class LedLog(msgspec.Struct, frozen=True, array_like=True):
    """A log of a data group, and the leader epoch of that group."""

    topic_id: UUID
    partition: int
    leader_epoch: LeaderEpoch

    @property
    def key(self) -> LogKey:
        """Return which log."""
        return LogKey(self.topic_id, self.partition)


class SentBatch(msgspec.Struct, frozen=True, array_like=True):
    """One transactional batch that waits at the leader of its log."""

    log: LedLog
    base_sequence: SequenceNumber


class SentQuestion(msgspec.Struct, frozen=True, array_like=True):
    """`handlers.dispatch.led_apart.Question`; the connection by its three numbers."""

    transactional_id: str | None
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    adds: bool
    origin: int
    connection: int
    newest_connection: int
    batches: tuple[SentBatch, ...]


class VerifyTransactions(PeerMessage, frozen=True, kw_only=True):
    """Asks the leader of the main group whether batches are in their transactions, in order."""

    main_epoch: LeaderEpoch
    questions: tuple[SentQuestion, ...]


class VerifiedTransactions(PeerMessage, frozen=True, kw_only=True):
    """The answer: names of `TxnVerdict`, for each batch of each question."""

    verdicts: tuple[tuple[str, ...], ...]


class SentMarker(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one decision; `logs`: into which of the message's logs it goes."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    coordinator_epoch: CoordinatorEpoch
    decision: DecisionId
    tv2: bool
    logs: tuple[int, ...]


class WriteMarkers(PeerMessage, frozen=True, kw_only=True):
    """Has the leader of data groups write markers, in order."""

    main_epoch: LeaderEpoch
    logs: tuple[LedLog, ...]
    markers: tuple[SentMarker, ...]


class WrittenMarkers(PeerMessage, frozen=True, kw_only=True):
    """The answer: for each log of each marker, the name of a `MarkerResult`, and an offset.

    Where the marker is `DONE`, that is the HW by then: the marker lies below it.
    """

    results: tuple[tuple[tuple[str, int], ...], ...]


class SentOpen(msgspec.Struct, frozen=True, array_like=True):
    """`handlers.dispatch.led_apart.OpenHere`."""

    log: LedLog
    first_offset: int
    log_end: int


class AbortOpen(PeerMessage, frozen=True, kw_only=True):
    """Has the coordinator abort what a producer has open in logs of data groups (B13)."""

    main_epoch: LeaderEpoch
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    still_open: tuple[SentOpen, ...]


class AbortedOpen(PeerMessage, frozen=True, kw_only=True):
    """The answer: the name of a `TxnVerdict`."""

    verdict: str


def verdict_named(name: str) -> TxnVerdict:
    """Return a verdict by its name."""
    return TxnVerdict.__members__.get(name, TxnVerdict.LOADING)


def result_named(name: str) -> MarkerResult:
    """Return a result by its name."""
    return MarkerResult.__members__.get(name, MarkerResult.RETRY)


def main_epoch_of(image: MetadataImage, leader: Member) -> LeaderEpoch | None:
    """Return under which leader epoch `leader` leads the main group while leaders are spread, None where it does not."""
    leadership = image.leadership
    if image.spread is None or leadership is None or leadership.leader != leader:
        return None
    return leadership.leader_epoch


def leads_apart(image: MetadataImage, leader: Member, log: LedLog) -> bool:
    """Return whether `leader` leads a log under that leader epoch in a data group (INV-ALM1)."""
    spread = image.spread
    row = None if spread is None else spread.groups.get(spread.group_of(log.key))
    return row is not None and (row.leader, row.leader_epoch) == (leader, log.leader_epoch)
