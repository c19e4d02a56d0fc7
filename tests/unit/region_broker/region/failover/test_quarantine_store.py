"""Quarantine on disk: verbatim, immutable, complete before it is named, checked when read."""

# ruff: noqa: ASYNC240 -- a test may wait for its own small files

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from crc32c import crc32c

from geo_replicator.lineage import EMPTY_CUT, Cut, LogKey, TidemarkPoint
from geo_replicator.loss import Takeover, make_statement
from geo_replicator.quarantine import CopyDamaged, CutCause, Provenance
from geo_replicator.tail import Tail
from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch, SequenceNumber
from region_broker.limits import YIELD_ROWS
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.failover.log_surgery import given_up_tails, quarantined_tail
from region_broker.region.failover.quarantine_store import (
    CHUNK_BYTES,
    QuarantineDamaged,
    QuarantineStore,
    ReadBatches,
)
from tests.fixtures.kernel_batches import stamp
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.unit.region_broker.log.test_journal import KeepsNothing
from tests.unit.region_broker.region.failover.test_facts_after_a_kill import now

BATCHES = [
    build_batch([Record(None, f"value {offset}".encode() * 10)], base_offset=offset)
    for offset in range(40, 60)
]
TAIL = b"".join(BATCHES)
NAMED = Provenance(
    domain="main", topic="orders", topic_id=UUID(int=1), partition=3, lineage_epoch=RegionEpoch(17),
    first_offset=40, last_offset=59, region="eu", region_epoch=RegionEpoch(8), acting_region="us",
    base_region_epoch=RegionEpoch(8), base_number=5, byte_count=0, batch_count=0, crc32c=0, moved_wall_ms=9,
)  # fmt: skip


def read(offset: int) -> bytes:
    """Three batches at a time."""
    start = offset - 40
    return b"".join(BATCHES[start : start + 3])


@pytest.fixture
def store(tmp_path: Path) -> QuarantineStore:
    return QuarantineStore(RealDisk(), tmp_path / "quarantine")


async def test_a_tail_is_kept_verbatim_with_its_provenance(store: QuarantineStore) -> None:
    moved = await store.move_in(NAMED, read)
    assert (moved.byte_count, moved.batch_count) == (len(TAIL), 20)
    assert store.tails() == [moved]
    assert b"".join(store.chunks(moved)) == TAIL


def led(offset: int, leader_epoch: int) -> bytes:
    """Return a batch that was appended under a leader epoch, by a producer of that number."""
    origin = Origin(ProducerId(leader_epoch), ProducerEpoch(0), SequenceNumber(0))
    data = bytearray(build_batch([Record(None, b"value")], origin=origin))
    stamp(data, 0, base_offset=offset, leader_epoch=leader_epoch)
    return bytes(data)


@pytest.mark.parametrize(
    ("later", "cause", "elected_clean", "is_found"),
    [
        ((8 << 16) + 6, CutCause.LINEAGE, True, False),
        ((8 << 16) + 5, CutCause.LINEAGE, True, True),
        pytest.param((9 << 16) + 1, CutCause.LINEAGE, True, True, id="of another region's time"),
        pytest.param((8 << 16) + 6, CutCause.DIVERGENCE, True, True, id="nobody judged"),
        pytest.param((8 << 16) + 6, CutCause.LINEAGE, False, True, id="somebody led out of sync"),
    ],
)
async def test_INV_LO9_what_a_later_leader_of_the_region_had_passed_over_is_no_loss(
    store: QuarantineStore, later: int, cause: CutCause, elected_clean: bool, is_found: bool
) -> None:
    """Two nodes hold different batches at one offset: only that of the later leader can have been acknowledged."""
    older = (8 << 16) + 5
    named = msgspec.structs.replace(NAMED, last_offset=40, cause=cause)
    for epoch in (older, later):
        await store.move_in(named, lambda offset, epoch=epoch: led(offset, epoch))  # type: ignore[misc]
    longer = msgspec.structs.replace(named, first_offset=41, last_offset=41)
    await store.move_in(longer, lambda offset: led(offset, older))
    tail = await quarantined_tail(store, store.tails(), elected_clean=elected_clean)
    found = {
        (offset, known.producer_id)
        for known in tail.ranges()
        for offset in range(known.first_offset, known.last_offset + 1)
    }
    assert (40, later) in found
    assert ((40, older) in found, (41, older) in found) == (is_found, is_found)


