"""librdkafka in groups against a real node: sharing, static members, offsets in transactions."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.workbench.local_cluster import LocalCluster

pytestmark = pytest.mark.process
PARTITIONS = [TopicPartition("orders", number) for number in range(4)]
POLLS_MAX = 1_200
Members = Callable[..., Consumer]


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    with LocalCluster.open(tmp_path, region_count=1, port=0, new_cluster_id=UUID(int=1)) as cluster:
        cluster.start()
        address = cluster.plan.regions[0].bootstrap
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(10)
        producer = Producer({"bootstrap.servers": address})
        for number in range(40):
            producer.produce("orders", value=str(number), partition=number % 4)
        assert producer.flush(10) == 0
        yield address


@pytest.fixture
def member_of(bootstrap: str) -> Iterator[Members]:
    """Make members of a group; all are closed at the end, or librdkafka waits in its destructor for ever where a test has failed."""
    made: list[Consumer] = []

    def member(**changes: Any) -> Consumer:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
        }
        made.append(Consumer(settings | changes))
        made[-1].subscribe(["orders"])
        return made[-1]

    yield member
    for each in made:
        each.close()


def poll_all(consumers: list[Consumer], *, records: int, shares: list[int]) -> None:
    """Poll until all records are read and committed and the partitions are shared as said."""
    seen: set[tuple[int | None, int | None]] = set()
    for _ in range(POLLS_MAX):
        for each in consumers:
            message = each.poll(0.05)
            if message is not None:
                assert message.error() is None
                seen.add((message.partition(), message.offset()))
                each.commit(message=message, asynchronous=False)
        if len(seen) == records and sorted(len(c.assignment()) for c in consumers) == shares:
            return
    pytest.fail(f"{len(seen)} records, shares {[len(c.assignment()) for c in consumers]}")


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_share_partitions_and_offsets_stay(member_of: Members, assignor: str) -> None:
    changes = {"partition.assignment.strategy": assignor}
    members = [member_of(**changes, **{"group.instance.id": f"i{number}"}) for number in range(2)]
    poll_all(members, records=40, shares=[2, 2])
    assert [place.offset for place in members[0].committed(PARTITIONS)] == [10] * 4


def test_offsets_in_a_transaction_count_only_if_it_commits(
    bootstrap: str, member_of: Members
) -> None:
    member = member_of()
    poll_all([member], records=40, shares=[4])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(10)
    for offset, commit in ((3, True), (5, False), (7, True)):
        producer.begin_transaction()
        producer.produce("orders", value="out", partition=0)
        moved = [TopicPartition("orders", 1, offset)]
        producer.send_offsets_to_transaction(moved, member.consumer_group_metadata(), 10)
        if commit:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
        # librdkafka asks with require_stable: the answer waits for the markers.
        found = member.committed([TopicPartition("orders", 1)], timeout=10)[0].offset
        assert found == (offset if commit else 3)
