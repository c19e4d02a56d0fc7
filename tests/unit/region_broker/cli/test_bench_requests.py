"""The hand-built request of `tidemark bench requests`: what kio reads in it, and where kio's answer has the error."""

import io
import struct

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from idempotency.record_batch import read_header
from region_broker.cli.bench.requests import exchange
from region_broker.records.batches import Record, build_batch
from tests.fixtures.kafka_port import build, schema


@pytest.mark.parametrize("topic", ["t", "n" * 200])
@pytest.mark.parametrize("value_bytes", [1, 100, 50_000])
def test_the_request_is_what_kio_reads(topic: str, value_bytes: int) -> None:
    batch = build_batch([Record(None, b"x" * value_bytes)])
    frame = exchange(topic, 5, batch, 77).request
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    entity = schema(0, 9, EntityType.request)
    header, size_bytes = entity_reader(entity.__header_schema__)(frame, 4)
    assert (header.correlation_id, header.client_id) == (77, "tidemark-bench")
    request, body_bytes = entity_reader(entity)(frame, 4 + size_bytes)
    assert 4 + size_bytes + body_bytes == len(frame)
    assert (request.acks, request.transactional_id) == (-1, None)
    ((topic_data,),) = (request.topic_data,)
    (partition,) = topic_data.partition_data
    assert (topic_data.name, partition.index, partition.records) == (topic, 5, batch)
    assert read_header(batch).size_bytes == len(batch)


@pytest.mark.parametrize("topic", ["t", "n" * 200])
def test_the_error_is_where_kio_writes_it(topic: str) -> None:
    entity = schema(0, 9, EntityType.response)
    row = {
        "index": 5,
        "error_code": ErrorCode.invalid_record,
        "base_offset": -1,
        "record_errors": (),
    }
    response = {"responses": [{"name": topic, "partition_responses": [row]}], "throttle_time": 0}
    out = io.BytesIO()
    entity_writer(entity)(out, build(entity, response))
    answer = struct.pack(">iib", 0, 77, 0) + out.getvalue()
    error_at = exchange(topic, 5, b"", 77).error_at
    assert struct.unpack_from(">h", answer, error_at)[0] == 87
