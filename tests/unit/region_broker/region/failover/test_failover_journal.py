"""The failover journal against torn tails and damage."""

# ruff: noqa: ASYNC240 -- a test may wait for its own small files

from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from geo_replicator.failover import replay
from geo_replicator.failover_events import Born, DrainBegun, DrainRolledBack, Event
from idempotency.identity import RegionEpoch
from region_broker.ports.system.disk import RealDisk
from region_broker.region.failover.journal import (
    MAGIC,
    EventTooLarge,
    FailoverJournal,
    JournalDamaged,
)
from region_broker.region.failover.record import JournalRecord

EVENTS: list[Event] = [
    Born("eu", acting=True, region_epoch=RegionEpoch(8)),
    DrainBegun("op-1", "us"),
    DrainRolledBack("late"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "failover" / "journal"


def opened(path: Path) -> tuple[FailoverJournal, list[Event]]:
    journal = FailoverJournal(RealDisk(), path)
    return journal, journal.recover()


async def written(path: Path) -> bytes:
    journal, events = opened(path)
    assert events == []
    for event in EVENTS:
        await journal.append(event)
    journal.close()
    return path.read_bytes()


# Holds INV-FJ3.
async def test_events_come_back_in_order(path: Path) -> None:
    await written(path)
    journal, events = opened(path)
    assert events == EVENTS
    await journal.append(EVENTS[1])
    journal.close()
    assert opened(path)[1] == [*EVENTS, EVENTS[1]]


# Holds INV-FJ2.
async def test_a_torn_last_frame_was_never_acted_on(path: Path) -> None:
    whole = await written(path)
    for torn_bytes in (1, 5, 20):
        path.write_bytes(whole[:-torn_bytes])
        journal, events = opened(path)
        assert events == EVENTS[:2]
        await journal.append(EVENTS[2])
        journal.close()
        assert path.read_bytes() == whole


async def test_a_last_frame_with_a_wrong_crc_counts_as_torn(path: Path) -> None:
    whole = await written(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert opened(path)[1] == EVENTS[:2]


@pytest.mark.parametrize("header_across", [False, True])
async def test_a_last_frame_whose_first_sector_was_never_written_counts_as_torn(
    path: Path, header_across: bool
) -> None:
    """The power went while sectors were written: 512 bytes are there as a whole, or are what they were."""
    whole = await written(path)
    journal, _ = opened(path)
    if header_across:  # its length lies at the end of the sector, its CRC in the next
        filler = DrainBegun("o" * (504 - len(whole) - len(_frame_of("")) + 4), "us")
        await journal.append(filler)
        assert path.stat().st_size == 508
    kept = path.read_bytes()
    await journal.append(DrainBegun("o" * 600, "us"))
    journal.close()
    torn = path.read_bytes()
    path.write_bytes(kept + bytes(512 - len(kept)) + torn[512:])
    journal, events = opened(path)
    assert events[:3] == EVENTS
    assert path.read_bytes() == kept
    journal.close()


async def test_zeros_inside_a_sector_are_damage(path: Path) -> None:
    whole = bytearray(await written(path))
    whole[len(MAGIC) : len(MAGIC) + 8] = bytes(8)
    path.write_bytes(bytes(whole))
    with pytest.raises(JournalDamaged):
        opened(path)


def _frame_of(name: str) -> bytes:
    return bytes(8) + msgspec.json.encode(DrainBegun(name, "us"))


# Holds INV-FJ2.
async def test_damage_before_the_end_is_not_mended_by_guessing(path: Path) -> None:
    whole = bytearray(await written(path))
    whole[len(MAGIC) + 12] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(JournalDamaged, match="wrong CRC"):
        opened(path)


async def test_a_file_that_is_no_journal_is_refused(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else entirely")
    with pytest.raises(JournalDamaged, match="magic"):
        opened(path)


def test_a_file_younger_than_its_first_sync_is_new(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(MAGIC[:3])
    assert opened(path)[1] == []
    assert path.read_bytes() == MAGIC


async def test_INV_FJ4_an_event_that_the_next_start_would_not_read_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A region has missed many takeovers of many logs. 2. It records its return. 3. It would end at each start from then on."""
    whole = await written(path)
    journal, _ = opened(path)
    large = DrainBegun("o" * 200, "us")
    monkeypatch.setattr("region_broker.region.failover.journal.EVENT_BYTES_MAX", 200)
    with pytest.raises(EventTooLarge, match=r"this DrainBegun has \d+ bytes, of 200"):
        await journal.append(large)
    assert path.read_bytes() == whole
    await journal.append(EVENTS[1])
    journal.close()
    assert opened(path)[1] == [*EVENTS, EVENTS[1]]


async def test_INV_FRC3_an_event_that_has_no_room_in_the_journal_is_told_and_ends_no_node(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await written(path)
    journal, events = opened(path)
    state = replay(events)
    assert state is not None
    monkeypatch.setattr("region_broker.region.failover.journal.EVENT_BYTES_MAX", 200)
    waits: list[float] = []

    async def wait(duration_ms: float) -> None:
        waits.append(duration_ms)
        if len(waits) == 2:
            monkeypatch.undo()

    clock = Mock(sleep_ms=wait)
    large = DrainBegun("o" * 200, "us")
    await JournalRecord(journal, clock).append(large, state)
    journal.close()
    assert opened(path)[1] == [*EVENTS, large]
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == len(waits) == 2
    assert "empty their data folders" in told[0], "the way out"
