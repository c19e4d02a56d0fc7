"""A recovery checkpoint whose thread is half done when something else comes between, or when its disk has no room."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.pieces import drained
from idempotency.record_batch import iter_headers
from idempotency.snapshot_draft import PRODUCERS_AT_ONCE
from region_broker.log.journal.sync_job import RecoveryCheckpointOutcome
from region_broker.log.leaving import Leaving
from region_broker.log.log_config import FlushPolicy, NodeLogConfig, topic_log_config
from region_broker.log.log_setup import LogListener, LogSetup
from region_broker.log.partition_log import PartitionLog
from region_broker.log.parts.durability import LogDurability
from region_broker.log.recovery_checkpoints import RecoveryCheckpoints
from region_broker.log.segment import SealedCache
from region_broker.ports.disk import DiskFile
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, batch, fixture


def written(count: int) -> Fixture:
    some = fixture()
    for _ in range(count):
        some.partition.writer.append(batch())
    some.sync()
    return some


def left_behind(some: Fixture) -> list[str]:
    """Return the files of `some` that no start would want."""
    return [name for name in some.disk.list_dir(some.folder) if name.endswith(".tmp")]


def put(durability: LogDurability) -> None:
    job = drained(durability.begin_recovery_checkpoint())
    assert job is not None
    durability.finish_recovery_checkpoint(job, job.run())


def no_room_for(suffix: str) -> Callable[[str, Path], None]:
    def full(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.name.endswith(suffix):
            raise OSError(errno.ENOSPC, "full")

    return full


@pytest.mark.parametrize("suffix", [".snapshot.tmp", ".bookmark.tmp"])
def test_INV_BKD5_what_found_no_room_leaves_nothing_of_it(suffix: str) -> None:
    some = written(5)
    some.disk.fault = no_room_for(suffix)
    for _ in range(3):
        put(some.partition.log.durability)
        some.partition.writer.append(batch())
        some.sync()
    assert left_behind(some) == []
    assert some.partition.failed is None


class DiskWithCompany(RealDisk):
    """A disk on which something else is done once, right after a file of that ending was opened beside the log."""

    def __init__(self) -> None:
        self.suffix = ""
        self.between: Callable[[], None] = lambda: None

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        found = super().open(path, create=create)
        if self.suffix and path.name.endswith(self.suffix):
            self.suffix = ""
            self.between()
        return found


def log_on(disk: RealDisk, folder: Path) -> PartitionLog:
    node = NodeLogConfig()
    setup = LogSetup(
        folder=folder,
        cache=SealedCache(disk, node),
        config=topic_log_config(node, {"segment.bytes": "1048576"}),
        flush_policy=FlushPolicy.COMMIT,
        listener=LogListener(on_dirty=lambda _log: None),
    )
    return PartitionLog.open(setup)


def append(log: PartitionLog, count: int, *, size_bytes: int = 5_000) -> None:
    for _ in range(count):
        data = batch(size_bytes=size_bytes)
        log.appender.append(data, next(iter_headers(data))[1], LEADER_EPOCH)


def settled(log: PartitionLog) -> None:
    """What a node that stops does in a thread, while the one of the recovery checkpoint is not told to end."""
    log.settle()


def closed(log: PartitionLog) -> None:
    log.close()


def left(log: PartitionLog) -> None:
    leaving = Leaving(log, keep=True)
    leaving.sync()
    leaving.end()


def sealed(log: PartitionLog) -> None:
    append(log, 1, size_bytes=100_000)  # the segment ends where the recovery checkpoint would be
    log.durability.sync_now()
    assert len(log.sealed_paths()) == 1


def cut(log: PartitionLog) -> None:
    log.trimmer.truncate_to(100)
    append(log, 3)
    log.durability.sync_now()


@pytest.mark.parametrize("suffix", [".bookmark.tmp", ".snapshot.tmp"])
@pytest.mark.parametrize("between", [settled, closed, left, sealed, cut])
def test_INV_BKD5_what_comes_between_finds_its_own_files_whole(
    tmp_path: Path, suffix: str, between: Callable[[PartitionLog], None]
) -> None:
    disk = DiskWithCompany()
    log = log_on(disk, tmp_path / "log")
    append(log, 200)  # 1 MiB all but some 30 kB
    log.durability.sync_now()
    disk.suffix, disk.between = suffix, lambda: between(log)
    put(log.durability)
    assert disk.suffix == ""
    assert log.failed is None
    assert [path.name for path in log.folder.iterdir() if path.name.endswith(".tmp")] == []
    end, state = log.log_end_offset, log.state.encode()
    log.close()
    after = log_on(RealDisk(), tmp_path / "log")
    assert after.recovered_clean
    assert (after.log_end_offset, after.state.encode()) == (end, state)
    after.close()


def many_producers(log: PartitionLog, count: int) -> None:
    for number in range(count):
        origin = Origin(ProducerId(number), ProducerEpoch(0), SequenceNumber(0))
        data = batch(origin=origin)
        log.appender.append(data, next(iter_headers(data))[1], LEADER_EPOCH)


def appended(log: PartitionLog) -> None:
    many_producers(log, 1)  # one that is known, and packed already


ROLLED_AT = 900_000


def rolled(log: PartitionLog) -> None:
    append(log, 2, size_bytes=ROLLED_AT)


def rolled_and_sealed(log: PartitionLog) -> None:
    rolled(log)
    log.durability.sync_now()


@pytest.mark.parametrize(
    ("between", "is_put"),
    [(appended, True), (rolled_and_sealed, True), (rolled, False), (cut, False), (closed, False)],
)
def test_INV_BKD6_what_comes_between_two_pieces_is_in_it_or_it_is_not_begun(
    tmp_path: Path, between: Callable[[PartitionLog], None], is_put: bool
) -> None:
    log = log_on(RealDisk(), tmp_path / "log")
    many_producers(log, 2 * PRODUCERS_AT_ONCE)
    log.durability.sync_now()
    pieces = log.durability.begin_recovery_checkpoint()
    next(pieces)
    between(log)
    job = drained(pieces)
    assert (job is not None) == is_put
    if job is None:
        return
    log.durability.finish_recovery_checkpoint(job, job.run())
    assert log.durability.unread_bytes == 0
    end, state = log.log_end_offset, log.state.encode()
    # As after a kill: nobody closes it.
    after = log_on(RealDisk(), tmp_path / "log")
    assert after.durability.unread_bytes == 0
    assert (after.log_end_offset, after.state.encode()) == (end, state)


async def test_INV_BKD6_the_node_serves_others_between_the_pieces(tmp_path: Path) -> None:
    log = log_on(RealDisk(), tmp_path / "log")
    many_producers(log, 4 * PRODUCERS_AT_ONCE)
    served, is_done = 0, False

    async def in_thread(work: Callable[[], RecoveryCheckpointOutcome]) -> RecoveryCheckpointOutcome:
        nonlocal is_done
        is_done = True
        return work()

    async def serve() -> None:
        nonlocal served
        while not is_done:
            served += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(), name="other")
        await RecoveryCheckpoints(in_thread).put(log.durability)
    assert served >= 4
    assert log.durability.unread_bytes == 0
    log.close()
