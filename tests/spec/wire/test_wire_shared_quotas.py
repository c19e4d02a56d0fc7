"""Quotas over a real socket where who is limited has many connections: what those of one user, and two users, get of a node.

The time that quotas count by is moved by hand, so what may be begun by when is a sum, and not a measurement.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from region_broker.limits import FREE_HELD_BYTES, PRESSED_TIMEOUT_MS
from region_broker.records.batches import Record, build_batch
from region_broker.security.access import AccessChange, Quota
from region_broker.security.identity import Identity
from region_broker.security.quotas import lines, throttles
from region_broker.security.quotas.entities import QuotaKey
from region_broker.wire.server import _in_the_way, _Link
from tests.fixtures.kafka_port import RawClient, WireFixture, frame_of, wire_fixture
from tests.fixtures.waiting import until

PRODUCE, METADATA = 0, 3
REQUEST_BYTES: Final = 5_000
RATE: Final = 10_000.0


@asynccontextmanager
async def limited(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **limits: float
) -> AsyncIterator[tuple[WireFixture, list[float]]]:
    """Run a Kafka port on which users a, b and u have these limits, and who is told to be quiet is for a millisecond: only the order in line counts."""
    now_s = [0.0]
    monkeypatch.setattr(lines, "LOOK_S_MAX", 0.001)
    monkeypatch.setattr(throttles, "WAIT_MS_MAX", dict.fromkeys(throttles.WAIT_MS_MAX, 1))
    async with wire_fixture(folder) as fixture:
        put = tuple(Quota((("user", user),), limits) for user in "abu")
        await fixture.services.metadata.change_access(AccessChange(quotas_put=put))
        quotas = fixture.services.quotas
        assert quotas is not None
        quotas._now_s = lambda: now_s[0]
        yield fixture, now_s


async def client_of(fixture: WireFixture, user: str) -> tuple[RawClient, _Link]:
    known = set(fixture.server._links)
    client = await fixture.connect()
    await client.call(18, 0, {})
    (link,) = set(fixture.server._links) - known
    link.core.peer.state.identity = Identity(f"User:{user}")
    return client, link


def produce_to(partition: int, size_bytes: int = REQUEST_BYTES) -> bytes:
    """Return a framed Produce of exactly that size."""

    def framed(value_bytes: int) -> bytes:
        data = build_batch([Record(None, b"v" * value_bytes, (), 1_700_000_000_000)])
        values: dict[str, Any] = {
            "acks": 1, "timeout": 5_000, "transactional_id": None,
            "topic_data": [{"name": "t", "partition_data": [{"index": partition, "records": data}]}],
        }  # fmt: skip
        return frame_of(PRODUCE, 7, values)

    frame = framed(2 * size_bytes - len(framed(size_bytes)))
    assert len(frame) == size_bytes
    return struct.pack(">i", len(frame)) + frame


def begun_by(now_s: float) -> int:
    """Return how many requests a user may have had begun: one more than what it was given in all is enough for (INV-SQB1)."""
    return int(RATE * (1.0 + now_s) / REQUEST_BYTES) + 1


async def test_INV_SQL1_who_has_many_connections_is_given_what_one_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was carried out however much was owed, and each connection was quiet for itself."""
    async with limited(tmp_path, monkeypatch, producer_byte_rate=RATE) as (fixture, now_s):
        await fixture.topic("t")
        clients = [await client_of(fixture, "u") for _ in range(20)]
        for client, _ in clients:
            client.send_raw(produce_to(0))
        log = fixture.partition("t")

        def held() -> int:
            return sum(link.core.waits_framed for _, link in clients)

        await until(lambda: log.high_watermark + held() == 20, "all have come")
        assert log.high_watermark == begun_by(0.0) == 3
        for _ in range(3):
            now_s[0] += 1.0
            await until(lambda: log.high_watermark >= begun_by(now_s[0]))
            assert log.high_watermark == begun_by(now_s[0])
            assert held() == 20 - log.high_watermark


async def test_INV_SQL1_two_users_of_two_connections_get_their_own_and_each_connection_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, producer_byte_rate=RATE) as (fixture, now_s):
        await fixture.topic("t", 4)
        for partition in range(4):
            client, _ = await client_of(fixture, "ab"[partition // 2])
            client.send_raw(produce_to(partition) * 40)

        def shares() -> list[int]:
            return [fixture.partition("t", partition).high_watermark for partition in range(4)]

        def totals() -> tuple[int, int]:
            first, second, third, fourth = shares()
            return first + second, third + fourth

        for second in range(11):
            now_s[0] = float(second)
            await until(lambda: min(totals()) >= begun_by(now_s[0]))
            # Whoever begins to be read as another one begins goes beyond, and owes it.
            assert max(totals()) <= begun_by(now_s[0]) + 1
        of_a, also_of_a, of_b, also_of_b = shares()
        assert abs(of_a - also_of_a) <= 3, "each had its turn"
        assert abs(of_b - also_of_b) <= 3


async def test_INV_SQL1_request_time_is_shared_by_all_connections_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, request_percentage=0.000_1) as (fixture, now_s):
        monkeypatch.setattr(lines, "LOOK_S_MAX", 0.2)  # before which whoever goes is charged
        clients = [await client_of(fixture, "u") for _ in range(10)]
        other, _ = await client_of(fixture, "other")
        quotas = fixture.services.quotas
        assert quotas is not None
        for client, _ in clients:
            client.send(METADATA, 1, {"topics": None})
            await until(lambda: quotas.owing()[QuotaKey.REQUEST] == 1)

        def held() -> int:
            return sum(link.core.waits_framed for _, link in clients)

        await until(lambda: held() == 9, "the first took more than there was")
        await other.call(METADATA, 1, {"topics": None})
        now_s[0] += 600.0
        await until(lambda: held() == 8)
        await until(lambda: quotas.owing()[QuotaKey.REQUEST] == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert held() == 8, "the second one owes for itself"


async def test_INV_WS11_what_is_held_is_given_up_by_its_peer_and_while_memory_is_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, producer_byte_rate=RATE) as (fixture, _now_s):
        await fixture.topic("t")
        first, _ = await client_of(fixture, "u")
        first.send_raw(produce_to(0, 100_000))
        await first.receive_raw()
        small, small_link = await client_of(fixture, "u")
        large, large_link = await client_of(fixture, "u")
        small.send_raw(produce_to(0))
        large.send_raw(produce_to(0, 4 * FREE_HELD_BYTES))
        await until(lambda: small_link.core.waits_framed and large_link.core.waits_framed)
        now_ms = large_link.last_activity_ms
        assert _in_the_way(large_link, now_ms) is None
        later_ms = now_ms + PRESSED_TIMEOUT_MS
        assert "waited for its quota" in (_in_the_way(large_link, later_ms) or "")
        assert _in_the_way(small_link, later_ms) is None, "it holds nothing that counts"
        fixture.server.close()
        await fixture.server.wait_connections(0)
