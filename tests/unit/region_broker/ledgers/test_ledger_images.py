"""Images of a ledger shard on a simulated disk: made, used, refused, and every crash while one is made."""

import asyncio
import errno
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from idempotency import ledger_records as lr
from idempotency.decision import round_of
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.metadata_image import LEDGER_CONFIGS, TRANSACTION_LEDGER
from region_broker.ledgers.image_file import ImageFile, image_ends, image_path
from region_broker.ledgers.images import LedgerImages
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.log.indexes.checked_file import FrameError
from region_broker.log.log_config import NodeLogConfig
from region_broker.partitions.partition import Partition
from region_broker.records.batches import Record, build_batch
from tests.fixtures.coordinator import CoreFixture, Row, tp
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, InstantClock, Topic, at_once, run_now
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.unit.region_broker.log.test_cleaning import clean
from txn_coordinator import events as ev
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.ports import LedgerFailed

NAMES = ("t", "u", "v")


class Ledger:
    """One shard on a simulated disk, which a real coordinator core writes."""

    def __init__(self, step_bytes: int = 400, configs: dict[str, str] | None = None) -> None:
        """Start empty, leading."""
        self.step_bytes = step_bytes
        self.fixture = Fixture(
            SimulatedDisk(),
            Topic(name=TRANSACTION_LEDGER, internal=True, configs=configs or {}),
            NodeLogConfig(index_interval_bytes=256, open_files_max=2, journal_bytes=0),
        )
        self.core = CoreFixture()
        self.pairs: dict[str, tuple[int, int]] = {}
        self.written = 0
        self.round = 0
        self.reopened()

    def reopened(self) -> None:
        """Use the node's next life."""
        self.images = LedgerImages(
            self.fixture.table, self.fixture.disk, InstantClock(),
            offload=at_once, step_bytes=self.step_bytes,
        )  # fmt: skip
        self.log = PartitionTransactionLog(self.fixture.table, InstantClock(), 1, self.images)

    @property
    def shard(self) -> Partition:
        """The partition."""
        return self.fixture.partition

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.fixture.folder

    @property
    def ends(self) -> list[int]:
        """Where its images end."""
        return image_ends(self.fixture.disk, self.folder)

    def transact(self, count: int = 1, *, finish: bool = True) -> None:
        """Let each name do `count` transactions; the last stays open, or undelivered, unless `finish`."""
        self.core.step(ev.ReleaseRound(round_of(LEADER_EPOCH, self.round)))
        self.core.deliver()
        for number in range(count):
            self.round += 1
            self.core.step(ev.EnterRound(round_of(LEADER_EPOCH, self.round)))
            for name in NAMES:
                self._one(name, number)
            if finish or number < count - 1:
                self.core.step(ev.ReleaseRound(round_of(LEADER_EPOCH, self.round)))
                self.core.deliver()
            self._flush()

    def _one(self, name: str, number: int) -> None:
        core = self.core
        core.stock(2)
        if name not in self.pairs:
            asked = core.init(name)
            core.persist()
            self.pairs[name] = (core.answers[asked].producer_id, core.answers[asked].producer_epoch)
        core.add(*self.pairs[name], tp("orders", number), name=name, tv=2)
        core.persist()
        if name != NAMES[-1]:
            asked = core.end(*self.pairs[name], number % 2 == 0, name=name, tv=2)
            core.persist()
            self.pairs[name] = (core.answers[asked].producer_id, core.answers[asked].producer_epoch)

    def _flush(self) -> None:
        rows, self.written = self.core.rows[self.written :], len(self.core.rows)
        for at in range(0, len(rows), 3):  # batches of several rows
            self.append([Record(key, value) for _, key, value in rows[at : at + 3]])

    def append(self, records: list[Record]) -> int:
        """Append a batch durably; return its size in bytes."""
        batch = build_batch(records)
        assert self.shard.writer.append_ledger(batch).base_offset >= 0
        self.fixture.sync()
        return len(batch)

    def any_value(self) -> bytes:
        """Return an entry's value."""
        if not self.core.rows:
            self.core.init()
        return next(value for _, _, value in self.core.rows if value is not None)

    def renew(self) -> bool:
        """Make an image if one is due."""
        return run_now(self.images.renew(0))

    def load(self) -> list[Row]:
        """Return the rows of a load."""

        async def loaded() -> list[Row]:
            return list(await self.log.load(0))

        return asyncio.run(loaded())

    def expect_true(self) -> list[Row]:
        """A load comes to what the whole ledger comes to; return its rows."""
        rows = self.load()
        assert state_of(rows) == state_of(self.log.replay(0))
        return rows

    def cut_and_lead(self, offset: int, leader_epoch: int) -> None:
        """Cut the log and lead under a new epoch, as a takeover does."""
        self.shard.become_mirror()
        self.shard.truncate_to(offset)
        self.shard.become_leader(LeaderEpoch(leader_epoch))

    def fill_to(self, end: int, text: bytes) -> None:
        """Append rows of a later version, one a batch, up to an end."""
        while self.shard.log_end_offset < end:
            self.append([Record(b"\x7f\x7f" + text, b"")])


