"""Batches that take long to look into: few at once, by threads that nobody else waits for (INV-RTH1; hostile-input: bombs)."""

import asyncio
import gc
import threading
import weakref
from functools import partial
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from idempotency.record_batch import BatchHeader, Buffer
from region_broker.handlers.fetch import list_offsets
from region_broker.limits import LOOKUP_THREADS, RECORD_THREADS
from region_broker.log.segment import BatchAtTime
from region_broker.partitions import record_rules, time_lookup
from region_broker.partitions.record_threads import RecordThreads
from region_broker.records.batch_rewrite import recompressed
from region_broker.records.batches import Record, build_batch
from region_broker.records.compression import Codec
from tests.fixtures.kafka_port import WireFixture, wire_fixture
from tests.fixtures.waiting import until
from tests.simulation.kafka_client import produce_request
from tests.spec.wire.test_hostile_lookups import asked


async def test_INV_RTH1_few_are_looked_into_at_once_and_nothing_else_waits_for_them() -> None:
    threads, go_on = RecordThreads("records", RECORD_THREADS), threading.Event()
    begun: list[int] = []
    loop = asyncio.get_running_loop()

    def long(number: int) -> int:
        begun.append(number)
        assert go_on.wait(60)
        return number

    works = [
        loop.create_task(threads.run(str(number), partial(long, number)))
        for number in range(2 * RECORD_THREADS + 2)
    ]
    try:
        await until(lambda: len(begun) >= RECORD_THREADS)
        for _ in range(20):  # what logins, syncs and deletions use
            await asyncio.to_thread(int)
        assert begun == list(range(RECORD_THREADS))
        works[-1].cancel()  # its connection is gone before its turn
        await asyncio.sleep(0)  # the loop hands that on in its next turn
    finally:
        go_on.set()
    assert await asyncio.gather(*works[:-1]) == list(range(2 * RECORD_THREADS + 1))
    threads.close()
    assert 2 * RECORD_THREADS + 1 not in begun


class HeldWorks:
    """Works that are begun, and end when they are let go, all of them or one."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._go_on = threading.Semaphore(0)

    def work(self, asked_by: str) -> None:
        self.begun.append(asked_by)
        assert self._go_on.acquire(timeout=60)

    def let_go(self, count: int = 100) -> None:
        self._go_on.release(count)


async def test_INV_RTH2_who_asks_for_much_keeps_others_waiting_for_one_batch() -> None:
    """64 lookups in one write stood in line before everybody else's batches for half an hour."""
    threads, works = RecordThreads("records", 1), HeldWorks()
    async with asyncio.TaskGroup() as tasks:
        for asked_by in (*["User:much"] * 30, "User:other", "User:more", "User:more"):
            tasks.create_task(threads.run(asked_by, partial(works.work, asked_by)))
        await until(lambda: works.begun == ["User:much"])
        works.let_go()
    assert works.begun[1:4] == ["User:other", "User:more", "User:much"]
    assert not threads._waiting
    threads.close()


async def test_INV_RTH4_one_who_asks_has_all_threads_where_nobody_else_does() -> None:
    """A cluster with one service account is one who asks."""
    threads, works = RecordThreads("records", 2), HeldWorks()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(threads.run("User:one", partial(works.work, "User:one")))
        await until(lambda: len(works.begun) == 2)
        works.let_go()
    threads.close()


async def test_INV_RTH4_a_thread_takes_the_next_batch_without_the_event_loop() -> None:
    threads, works, done = RecordThreads("records", 1), HeldWorks(), threading.Event()

    def last() -> None:
        done.set()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(threads.run("User:one", partial(works.work, "User:one")))
        tasks.create_task(threads.run("User:one", last))
        await until(lambda: len(works.begun) == 1)
        works.let_go()
        assert done.wait(60), "this step holds the event loop"
    threads.close()


