"""The hand-built requests of `tidemark bench size`: what kio reads in them, and where kio's answer has the error."""

import io
import struct

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from region_broker.cli.bench.raw_node import metadata_of_all, produce_to, refusal_in
from region_broker.cli.bench.size import late_looks
from region_broker.metrics import Metrics
from region_broker.records.batches import Record, build_batch
from tests.fixtures.kafka_port import build, schema

BATCH = build_batch([Record(None, b"x" * 100)])
PLACES = {"t": range(3), "n" * 200: range(200)}


def test_the_request_for_metadata_asks_for_all_topics() -> None:
    frame = metadata_of_all()
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    entity = schema(3, 9, EntityType.request)
    _, size_bytes = entity_reader(entity.__header_schema__)(frame, 4)
    request, body_bytes = entity_reader(entity)(frame, 4 + size_bytes)
    assert 4 + size_bytes + body_bytes == len(frame)
    assert (request.topics, request.allow_auto_topic_creation) == (None, False)


def test_the_request_to_write_names_each_partition() -> None:
    frame = produce_to(PLACES, BATCH)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    entity = schema(0, 9, EntityType.request)
    _, size_bytes = entity_reader(entity.__header_schema__)(frame, 4)
    request, body_bytes = entity_reader(entity)(frame, 4 + size_bytes)
    assert 4 + size_bytes + body_bytes == len(frame)
    assert (request.acks, request.transactional_id) == (-1, None)
    named = {
        data.name: [(each.index, each.records) for each in data.partition_data]
        for data in request.topic_data
    }
    assert named == {
        topic: [(number, BATCH) for number in numbers] for topic, numbers in PLACES.items()
    }


@pytest.mark.parametrize(
    ("topic", "partition"), [("", 0), ("t", 0), ("t", 2), ("n" * 200, 0), ("n" * 200, 199)]
)
def test_the_partition_that_was_refused_is_found(topic: str, partition: int) -> None:
    rows = [
        {
            "name": name,
            "partition_responses": [
                {
                    "index": number,
                    "error_code": ErrorCode.not_leader_or_follower
                    if (name, number) == (topic, partition)
                    else ErrorCode.none,
                    "base_offset": 7,
                    "record_errors": (),
                }
                for number in numbers
            ],
        }
        for name, numbers in PLACES.items()
    ]
    entity = schema(0, 9, EntityType.response)
    out = io.BytesIO()
    entity_writer(entity)(out, build(entity, {"responses": rows, "throttle_time": 0}))
    answer = struct.pack(">ib", 0, 0) + out.getvalue()
    assert refusal_in(answer, PLACES) == (6 if topic else 0)


def test_looks_of_the_loop_are_counted_by_how_late_they_were() -> None:
    metrics = Metrics()
    for late_s in (0.0, 0.001, 0.02, 0.03, 0.09):
        metrics.loop_lag_s.observe(late_s)
    assert late_looks(metrics.render().decode(), (10, 50)) == [3, 1]
