"""Rows of docs/FAULTS.md about regions, links, failovers and clients that can be caused from outside of a process.

Not here: what a play is given, and what holds for each (`scenes`); what retention does meanwhile (`retention`).
"""

import re
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from region_broker.workbench.cluster_plan import RegionPlace
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.stage import wait_until
from tests.process.client_fixture import CALL_S, create_topic
from tests.process.faults.cases import When
from tests.process.faults.fixture import PATIENCE_S, TOPIC, Fixture
from tests.process.faults.retention import log_starts_above_the_cut, primary_forgets_no_mirror
from tests.process.faults.scenes import Scene, Stand

AGAIN: Final = "again"


def topic_made_again(stand: Stand) -> None:
    """A topic is deleted and made again under its name: the mirror shows the old one until it hears, then the new."""
    fixture = _with_a_topic(stand)
    fixture.stage.cut(stand.primary, stand.mirror, silent=True)
    _make_again(stand)
    assert fixture.values(stand.mirror, AGAIN, 1) == ["old 1", "old 2"]
    fixture.stage.heal(stand.primary, stand.mirror)
    _await_found(stand, stand.mirror, ["new"])


def topic_made_again_and_primary_lost(stand: Stand) -> None:
    """The same, and the primary is lost before the mirror heard: the mirror has the old topic, also when the primary
    returns."""
    fixture = _with_a_topic(stand)
    fixture.stage.cut(stand.primary, stand.mirror, silent=False)
    _make_again(stand)
    fixture.stage.kill(stand.primary)
    fixture.stage.heal(stand.primary, stand.mirror)
    stand.fail_over(stand.mirror)
    fixture.gone.add("new")
    fixture.start(stand.primary)
    fixture.be_whole()
    for name in (stand.primary, stand.mirror):
        _await_found(stand, name, ["old 1", "old 2"])


def _with_a_topic(stand: Stand) -> Fixture:
    stand.start()
    create_topic(stand.fixture.stage.cluster.place(stand.primary).bootstrap, AGAIN, 1)
    stand.fixture.send(stand.primary, AGAIN, ["old 1", "old 2"], 1)
    stand.fixture.settle()
    return stand.fixture


def _make_again(stand: Stand) -> None:
    admin = stand.admin()
    admin.delete_topics([AGAIN])[AGAIN].result(CALL_S)
    admin.create_topics([NewTopic(AGAIN, 1, 1)])[AGAIN].result(CALL_S)
    stand.fixture.send(stand.primary, AGAIN, ["new"], 1)


def _await_found(stand: Stand, name: str, wanted: list[str]) -> None:
    def found() -> bool:
        try:
            return stand.fixture.values(name, AGAIN, 1) == wanted
        except (OSError, KafkaException):
            return False  # between the two topics

    wait_until(f"{name} shows {wanted}", PATIENCE_S, found)


def grown_apart(stand: Stand) -> None:
    """The lost region had grown a topic; the new one grows it, too, before it returns: the new one's records count."""
    fixture = _with_a_topic(stand)
    fixture.stage.cut(stand.primary, stand.mirror, silent=False)
    lost = stand.admin()
    lost.create_partitions([NewPartitions(AGAIN, 3)])[AGAIN].result(CALL_S)
    fixture.send(stand.primary, AGAIN, ["lost 0", "lost 1", "lost 2"], 3)
    fixture.gone |= {"lost 0", "lost 1", "lost 2"}
    fixture.stage.kill(stand.primary)
    stand.fail_over(stand.mirror)
    admin = stand.admin(stand.mirror)
    admin.create_partitions([NewPartitions(AGAIN, 3)])[AGAIN].result(CALL_S)
    fixture.send(stand.mirror, AGAIN, ["kept 0", "kept 1", "kept 2"], 3)
    fixture.stage.heal(stand.primary, stand.mirror)
    fixture.start(stand.primary)
    fixture.be_whole()
    wanted = ["kept 0", "kept 1", "kept 2", "old 1", "old 2"]
    for name in (stand.primary, stand.mirror):
        assert fixture.values(name, AGAIN, 3) == wanted, name