async def test_INV_RTH4_who_leaves_keeps_his_turn_until_its_work_is_done() -> None:
    threads, works = RecordThreads("records", 1), HeldWorks()
    loop = asyncio.get_running_loop()
    leaves = loop.create_task(threads.run("User:one", partial(works.work, "User:one")))
    await until(lambda: len(works.begun) == 1)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    async with asyncio.TaskGroup() as tasks:
        for asked_by in ("User:one", "User:other"):
            tasks.create_task(threads.run(asked_by, partial(works.work, asked_by)))
        await asyncio.sleep(0)  # both wait
        works.let_go()
    assert works.begun == ["User:one", "User:other", "User:one"]
    threads.close()


async def test_INV_RTH5_what_is_given_up_before_its_turn_leaves_nothing_behind() -> None:
    """As long as anything waited, each one left kilobytes: a client had but to ask, and leave."""
    threads, works = RecordThreads("records", 1), HeldWorks()
    loop = asyncio.get_running_loop()
    kept = [
        loop.create_task(threads.run("User:one", partial(works.work, "User:one"))) for _ in range(2)
    ]
    await until(lambda: len(works.begun) == 1)
    for _ in range(300):
        leaves = loop.create_task(threads.run("User:other", partial(works.work, "User:other")))
        await asyncio.sleep(0)
        leaves.cancel()
        late = loop.create_task(
            threads.run("User:late", partial(works.work, "User:late"), turn_within_s=0)
        )
        found = await asyncio.gather(leaves, late, return_exceptions=True)
        assert [type(each) for each in found] == [asyncio.CancelledError, TimeoutError]
    assert threads._pool._work_queue.qsize() < 5
    works.let_go()
    await asyncio.gather(*kept)
    await threads.run("User:other", partial(works.work, "User:other"))
    assert works.begun == ["User:one", "User:one", "User:other"]
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.run("User:one", partial(works.work, "User:one"))


class Watched(Exception):
    """An error that a test sees go."""


async def test_an_error_is_freed_once_nobody_has_it() -> None:
    """A lookup's error would else keep the bytes that it looked at until somebody looks for cycles."""
    threads = RecordThreads("records", 1)

    def broken() -> None:
        raise Watched

    gc.collect()
    gc.disable()
    try:
        seen: weakref.ref[Watched] | None = None
        try:
            await threads.run("User:one", broken)
        except Watched as error:
            seen = weakref.ref(error)
        await asyncio.to_thread(threads._pool.shutdown)  # its thread has ended
        assert seen is not None
        assert seen() is None
    finally:
        gc.enable()


async def test_INV_RTH4_what_a_work_raises_and_who_is_late_reach_who_asks_and_nobody_else() -> None:
    threads, works = RecordThreads("records", 1), HeldWorks()

    def broken() -> None:
        raise ValueError("of one's own")

    loop = asyncio.get_running_loop()
    first = loop.create_task(threads.run("User:one", partial(works.work, "User:one")))
    await until(lambda: len(works.begun) == 1)
    with pytest.raises(TimeoutError):
        await threads.run("User:late", partial(works.work, "User:late"), turn_within_s=0)
    assert not threads._waiting
    works.let_go()
    await first
    with pytest.raises(ValueError, match="own"):
        await threads.run("User:one", broken)
    assert await threads.run("User:one", partial(int, "5"), turn_within_s=60) == 5
    assert works.begun == ["User:one"]
    threads.close()


async def test_INV_RTH3_the_end_of_a_node_waits_for_no_batch() -> None:
    threads, go_on, begun = RecordThreads("records", 1), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def long() -> None:
        begun.set()
        assert go_on.wait(60)

    running, waiting = (loop.create_task(threads.run(who, long)) for who in ("a", "b"))
    await asyncio.to_thread(begun.wait, 60)
    waiting.cancel()  # the server ends its connections first
    try:
        threads.close()
        assert not running.done()
    finally:
        go_on.set()
    await running
    with pytest.raises(asyncio.CancelledError):
        await waiting


