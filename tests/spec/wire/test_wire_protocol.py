"""The Kafka port as its peers see it: framing, versions, order, caps, hostile bytes.

Sources: Kafka protocol guide, KIP-511 (ApiVersions), KIP-482 (tagged fields), KIP-584 (features).
"""

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from region_broker.controller.feature_levels import SUPPORTED
from region_broker.handlers.dispatch.registry import Api, ApiTable, Fields
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.limits import IN_FLIGHT_REQUESTS_MAX, REQUEST_BYTES_MAX
from region_broker.records.batches import Record, build_batch
from tests.fixtures.kafka_port import frame_of, parse_answer, wire_fixture

API_VERSIONS = {"client_software_name": "raw", "client_software_version": "1"}
CLUSTER = {"include_cluster_authorized_operations": False}
EMPTY_METADATA: dict[str, Any] = {
    "topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False
}  # fmt: skip


@pytest.mark.parametrize("version", range(5))
async def test_C21_api_versions_lists_apis_and_finalizes_transaction_version_2(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await client.call(18, version, API_VERSIONS if version >= 3 else {})
        rows = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        assert answer.error_code == 0
        assert rows[0] == (3, 13)
        assert rows[18] == (0, 4)
        if version >= 3:
            features = {f.name: f.max_version_level for f in answer.finalized_features}
            assert features == {
                "transaction.version": 2,
                "group.version": 1,
                "tidemark.version": SUPPORTED[-1],
            }
            assert answer.finalized_features_epoch >= 0


async def test_unknown_api_versions_version_gets_a_version_0_answer_with_error_35(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        frame = struct.pack(">hhih", 18, 99, 7, -1) + b"\x00junk of the future"
        client.send_raw(struct.pack(">i", len(frame)) + frame)
        correlation_id, answer = parse_answer(18, 0, await client.receive_raw())
        assert (correlation_id, answer.error_code) == (7, 35)
        assert [(r.api_key, r.max_version) for r in answer.api_keys] == [(18, 4)]
        again = await client.call(18, 4, API_VERSIONS)
        assert again.error_code == 0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", 0), id="empty frame"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="largest length"),
        pytest.param(struct.pack(">i", REQUEST_BYTES_MAX + 1), id="just over the cap"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS hello"),
        pytest.param(struct.pack(">i", 4) + b"abcd", id="shorter than a header"),
        pytest.param(struct.pack(">ihhi", 8, 999, 0, 1), id="unknown API"),
        pytest.param(struct.pack(">ihhih", 10, 3, 99, 1, -1), id="unknown Metadata version"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, -5), id="client id of length -5"),
        pytest.param(
            struct.pack(">ihhih", 16, 3, 12, 1, -1) + b"\x00\xff\xff\xff\xff\x0f",
            id="five bytes that abort kio",
        ),
    ],
)
async def test_garbage_closes_its_connection_and_harms_nobody_else(
    tmp_path: Path, data: bytes
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        bystander = await fixture.connect()
        client = await fixture.connect()
        client.send_raw(data)
        assert await client.closed()
        answer = await bystander.call(3, 12, EMPTY_METADATA)
        assert answer.cluster_id == "wire-world"


async def test_http_on_the_kafka_port_gets_a_helpful_400(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        client.send_raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        text = await client.reader.read()
        head, _, body = text.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"Kafka" in body


async def test_version_that_is_not_served_gets_unsupported_version_where_it_fits(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await client.call(35, 5, {"topics": None})  # DescribeLogDirs: served up to 4
        assert answer.error_code == 35


async def test_KIP482_unknown_tagged_fields_are_ignored(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        frame = frame_of(3, 12, EMPTY_METADATA)
        assert frame.endswith(b"\x00")
        tagged = frame[:-1] + b"\x02\x63\x03abc\x64\x00"
        client.send_raw(struct.pack(">i", len(tagged)) + tagged)
        _, answer = await client.receive(3, 12)
        assert answer.cluster_id == "wire-world"


@pytest.mark.parametrize("tail", [b"\x02\x63\x00\x63\x00", b"\x00\x00"], ids=["twice", "trailing"])
async def test_duplicate_tags_and_trailing_bytes_close_the_connection(
    tmp_path: Path, tail: bytes
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        frame = frame_of(60, 0, CLUSTER)[:-1] + tail
        client.send_raw(struct.pack(">i", len(frame)) + frame)
        assert await client.closed()


async def test_INV_WT1_a_line_about_a_request_names_client_api_and_correlation_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        own_address = "{}:{}".format(*client.writer.get_extra_info("sockname"))
        frame = frame_of(60, 0, CLUSTER, correlation_id=77) + b"?"
        client.send_raw(struct.pack(">i", len(frame)) + frame)
        assert await client.closed()
    (line,) = [record for record in caplog.records if "closing the connection" in record.msg]
    fields = ("api", "api_version", "correlation_id", "client_id", "client")
    named = {name: getattr(line, name) for name in fields}
    assert named == {
        "api": "DescribeCluster", "api_version": 0, "correlation_id": 77, "client_id": "raw",
        "client": own_address,
    }  # fmt: skip


async def test_librdkafka_metadata_with_three_bytes_too_many_is_read_as_kafka_reads_it(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        frame = frame_of(3, 12, EMPTY_METADATA)
        sent = frame[:-4] + bytes.fromhex("00000000010000")  # librdkafka 2.16, list_topics()
        client.send_raw(struct.pack(">i", len(sent)) + sent)
        _, answer = await client.receive(3, 12)
        assert [topic.name for topic in answer.topics] == ["t"]


async def test_frames_split_at_every_byte_are_put_together(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        frame = frame_of(3, 12, EMPTY_METADATA)
        for byte in struct.pack(">i", len(frame)) + frame:
            client.send_raw(bytes((byte,)))
            await client.writer.drain()
        _, answer = await client.receive(3, 12)
        assert answer.cluster_id == "wire-world"


class _Started(list[int]):
    """Correlation ids of requests that were begun, in order; wakes who waits for the n-th."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def note(self, correlation_id: int) -> None:
        self.append(correlation_id)
        self._changed.set()

    async def reach(self, count: int) -> None:
        for _ in range(count):
            if len(self) >= count:
                return
            self._changed.clear()
            await self._changed.wait()


def _slow_table(gates: dict[int, asyncio.Event], started: _Started) -> ApiTable:
    """DescribeCluster answers when the gate of its correlation id opens."""

    async def handle(ctx: RequestContext, request: Any) -> Fields:
        started.note(ctx.correlation_id)
        gate = gates.get(ctx.correlation_id)
        if gate is not None:
            await gate.wait()
        return {"error_code": 0, "cluster_id": str(ctx.correlation_id)}

    return ApiTable.of(Api(60, "DescribeCluster", range(3), handle))


async def test_answers_leave_in_request_order_though_finished_in_another(tmp_path: Path) -> None:
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    started = _Started()
    async with wire_fixture(tmp_path, table=_slow_table(gates, started)) as fixture:
        client = await fixture.connect()
        for _ in range(3):
            client.send(60, 0, CLUSTER)
        gates[2].set()
        await started.reach(3)
        gates[1].set()
        order = [(await client.receive(60, 0))[0] for _ in range(3)]
        assert order == [1, 2, 3]
        assert started == [1, 2, 3]


async def test_requests_beyond_the_in_flight_cap_wait_in_the_socket(tmp_path: Path) -> None:
    gates = {1: asyncio.Event()}
    started = _Started()
    async with wire_fixture(tmp_path, table=_slow_table(gates, started)) as fixture:
        client = await fixture.connect()
        count = IN_FLIGHT_REQUESTS_MAX * 3
        for _ in range(count):
            client.send(60, 0, CLUSTER)
        await client.writer.drain()
        await started.reach(IN_FLIGHT_REQUESTS_MAX)
        for _ in range(1000):  # loop turns, in which nothing more may start
            await asyncio.sleep(0)
        assert len(started) == IN_FLIGHT_REQUESTS_MAX
        gates[1].set()
        order = [(await client.receive(60, 0))[0] for _ in range(count)]
        assert order == list(range(1, count + 1))


async def test_failing_handler_closes_its_own_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Fields:
        if request.include_cluster_authorized_operations:
            raise RuntimeError("handler bug")
        return {"error_code": 0, "cluster_id": "alive"}

    table = ApiTable.of(Api(60, "DescribeCluster", range(3), handle))
    async with wire_fixture(tmp_path, table=table) as fixture:
        bystander = await fixture.connect()
        client = await fixture.connect()
        client.send(60, 0, {"include_cluster_authorized_operations": True})
        assert await client.closed()
        assert (await bystander.call(60, 0, CLUSTER)).cluster_id == "alive"
    assert "handler bug" in caplog.text
    (line,) = [record for record in caplog.records if record.exc_info]
    assert (line.api, line.client_id, line.correlation_id) == ("DescribeCluster", "raw", 1)  # type: ignore[attr-defined]
    assert b'tidemark_request_failures_total{api="DescribeCluster"} 1.0' in (
        fixture.services.metrics.render()
    )


async def test_assertion_in_a_handler_ends_the_server(tmp_path: Path) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Fields:
        raise AssertionError("an invariant does not hold")

    table = ApiTable.of(Api(60, "DescribeCluster", range(3), handle))
    failure: BaseException | None = None
    try:
        async with wire_fixture(tmp_path, table=table) as fixture:
            client = await fixture.connect()
            client.send(60, 0, CLUSTER)
            await asyncio.Event().wait()
    except BaseExceptionGroup as group:
        failure = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    assert isinstance(failure, AssertionError)


PRODUCE: dict[str, Any] = {
    "acks": -1, "timeout": 1000,
    "topic_data": [{"name": "t", "partition_data": [
        {"index": 0, "records": build_batch([Record(None, b"v")])}]}],
}  # fmt: skip


async def test_writes_at_a_mirror_are_forwarded_whole_and_answered_verbatim(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = False
        fixture.forwarder.answer = b"\x00\x00\x00\x01verbatim"
        client = await fixture.connect()
        client.send(0, 9, PRODUCE)
        assert await client.receive_raw() == b"\x00\x00\x00\x01verbatim"
        assert fixture.forwarder.frames == [frame_of(0, 9, PRODUCE)]


# Holds INV-FW2.
@pytest.mark.parametrize(
    ("may_have_happened", "error"),
    [pytest.param(True, 7, id="unknown: timed out"), pytest.param(False, 6, id="never sent")],
)
async def test_P18_failed_forwarding_never_denies_a_write_that_may_have_happened(
    tmp_path: Path, may_have_happened: bool, error: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = False
        fixture.forwarder.failure = ForwardingFailed("cut", may_have_happened=may_have_happened)
        client = await fixture.connect()
        answer = await client.call(0, 9, PRODUCE)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (error, -1)


async def test_INV_HD4_what_follows_a_failed_produce_is_not_executed_out_of_order(
    tmp_path: Path,
) -> None:
    # Two batches of one connection are under way; the first is forwarded to a region that dies; this one
    # takes over before the second is looked at. It must not be written ahead of the first.
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.region.acting = False
        fixture.forwarder.failure = ForwardingFailed("the primary region died")
        fixture.forwarder.on_failure = lambda: setattr(fixture.region, "acting", True)
        client = await fixture.connect()
        client.send(0, 9, PRODUCE)
        client.send(0, 9, PRODUCE)
        _, first = await client.receive(0, 9)
        assert first.responses[0].partition_responses[0].error_code == 7
        assert await client.closed()
        assert fixture.partition("t").log_end_offset == 0
        again = await (await fixture.connect()).call(0, 9, PRODUCE)
        assert again.responses[0].partition_responses[0].base_offset == 0