async def test_INV_LO10_others_are_served_while_a_piece_of_a_tail_is_counted(
    store: QuarantineStore,
) -> None:
    """A piece is a mebibyte, and has as many batches as producers that wait for each of theirs make of it."""
    count, turns = 10 * YIELD_ROWS, 0
    piece = b"".join(led(40 + number, 5) for number in range(count))
    assert len(piece) < CHUNK_BYTES
    named = msgspec.structs.replace(NAMED, last_offset=39 + count)
    await store.move_in(named, lambda _offset: piece)
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(quarantined_tail(store, store.tails()))
        while not counting.done():
            await asyncio.sleep(0)
            turns += 1
    assert counting.result().plain_record_count() == count
    assert turns >= 10


async def test_INV_Q2_a_tail_that_was_moved_survives_a_power_loss() -> None:
    disk = SimulatedDisk()
    disk.make_dirs(Path("/region"))
    store = QuarantineStore(disk, Path("/region/quarantine"), offload=now)
    moved = await store.move_in(NAMED, read)
    disk.power_loss(KeepsNothing())
    assert store.tails() == [moved]
    assert b"".join(store.chunks(moved)) == TAIL


def of_this_life(disk: SimulatedDisk) -> QuarantineStore:
    """Return the quarantine of a process that was just started."""
    disk.process_killed()
    return QuarantineStore(disk, Path("/region/quarantine"), offload=now)


async def test_INV_DK6_what_counts_as_kept_behind_a_kill_outlives_the_power_too() -> None:
    """At whichever step the life before was killed: its names may be in memory only."""
    at, has_died, counted = 0, True, 0
    while has_died:
        disk = SimulatedDisk()
        disk.make_dirs(Path("/region"))
        disk.crash_after(at)
        with suppress(Crashed):
            await QuarantineStore(disk, Path("/region/quarantine"), offload=now).move_in(
                NAMED, read
            )
        has_died = disk.crashed
        kept = {*await of_this_life(disk).kept()}
        disk.power_loss(KeepsNothing())
        assert kept <= {tail.identity for tail in of_this_life(disk).tails()}, at
        counted += bool(kept) and has_died
        at += 1
    assert counted, "there is such a step"


FOLDER = Path(f"/region/quarantine/main/{NAMED.topic_id.hex}-{NAMED.partition}")


def with_room_for(disk: SimulatedDisk, most_bytes: int) -> None:
    """Let the disk hold so much in all."""

    def take_room(path: Path, size_bytes: int) -> None:
        held_bytes = sum(len(disk.content(each)) for each in disk.files_under(Path("/region")))
        if size_bytes > 0 and held_bytes + size_bytes > most_bytes:
            raise OSError(errno.ENOSPC, "no space left on device", str(path))

    disk.take_room = take_room  # type: ignore[method-assign]


async def test_INV_QS7_a_tail_for_whose_provenance_there_is_no_room_gives_back_its_own() -> None:
    """Once there is a little more, the tail fits: what was there of it would have to fit beside it."""
    disk = SimulatedDisk()
    disk.make_dirs(Path("/region"))
    store = QuarantineStore(disk, Path("/region/quarantine"), offload=now)
    with_room_for(disk, len(TAIL) + 9)
    with pytest.raises(OSError, match="no space left"):
        await store.move_in(NAMED, read)
    assert disk.list_dir(FOLDER) == []
    with_room_for(disk, len(TAIL) + 1_000)
    moved = await store.move_in(NAMED, read)
    assert (store.tails(), b"".join(store.chunks(moved))) == ([moved], TAIL)


