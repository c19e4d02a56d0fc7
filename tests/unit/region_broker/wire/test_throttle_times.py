"""The throttle time in answers of all APIs, read by kio (INV-WTT1); the time of a coroutine's steps (INV-WLT1)."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.throttling import metered, settled
from region_broker.security.quotas.throttles import Throttles
from region_broker.wire.codec import throttle_times
from region_broker.wire.codec.answers import encode_response, top_level_error
from region_broker.wire.codec.fast_paths import produce
from region_broker.wire.codec.fast_paths.leaders import Endpoint
from region_broker.wire.codec.gathered import AnswerBytes
from region_broker.wire.codec.struct_writers import Fields
from region_broker.wire.codec.throttle_times import throttle_told_ms, with_throttle
from region_broker.wire.connection import Incoming, Numbering, Peer
from region_broker.wire.loop_time import by_steps
from tests.fixtures.kafka_port import parse_answer

CREATE_TOPICS = 19
_TOLD = timedelta(milliseconds=1_234)


def _check(key: int, version: int, answer: AnswerBytes) -> bool:
    """Check one answer; return whether it has a place for the time."""
    before = parse_answer(key, version, bytes(answer))
    correlation_id, after = parse_answer(
        key, version, bytes(with_throttle(key, version, answer, 1_234))
    )
    if not hasattr(before[1], "throttle_time"):
        assert (correlation_id, after) == before
        return False
    assert (correlation_id, after) == (before[0], replace(before[1], throttle_time=_TOLD))
    return True


def test_INV_WTT1_the_time_is_all_that_changes_in_any_answer() -> None:
    told = 0
    for key, api in all_apis().by_key.items():
        for version in {api.versions[0], api.versions[-1]}:
            assert throttle_told_ms(key, version, bytes(20)) == 0, "a place is known in each"
            fields = top_level_error(key, version, 35)
            if fields is not None:
                # kio reads no time before 1970, which a refused request for a token is answered with.
                sound = {
                    name: 0 if "timestamp" in name else value for name, value in fields.items()
                }
                told += _check(key, version, encode_response(key, version, 7, sound))
    assert told > 30


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_INV_WTT1_produce_has_it_before_its_tags(version: int) -> None:
    by_id = version >= 13
    topic: Any = None if by_id else "t"
    plain = produce.ProducedRow(0, 0, 7, -1, 0)
    told = produce.ProducedRow(
        1, 6, text="x" if version >= 8 else None, leader=(2, 9) if version >= 10 else None
    )
    assert _check(0, version, produce.answer(version, 3, [(topic, [plain])]))
    endpoints = (Endpoint(2, "127.0.0.1", 9092),) if version >= 10 else ()
    assert _check(0, version, produce.answer(version, 3, [(topic, [plain, told])], endpoints))


MANY_LEADERS: Fields = {
    "responses": [
        {
            "name": "t",
            "partition_responses": [
                {"index": index, "error_code": 6, "base_offset": -1, "current_leader": {"leader_id": 0, "leader_epoch": 9}}
                for index in range(2_000)
            ],
        }
    ],
    "node_endpoints": [{"node_id": 0, "host": "a", "port": 256, "rack": None}, {"node_id": 256, "host": "b", "port": 9092, "rack": "é"}],
}  # fmt: skip


def test_INV_WTT2_a_produce_that_names_leaders_is_not_read_to_find_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 rows took 50 ms by the general reader, in one step."""
    monkeypatch.setattr(throttle_times, "entity_reader", None)
    endpoints = [Endpoint(0, "a", 256), Endpoint(256, "b", 9092, "é")]
    rows = [produce.ProducedRow(index, 6, leader=(0, 9)) for index in range(2_000)]
    fast = produce.answer(10, 3, [("t", rows)], endpoints)
    written = throttle_times.parted(0, MANY_LEADERS, encode_response(0, 10, 3, MANY_LEADERS))
    assert bytes(fast) == bytes(written)
    for answer in (fast, written):
        assert _check(0, 10, answer)


