"""Requests that name many groups or transactional ids of the longest kind: who else asks is served between their hashes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from idempotency import java_hash
from region_broker.limits import REQUEST_STRING_BYTES_MAX
from region_broker.security.access import Operation, ResourceType
from tests.fixtures.judged_apis import Judged, acl, judged_apis

COUNT = 40
NAMES = [f"{at:02}" + "x" * (REQUEST_STRING_BYTES_MAX - 2) for at in range(COUNT)]
VERIFIED: dict[str, Any] = {
    "producer_id": 7, "producer_epoch": 0, "verify_only": True, "topics": [{"name": "orders", "partitions": [0, 1]}],
}  # fmt: skip
"""But for its id: a transaction that is only looked at."""
LETTERS_MAX = 5 * REQUEST_STRING_BYTES_MAX
"""What a request before a write may do in one piece."""


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    async with judged_apis(tmp_path) as found:
        found.give(
            acl(ResourceType.GROUP, Operation.ALL), acl(ResourceType.TRANSACTIONAL_ID, Operation.ALL),
            acl(ResourceType.CLUSTER, Operation.CLUSTER_ACTION, name="kafka-cluster"),
        )  # fmt: skip
        yield found


@pytest.mark.parametrize(
    ("key", "version", "asked"),
    [
        (9, 8, {"require_stable": False, "groups": [{"group_id": name, "topics": None} for name in NAMES]}),
        (15, 5, {"groups": NAMES, "include_authorized_operations": False}),
        (42, 2, {"groups_names": NAMES}),
        (24, 5, {"transactions": [VERIFIED | {"transactional_id": name} for name in NAMES]}),
        (65, 0, {"transactional_ids": NAMES}),
        (69, 1, {"group_ids": NAMES, "include_authorized_operations": False}),
    ],
    ids=["OffsetFetch", "DescribeGroups", "DeleteGroups", "AddPartitionsToTxn", "DescribeTransactions", "ConsumerGroupDescribe"],
)  # fmt: skip
async def test_INV_HW3_long_names_are_hashed_a_few_in_each_turn_of_the_loop(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, key: int, version: int, asked: dict[str, Any]
) -> None:
    hash_of, letters_by_turn = java_hash.java_string_hash, [0]

    def counting(text: str) -> int:
        letters_by_turn[-1] += len(text)
        return hash_of(text)

    async def turn() -> None:
        while True:
            letters_by_turn.append(0)
            await asyncio.sleep(0)

    java_hash._remembered_long_shard.cache_clear()
    monkeypatch.setattr(java_hash, "java_string_hash", counting)
    async with asyncio.TaskGroup() as tasks:
        turning = tasks.create_task(turn())
        await judged.ask(key, version, asked)
        turning.cancel()
    assert sum(letters_by_turn) == COUNT * REQUEST_STRING_BYTES_MAX, "each is summed once"
    assert max(letters_by_turn) <= LETTERS_MAX