def epoch_begun_twice(stand: Stand) -> None:
    """A region takes over twice under one number, from copies of its folder: its mirror follows none of the second."""
    fixture, template = stand.fixture, stand.template
    assert template.former is not None
    template.put(template.former / stand.primary, fixture, stand.primary)
    fixture.start(stand.primary)
    stand.fail_over(stand.primary)
    fixture.await_acting(stand.primary)
    others = fixture.write(stand.primary)
    fixture.kept -= others
    fixture.start(stand.mirror)
    assert fixture.view(stand.primary)["region_epoch"] == fixture.view(stand.mirror)["region_epoch"]
    stand.fixture.status_says(stand.mirror, "region failover")
    fixture.shows_all(stand.mirror)
    stand.fail_over(stand.mirror)
    fixture.gone |= others


def switch_under_changes(stand: Stand) -> None:
    """Topics are created all through a planned switch: each one that was acknowledged is there in both regions."""
    stand.start()
    made: list[str] = []
    ended = threading.Event()

    def create() -> None:
        admin = AdminClient(
            {"bootstrap.servers": stand.fixture.stage.cluster.bootstrap, "log_level": 0}
        )
        number = 0
        while not ended.is_set():
            number += 1
            name = f"made-{number}"
            try:
                admin.create_topics([NewTopic(name, 1, 1)], request_timeout=5)[name].result(CALL_S)
            except KafkaException:
                continue  # refused, and not acknowledged
            made.append(name)

    creator = threading.Thread(target=create)
    creator.start()
    try:
        wait_until("a topic", PATIENCE_S, lambda: len(made) > 3)
        stand.fixture.tidemark("region", "switch", "--to", stand.mirror)
        before = len(made)
        wait_until("a topic after the switch", PATIENCE_S, lambda: len(made) > before + 3)
    finally:
        ended.set()
        creator.join(PATIENCE_S)
    stand.fixture.settle()
    for name in stand.fixture.stage.names:
        missing = set(made) - set(stand.admin(name).list_topics(timeout=CALL_S).topics)
        assert not missing, f"{missing} of {len(made)} topics are not in {name}"