class HeldLookups:
    """Lookups that do not end before they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self._go_on = threading.Event()
        self._position_in = time_lookup.position_in
        monkeypatch.setattr(time_lookup, "position_in", self._held)

    def _held(self, found: BatchAtTime, timestamp_ms: int, start: int) -> object:
        self.begun += 1
        assert self._go_on.wait(60)
        return self._position_in(found, timestamp_ms, start)

    def let_go(self) -> None:
        self._go_on.set()


async def _with_a_packed_batch(fixture: WireFixture) -> None:
    await fixture.topic("t")
    fixture.partition("t").writer.append(
        build_batch([Record(None, b"v", (), 5_000)], codec=Codec.ZSTD)
    )
    await fixture.partition("t").wait_committed(1)


async def test_INV_RTH2_what_is_produced_does_not_wait_for_lookups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = HeldLookups(monkeypatch)
    async with wire_fixture(tmp_path) as fixture:
        await _with_a_packed_batch(fixture)
        await fixture.topic("packed", configs={"compression.type": "zstd"})
        client, other = await fixture.connect(), await fixture.connect()
        for _ in range(2 * LOOKUP_THREADS + 2 * RECORD_THREADS):
            client.send(2, 7, asked(1, 4_000))
        await until(lambda: lookups.begun == LOOKUP_THREADS)
        batch = build_batch([Record(None, bytes(9_000), timestamp_ms=-1)], codec=Codec.GZIP)
        try:
            answer = await other.call(0, 9, produce_request("packed", {0: batch}))
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert lookups.begun == LOOKUP_THREADS, "of one who asks there is one at a time"
        finally:
            lookups.let_go()


async def test_INV_LIO2_lookups_end_with_their_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = HeldLookups(monkeypatch)
    async with wire_fixture(tmp_path) as fixture:
        await _with_a_packed_batch(fixture)
        client = await fixture.connect()
        for _ in range(4):
            client.send(2, 7, asked(1, 4_000))
        await until(lambda: lookups.begun == LOOKUP_THREADS)
        client.writer.close()
        try:
            await fixture.server.wait_connections(0)
        finally:
            lookups.let_go()
    assert lookups.begun == LOOKUP_THREADS


async def test_INV_LIO2_rows_that_a_request_did_not_come_to_in_its_time_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "LOOKUPS_S_MAX", 0)
    lookups = HeldLookups(monkeypatch)
    async with wire_fixture(tmp_path) as fixture:
        await _with_a_packed_batch(fixture)
        client = await fixture.connect()
        try:
            (row,) = (await client.call(2, 7, asked(1, 4_000))).topics[0].partitions
        finally:
            lookups.let_go()
        assert (row.error_code, row.offset) == (ErrorCode.request_timed_out, -1)


async def test_INV_RTH1_batches_are_recompressed_and_searched_by_those_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[str] = []
    position_in = time_lookup.position_in

    def note_recompressed(
        batch: Buffer, header: BatchHeader, codec: Codec, *, level: int | None
    ) -> bytes:
        worked.append(threading.current_thread().name)
        return recompressed(batch, header, codec, level=level)

    def note_position(found: BatchAtTime, timestamp_ms: int, start: int) -> object:
        worked.append(threading.current_thread().name)
        return position_in(found, timestamp_ms, start)

    monkeypatch.setattr(record_rules, "recompressed", note_recompressed)
    monkeypatch.setattr(time_lookup, "position_in", note_position)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "zstd"})
        client = await fixture.connect()
        batch = build_batch([Record(None, bytes(9_000), timestamp_ms=-1)], codec=Codec.GZIP)
        answer = await client.call(0, 9, produce_request("t", {0: batch}))
        assert answer.responses[0].partition_responses[0].error_code == 0
        (row,) = (await client.call(2, 7, asked(1, 0))).topics[0].partitions
        assert row.error_code == 0
        fixture.partition("t").writer.append(
            build_batch([Record(None, b"v", (), 5_000)], codec=Codec.ZSTD)
        )
        await fixture.partition("t").wait_committed(2)
        (row,) = (await client.call(2, 7, asked(1, 4_000))).topics[0].partitions
        assert (row.error_code, row.offset) == (0, 1)
    assert [name.rpartition("_")[0] for name in worked] == ["records", "lookups"]
