"""Which logs hold something that the last tidemark does not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from geo_replicator.tidemark import LogPosition, TidemarkBook
from geo_replicator.topology import LedgerTopics
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.ports import MetadataSide
from region_broker.region.tidemarks.moved_logs import MovedLogs
from tests.fixtures.node_logs import batch, fixture
from tests.unit.geo_replicator.test_tidemark import TIDEMARK

LEDGERS = LedgerTopics(UUID(int=1), UUID(int=2))
METADATA = cast("MetadataSide", SimpleNamespace(image=SimpleNamespace(version=0)))


def test_INV_CL2_what_became_durable_before_the_term_began_wakes_the_cut_leader() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    woken: list[bool] = []
    logs = MovedLogs(
        some.table,
        METADATA,
        LEDGERS,
        TidemarkBook(LEDGERS),
        lambda: woken.append(True),
        adopts=False,
    )
    assert logs.follow_topics()
    assert woken == [True]
    assert logs.take() == {key_of(some.partition): some.partition}
    assert not logs.follow_topics()


def test_INV_CL2_a_log_has_news_where_its_end_or_its_start_passed_the_last_tidemark() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    key, end = key_of(some.partition), some.partition.high_watermark
    for named, is_news in (
        (LogPosition(end, 0), False),
        (LogPosition(end - 1, 0), True),
        (None, True),
    ):
        positions = {} if named is None else {key: named}
        book = TidemarkBook(LEDGERS)
        book.apply(0, replace(TIDEMARK, moved=positions))
        logs = MovedLogs(some.table, METADATA, LEDGERS, book, lambda: None, adopts=False)
        logs.add(key)
        assert (logs.hold_news(), logs.forget_old()) == (is_news, is_news), named


def test_INV_CL2_the_round_record_of_a_ledger_shard_is_no_news() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    key = key_of(some.partition)
    ledgers = LedgerTopics(key.topic_id, UUID(int=2))
    logs = MovedLogs(
        some.table, METADATA, ledgers, TidemarkBook(ledgers), lambda: None, adopts=False
    )
    logs.open()
    assert logs.hold_news()
    assert logs.take() == {}
    logs.add(key)
    logs.note_round(key, some.partition.high_watermark)
    assert not logs.hold_news()
