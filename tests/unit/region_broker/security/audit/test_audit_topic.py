"""The trail in its topic: the lines as they are, no further than what is durable, again behind a crash (INV-NAT1, INV-NAT2, INV-NAT3)."""

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from idempotency.record_batch import iter_headers
from region_broker.node import audit_topic
from region_broker.node.audit_topic import POSITION_FILE, AuditTopic
from region_broker.partitions.admission import AppendVerdict
from region_broker.records.batches import iter_records
from region_broker.security.audit.events import AuditEvent, Kind, Outcome
from region_broker.security.audit.recorder import AuditRecorder
from tests.fixtures.node_logs import Fixture, at_once, fixture
from tests.fixtures.waiting import until
from tests.simulation.disk import SimulatedDisk
from tests.unit.region_broker.security.audit.chains import (
    FOLDER,
    MIB,
    files_on,
    is_sound_by_hand,
    lines_on,
    opened,
)

SMALL = 600


class Carried:
    """A trail, the partition that its topic is, and who carries; `acts`: whether this node may write there."""

    def __init__(self, disk: SimulatedDisk, node: Fixture, *, file_bytes_max: int = SMALL) -> None:
        self.disk = disk
        self.node = node
        self.files = opened(disk, file_bytes_max=file_bytes_max)
        self.recorder = AuditRecorder(
            self.files, self.node.clock, node="eu/1", bytes_max=1 << 20, offload=at_once
        )
        self.acts = True
        self.topics: dict[str, Any] = {"tidemark.audit": None}
        self.topic = AuditTopic(
            self.recorder, self._services(), disk, FOLDER, "tidemark.audit"  # type: ignore[arg-type]
        )  # fmt: skip

    def _services(self) -> SimpleNamespace:
        region = SimpleNamespace(acting=True)
        partitions = SimpleNamespace(get=lambda _name, _index: self.node.partition, room=SimpleNamespace(refusal=None))  # fmt: skip
        return SimpleNamespace(
            clock=self.node.clock, region=region, leads=True, apart=None, partitions=partitions,
            metadata=SimpleNamespace(image=SimpleNamespace(topics=self.topics), create_topic=self._create),
            is_served_here=lambda _partition: self.acts,
        )  # fmt: skip

    async def _create(self, name: str, count: int, _configs: Any) -> None:
        assert count == 1
        self.topics[name] = None

    def write(self, *names: str) -> None:
        for name in names:
            self.recorder.record(AuditEvent(kind=Kind.CHANGE, operation=name, outcome=Outcome.DONE))
            records, _ = self.recorder._take_rest()
            self.files.write(records, 1)

    async def step(self) -> bool:
        """Carry once; the log is synced meanwhile."""
        carrying = asyncio.get_running_loop().create_task(self.topic._carried_some())
        while not carrying.done():
            self.node.sync()
            await asyncio.sleep(0)
        return carrying.result()

    async def all(self) -> None:
        for _ in range(20):
            if not await self.step():
                return
        raise AssertionError("it ends")

    def lines(self) -> list[bytes]:
        partition = self.node.partition
        if partition.high_watermark == 0:
            return []
        data = partition.reader.read_raw(0, 1 << 20)
        return [
            (record.value or b"") + b"\n"
            for position, header in iter_headers(data)
            for record in iter_records(data[position : position + header.size_bytes])
        ]


async def test_lines_are_carried_as_they_are_across_files() -> None:
    """INV-NAT1: whoever reads the topic verifies the chain."""
    carried = Carried(SimulatedDisk(), fixture())
    carried.write(*(f"op{number}" for number in range(9)))
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)
    assert is_sound_by_hand(carried.lines())
    assert carried.recorder.carried_seq == carried.files.head.seq
    carried.write("one more")
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)


async def test_what_is_not_durable_is_not_carried() -> None:
    carried = Carried(SimulatedDisk(), fixture(), file_bytes_max=MIB)
    carried.write("durable", "written only")
    carried.files.head = carried.files.head._replace(seq=2)
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)[:2]


async def test_a_node_that_may_not_write_waits_and_brings_it_later() -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.acts = False
    carried.write("waits")
    await carried.all()
    assert carried.lines() == []
    carried.acts = True
    del carried.topics["tidemark.audit"]
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)
    assert "tidemark.audit" in carried.topics, "it was made"


