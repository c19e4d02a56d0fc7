"""What one may not see, sought by ways round its name: the name that a topic waits by, its id, a name that clashes with it, a text that is none."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from region_broker.controller.metadata_commands import CreateTopic
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_names import waiting_name
from region_broker.security.access import Operation, Permission, ResourceType
from tests.fixtures.judged_apis import ROOT, Judged, acl, error_codes, judged_apis
from tests.fixtures.kafka_port import LEADER_EPOCH
from tests.unit.region_broker.handlers.kafka_acl_table import batch, produce
from tests.unit.region_broker.handlers.test_authorizing_attacks import fetch_of

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE, CREATE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE  # fmt: skip
WAITING_ID = UUID(int=4711)
WAITING = waiting_name("payroll", WAITING_ID)
UNKNOWN_TOPIC, INVALID_TOPIC, UNKNOWN_ID = 3, 17, 100


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    async with judged_apis(tmp_path) as found:
        found.give(acl(TOPIC, Operation.ALL, name="mine"))
        yield found


def written_to(topic: UUID) -> dict[str, Any]:
    return {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [
        {"topic_id": topic, "partition_data": [{"index": 0, "records": batch()}]}]}  # fmt: skip


async def test_INV_HFP1_a_topic_that_waits_for_its_name_is_not_there_for_anybody(
    judged: Judged,
) -> None:
    """1. The primary deletes a topic, and makes it anew. 2. A mirror has a log of both. 3. No ACL is of the name that one waits by."""
    topic = TopicImage(topic_id=WAITING_ID, name=WAITING, partition_count=1)
    await judged.wire.store.apply(CreateTopic(topic))
    for each in judged.services.partitions.open_topic(topic):
        each.become_leader(LEADER_EPOCH)
    log = judged.wire.partition(WAITING)
    log.writer.append(batch())
    assert error_codes(await judged.ask(0, 13, written_to(WAITING_ID))) == {UNKNOWN_ID}
    assert log.log_end_offset == 1
    read = await judged.ask(1, 17, fetch_of(WAITING_ID))
    assert error_codes(read) == {UNKNOWN_ID}
    assert not read.responses[0].partitions[0].records
    judged.give(acl(TOPIC, READ), acl(TOPIC, READ, name="payroll", permission=Permission.DENY))
    read = await judged.ask(1, 11, fetch_of(WAITING))
    assert error_codes(read) == {UNKNOWN_TOPIC}
    assert not read.responses[0].partitions[0].records


def creation_of(name: str) -> dict[str, Any]:
    return {"timeout": 1, "validate_only": True, "topics": [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}]}  # fmt: skip


async def test_INV_HAZ4_a_name_that_clashes_is_told_to_who_may_see_it(judged: Judged) -> None:
    await judged.wire.topic("pay.roll")
    judged.give(acl(TOPIC, CREATE, name="pay_roll"))
    (row,) = (await judged.ask(19, 5, creation_of("pay_roll"))).topics
    assert int(row.error_code) == INVALID_TOPIC
    assert "pay.roll" not in str(row)
    judged.give(acl(TOPIC, CREATE, name="pay_roll"), acl(TOPIC, DESCRIBE, name="pay.roll"))
    (row,) = (await judged.ask(19, 5, creation_of("pay_roll"))).topics
    assert "pay.roll" in row.error_message


async def test_INV_AUZ5_no_name_that_is_asked_for_is_remembered_for_any_of_its_kind(
    judged: Judged,
) -> None:
    """Who asks may write to one topic; a refused request for another one, of whatever name, changes nothing of that."""
    drawn = {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1}  # fmt: skip
    for name in ("\0any", "", "*"):
        judged.give(acl(TOPIC, WRITE, name="mine"))
        assert error_codes(await judged.ask(0, 9, produce(batch(), topic=name)))
        assert error_codes(await judged.ask(22, 5, drawn)) == set(), name
    assert error_codes(await judged.ask(22, 5, drawn, who=ROOT)) == set()
