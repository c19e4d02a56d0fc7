"""Quotas over a real socket where who is limited has several connections: what those of one user, and of two users, get of a node.

The time that quotas and throttled connections go by is moved by hand, so what may be begun by when is a sum, and not a measurement.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from region_broker.ports.system.clock import SystemClock
from region_broker.records.batches import Record, build_batch
from region_broker.security.access import AccessChange, Quota
from region_broker.security.identity import Identity
from region_broker.wire.server import _Unread
from tests.fixtures.kafka_port import RawClient, WireFixture, frame_of, wire_fixture
from tests.fixtures.waiting import until

PRODUCE: Final = 0
REQUEST_BYTES: Final = 5_000
RATE: Final = 10_000.0


class PlayedTime(SystemClock):
    """Time of a server and its quotas; who is left unread is read again as it passes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now_s = 0.0
        self._loop = loop
        self._else = loop.call_later
        self._muted: list[asyncio.TimerHandle] = []

    def monotonic_ms(self) -> int:
        return int(self.now_s * 1_000)

    def call_later(
        self, delay_s: float, call: Callable[..., object], *args: Any, **how: Any
    ) -> asyncio.TimerHandle:
        if getattr(call, "__func__", None) is not _Unread._unmute:
            return self._else(delay_s, call, *args, **how)
        timer = asyncio.TimerHandle(self.now_s + delay_s, call, args, self._loop)
        self._muted.append(timer)
        return timer

    @property
    def muted(self) -> list[asyncio.TimerHandle]:
        """Return who is left unread, who is read again first at the front."""
        self._muted = sorted(each for each in self._muted if not each.cancelled())
        return self._muted

    async def pass_until(self, at_s: float, fixture: WireFixture) -> None:
        """Let time pass for connections that all have more to send: each is left unread again as soon as it was read."""
        count = len(fixture.server._links)
        await self._all_are_muted(fixture, count)
        while (first := self.muted[0]).when() <= at_s:
            self.now_s = first.when()
            self._muted.remove(first)
            first._run()
            await self._all_are_muted(fixture, count)
        self.now_s = at_s

    async def _all_are_muted(self, fixture: WireFixture, count: int) -> None:
        # An answer leaves its connection unread from its own time on: no time passes before it.
        await until(
            lambda: (
                len(self.muted) == count
                and not any(link.core.owes for link in fixture.server._links)
            )
        )


@asynccontextmanager
async def limited(
    folder: Path, monkeypatch: pytest.MonkeyPatch, partition_count: int
) -> AsyncIterator[tuple[WireFixture, PlayedTime]]:
    """Run a Kafka port on which users a and b may produce RATE bytes a second each."""
    loop = asyncio.get_running_loop()
    time = PlayedTime(loop)
    monkeypatch.setattr(loop, "call_later", time.call_later)
    async with wire_fixture(folder) as fixture:
        await fixture.topic("t", partition_count)
        put = tuple(Quota((("user", user),), {"producer_byte_rate": RATE}) for user in "ab")
        await fixture.services.metadata.change_access(AccessChange(quotas_put=put))
        quotas = fixture.services.quotas
        assert quotas is not None
        quotas._now_s = lambda: time.now_s
        fixture.server._unread._clock = time
        yield fixture, time


async def client_of(fixture: WireFixture, user: str) -> RawClient:
    known = set(fixture.server._links)
    client = await fixture.connect()
    await client.call(18, 0, {})
    (link,) = set(fixture.server._links) - known
    link.core.peer.state.identity = Identity(f"User:{user}")
    return client


def produce_to(partition: int) -> bytes:
    """Return a framed Produce of exactly REQUEST_BYTES."""

    def framed(value_bytes: int) -> bytes:
        data = build_batch([Record(None, b"v" * value_bytes, (), 1_700_000_000_000)])
        values: dict[str, Any] = {
            "acks": 1, "timeout": 5_000, "transactional_id": None,
            "topic_data": [{"name": "t", "partition_data": [{"index": partition, "records": data}]}],
        }  # fmt: skip
        return frame_of(PRODUCE, 7, values)

    frame = framed(2 * REQUEST_BYTES - len(framed(REQUEST_BYTES)))
    assert len(frame) == REQUEST_BYTES
    return struct.pack(">i", len(frame)) + frame


def given_by(now_s: float) -> int:
    """Return for how many requests what a user was given in all is enough (INV-SQB1)."""
    return int(RATE * (1.0 + now_s) / REQUEST_BYTES)


def shares(fixture: WireFixture, partition_count: int) -> list[int]:
    return [fixture.partition("t", at).high_watermark for at in range(partition_count)]


async def test_INV_WS9_two_users_of_two_connections_get_their_own_and_each_connection_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, 4) as (fixture, time):
        for partition in range(4):
            client = await client_of(fixture, "ab"[partition // 2])
            client.send_raw(produce_to(partition) * 40)
        for second in range(1, 12):
            await time.pass_until(float(second), fixture)
            first, second_of_a, third, fourth = shares(fixture, 4)
            for total in (first + second_of_a, third + fourth):
                # Each connection may have had one request carried out beyond it.
                assert given_by(time.now_s) <= total <= given_by(time.now_s) + 2
            assert abs(first - second_of_a) <= 3, "each had its turn, but for what was saved up"
            assert abs(third - fourth) <= 3


async def test_INV_WS9_what_many_connections_take_beyond_their_quota_is_bounded_by_how_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are left unread one by one, as Kafka mutes channels: it is no hard limit, and yet bytes come to rest at it."""
    count = 20
    async with limited(tmp_path, monkeypatch, count) as (fixture, time):
        for partition in range(count):
            client = await client_of(fixture, "a")
            client.send_raw(produce_to(partition) * 20)
        for second in range(10, 60, 10):
            await time.pass_until(float(second), fixture)
            taken = shares(fixture, count)
            assert given_by(time.now_s) <= sum(taken) <= given_by(time.now_s) + 2 * count
            assert max(taken) - min(taken) <= 3, "each had its turn"