@pytest.mark.parametrize("shorter", [0, 1])
async def test_INV_QS7_a_tail_that_a_kill_left_unfinished_keeps_no_room_from_the_next(
    shorter: int,
) -> None:
    """At whichever step: the room that there is for one is there for it again, also where the log has grown since."""
    at, has_died = 0, True
    first = msgspec.structs.replace(NAMED, last_offset=59 - shorter)
    while has_died:
        disk = SimulatedDisk()
        disk.make_dirs(Path("/region"))
        with_room_for(disk, 2 * len(TAIL) - len(BATCHES[-1]) if shorter else len(TAIL) + 1_000)
        store = of_this_life(disk)
        disk.crash_after(at)
        with suppress(Crashed):
            await store.move_in(first, read)
        has_died = disk.crashed
        store = of_this_life(disk)
        if not await store.kept():
            moved = await store.move_in(NAMED, read)
            assert (store.tails(), b"".join(store.chunks(moved))) == ([moved], TAIL), at
        at += 1
    assert at > 5


async def test_INV_QS7_a_move_leaves_alone_what_comes_from_another_node_meanwhile(
    store: QuarantineStore,
) -> None:
    """It is on its way as well, under a name of its own, and in the same folder."""
    moved = await store.move_in(NAMED, read)
    store = QuarantineStore(RealDisk(), store._root.with_name("another"))
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield TAIL[:7]
        has_begun.set()
        await may_end.wait()
        yield TAIL[7:]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.keep_copy(moved, pieces()))
        await has_begun.wait()
        shorter = msgspec.structs.replace(NAMED, last_offset=50)
        await store.move_in(shorter, lambda offset: b"".join(BATCHES[offset - 40 : 11]))
        may_end.set()
    assert sorted(tail.last_offset for tail in store.tails()) == [50, 59]
    assert await store.has(moved)


def test_INV_DK6_so_does_a_statement_that_is_made_again() -> None:
    takeover = Takeover(
        "main", "eu", "us", region_epoch=RegionEpoch(17), planned=False, last_heard_ms=0
    )
    statement = make_statement(takeover, EMPTY_CUT, [], Tail(), now_wall_ms=1)
    at, has_died = 0, True
    while has_died:
        disk = SimulatedDisk()
        disk.make_dirs(Path("/region"))
        disk.crash_after(at)
        with suppress(Crashed):
            QuarantineStore(disk, Path("/region/quarantine")).keep_statement(statement)
        has_died = disk.crashed
        of_this_life(disk).keep_statement(statement)
        disk.power_loss(KeepsNothing())
        assert of_this_life(disk).statement("main", RegionEpoch(17)) == statement, at
        at += 1


def test_INV_QS2_the_first_statement_of_a_region_epoch_stays(store: QuarantineStore) -> None:
    takeover = Takeover(
        "main", "eu", "us", region_epoch=RegionEpoch(17), planned=False, last_heard_ms=0
    )
    first, second = (
        make_statement(takeover, EMPTY_CUT, [], Tail(), now_wall_ms=wall_ms) for wall_ms in (1, 2)
    )
    store.keep_statement(first)
    store.keep_statement(second)
    assert store.statement("main", RegionEpoch(17)) == first


def other(offset: int) -> bytes:
    """Other records at the same offsets."""
    return build_batch([Record(None, f"other {offset}".encode() * 10)], base_offset=offset)


async def test_moving_it_again_changes_nothing(store: QuarantineStore) -> None:
    moved = await store.move_in(NAMED, read)
    assert await store.move_in(NAMED, read) == moved
    for first, last in ((40, 50), (45, 59), (50, 50)):
        part = msgspec.structs.replace(NAMED, first_offset=first, last_offset=last)
        assert await store.move_in(part, read) == moved
    assert store.tails() == [moved]


@pytest.mark.parametrize(("first", "last"), [(40, 59), (40, 41), (58, 59)])
async def test_INV_Q4_a_tail_of_other_bytes_is_kept_beside_the_one_of_its_name(
    store: QuarantineStore, first: int, last: int
) -> None:
    moved = await store.move_in(NAMED, read)
    named = msgspec.structs.replace(NAMED, first_offset=first, last_offset=last)
    second = await store.move_in(named, other)
    assert await store.move_in(named, other) == second
    assert sorted(tail.crc32c for tail in store.tails()) == sorted({moved.crc32c, second.crc32c})
    kept = b"".join(store.chunks(second))
    assert kept == b"".join(map(other, range(first, last + 1)))
    assert b"".join(store.chunks(moved)) == TAIL


