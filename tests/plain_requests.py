"""What a request says, as plain values: as kio's class has it, and as it was read by hand. One pair of functions for each API
that is read by hand; equal values mean that both readers agree.
"""

from typing import Any

from kio.serial import entity_reader
from kio.static.constants import EntityType

from idempotency.identity import TopicName, TopicPartition
from region_broker.wire.codec.fast_paths.fetch import FetchRequest
from region_broker.wire.codec.fast_paths.produce import ProduceRequest
from tests.wire_world import schema

_HAS_REPLICA, _BY_ID = range(4, 15), range(13, 19)


def read_by_kio(key: int, version: int, body: memoryview | bytes) -> Any:
    """Return what kio's own reader reads in a sound body; a hostile one may abort the process."""
    request, size_bytes = entity_reader(schema(key, version, EntityType.request))(body, 0)
    assert size_bytes == len(body)
    return request


def produce_of_kio(request: Any) -> Any:
    """Return a Produce in kio's class."""
    return (
        request.transactional_id,
        int(request.acks),
        round(request.timeout.total_seconds() * 1000),
        [
            (
                topic.topic_id if hasattr(topic, "topic_id") else topic.name,
                [
                    (int(part.index), None if part.records is None else bytes(part.records))
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def produce_by_hand(request: ProduceRequest) -> Any:
    """Return a Produce that was read by hand."""
    topics = [
        (
            topic.key,
            [(b.partition, None if b.data is None else bytes(b.data)) for b in topic.batches],
        )
        for topic in request.topics
    ]
    return (request.transactional_id, request.acks, request.timeout_ms, topics)


def fetch_of_kio(version: int, request: Any) -> Any:
    """Return a Fetch in kio's class."""
    key = "topic_id" if version in _BY_ID else "topic"
    replica = request.replica_id if version in _HAS_REPLICA else request.replica_state.replica_id
    return (
        int(replica), round(request.max_wait.total_seconds() * 1000), request.min_bytes,
        request.max_bytes, request.isolation_level,
        request.session_id if version >= 7 else 0, request.session_epoch if version >= 7 else -1,
        [
            (
                getattr(topic, key),
                [
                    (
                        int(part.partition), part.current_leader_epoch if version >= 9 else -1,
                        part.fetch_offset, part.partition_max_bytes,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        [(getattr(topic, key), list(topic.partitions)) for topic in request.forgotten_topics_data]
        if version >= 7 else [],
    )  # fmt: skip


def fetch_by_hand(request: FetchRequest) -> Any:
    """Return a Fetch that was read by hand."""
    topics = [(key, [tuple(part) for part in parts]) for key, parts in request.topics]
    forgotten = [(key, list(numbers)) for key, numbers in request.forgotten]
    return (*request[:7], topics, forgotten)


def end_of_kio(request: Any) -> Any:
    """Return an EndTxn in kio's class."""
    return (
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
    )


def add_of_kio(request: Any) -> Any:
    """Return an AddPartitionsToTxn of one producer (v0-3) in kio's class."""
    partitions = [
        TopicPartition(TopicName(topic.name), int(number))
        for topic in request.v3_and_below_topics
        for number in topic.partitions
    ]
    return (
        request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch, partitions,
    )  # fmt: skip
