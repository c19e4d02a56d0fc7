"""A partition that a request names again and again: a commit writes one record of it, and it joins a transaction once.

Before, 4 kB of metadata beside a partition that is named a thousand times filled the ledger, and one that was to join a hundred thousand times held
the event loop.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, TopicName, TopicPartition
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups import errors
from region_broker.handlers.transactions.add_partitions_to_txn import (
    begin_add_partitions_to_txn,
    handle_add_partitions_to_txn,
)
from region_broker.limits import ADMIN_ITEMS_MAX, YIELD_ROWS
from region_broker.wire.codec.fast_paths.transactions import AddRequest, add_answer
from region_broker.wire.cooperative_yield import CooperativeYield
from tests.unit.region_broker.handlers.test_many_judgements import turns_of
from txn_coordinator.verdicts import TxnVerdict

INVALID_REQUEST = 42


async def test_of_a_partition_that_is_named_again_the_last_offset_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "topic_of", lambda _ctx, _tp: SimpleNamespace(topic_id=None))
    parts = [
        SimpleNamespace(partition_index=number, committed_offset=offset, committed_metadata="m")
        for number, offset in ((0, 5), (1, 9), (0, 6), (0, 4))
    ]
    topics = [(TopicName("t"), SimpleNamespace(name="t", partitions=parts))]
    offsets, unknown = await errors.offsets_of(
        cast("Any", None), topics, frozenset(), CooperativeYield()
    )
    assert [(each.tp.partition, each.committed_offset) for each in offsets] == [(0, 4), (1, 9)]
    assert unknown == set()


class Txn:
    """Notes what is asked of the coordinator."""

    def __init__(self) -> None:
        self.joined: list[TopicPartition] = []
        self.verified: list[TopicPartition] = []

    def begin_add_partitions(self, *asked: Any, done: Callable[[TxnVerdict], None], **_more: Any) -> None:  # fmt: skip
        self.joined += asked[3]
        done(TxnVerdict.OK)

    async def add_partitions(self, *asked: Any, **_more: Any) -> TxnVerdict:
        self.joined += asked[3]
        return TxnVerdict.OK

    def verify(self, *asked: Any) -> TxnVerdict:
        self.verified.append(asked[3])
        return TxnVerdict.OK


def joining(version: int, numbers: list[int], *, verify: bool = False) -> tuple[Txn, Any, Any]:
    """Return a coordinator, a context and a request that names these partitions of a topic, of three."""
    txn, orders = Txn(), SimpleNamespace(partition_count=3)
    services = SimpleNamespace(
        txn=txn, authorizer=SimpleNamespace(in_force=False),
        metadata=SimpleNamespace(image=SimpleNamespace(topics={"orders": orders})),
    )  # fmt: skip
    topics = [SimpleNamespace(name="orders", partitions=numbers)]
    ctx = RequestContext(cast("Any", services), 1, 24, version, 77)
    if version < 4:
        request = SimpleNamespace(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=7, v3_and_below_producer_epoch=0, v3_and_below_topics=topics,
        )  # fmt: skip
    else:
        of_one = SimpleNamespace(transactional_id="x", producer_id=7, producer_epoch=0, topics=topics, verify_only=verify)  # fmt: skip
        request = SimpleNamespace(transactions=[of_one])
    return txn, ctx, request


def told_of(answer: Any) -> list[tuple[int, int]]:
    [results] = answer.get("results_by_transaction", [None])
    [topic] = answer["results_by_topic_v3_and_below"] if results is None else results["topic_results"]  # fmt: skip
    return [(row["partition_index"], row["partition_error_code"]) for row in topic["results_by_partition"]]  # fmt: skip


@pytest.mark.parametrize(("version", "verify"), [(3, False), (4, False), (4, True)])
async def test_INV_APT1_a_partition_that_is_named_again_joins_once_and_is_answered_once(
    version: int, verify: bool
) -> None:
    txn, ctx, request = joining(version, [2, 0, 2] + (ADMIN_ITEMS_MAX - 3) * [0], verify=verify)
    answer, turns = await turns_of(handle_add_partitions_to_txn(ctx, request))
    assert [tp.partition for tp in (txn.verified if verify else txn.joined)] == [2, 0]
    assert told_of(answer) == [(2, 0), (0, 0)]
    assert turns >= (ADMIN_ITEMS_MAX - 1_000) // YIELD_ROWS


def test_INV_APT1_so_it_is_where_it_joins_without_a_task() -> None:
    txn, ctx, _ = joining(2, [])
    named = [TopicPartition(TopicName("orders"), number) for number in (2, 0, 2)]
    answers: list[Any] = []
    request = AddRequest("x", ProducerId(7), ProducerEpoch(0), named)
    assert begin_add_partitions_to_txn(ctx, request, answers.append)
    assert txn.joined == named[:2]
    assert bytes(answers[0].answer) == add_answer(77, [(tp, 0) for tp in named[:2]])


@pytest.mark.parametrize(("version", "verify"), [(3, False), (4, False), (4, True)])
async def test_INV_APT1_nothing_is_asked_for_who_names_more_than_any_client_does(
    version: int, verify: bool
) -> None:
    count = ADMIN_ITEMS_MAX + 1
    txn, ctx, request = joining(version, [0] * count, verify=verify)
    answer, turns = await turns_of(handle_add_partitions_to_txn(ctx, request))
    assert (txn.joined, txn.verified) == ([], [])
    assert told_of(answer) == [(0, INVALID_REQUEST)] * count
    assert turns >= (count - 1_000) // YIELD_ROWS


async def test_INV_HW2_many_partitions_are_verified_and_answered_a_few_at_a_time() -> None:
    count = 10_000
    for version, verify in ((3, False), (4, True)):
        txn, ctx, request = joining(version, list(range(count)), verify=verify)
        ctx.services.metadata.image.topics["orders"].partition_count = count
        answer, turns = await turns_of(handle_add_partitions_to_txn(ctx, request))
        assert len(txn.verified if verify else txn.joined) == count
        assert len(told_of(answer)) == count
        assert turns >= 3 * (count - 1_000) // YIELD_ROWS, "named, looked at and answered"
