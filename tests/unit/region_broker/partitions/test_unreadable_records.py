"""Records that nobody can read, which a client wrote so: what a lookup by time tells of them (hostile-input: lookups)."""

import logging

import pytest

from idempotency.said_seldom import SAY_AGAIN_MS
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, fixture, raise_start
from tests.unit.region_broker.log.test_cleaning_odd_batches import NOW_MS, UNREADABLE

LOOKUPS = 50


def unreadable() -> Fixture:
    """Return a log of one batch under a right CRC whose record is none."""
    some = fixture()
    some.partition.writer.append(UNREADABLE["an offset far behind its end"])
    some.sync()
    return some


async def look(some: Fixture) -> None:
    found = some.partition.reader.lookup(Isolation.READ_UNCOMMITTED)
    assert await found.first(NOW_MS) == (0, NOW_MS, LEADER_EPOCH)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.INFO]


async def test_INV_TL4_lookups_of_what_nobody_can_read_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who may write to a topic and ask for its times would have a line for each of thousands of rows a second."""
    some = unreadable()
    with caplog.at_level(logging.INFO):
        for _ in range(LOOKUPS):
            await look(some)
        (first,) = told(caplog)
        assert str(some.partition.tp) in first
        some.clock.now_ms += SAY_AGAIN_MS
        await look(some)
    _, second = told(caplog)
    assert f"{LOOKUPS - 1} " in second, "how many were left out"


async def test_INV_TL4_nor_do_those_for_the_largest_time_behind_deleted_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = fixture()
    some.partition.writer.append(UNREADABLE["fewer records than it says"])
    some.sync()
    raise_start(some.partition, 1)
    with caplog.at_level(logging.INFO):
        for _ in range(LOOKUPS):
            found = await some.partition.reader.lookup(Isolation.READ_UNCOMMITTED).latest()
            assert found == (1, NOW_MS, LEADER_EPOCH)
    assert len(told(caplog)) == 1
    some.table.record_threads.close()