def mirror_lost_the_end_of_a_log(stand: Stand) -> None:
    """The mirror's disk lost the end of a log, and the primary is gone: the journal still has it, a failover there
    loses nothing."""
    fixture = stand.fixture
    log = next(fixture.log_folder(stand.mirror, TOPIC, 1).glob("*.log"))
    with log.open("rb+") as file:
        file.truncate(log.stat().st_size // 2)
    fixture.start(stand.mirror)
    wait_until(
        "the mirror shows all",
        PATIENCE_S,
        lambda: set(fixture.values(stand.mirror)) == fixture.kept,
    )
    stand.fail_over(stand.mirror)
    fixture.start(stand.primary)


def cut_link(stand: Stand) -> None:
    """The link is cut: the primary counts what the mirror lacks, the mirror says that it does not know; healed, both
    say 0."""
    stand.start()
    fixture = stand.fixture
    fixture.stage.cut(stand.primary, stand.mirror, silent=False)
    written = fixture.write(stand.primary)
    status = fixture.status_says("unknown", "not heard for")
    [counted] = re.findall(rf"{stand.mirror}: (\d+) records", status)
    assert int(counted) >= len(written), status
    fixture.stage.heal(stand.primary, stand.mirror)
    fixture.settle()
    stand.fixture.status_says(f"{stand.mirror}: 0 records")


def split_brain(stand: Stand) -> None:
    """A failover while the primary lives behind a cut link: both take writes, one line says so; healed, the primary
    returns."""
    stand.start()
    fixture = stand.fixture
    fixture.stage.cut(stand.primary, stand.mirror, silent=False)
    stand.fail_over(stand.mirror)
    fixture.await_acting(stand.mirror)
    fixture.give_up(fixture.write(stand.primary))
    fixture.write(stand.mirror)
    stand.fixture.status_says("SPLIT BRAIN", "docs/runbooks/split_brain.md")
    fixture.stage.heal(stand.primary, stand.mirror)


def folder_runs_twice(stand: Stand) -> None:
    """A copy of the primary's folder runs elsewhere while the primary runs: the mirror says so in `region status` and
    log."""
    fixture = stand.fixture
    with _elsewhere(fixture, stand.primary) as copy:
        stand.start()
        fixture.write(stand.primary)
        copy.launch(stand.primary)
        stand.fixture.status_says("RUNS TWICE")
        copy.kill(stand.primary)
    assert "two nodes run as" in fixture.log(stand.mirror)


@contextmanager
def _elsewhere(fixture: Fixture, name: str) -> Any:
    """Give a copy of a region's folder to a node at other ports."""
    folder = fixture.folder / "elsewhere"
    shutil.copytree(fixture.folder / name, folder / name, ignore=shutil.ignore_patterns("node.log"))
    with LocalCluster.open(
        fixture.folder / "spare", region_count=1, port=0, new_cluster_id=UUID(int=1)
    ) as ports:
        spare, plan = ports.plan.regions[0], fixture.stage.cluster.plan
        moved = [_at(each, spare) if each.name == name else each for each in plan.regions]
        (folder / "cluster.json").write_bytes(
            msgspec.json.encode(msgspec.structs.replace(plan, regions=moved))
        )
        with LocalCluster.open(
            folder, region_count=len(moved), port=None, new_cluster_id=UUID(int=1)
        ) as copy:
            yield copy


def _at(place: RegionPlace, spare: RegionPlace) -> RegionPlace:
    return msgspec.structs.replace(
        place, kafka_port=spare.kafka_port, http_port=spare.http_port, peer_port=spare.peer_port
    )


def candidate_behind_a_third(stand: Stand) -> None:
    """Of two mirrors the one behind takes over: it first copies what the other one has reached."""
    stand.start()
    fixture = stand.fixture
    ahead, behind = stand.template.mirrors
    fixture.stage.cut(stand.primary, behind, silent=False)
    fixture.write(stand.primary)
    fixture.await_mirrored(stand.primary, ahead)
    fixture.stage.kill(stand.primary)
    stand.fail_over(behind)
    fixture.shows_all(behind)
    fixture.shows_all(ahead)
    fixture.stage.heal(stand.primary, behind)
    fixture.start(stand.primary)


def silent_third(stand: Stand) -> None:
    """A third region is stopped, not dead: the failover goes on, and the lost region joins without it."""
    stand.start()
    fixture = stand.fixture
    candidate, silent = stand.template.mirrors
    fixture.stage.cluster.signal(silent, signal.SIGSTOP)
    try:
        fixture.stage.kill(stand.primary)
        stand.fail_over(candidate)
        fixture.write(candidate)
        fixture.start(stand.primary)
        fixture.await_mirrored(candidate, stand.primary)
    finally:
        fixture.stage.cluster.signal(silent, signal.SIGCONT)


def candidate_killed_in_its_takeovers(stand: Stand) -> None:
    """The primary is lost, and the region that is to take over is killed in it, four times, later and later: it takes
    over whole."""
    stand.start()
    fixture = stand.fixture
    fixture.stage.kill(stand.primary)
    for moment_s in (0.0, 0.05, 0.2, 0.8):
        _acts_or_is_told_to(fixture, stand.mirror)
        time.sleep(moment_s)
        fixture.stage.kill(stand.mirror)
        fixture.start(stand.mirror)
    wait_until(
        f"{stand.mirror} acts", PATIENCE_S, lambda: _acts_or_is_told_to(fixture, stand.mirror)
    )
    fixture.start(stand.primary)


def _acts_or_is_told_to(fixture: Fixture, name: str) -> bool:
    """Return whether it acts; if not, order it. One that is about to take over already refuses that."""
    if fixture.view(name).get("acting"):
        return True
    order = {"to": name, "domain": "main", "confirm": True}
    with suppress(ApiError):
        request(fixture.stage.cluster.place(name).http, "POST", "/v1/region/failover", order)
    return False


def tidemarks_damaged_at_primary(stand: Stand) -> None:
    """`__tidemarks` is damaged when the primary starts: it takes writes, says what to do, and a failover loses
    nothing."""
    fixture = stand.fixture
    folder = fixture.log_folder(stand.primary, "__tidemarks", 0)
    _damage(folder)
    fixture.start(stand.mirror)
    fixture.start(stand.primary)
    fixture.ready_tells(stand.primary, "__tidemarks", "region failover")
    fixture.status_says("no tidemark is published any more", "region failover")
    stand.fail_over(stand.mirror)
    _copies_its_tidemarks_again(stand, stand.primary, folder)


def tidemarks_damaged_at_a_mirror(stand: Stand) -> None:
    """The same at a mirror: it copies nothing and names the folder to remove; without it, all is copied."""
    fixture = stand.fixture
    folder = fixture.log_folder(stand.mirror, "__tidemarks", 0)
    _damage(folder)
    fixture.start(stand.primary)
    fixture.start(stand.mirror)
    _copies_its_tidemarks_again(stand, stand.mirror, folder)


def _copies_its_tidemarks_again(stand: Stand, name: str, folder: Path) -> None:
    stand.fixture.ready_tells(name, "remove that folder")
    stand.fixture.stage.kill(name)
    shutil.rmtree(folder)
    stand.fixture.start(name)


def _damage(folder: Path) -> None:
    """Change bytes in the middle of a log."""
    log = max(folder.glob("*.log"), key=lambda each: each.stat().st_size)
    with log.open("rb+") as file:
        file.seek(log.stat().st_size // 2)
        changed = bytes(each ^ 0xFF for each in file.read(8))
        file.seek(log.stat().st_size // 2)
        file.write(changed)


def reader_ahead_of_the_cut(stand: Stand) -> None:
    """A group has read further than the new region's logs reach: it is shown every record of the new region."""
    stand.start()
    fixture = stand.fixture
    fixture.stage.cut(stand.primary, stand.mirror, silent=False)
    consumer = Consumer(
        {"bootstrap.servers": fixture.stage.cluster.bootstrap, "group.id": "ahead", "log_level": 0,
         "auto.offset.reset": "earliest", "session.timeout.ms": 6000,
         "isolation.level": "read_committed", "reconnect.backoff.max.ms": 500}
    )  # fmt: skip
    try:
        consumer.subscribe([TOPIC])
        fixture.give_up(fixture.write(stand.primary))
        _read_until(consumer, fixture.kept | fixture.gone)
        consumer.commit(asynchronous=False)
        fixture.stage.kill(stand.primary)
        stand.fail_over(stand.mirror)
        _read_until(consumer, fixture.write(stand.mirror))
    finally:
        consumer.close()
    fixture.stage.heal(stand.primary, stand.mirror)
    fixture.start(stand.primary)


def _read_until(consumer: Any, wanted: set[str]) -> None:
    missing = set(wanted)

    def read() -> bool:
        for message in consumer.consume(100, timeout=0.5):
            if message.error() is None:
                missing.discard(message.value().decode())
        return not missing

    wait_until(f"a reader is shown {len(wanted)} records", PATIENCE_S, read)


REGIONS: Final[Sequence[Scene]] = (
    Scene(topic_made_again),
    Scene(topic_made_again_and_primary_lost),
    Scene(grown_apart),
    Scene(epoch_begun_twice, When.AFTER),
    Scene(switch_under_changes),
    Scene(mirror_lost_the_end_of_a_log),
    Scene(cut_link),
    Scene(split_brain),
    Scene(folder_runs_twice),
    Scene(log_starts_above_the_cut),
    Scene(primary_forgets_no_mirror),
    Scene(candidate_behind_a_third, regions=3),
    Scene(silent_third, regions=3),
    Scene(candidate_killed_in_its_takeovers),
)
CLIENTS: Final[Sequence[Scene]] = (
    Scene(tidemarks_damaged_at_primary),
    Scene(tidemarks_damaged_at_a_mirror),
    Scene(reader_ahead_of_the_cut, When.AFTER),
)