async def test_INV_Q4_a_tail_that_was_cut_off_for_another_cause_is_kept_beside_it(
    store: QuarantineStore,
) -> None:
    """What a takeover has cut off is named by its cause (T25): the same bytes that a divergence put aside do not stand for it."""
    for cause in CutCause:
        await store.move_in(msgspec.structs.replace(NAMED, cause=cause), read)
    assert sorted(tail.cause for tail in store.tails()) == sorted(CutCause)


async def test_INV_Q4_a_tail_that_the_disk_changed_does_not_stand_for_the_one_that_is_moved_again(
    store: QuarantineStore, tmp_path: Path
) -> None:
    await store.move_in(NAMED, read)
    (batches,) = tmp_path.rglob("*.batches")
    batches.write_bytes(batches.read_bytes()[:-1])
    again = await store.move_in(NAMED, read)
    assert b"".join(store.chunks(again)) == TAIL


async def test_T13_a_tail_with_the_holes_that_cleaning_left_is_kept(store: QuarantineStore) -> None:
    holed = BATCHES[2] + BATCHES[7] + BATCHES[19]

    def read_holed(offset: int) -> bytes:
        return b"".join(BATCHES[n] for n in (2, 7, 19) if n >= offset - 40)

    moved = await store.move_in(NAMED, read_holed)
    assert b"".join(store.chunks(moved)) == holed
    assert await store.move_in(NAMED, read_holed) == moved


async def some_turns_later(work: Callable[[], None]) -> None:
    """As a thread would: others go on before it, and behind it."""
    for _ in range(3):
        await asyncio.sleep(0)
    work()
    await asyncio.sleep(0)


@pytest.mark.parametrize("reads", [(read, read), (read, other)], ids=["the same", "other bytes"])
async def test_INV_QS6_moves_of_one_log_that_meet_come_one_after_the_other(
    tmp_path: Path, reads: tuple[ReadBatches, ReadBatches]
) -> None:
    store = QuarantineStore(RealDisk(), tmp_path / "quarantine", offload=some_turns_later)
    async with asyncio.TaskGroup() as tasks:
        moves = [tasks.create_task(store.move_in(NAMED, each)) for each in reads]
    moved = [move.result() for move in moves]
    assert {tail.crc32c: tail for tail in store.tails()} == {tail.crc32c: tail for tail in moved}
    assert len(store.tails()) == len(set(reads))
    for tail, each in zip(moved, reads, strict=True):
        whole = b"".join(BATCHES) if each is read else b"".join(map(other, range(40, 60)))
        assert b"".join(store.chunks(tail)) == whole
    assert not list(tmp_path.rglob("*.partial"))


async def test_INV_QS6_a_copy_gets_its_name_while_nobody_else_gives_one_in_that_folder(
    tmp_path: Path,
) -> None:
    """Two threads would find the same name free, and one tail take the other's bytes."""
    naming = most = 0

    async def counted(work: Callable[[], None]) -> None:
        nonlocal naming, most
        names = getattr(work, "__name__", "") == "finish"
        naming += names
        most = max(most, naming)
        for _ in range(20 if names else 0):
            await some_turns_later(lambda: None)
        work()
        naming -= names

    store = QuarantineStore(RealDisk(), tmp_path / "quarantine", offload=counted)
    whole = b"".join(map(other, range(40, 60)))
    copied = msgspec.structs.replace(
        NAMED, byte_count=len(whole), batch_count=20, crc32c=crc32c(whole)
    )

    async def pieces() -> AsyncIterator[bytes]:
        yield whole

    async with asyncio.TaskGroup() as tasks:
        moving = tasks.create_task(store.move_in(NAMED, read))
        tasks.create_task(store.keep_copy(copied, pieces()))
    assert most == 1
    kept = {b"".join(store.chunks(tail)) for tail in store.tails()}
    assert kept == {whole, b"".join(store.chunks(moving.result()))}


