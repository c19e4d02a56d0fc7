"""Which logs hold something that the last tidemark does not."""

from types import SimpleNamespace
from typing import cast
from uuid import UUID

from geo_replicator.tidemark import TidemarkBook
from geo_replicator.topology import LedgerTopics
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.ports import MetadataSide
from region_broker.region.tidemarks.moved_logs import MovedLogs
from tests.fixtures.node_logs import batch, fixture


def test_INV_CL2_what_became_durable_before_the_term_began_wakes_the_cut_leader() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    ledgers = LedgerTopics(UUID(int=1), UUID(int=2))
    metadata = cast("MetadataSide", SimpleNamespace(image=SimpleNamespace(version=0)))
    woken: list[bool] = []
    logs = MovedLogs(
        some.table, metadata, ledgers, TidemarkBook(ledgers), lambda: woken.append(True)
    )
    assert logs.follow_topics()
    assert woken == [True]
    assert logs.take() == {key_of(some.partition): some.partition}
    assert not logs.follow_topics()
