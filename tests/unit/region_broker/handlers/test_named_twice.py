"""A commit that names a partition again writes one record of it: 4 kB of metadata beside a partition that is named a thousand times filled the ledger."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.identity import TopicName
from region_broker.handlers.groups import errors
from region_broker.wire.cooperative_yield import CooperativeYield


async def test_of_a_partition_that_is_named_again_the_last_offset_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "topic_of", lambda _ctx, _tp: SimpleNamespace(topic_id=None))
    parts = [
        SimpleNamespace(partition_index=number, committed_offset=offset, committed_metadata="m")
        for number, offset in ((0, 5), (1, 9), (0, 6), (0, 4))
    ]
    topics = [(TopicName("t"), SimpleNamespace(partitions=parts))]
    offsets, unknown = await errors.offsets_of(
        cast("Any", None), topics, frozenset(), CooperativeYield()
    )
    assert [(each.tp.partition, each.committed_offset) for each in offsets] == [(0, 4), (1, 9)]
    assert unknown == set()
