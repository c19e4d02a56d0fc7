"""Rows of docs/FAULTS.md in which retention has deleted, or must not delete, while something else happens.

Each record fills a segment; most are older than the topic keeps them from the start.
"""

import shutil
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from region_broker.workbench.stage import wait_until
from tests.process.client_fixture import CALL_S
from tests.process.faults.fixture import DAY_S, PATIENCE_S
from tests.process.faults.scenes import Stand

AGED: Final = "aged"
_SWEPT: Final = "swept"
_SETTINGS: Final = {"segment.bytes": "4096", "retention.ms": "3600000"}
_AGE_MS: Final = 7_200_000
_CHECKS_MS: Final = 200


def log_starts_above_the_cut(stand: Stand) -> None:
    """The new primary's folder is so old a copy that retention has passed its end in the lost one: that log is copied
    anew."""
    fixture = stand.fixture
    stand.start()
    _create(stand)
    early = _write(stand, stand.primary, "early")
    fixture.settle()
    fixture.stage.kill(stand.mirror)
    copy = fixture.folder / "copy"
    shutil.copytree(fixture.folder / stand.mirror, copy)
    fixture.start(stand.mirror)
    _write(stand, stand.primary, "late")
    fixture.settle()
    _restart_with_retention(stand)
    _await_start(stand, AGED, 7)
    fixture.gone |= set(fixture.values(stand.primary, AGED, 1))
    for name in (stand.primary, stand.mirror):
        fixture.stage.kill(name)
    fixture.stage.folders.empty(stand.mirror)
    shutil.copytree(copy, fixture.folder / stand.mirror, dirs_exist_ok=True)
    shutil.rmtree(copy)
    fixture.start(stand.mirror)
    stand.fail_over(stand.mirror)
    wanted = sorted([*early, *_write(stand, stand.mirror, "after")])
    fixture.start(stand.primary)
    fixture.be_whole()
    for name in (stand.primary, stand.mirror):
        assert fixture.values(name, AGED, 1) == wanted, name


def primary_forgets_no_mirror(stand: Stand) -> None:
    """A mirror is away, and the primary starts again, ten days later: retention goes as far as that mirror has come,
    no further."""
    fixture = stand.fixture
    stand.start()
    _restart_with_retention(stand)
    for topic, age_ms in ((AGED, 0), (_SWEPT, _AGE_MS)):
        _create(stand, topic)
        _write(stand, stand.primary, "early", topic, age_ms)
        fixture.settle()
    _await_start(stand, _SWEPT, 3)  # so the primary has looked how far the mirror is
    fixture.stage.kill(stand.mirror)
    _restart_with_retention(stand, clock_moved_s=10 * DAY_S)
    late = _write(stand, stand.primary, "late")
    _await_start(stand, AGED, 3)
    assert late <= set(fixture.values(stand.primary, AGED, 1)), (
        "the primary has deleted what the mirror lacks"
    )
    fixture.stage.kill(
        stand.primary
    )  # with no retention soon, for it would go on when the mirror has come
    for name in (stand.primary, stand.mirror):
        fixture.start(name, clock_moved_s=10 * DAY_S, retention_check_interval_ms=DAY_S * 1000)
    fixture.settle()
    assert late <= set(fixture.values(stand.mirror, AGED, 1)), "the mirror has a gap"


def _create(stand: Stand, topic: str = AGED) -> None:
    admin = stand.admin()
    admin.create_topics([NewTopic(topic, 1, 1, config=_SETTINGS)])[topic].result(CALL_S)


def _write(
    stand: Stand, name: str, word: str, topic: str = AGED, age_ms: int = _AGE_MS
) -> set[str]:
    """Write four records, one after the other, each too long for one segment with another."""
    values = [f"{word} {number} {'x' * 3600}" for number in range(4)]
    for each in values:
        stand.fixture.send(name, topic, [each], 1, age_ms=age_ms)
    return set(values)


def _restart_with_retention(stand: Stand, *, clock_moved_s: int = 0) -> None:
    stand.fixture.stage.kill(stand.primary)
    stand.fixture.start(
        stand.primary, clock_moved_s=clock_moved_s, retention_check_interval_ms=_CHECKS_MS
    )
    stand.fixture.await_acting(stand.primary)


def _await_start(stand: Stand, topic: str, offset: int) -> None:
    """Return once retention at the primary has taken what lies below an offset."""
    bootstrap = stand.fixture.stage.cluster.place(stand.primary).bootstrap
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "starts", "log_level": 0})
    place = TopicPartition(topic, 0)
    try:
        wait_until(
            f"retention of {topic} comes to {offset}", PATIENCE_S,
            lambda: reader.get_watermark_offsets(place, timeout=CALL_S)[0] >= offset,
        )  # fmt: skip
    finally:
        reader.close()
