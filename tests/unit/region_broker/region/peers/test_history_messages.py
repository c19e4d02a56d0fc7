"""The wire form of what a mirror has shown."""

from uuid import UUID

import msgspec
import pytest

from geo_replicator.history import LastBatch, ShownLog
from geo_replicator.lineage import LogKey
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.limits import ARRAY_ELEMENTS_MAX
from region_broker.region.peers.history_messages import (
    PIECE_MAX,
    AskBeyond,
    AskDeletions,
    AskHeld,
    DeletionsTold,
    HistoryJudged,
    HistoryPiece,
    LogDifference,
    LogEvidence,
    ProveHistory,
)
from region_broker.region.peers.protocol import (
    FetchLogs,
    FetchPosition,
    Frame,
    FrameKind,
    PeerMessage,
    PeerProtocolError,
    decode_message,
)


@pytest.mark.parametrize(
    "last", [None, LastBatch(LeaderEpoch(0), 0, 0), LastBatch(LeaderEpoch(524_289), 7, 9)]
)
def test_T33_what_a_mirror_has_shown_comes_back_from_the_wire(last: LastBatch | None) -> None:
    shown = ShownLog(LogKey(UUID(int=1), 2), cut_offset=8, end_offset=9, last=last, whole_from=3)
    assert LogEvidence.of(shown).shown() == shown


EPOCH = RegionEpoch(8)
KEY = f"{UUID(int=1).hex}/0"
EVIDENCE = LogEvidence(KEY, 1, 1, 0, LeaderEpoch(-1), 0, 0)
DIFFERENCE = LogDifference(KEY, 0, 1, 1, "")
POSITION = FetchPosition(UUID(int=1).hex, 0, 0)


def messages(count: int) -> list[PeerMessage]:
    """Each message that names logs in pieces, with so many."""
    shown, keys = (EVIDENCE,) * count, (KEY,) * count
    return [
        ProveHistory(region_epoch=EPOCH, reached_region_epoch=EPOCH, number=1, logs=shown),
        HistoryPiece(region_epoch=EPOCH, reached_region_epoch=EPOCH, number=1, logs=shown),
        AskHeld(logs=shown),
        HistoryJudged(differences=(DIFFERENCE,) * count),
        AskDeletions(region_epoch=EPOCH, logs=keys),
        AskDeletions(region_epoch=EPOCH, logs=(), written_under=(-1,) * count),
        DeletionsTold(topic_ids=keys),
    ]


def messages_of_all_logs(count: int) -> list[PeerMessage]:
    positions, forgotten = (POSITION,) * count, ((POSITION.topic_id, 0),) * count
    asked = {f"{POSITION.topic_id}/{number}": 0 for number in range(count)}
    return [
        FetchLogs(region_epoch=EPOCH, bytes_max=1, wait_ms_max=1, positions=positions),
        FetchLogs(region_epoch=EPOCH, bytes_max=1, wait_ms_max=1, forgotten=forgotten),
        AskBeyond(domain="main", region_epoch=EPOCH, for_region="us", positions=asked),
    ]


def read_back(message: PeerMessage) -> PeerMessage:
    body = memoryview(msgspec.msgpack.encode(message))
    tag = type(message).__name__
    return decode_message(Frame(FrameKind.REQUEST, 1, tag, body, memoryview(b"")), type(message))


def test_INV_PHM1_a_message_names_a_few_thousand_logs() -> None:
    assert [read_back(message) for message in messages(PIECE_MAX)] == messages(PIECE_MAX)
    for message in messages(PIECE_MAX + 1):
        with pytest.raises(PeerProtocolError, match="malformed"):
            read_back(message)


def test_INV_PHM1_INV_PF4_what_names_all_logs_names_as_many_as_a_region_has() -> None:
    for message in messages_of_all_logs(ARRAY_ELEMENTS_MAX):
        assert read_back(message) == message
    for message in messages_of_all_logs(ARRAY_ELEMENTS_MAX + 1):
        with pytest.raises(PeerProtocolError, match="malformed"):
            read_back(message)