def test_INV_WTT2_what_names_no_leaders_is_in_one_part() -> None:
    for key, version, fields in ((0, 9, MANY_LEADERS), (0, 10, {"responses": []}), (19, 7, {"topics": []})):  # fmt: skip
        answer = encode_response(key, version, 3, fields)
        assert throttle_times.parted(key, fields, answer) is answer


def test_INV_HTH1_what_another_node_told_is_read_where_it_stands_first() -> None:
    answer = encode_response(19, 7, 1, {"topics": []})
    assert throttle_told_ms(19, 7, answer) == 0
    assert throttle_told_ms(19, 7, with_throttle(19, 7, answer, 4_321)) == 4_321


def asked_by(peer: Peer, throttles: Throttles, size_bytes: int = 4_000) -> Incoming:
    """Return a Produce of that many bytes, charged as it comes."""
    incoming = Incoming(peer, memoryview(bytes(size_bytes)), 0, 9, 7)
    metered(throttles, incoming, "c", 0.0)
    return incoming


def limited(**rates: float) -> Throttles:
    throttles = Throttles(lambda: 0.0)
    throttles.take({(("client-id", "c"),): rates})
    return throttles


def test_a_produce_is_charged_for_all_of_its_request() -> None:
    """`request.sizeInBytes` in KafkaApis.scala: header and body."""
    rates = limited(producer_byte_rate=1_000.0)
    assert asked_by(Peer(1, "h:1"), rates).throttle_ms == 3_000, "1000 were saved up"


def test_INV_SQT3_what_another_node_sends_on_was_charged_there() -> None:
    rates = limited(producer_byte_rate=1_000.0)
    assert asked_by(Peer(1, "h:1", Numbering(origin=3)), rates).throttle_ms == 0
    assert asked_by(Peer(1, "h:1"), rates).throttle_ms == 3_000


@pytest.mark.parametrize(("told_ms", "told_in_all_ms"), [(1_000, 3_000), (5_000, 5_000)])
def test_INV_HTH1_of_two_times_the_longer_one_is_told_and_waited_for(
    told_ms: int, told_in_all_ms: int
) -> None:
    incoming = Incoming(Peer(1, "h:1"), memoryview(b""), CREATE_TOPICS, 6, 7)
    metered(limited(controller_mutation_rate=1.0), incoming, "c", 0.0)
    assert incoming.meter is not None
    incoming.meter.mutate(14, strict=False)  # 11 were saved up
    answer = encode_response(CREATE_TOPICS, 6, 7, {"throttle_time": told_ms, "topics": []})
    sent = settled(all_apis().by_key[CREATE_TOPICS], incoming, answer, 0.0)
    assert sent is not None
    assert throttle_told_ms(CREATE_TOPICS, 6, sent) == incoming.throttle_ms == told_in_all_ms


def test_INV_WTT1_tags_that_end_with_zeros_are_no_throttle_time() -> None:
    level_0 = {"name": "x", "max_version_level": 0, "min_version_level": 0}
    fields = {"error_code": 0, "api_keys": [], "finalized_features": [level_0]}
    answer = encode_response(18, 4, 7, fields)
    assert bytes(answer[-5:]) == bytes(5)
    assert _check(18, 4, answer)


def test_INV_WTT1_what_kio_would_not_read_keeps_all_else() -> None:
    fields = top_level_error(38, 3, 61)
    assert fields is not None
    answer = bytes(encode_response(38, 3, 7, fields))
    assert bytes(with_throttle(38, 3, answer, 1_234)) == answer[:-5] + (1_234).to_bytes(4) + b"\0"


async def test_INV_WLT1_only_steps_are_counted_and_nothing_else_changes() -> None:
    seen: list[str] = []

    async def work() -> str:
        seen.append("a")
        await asyncio.sleep(0)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
        await asyncio.sleep(0)
        return "done"

    async def run() -> str:
        return await by_steps(work(), lambda: seen.append("<"), lambda: seen.append(">"))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
    assert task.result() == "done"
    assert seen == ["<", "a", ">", "<", ">", "<", "cancelled", ">", "<", ">"]

    async def fails() -> None:
        raise LookupError("kept")

    with pytest.raises(LookupError, match="kept"):
        await by_steps(fails(), lambda: None, lambda: None)