def state_of(rows: "Iterator[Row] | list[Row]") -> object:
    """Return what replay makes of rows."""
    core = TxnCoordinatorCore(0, region_epoch=RegionEpoch(8))
    for row in rows:
        core.replay(*row)
    gate = core._gate
    return (
        (gate.current, gate.current_offset, gate.released),
        {name: (entry.record, entry.decision) for name, entry in core._table.entries.items()},
    )


def test_a_load_reads_an_image_and_what_came_after_it() -> None:
    ledger = Ledger()
    ledger.transact(20)
    assert ledger.renew()
    ledger.transact(2, finish=False)
    rows = ledger.expect_true()
    assert len(rows) < 40 < len(list(ledger.log.replay(0)))


def test_INV_LIG3_an_image_is_due_when_the_shard_has_grown_by_a_step_or_by_its_size() -> None:
    ledger = Ledger(step_bytes=1_000)
    assert not ledger.renew()
    ledger.transact(20)
    assert ledger.renew()
    assert not ledger.renew()
    ledger.transact(1)
    assert not ledger.renew()
    ledger.transact(5)
    assert ledger.renew()
    assert ledger.ends[0] == ledger.shard.high_watermark
    ledger.fixture.kill_and_reopen()
    ledger.reopened()
    assert not ledger.renew()


def test_an_image_of_an_image_goes_on_from_it() -> None:
    ledger = Ledger()
    ledger.transact(100, finish=False)
    assert ledger.renew()
    known = ledger.shard.log.segments.bytes_between(0, ledger.ends[0], 1 << 30)
    for _ in range(4):
        ledger.transact(4, finish=False)
        before = ledger.fixture.disk.bytes_read
        assert ledger.renew()
        assert ledger.fixture.disk.bytes_read - before < known / 2
        ledger.expect_true()
    assert len(ledger.ends) == 2


def test_INV_LIG3_a_large_image_waits_until_as_much_was_added() -> None:
    ledger = Ledger(step_bytes=10)
    for name in range(50):
        value = ledger.any_value()
        ledger.append([Record(lr.encode_transaction_key(f"idle-{name}"), value)])
    assert ledger.renew()
    size_bytes = ledger.fixture.disk.file_size(image_path(ledger.folder, ledger.ends[0]))
    grown = 0
    while not ledger.renew():
        grown += ledger.append([Record(lr.encode_transaction_key("busy"), ledger.any_value())])
    assert size_bytes <= grown < size_bytes + 200


def test_INV_LIF2_a_damaged_image_gives_way_to_the_older_one_then_to_the_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.renew()
    ledger.transact(10)
    ledger.renew()
    newest, older = ledger.ends
    ledger.fixture.disk.damage(image_path(ledger.folder, newest), 40)
    with caplog.at_level(logging.WARNING):
        rows = ledger.expect_true()
    assert f"{newest}.image is ignored" in caplog.text
    whole = len(list(ledger.log.replay(0)))
    assert len(rows) < whole
    ledger.fixture.disk.damage(image_path(ledger.folder, older), 40)
    assert len(ledger.expect_true()) == whole
    ledger.transact(10)
    assert ledger.renew()  # from the beginning
    assert len(ledger.expect_true()) < whole


def test_INV_LIG1_after_a_cut_the_older_image_is_used() -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.renew()
    ledger.transact(10)
    ledger.renew()
    newest, older = ledger.ends
    ledger.cut_and_lead(older + 3, LEADER_EPOCH + 65_536)
    rows = ledger.expect_true()
    assert len(rows) < older
    ledger.fill_to(newest, b"\x01")  # the log ends where the image does, with another history
    assert ledger.expect_true() != []
    assert run_now(ledger.images.newest(ledger.shard)).head.end_offset == older  # type: ignore[union-attr]


# Holds INV-LIF1.
def test_INV_LIG1_another_batch_at_the_same_end_and_epoch_is_another_history() -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.fill_to(ledger.shard.log_end_offset + 5, b"\x01")
    ledger.renew()
    (end,) = ledger.ends
    ledger.cut_and_lead(end - 1, LEADER_EPOCH)
    ledger.fill_to(end, b"\x02")
    assert run_now(ledger.images.newest(ledger.shard)) is None


def test_INV_LIG1_a_batch_of_another_epoch_is_another_history() -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.fill_to(ledger.shard.log_end_offset + 5, b"\x01")
    ledger.renew()
    (end,) = ledger.ends
    ledger.cut_and_lead(end - 2, LEADER_EPOCH + 1)
    ledger.fill_to(end, b"\x01")
    assert run_now(ledger.images.newest(ledger.shard)) is None