@pytest.mark.parametrize("is_last", [False, True], ids=["at its folder", "at its names"])
async def test_INV_QS6_a_move_that_is_cancelled_has_ended_when_it_is_repeated(
    tmp_path: Path, is_last: bool
) -> None:
    """Its thread was at work: what it names, the repetition finds."""
    at_work, may_go_on = asyncio.Event(), asyncio.Event()

    async def held(work: Callable[[], None]) -> None:
        if not is_last or getattr(work, "__name__", "") == "finish":
            at_work.set()
            await may_go_on.wait()
        work()

    store = QuarantineStore(RealDisk(), tmp_path / "quarantine", offload=held)
    assert await store.kept() == {}
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(store.move_in(NAMED, read))
        await at_work.wait()
        first.cancel()
        again = tasks.create_task(store.move_in(NAMED, read))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        assert not again.done()
        may_go_on.set()
    assert first.cancelled()
    assert store.tails() == [again.result()]
    assert list(await store.kept()) == [again.result().identity]


# Holds INV-QS1.
async def test_a_tail_without_provenance_is_moved_again(
    store: QuarantineStore, tmp_path: Path
) -> None:
    moved = await store.move_in(NAMED, read)
    (provenance,) = tmp_path.rglob("*.json")
    provenance.unlink()
    (batches,) = tmp_path.rglob("*.batches")
    batches.write_bytes(b"half of it")
    assert await store.move_in(NAMED, read) == moved
    assert b"".join(store.chunks(moved)) == TAIL


async def test_a_tail_that_cannot_be_read_whole_is_not_quarantined(store: QuarantineStore) -> None:
    with pytest.raises(QuarantineDamaged, match="nothing was cut off"):
        await store.move_in(NAMED, lambda offset: read(offset) if offset < 50 else b"")
    assert store.tails() == []