@pytest.mark.parametrize(
    ("changed", "is_made"),
    [({"leads": False}, False), ({"region": SimpleNamespace(acting=False)}, False)],
)
async def test_only_who_leads_in_the_region_that_acts_makes_the_topic_and_writes_there(
    changed: dict[str, Any], is_made: bool
) -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("waits")
    vars(carried.topic._services).update(changed)
    await carried.all()
    assert carried.lines() == [], "it may not write"
    del carried.topics["tidemark.audit"]
    await carried.all()
    assert ("tidemark.audit" in carried.topics) is is_made
    assert carried.lines() == []


@pytest.mark.parametrize("takes", [True, False])
async def test_a_partition_that_is_led_apart_takes_what_its_leader_takes(takes: bool) -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("op")
    apart = SimpleNamespace(is_open=lambda _partition: True, takes_writes=takes)
    vars(carried.topic._services).update(apart=apart, leads=False)
    await carried.all()
    assert bool(carried.lines()) is takes


async def test_a_full_node_takes_no_audit_records_until_there_is_room() -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("op")
    room = carried.topic._services.partitions.room
    room.refusal = "the disk is full"
    await carried.all()
    assert (carried.lines(), carried.recorder.carried_seq) == ([], 0)
    assert "the disk is full" in carried.topic._said
    room.refusal = None
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)


async def test_who_stops_leading_while_the_files_are_read_appends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("op")
    read = carried.topic._next

    def reads_long(*args: Any) -> Any:
        carried.acts = False
        return read(*args)

    monkeypatch.setattr(carried.topic, "_next", reads_long)
    await carried.all()
    assert (carried.lines(), carried.recorder.carried_seq) == ([], 0)
    assert "leads it no more" in carried.topic._said


async def test_what_the_topic_does_not_take_is_not_carried() -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("op")
    refusing = next(each for each in AppendVerdict if each is not AppendVerdict.APPENDED)

    async def committed(_offset: int) -> None:
        return

    outcome = SimpleNamespace(verdict=refusing, detail="not now", next_offset=0)
    played = SimpleNamespace(
        is_leader=True, wait_committed=committed, writer=SimpleNamespace(append=lambda _batch: outcome)
    )  # fmt: skip
    carried.topic._services.partitions.get = lambda _name, _index: played  # type: ignore[method-assign,assignment,return-value]
    await carried.all()
    assert carried.recorder.carried_seq == 0
    assert "not now" in carried.topic._said


async def test_nothing_is_noted_as_carried_before_it_is_acknowledged() -> None:
    """INV-NAT2."""
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("op")
    carrying = asyncio.get_running_loop().create_task(carried.topic._carried_some())
    await until(lambda: carried.node.partition.log_end_offset > 0, "it is appended")
    await asyncio.sleep(0)
    assert not carrying.done(), "it was appended, and no sync has been"
    assert carried.recorder.carried_seq == 0
    while not carrying.done():
        carried.node.sync()
        await asyncio.sleep(0)
    assert carried.recorder.carried_seq == carried.files.head.seq


async def test_many_lines_go_in_batches_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic, "BATCH_BYTES_MAX", 1_000)
    carried = Carried(SimulatedDisk(), fixture(), file_bytes_max=MIB)
    carried.write(*(f"op{number}" for number in range(12)))
    await carried.all()
    data = carried.node.partition.reader.read_raw(0, 1 << 20)
    sizes = [header.size_bytes for _, header in iter_headers(data)]
    assert len(sizes) > 2
    assert max(sizes) < 2_000
    assert carried.lines() == lines_on(carried.disk)


async def test_behind_a_crash_nothing_is_missing_and_some_may_be_there_twice() -> None:
    """INV-NAT2."""
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("first")
    await carried.all()
    carried.write("second")
    before = carried.disk.read_file(FOLDER / POSITION_FILE)
    await carried.all()
    carried.disk.write_file_atomic(FOLDER / POSITION_FILE, before)  # killed before it was noted
    again = Carried(carried.disk, carried.node)
    again.topic.position = again.topic._read_noted()
    again.write("third")
    await again.all()
    assert again.lines() != lines_on(again.disk)
    assert list(dict.fromkeys(again.lines())) == lines_on(again.disk)


