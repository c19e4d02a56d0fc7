"""What answers one error for all that was asked takes requests in the form in which the codec reads them."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce import produce
from region_broker.handlers.transactions import add_partitions_to_txn, end_txn
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.requests import FAST_PATHS, decode_request
from tests.fixtures.kafka_port import body_of, parse_answer

KAFKA_STORAGE_ERROR = 56
TXN = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0, "committed": True}
ADDED = [{"name": "t", "partitions": (3,)}]
ADD = {
    "v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 7, "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": ADDED,
    "transactions": [{"transactional_id": "x", "producer_id": 7, "producer_epoch": 0,
                      "verify_only": False, "topics": ADDED}],
}  # fmt: skip
CASES = [
    *((produce.API, version, {
        "transactional_id": None, "acks": -1, "timeout": 1,
        "topic_data": [{"name": "t", "topic_id": UUID(int=5), "partition_data": [{"index": 3, "records": b"r"}]}],
    }) for version in produce.API.versions),
    *((add_partitions_to_txn.API, version, ADD) for version in add_partitions_to_txn.API.versions),
    *((end_txn.API, version, TXN) for version in end_txn.API.versions),
]  # fmt: skip


@pytest.mark.parametrize(
    ("api", "version", "values"), CASES, ids=lambda case: getattr(case, "name", str(case)[:4])
)
def test_one_error_for_all_is_made_of_what_a_fast_path_reads(
    api: Any, version: int, values: dict[str, Any]
) -> None:
    assert api.key in FAST_PATHS
    request = decode_request(api.key, version, memoryview(body_of(api.key, version, values)))
    services: Any = SimpleNamespace()
    ctx = RequestContext(services, 1, api.key, version, 77)
    fields = api.on_error(ctx, request, KAFKA_STORAGE_ERROR)
    answer = str(
        parse_answer(api.key, version, bytes(encode_response(api.key, version, 77, fields)))
    )
    assert "kafka_storage_error" in answer
