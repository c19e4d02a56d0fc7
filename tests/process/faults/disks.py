"""Rows of docs/FAULTS.md about logs, disks and what is kept of lost tails, caused from outside of a process.

A limit of the operating system that is set while a node runs is a disk, or a table of descriptors, that is full for it.
"""

import json
import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.main import main as tidemark_command
from region_broker.workbench.stage import log_ends, wait_until
from tests.process.client_fixture import CALL_S
from tests.process.faults.fixture import DAY_S, PATIENCE_S, TOPIC, Fixture
from tests.process.faults.scenes import Scene, Stand

_SMALL_SEGMENTS: Final = {"segment.bytes": "4096"}
_LARGE: Final = "x" * 3_600


def disk_nearly_full(stand: Stand) -> None:
    """The disk fills up at the primary: no record is taken, groups commit, it is said why; with room it goes on by
    itself."""
    fixture = stand.fixture
    disk = shutil.disk_usage(fixture.folder)
    # Above disk_free_bytes_min by an eighth: writes go on with a tenth more than that.
    fixture.start(stand.primary, disk_free_bytes_min=disk.free * 8 // 9)
    fixture.start(stand.mirror)
    fixture.settle()
    filling = fixture.folder / "filling"
    with filling.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.free // 8)
    try:
        fixture.status_says("the disk is nearly full")
        fixture.ready_tells(stand.primary, "the disk is nearly full")
        refused = _send(Producer(_client(stand, {"message.timeout.ms": 2_000})), TOPIC, ["refused"])
        assert len(refused) == 1, "a record was taken"
        group = Consumer(_client(stand, {"group.id": "commits"}))
        group.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
        group.close()
    finally:
        filling.unlink()
    fixture.await_acting(stand.primary)


def no_free_descriptors(stand: Stand) -> None:
    """The primary has no free descriptor when its segments are full: records are taken all the same, and no partition
    stops."""
    stand.start()
    topic, values = "grows", [f"{number} {_LARGE}" for number in range(20)]
    _create(stand, topic, _SMALL_SEGMENTS)
    producer = Producer(_client(stand, {"linger.ms": 0}))
    assert not _send(producer, topic, values[:1])
    with _limited(stand, stand.primary, resource.RLIMIT_NOFILE, _descriptors(stand, stand.primary)):
        for each in values[1:]:
            assert not _send(producer, topic, [each])
        segments = list(stand.fixture.log_folder(stand.primary, topic, 0).glob("*.log"))
        assert len(segments) < len(values), "descriptors were free"
    stand.fixture.settle()
    for name in (stand.primary, stand.mirror):
        assert stand.fixture.values(name, topic, 1) == sorted(values), name


def one_log_cannot_grow(stand: Stand) -> None:
    """One log of a mirror cannot grow on its disk: the others are copied on, it is said why, a restart copies the rest."""
    stand.start()
    fixture = stand.fixture
    topic, values = "large", [f"{number} {_LARGE * 250}" for number in range(46)]
    _create(stand, topic, {})
    fixture.send(stand.primary, topic, values[:42], 1)
    fixture.settle()
    bytes_max = _largest_file_bytes(fixture, stand.mirror) + 65_536
    with _limited(stand, stand.mirror, resource.RLIMIT_FSIZE, bytes_max):
        fixture.send(stand.primary, topic, values[42:], 1)
        fixture.ready_tells(stand.mirror, topic)
        fixture.write(stand.primary)
        wait_until(
            "the other logs are copied", PATIENCE_S,
            lambda: _ends(fixture, stand.mirror) == _ends(fixture, stand.primary),
        )  # fmt: skip
    fixture.stage.kill(stand.mirror)
    fixture.start(stand.mirror)
    fixture.settle()
    assert fixture.values(stand.mirror, topic, 1) == sorted(values)


def recovery_checkpoints_lost(stand: Stand) -> None:
    """Recovery checkpoints of logs that were closed are gone at the primary and damaged at a mirror: the logs are read
    as after a crash."""
    fixture = stand.fixture
    stand.start()
    fixture.stage.cluster.stop()
    for path in (fixture.folder / stand.primary).rglob("*.bookmark"):
        path.unlink()
    for path in (fixture.folder / stand.mirror).rglob("*.bookmark"):
        path.write_bytes(path.read_bytes()[:-4] + b"odd!")
    stand.start()


def log_indexes_lost(stand: Stand) -> None:
    """Indexes, snapshots and headers of segments are gone at the primary and damaged at a mirror: they are made
    again."""
    fixture = stand.fixture
    stand.start()
    topic, values = "segments", [f"{number} {_LARGE}" for number in range(6)]
    _create(stand, topic, _SMALL_SEGMENTS)
    for each in values:
        fixture.send(stand.primary, topic, [each], 1)
    fixture.settle()
    for name in (stand.primary, stand.mirror):
        fixture.stage.kill(name)
        beside = [
            path
            for path in fixture.log_folder(name, topic, 0).iterdir()
            if path.suffix in {".index", ".txnindex", ".snapshot", ".hdr"}
        ]
        assert beside
        for path in beside:
            if name == stand.primary:
                path.unlink()
            else:
                path.write_bytes(b"odd!" + path.read_bytes()[4:])
    stand.start()
    for name in (stand.primary, stand.mirror):
        assert fixture.values(name, topic, 1) == values, name


def killed_in_deletions(stand: Stand) -> None:
    """The primary is killed while it deletes topics: those whose end was told are gone, the others whole; names can be
    used again."""
    fixture = stand.fixture
    stand.start()
    topics = [f"goes-{number}" for number in range(20)]
    for each in topics:
        _create(stand, each, {})
    fixture.send(stand.primary, topics[-1], ["last"], 1)
    admin = stand.admin()
    under_way = [admin.delete_topics([each])[each] for each in topics]
    under_way[0].result(CALL_S)
    told = [each for each, one in zip(topics, under_way, strict=True) if one.done()]
    fixture.stage.kill(stand.primary)
    fixture.start(stand.primary)
    fixture.settle()
    left = set(stand.admin().list_topics(timeout=CALL_S).topics) & set(topics)
    assert not left & set(told), f"{left & set(told)} were deleted"
    if topics[-1] in left:
        assert fixture.values(stand.primary, topics[-1], 1) == ["last"]
    _create(stand, topics[0], {})
    fixture.send(stand.primary, topics[0], ["again"], 1)
    fixture.settle()
    assert fixture.values(stand.mirror, topics[0], 1) == ["again"]


def deletion_kept_by_a_clock_ahead(stand: Stand) -> None:
    """A topic is deleted by mistake, and the clock of the next start is three days ahead: it can still be exported."""
    fixture = stand.fixture
    stand.start()
    _create(stand, "mistake", {})
    fixture.send(stand.primary, "mistake", ["kept"], 1)
    fixture.settle()
    admin = stand.admin()
    admin.delete_topics(["mistake"])["mistake"].result(CALL_S)
    _export(stand)
    fixture.stage.kill(stand.primary)
    fixture.start(stand.primary, clock_moved_s=3 * DAY_S, retention_check_interval_ms=200)
    fixture.await_acting(stand.primary)
    fixture.settle()
    _export(stand)


def kept_tail_changed(stand: Stand) -> None:
    """The disk changes one of the tails that a failover cut off: `region losses` says which, and counts the others."""
    stand.start()
    fixture = stand.fixture
    fixture.stage.cut(stand.primary, stand.mirror, silent=False)
    written = fixture.write(stand.primary)
    fixture.stage.kill(stand.primary)
    stand.fail_over(stand.mirror)
    fixture.stage.heal(stand.primary, stand.mirror)
    fixture.start(stand.primary)
    fixture.settle()
    fixture.give_up(written)
    fixture.losses_are_named()
    fixture.stage.kill(stand.primary)
    tails = sorted((fixture.folder / stand.primary / "quarantine").rglob("*.batches"))
    whole = next(
        path for path in tails if any(each.encode() in path.read_bytes() for each in written)
    )
    content = whole.read_bytes()
    whole.write_bytes(content[:-1])
    fixture.start(stand.primary)
    fixture.settle()
    said = fixture.tidemark("region", "losses")
    assert whole.name in said or "cannot be read" in said, said
    fixture.stage.kill(stand.primary)
    whole.write_bytes(content)
    fixture.start(stand.primary)


DISKS: Final[Sequence[Scene]] = (
    Scene(disk_nearly_full),
    Scene(no_free_descriptors),
    Scene(one_log_cannot_grow),
    Scene(recovery_checkpoints_lost),
    Scene(log_indexes_lost),
    Scene(killed_in_deletions),
    Scene(deletion_kept_by_a_clock_ahead),
    Scene(kept_tail_changed),
)


def _client(stand: Stand, more: dict[str, object]) -> dict[str, object]:
    place = stand.fixture.stage.cluster.place(stand.primary)
    return {"bootstrap.servers": place.bootstrap, "log_level": 0, **more}


def _create(stand: Stand, topic: str, config: dict[str, str]) -> None:
    admin = stand.admin()
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(CALL_S)


def _send(producer: Producer, topic: str, values: Sequence[str]) -> list[KafkaError]:
    """Send these; return the errors when each has its answer."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    for each in values:
        producer.produce(topic, each, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    return errors


@contextmanager
def _limited(stand: Stand, name: str, what: int, most: int) -> Iterator[None]:
    """Let a running node have no more than this."""
    [pid] = stand.fixture.stage.cluster.pids(name)
    before = resource.prlimit(pid, what, (most, resource.prlimit(pid, what)[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, before)


def _descriptors(stand: Stand, name: str) -> int:
    """Return a limit that leaves no number free."""
    [pid] = stand.fixture.stage.cluster.pids(name)
    used = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(used) + 1) if number not in used)


def _largest_file_bytes(fixture: Fixture, name: str) -> int:
    return max(path.stat().st_size for path in (fixture.folder / name).rglob("*") if path.is_file())


def _ends(fixture: Fixture, name: str) -> dict[str, int]:
    """Return where the logs of the topic end that every play has."""
    ends = log_ends(fixture.view(name), with_ledgers=False)
    return {log: end for log, end in ends.items() if log.startswith(f"{TOPIC}-")}


def _export(stand: Stand) -> None:
    """Require that the deleted topic lies in the primary's folder, whole."""
    found: list[str] = []

    def exported() -> bool:
        listed = json.loads(stand.fixture.tidemark("topic", "deleted", "-o", "json"))["deleted"]
        folders = [each["folder"] for each in listed if each["region"] == stand.primary]
        found[:] = folders
        return bool(folders)

    wait_until("the primary keeps it", PATIENCE_S, exported)
    done = CliRunner().invoke(tidemark_command, ["log", "export", found[0]])
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["kept"], done.output