async def test_INV_NAT4_a_full_disk_of_the_files_carries_no_line_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. The disk of the trail is full. 2. The node begins to lead the topic. 3. What it carried cannot be noted there. 4. There is room again."""
    monkeypatch.setattr(audit_topic, "BATCH_BYTES_MAX", 1_000)
    carried = Carried(SimulatedDisk(), fixture())
    carried.write(*(f"op{number}" for number in range(9)))
    carried.disk.room_bytes = 10
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)
    assert "No space left" in carried.topic._said
    for _ in range(3):
        assert not await carried.step()
    assert carried.lines() == lines_on(carried.disk)
    assert carried.topic._read_noted().seq == 0
    carried.disk.room_bytes = None
    await carried.all()
    assert carried.topic._in_this_chain(carried.topic._read_noted()) == carried.topic.position
    assert (carried.topic.position.seq, carried.topic._said) == (carried.files.head.seq, "")


async def test_files_that_were_moved_away_are_passed() -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write(*(f"op{number}" for number in range(9)))
    carried.disk.remove(FOLDER / "audit-00000001.jsonl")
    await carried.all()
    assert carried.lines() == lines_on(carried.disk)


async def test_a_record_that_was_changed_is_not_carried() -> None:
    carried = Carried(SimulatedDisk(), fixture())
    carried.write("op0", "op1", "op2")
    path = FOLDER / "audit-00000001.jsonl"
    carried.disk.damage(path, carried.disk.read_file(path).index(b"op0"))
    await carried.all()
    assert carried.lines() == []
    assert "it was changed" in carried.topic._said


async def test_INV_NAT2_a_chain_that_was_begun_anew_is_carried_from_its_beginning() -> None:
    """All files were moved to an archive while the node was stopped, and what notes how far they were carried stayed."""
    before = Carried(SimulatedDisk(), fixture())
    before.write(*(f"op{number}" for number in range(9)))
    await before.all()
    for name in files_on(before.disk):
        before.disk.remove(FOLDER / name)
    after = Carried(before.disk, fixture())
    after.write("first of a new chain")
    assert await after.topic._began()
    await after.all()
    assert after.lines() == lines_on(after.disk)


async def test_INV_NAT2_a_chain_that_was_begun_anew_is_carried_though_it_has_grown_longer_before_it_could_be() -> (
    None
):
    """1. The files are moved away. 2. A start that may not write. 3. The new chain grows past what was noted of the former. 4. Another start."""
    before = Carried(SimulatedDisk(), fixture(), file_bytes_max=MIB)
    before.write(*(f"op{number}" for number in range(9)))
    await before.all()
    for name in files_on(before.disk):
        before.disk.remove(FOLDER / name)
    between = Carried(before.disk, fixture(), file_bytes_max=MIB)
    between.acts = False
    between.write("first of a new chain")
    assert await between.topic._began()
    await between.all()
    between.write(*(f"op{number} of the new chain" for number in range(20)))
    after = Carried(before.disk, fixture(), file_bytes_max=MIB)
    assert await after.topic._began()
    await after.all()
    assert after.lines() == lines_on(after.disk)


@pytest.mark.parametrize("same_length", [True, False])
async def test_INV_NAT2_a_chain_of_another_history_that_is_as_long_is_carried_from_its_beginning(
    same_length: bool,
) -> None:
    """The node was stopped, and wrote to another chain under a version that carried nothing."""
    before = Carried(SimulatedDisk(), fixture(), file_bytes_max=MIB)
    before.write("op0", "op1")
    await before.all()
    before.disk.remove(FOLDER / "audit-00000001.jsonl")
    other = Carried(before.disk, fixture(), file_bytes_max=MIB)
    other.write(*(("opA", "opB") if same_length else ("longer than it was before", "op", "op")))
    after = Carried(before.disk, fixture(), file_bytes_max=MIB)
    assert await after.topic._began()
    await after.all()
    assert after.lines() == lines_on(after.disk)


async def test_a_node_goes_on_while_it_cannot_read_how_far_it_had_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Carried(SimulatedDisk(), fixture())
    before.write("op")
    await before.all()
    after = Carried(before.disk, fixture())
    with monkeypatch.context() as broken:
        broken.setattr(after.disk, "read_file", _no_disk)
        assert not await after.topic._began()
    assert await after.topic._began()
    assert after.topic.position == before.topic.position


def _no_disk(_path: Path) -> bytes:
    raise OSError(errno.EIO, "Input/output error")