async def test_a_flipped_bit_is_found(store: QuarantineStore, tmp_path: Path) -> None:
    moved = await store.move_in(NAMED, read)
    (batches,) = tmp_path.rglob("*.batches")
    damaged = bytearray(batches.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    batches.write_bytes(bytes(damaged))
    with pytest.raises(QuarantineDamaged):
        list(store.chunks(moved))


async def test_tails_of_different_lineage_entries_stand_side_by_side(
    store: QuarantineStore,
) -> None:
    await store.move_in(NAMED, read)
    await store.move_in(msgspec.structs.replace(NAMED, lineage_epoch=24), read)
    assert [tail.lineage_epoch for tail in store.tails()] == [17, 24]


@pytest.mark.parametrize(
    "other_one",
    [
        {"cause": CutCause.DIVERGENCE},
        {"region": "us"},
        {"acting_region": "us"},
        {"lineage_epoch": 8},
        {"first_offset": 39},
    ],
    ids=["diverged", "cut elsewhere", "of another's takeover", "of a takeover that acted", "begins below the cut"],
)  # fmt: skip
async def test_T25_only_what_own_takeovers_since_cut_off_and_gave_up_is_named_again(
    store: QuarantineStore, other_one: dict[str, object]
) -> None:
    given_up = msgspec.structs.replace(NAMED, acting_region="eu")
    logs = (given_up.key.log, LogKey(given_up.topic_id, 4))
    cut = Cut(TidemarkPoint(RegionEpoch(8), 5), dict.fromkeys(logs, 40))

    def batches(offset: int) -> bytes:
        return b"".join(other(at) for at in range(offset, 60))

    moved = await store.move_in(given_up, batches)
    await store.move_in(msgspec.structs.replace(given_up, partition=4, **other_one), batches)
    assert given_up_tails(store, cut, "eu", RegionEpoch(8), []) == [moved]


# -- copies between the nodes of a region ----------------------------------------------------------


async def sent(*pieces: bytes, fails: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if fails is not None:
        raise fails


@pytest.fixture
async def moved(tmp_path: Path) -> Provenance:
    """The tail as another node has it."""
    return await QuarantineStore(RealDisk(), tmp_path / "other").move_in(NAMED, read)


async def test_INV_QS5_a_copy_is_a_tail_as_any_other_and_survives_a_power_loss(
    moved: Provenance,
) -> None:
    disk = SimulatedDisk()
    disk.make_dirs(Path("/region"))
    store = QuarantineStore(disk, Path("/region/quarantine"), offload=now)
    await store.keep_copy(moved, sent(TAIL[:7], TAIL[7:]))
    disk.power_loss(KeepsNothing())
    again = QuarantineStore(disk, Path("/region/quarantine"), offload=now)
    assert again.tails() == [moved]
    assert b"".join(again.chunks(moved)) == TAIL
    assert await again.move_in(NAMED, read) == moved, "nor is it moved in once more"


@pytest.mark.parametrize(
    "pieces",
    [
        sent(TAIL[:-1]),
        sent(TAIL, b"x"),
        sent(TAIL[:-1], b"x"),
        sent(TAIL[:9], fails=OSError(28, "No space left on device")),
    ],
    ids=["short", "long", "another", "broken off"],
)
async def test_INV_QS5_nothing_is_left_of_a_copy_that_is_not_the_tail(
    store: QuarantineStore, moved: Provenance, pieces: AsyncIterator[bytes], tmp_path: Path
) -> None:
    with pytest.raises((CopyDamaged, OSError)):
        await store.keep_copy(moved, pieces)
    assert store.tails() == []
    assert [path for path in (tmp_path / "quarantine").rglob("*") if path.is_file()] == []
    assert not await store.has(moved)
    await store.keep_copy(moved, sent(TAIL))
    assert await store.has(moved)


async def test_INV_QS5_nothing_is_left_of_a_copy_that_the_disk_did_not_make_durable(
    moved: Provenance,
) -> None:
    disk = SimulatedDisk()
    disk.make_dirs(Path("/region"))
    store = QuarantineStore(disk, Path("/region/quarantine"), offload=now)

    def refused(operation: str, _path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(5, "input/output error")

    disk.fault = refused
    with pytest.raises(OSError, match="input/output error"):
        await store.keep_copy(moved, sent(TAIL))
    disk.fault = None
    folder = Path("/region/quarantine/main")
    assert [disk.list_dir(folder / log) for log in disk.list_dir(folder)] == [[]]


async def test_INV_Q5_a_copy_stands_beside_another_tail_of_its_name(
    store: QuarantineStore, moved: Provenance
) -> None:
    own = await store.move_in(NAMED, other)
    assert not await store.has(moved)
    await store.keep_copy(moved, sent(TAIL))
    assert {tail.edition for tail in store.tails()} == {0, 1}
    assert {tail.identity for tail in store.tails()} == {own.identity, moved.identity}


async def test_a_tail_within_a_longer_one_is_there_unless_its_bytes_are_others(
    store: QuarantineStore, tmp_path: Path
) -> None:
    whole = await store.move_in(NAMED, read)
    node = QuarantineStore(RealDisk(), tmp_path / "shorter")
    part = msgspec.structs.replace(NAMED, first_offset=43, last_offset=48)
    shorter = await node.move_in(part, read)
    differs = await QuarantineStore(RealDisk(), tmp_path / "differs").move_in(part, other)
    assert await store.has(whole)
    assert await store.has(shorter)
    assert not await store.has(differs)
    assert not await node.has(whole)
    diverged = msgspec.structs.replace(shorter, cause=CutCause.DIVERGENCE)
    assert not await store.has(diverged)
    (batches,) = (tmp_path / "quarantine").rglob("*.batches")
    batches.write_bytes(TAIL[:-1])
    assert not await store.has(shorter), "what is damaged here does not stand for it"


async def test_a_piece_is_sent_of_what_is_kept_only_also_after_an_operator_took_it_away(
    store: QuarantineStore, moved: Provenance, tmp_path: Path
) -> None:
    assert await store.piece(moved.identity, 0, 10) is None
    await store.move_in(NAMED, read)
    again = QuarantineStore(RealDisk(), tmp_path / "quarantine")
    assert await again.piece(moved.identity, 3, 10) == TAIL[3:13]
    (batches,) = (tmp_path / "quarantine").rglob("*.batches")
    batches.unlink()
    assert await again.piece(moved.identity, 0, 10) is None
    assert not await again.kept(), "nor is it named any more"


async def test_INV_QS4_a_damaged_provenance_is_named_to_nobody_and_costs_no_other_tail(
    store: QuarantineStore, tmp_path: Path
) -> None:
    first = await store.move_in(NAMED, read)
    await store.move_in(NAMED, other)
    (damaged,) = (tmp_path / "quarantine").rglob("*-1.json")
    damaged.write_bytes(b"{")
    again = QuarantineStore(RealDisk(), tmp_path / "quarantine")
    assert list((await again.kept()).values()) == [first]


NOT_UTF8 = b'{"domain": "\xff"}'


def put(path: Path, data: bytes | None) -> None:
    """Put a file there; a folder instead, of which the disk refuses to read a file (OSError), where there are no data."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("data", [None, NOT_UTF8], ids=["not read", "no text"])
async def test_INV_QS4_of_a_takeover_given_up_all_is_named_that_can_be_read(
    store: QuarantineStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | None
) -> None:
    """The region that acted has promised by then: a node that ended here would end so at each of its starts."""
    given_up = msgspec.structs.replace(NAMED, acting_region="eu")
    first = await store.move_in(given_up, read)
    await store.move_in(given_up, other)
    (damaged,) = tmp_path.rglob("*-1.json")
    put(damaged, data)
    unreadable: list[str] = []
    assert given_up_tails(store, EMPTY_CUT, "eu", RegionEpoch(8), unreadable) == [first]
    assert damaged.name in caplog.text
    (why,) = unreadable
    assert damaged.name in why
    with pytest.raises(QuarantineDamaged, match=r"Give that file back from a copy, or move it"):
        store.tails()


async def test_INV_QS4_what_people_put_beside_the_folders_is_none_of_it(
    store: QuarantineStore, tmp_path: Path
) -> None:
    moved = await store.move_in(NAMED, read)
    domain = tmp_path / "quarantine" / "main"
    for stray in (
        domain / "17-1-1.json", domain / "old.tgz", domain / f"{2:032x}-0", domain.parent / "README",
        domain.parent / "lost+found" / f"{3:032x}-0" / "1-1-1.json", domain / "aside" / "17-1-1.json",
    ):  # fmt: skip
        put(stray, b"not json")
    again = QuarantineStore(RealDisk(), tmp_path / "quarantine")
    assert again.tails() == again.readable_tails([]) == [moved]
    assert list((await again.kept()).values()) == [moved]


async def test_INV_QS4_a_quarantine_whose_folder_is_not_read_keeps_no_takeover_waiting(
    store: QuarantineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.move_in(msgspec.structs.replace(NAMED, acting_region="eu"), read)

    def refused(_disk: RealDisk, _path: Path) -> list[str]:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(RealDisk, "list_dir", refused)
    unreadable: list[str] = []
    assert given_up_tails(store, EMPTY_CUT, "eu", RegionEpoch(8), unreadable) == []
    (why,) = unreadable
    assert "input/output error" in why


@pytest.mark.parametrize("suffix", [".json", ".batches"])
async def test_INV_QS4_a_tail_is_kept_beside_one_that_the_disk_does_not_read(
    store: QuarantineStore, tmp_path: Path, suffix: str
) -> None:
    await store.move_in(NAMED, read)
    (damaged,) = (tmp_path / "quarantine").rglob(f"*{suffix}")
    put(damaged, None)
    again = await store.move_in(NAMED, read)
    assert b"".join(store.chunks(again)) == TAIL


@pytest.mark.parametrize("data", [None, NOT_UTF8, b"not json"], ids=["not read", "no text", "no JSON"])  # fmt: skip
def test_INV_QS4_a_statement_that_cannot_be_read_is_a_damaged_one(
    store: QuarantineStore, tmp_path: Path, data: bytes | None
) -> None:
    """Whoever asks for it tells that, and goes on: after a cut, at the end of an operation, before a region returns."""
    put(tmp_path / "quarantine" / "main" / "statements" / "17.json", data)
    diverged = msgspec.structs.replace(NAMED, cause=CutCause.DIVERGENCE)
    with pytest.raises(QuarantineDamaged, match=r"Give that file back from a copy, or move it"):
        store.cause_of(diverged)
    takeover = Takeover(
        "main", "eu", "us", region_epoch=RegionEpoch(17), planned=False, last_heard_ms=0
    )
    store.keep_statement(make_statement(takeover, EMPTY_CUT, [], Tail(), now_wall_ms=1))
