"""What no primary can have said: the link's session ends, and the mirror does not (INV-HPR1)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest

from geo_replicator.events import MirrorLogEnd
from geo_replicator.history import HistoryDifference, ShownLog
from geo_replicator.lineage import BEFORE_ALL, LogKey
from geo_replicator.ports import LinkFailed, PrimarySession
from idempotency.identity import NO_LEADER_EPOCH
from region_broker.limits import PARTITION_COUNT_MAX, TOPIC_CONFIG_CHARS_MAX, TOPIC_CONFIG_COUNT_MAX
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.mirror.region_link import PeerPrimary
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.history_messages import HistoryJudged, LogDifference, ProveHistory
from region_broker.region.peers.protocol import (
    CheckedLogs,
    CheckLogs,
    FetchedLogs,
    FetchedPartition,
    FetchLogs,
    LogEpochEnd,
    PeerMessage,
    SyncedTopic,
    SyncTopics,
    TopicRegistry,
)
from region_broker.region.peers.server import PeerServer
from tests.fixtures.linked_regions import REGION_EPOCH, PlayedIdentity

SHOWN = ShownLog(LogKey(UUID(int=1), 0), cut_offset=8, end_offset=9)


def topic(**changes: Any) -> SyncedTopic:
    said: dict[str, Any] = {
        "topic_id": UUID(int=1).hex,
        "name": "orders",
        "partition_count": 1,
        "domain": "main",
        "internal": False,
        "configs": {},
    }
    return SyncedTopic(**(said | changes))


@asynccontextmanager
async def told(asks: type[PeerMessage], answer: PeerMessage) -> AsyncIterator[PrimarySession]:
    """A session with a primary that answers so."""
    network, server = AsyncioNetwork(), PeerServer(AsyncioNetwork(), PlayedIdentity("primary"))

    async def tell(*_: Any) -> PeerMessage:
        return answer

    server.register(asks, tell)
    listener = await server.start("127.0.0.1", 0)
    addresses = RegionAddresses({"primary": [("127.0.0.1", listener.port)]})
    primary = PeerPrimary(network, addresses, "primary", PlayedIdentity("mirror"), REGION_EPOCH)
    try:
        async with primary.session() as (session, _):
            yield session
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"partition_count": count} for count in (-1, 0, PARTITION_COUNT_MAX + 1, 2**63)),
        {"configs": {"min.insync.replicas": "all"}},
        {"configs": {"retention.ms": "x" * (TOPIC_CONFIG_CHARS_MAX + 1)}},
        {"configs": {"k" * (TOPIC_CONFIG_CHARS_MAX + 1): "1"}},
        {"configs": {f"k{number}": "1" for number in range(TOPIC_CONFIG_COUNT_MAX + 1)}},
        {"topic_id": "orders"},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
async def test_INV_HPR1_a_topic_that_no_region_can_have_ends_the_session(
    wrong: dict[str, Any],
) -> None:
    answer = TopicRegistry(metadata_version=1, topics=(topic(), topic(**wrong)))
    async with told(SyncTopics, answer) as session:
        with pytest.raises(LinkFailed, match="a topic that is none"):
            await session.registry()


async def test_INV_CT4_configs_of_an_older_primary_are_kept_as_ours_are() -> None:
    """A primary of a version before kept values as they came; of a newer one there may be keys that nobody here knows."""
    told_of = {"retention.ms": " " * 3_000_000 + "5", "a.new.key": " x"}
    answer = TopicRegistry(metadata_version=1, topics=(topic(configs=told_of),))
    async with told(SyncTopics, answer) as session:
        _, (found,) = await session.registry()
        assert found.configs == {"retention.ms": "5", "a.new.key": " x"}


async def test_INV_HPR1_a_topic_may_have_as_many_partitions_as_there_can_be() -> None:
    answer = TopicRegistry(metadata_version=1, topics=(topic(partition_count=PARTITION_COUNT_MAX),))
    async with told(SyncTopics, answer) as session:
        _, (found,) = await session.registry()
        assert found.partition_count == PARTITION_COUNT_MAX


@pytest.mark.parametrize(
    ("number", "agreed_end", "is_sound"),
    [(1, 8, True), (1, 0, True), (1, 9, False), (1, -1, False), (2, 0, False)],
)
async def test_INV_HPR1_a_log_is_not_held_beyond_what_was_shown_of_it(
    number: int, agreed_end: int, is_sound: bool
) -> None:
    found = HistoryDifference(LogKey(UUID(int=number), 0), agreed_end, 8, 9, "played")
    answer = HistoryJudged(differences=(LogDifference.of(found),))
    async with told(ProveHistory, answer) as session:
        if is_sound:
            assert await session.show_history(BEFORE_ALL, [SHOWN]) == [found]
        else:
            with pytest.raises(LinkFailed, match="nobody asked"):
                await session.show_history(BEFORE_ALL, [SHOWN])


END = 1 << 62
"""No log is as long: in signed 64 bits, with room to count on from any offset."""
CHECKED = ("end_offset", "log_start_offset", "readable_from", "leader_epoch", "partition")
FETCHED = ("position", "data_bytes", "high_watermark", "log_start_offset", "unsent_bytes", "cleaned_below", "partition")  # fmt: skip


@pytest.mark.parametrize("number", [END, 1 << 63, (1 << 64) - 1, -2])
@pytest.mark.parametrize("field", CHECKED)
async def test_INV_HPR1_INV_PF3_a_log_is_not_compared_with_offsets_that_there_cannot_be(
    field: str, number: int
) -> None:
    sound = LogEpochEnd(UUID(int=1).hex, 0, NO_LEADER_EPOCH, END - 1, END - 1, -1)
    asked = {SHOWN.key: MirrorLogEnd(NO_LEADER_EPOCH, 0)}
    async with told(CheckLogs, CheckedLogs(logs=(sound,))) as session:
        found = await session.check(asked)
        assert found[SHOWN.key].log_start_offset == END - 1
    wrong = msgspec.structs.replace(sound, **{field: number})
    async with told(CheckLogs, CheckedLogs(logs=(sound, wrong))) as session:
        with pytest.raises(LinkFailed, match="malformed"):
            await session.check(asked)


@pytest.mark.parametrize("number", [END, 1 << 63, (1 << 64) - 1, -1])
@pytest.mark.parametrize("field", [*FETCHED, "metadata_version", "sent_wall_ms"])
async def test_INV_HPR1_INV_PF3_nothing_is_fetched_with_offsets_that_there_cannot_be(
    field: str, number: int
) -> None:
    sound = FetchedPartition(UUID(int=1).hex, 0, 0, 0, END - 1, END - 1, END - 1, END - 1)
    answer = FetchedLogs(metadata_version=1, sent_wall_ms=1, partitions=(sound,))
    async with told(FetchLogs, answer) as session:
        (part,) = (await session.fetch({}, [])).parts
        assert part.cleaned_below == END - 1
    if field in FETCHED:
        parts = (msgspec.structs.replace(sound, **{field: number}),)
        answer = msgspec.structs.replace(answer, partitions=parts)
    else:
        answer = msgspec.structs.replace(answer, **{field: number})
    async with told(FetchLogs, answer) as session:
        with pytest.raises(LinkFailed, match="malformed"):
            await session.fetch({}, [])