def test_INV_LIG1_an_image_below_the_clean_point_does_not_bring_back_what_is_gone() -> None:
    """The tombstone was compacted away; the batch where the image ends stands untouched."""
    ledger = Ledger(
        configs=dict(LEDGER_CONFIGS[TRANSACTION_LEDGER])
        | {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1"}
    )

    def say(name: str, value: bytes | None = ledger.any_value()) -> None:
        ledger.append([Record(lr.encode_transaction_key(name), value)])

    say("gone")
    for number in range(20):
        say(f"kept-{number}")
    assert ledger.renew()
    (end,) = ledger.ends
    say("gone", None)
    for part in range(3):
        for number in range(60):
            say(f"later-{part}-{number}")
        ledger.fixture.clock.pass_ms(1_000)
        clean(ledger.fixture, bound=ledger.shard.high_watermark)
    assert ledger.shard.log.cleaning.holes_below > end
    assert ledger.ends == [end]
    gone = lr.encode_transaction_key("gone")
    assert [key for _, key, _ in ledger.log.replay(0) if key == gone] == []
    assert [key for _, key, _ in ledger.load() if key == gone] == []


def test_INV_LIF3_images_beyond_a_cut_go_when_a_new_one_is_there() -> None:
    ledger = Ledger()
    for _ in range(2):
        ledger.transact(10)
        ledger.renew()
    newest, older = ledger.ends
    ledger.cut_and_lead(older + 3, LEADER_EPOCH + 65_536)
    ledger.fill_to(older + 40, b"\x01")
    assert ledger.renew()
    assert ledger.ends == [older + 40, older]
    assert newest > older + 40


def test_a_cut_while_an_image_is_made_gives_none() -> None:
    ledger = Ledger()
    ledger.transact(10)

    class CutOnSleep(InstantClock):
        async def sleep_ms(self, _duration_ms: float) -> None:
            ledger.cut_and_lead(6, LEADER_EPOCH + 1)
            ledger.fill_to(200, b"\x01")

    ledger.images._clock = CutOnSleep()
    assert not ledger.renew()
    assert ledger.ends == []


def test_INV_LIG2_a_mirror_has_images_too_whatever_it_shows() -> None:
    ledger = Ledger()
    ledger.transact(20)
    ledger.shard.become_mirror()
    assert ledger.shard.sight.visible_end == 0
    assert ledger.renew()
    assert ledger.ends == [ledger.shard.high_watermark]
    ledger.expect_true()


def test_an_image_of_another_ledger_or_shard_is_not_used() -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.renew()
    found = run_now(ledger.images.newest(ledger.shard))
    assert found is not None
    ledger.shard.topic_id = UUID(int=9)
    assert run_now(ledger.images.newest(ledger.shard)) is None


def test_INV_LIG4_a_disk_that_takes_no_image_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()
    ledger.transact(10)

    def full(operation: str, path: Path) -> None:
        if path.suffix == ".image":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    ledger.fixture.disk.fault = full
    assert not ledger.renew()
    assert "no image was made" in caplog.text
    ledger.fixture.disk.fault = None
    assert ledger.shard.failed is None
    ledger.transact(10)
    assert ledger.renew()
    ledger.expect_true()


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_disk_operation_while_an_image_is_made(power: bool) -> None:
    for count in range(200):
        ledger = Ledger()
        for _ in range(2):
            ledger.transact(6)
            ledger.renew()
        ledger.transact(6, finish=False)
        before = state_of(ledger.log.replay(0))
        disk = ledger.fixture.disk
        disk.crash_after(count)
        try:
            ledger.renew()
            crashed = False
        except Crashed:
            crashed = True
        disk.power_loss(random.Random(count)) if power else disk.process_killed()
        ledger.fixture.open()
        ledger.reopened()
        assert state_of(ledger.expect_true()) == before
        assert 1 <= len(ledger.ends) <= 3
        if not crashed:
            assert count > 3
            return
    raise AssertionError("it never came to its end")


def test_a_shard_that_is_damaged_fails_the_load_also_behind_an_image() -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.renew()
    ledger.transact(3)
    path = next(ledger.folder / name for name in ledger.fixture.disk.list_dir(ledger.folder) if name.endswith(".log"))  # fmt: skip
    ledger.fixture.disk.damage(path, ledger.fixture.disk.file_size(path) - 5)
    with pytest.raises(LedgerFailed):
        ledger.load()


@pytest.mark.parametrize("size", [0, 3, 30, -1])
def test_INV_LIF2_a_file_that_ends_early_is_damaged(size: int) -> None:
    ledger = Ledger()
    ledger.transact(10)
    ledger.renew()
    data = ledger.fixture.disk.read_file(image_path(ledger.folder, ledger.ends[0]))
    assert ImageFile.decode(data).encode() == data
    with pytest.raises(FrameError):
        ImageFile.decode(data[:size])
