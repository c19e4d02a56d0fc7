"""Sealed topics over a real socket: Produce, Fetch, their errors, and configs.

Error numbers by Kafka's protocol guide: 29 TOPIC_AUTHORIZATION_FAILED, 40 INVALID_CONFIG, 44 POLICY_VIOLATION.
"""

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from idempotency.record_batch import Buffer, read_header
from region_broker.cli import broker
from region_broker.handlers.topics import config_resources
from region_broker.limits import YIELD_ROWS
from region_broker.partitions import opening_sealed, record_rules
from region_broker.records.batches import Record, build_batch
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.sealing_keys import FIRST, SECOND, keys_in_memory
from tests.fixtures.secret_scan import noted
from tests.spec.partitions.test_cold_fetches import records_of, request
from tests.spec.topics.test_topic_configs import SET, change, described, op, resource

SEALED = {"tidemark.encryption": "secret"}
WORD = noted("sealed-on-the-way-4f7b").encode()
SENT = [build_batch([Record(b"k", b"%s %d" % (WORD, n) * 150)]) for n in range(4)]
OPEN = build_batch([Record(b"k", b"left in the open")])


def use_keys(fixture: WireFixture) -> None:
    fixture.services.partitions.sealing.keys.use(keys_in_memory().keys.named)


async def produce(client: RawClient, data: bytes) -> Any:
    answer = await client.call(0, 9, {
        "acks": -1, "timeout": 5000, "transactional_id": None,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": data}]}],
    })  # fmt: skip
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("count", [1, YIELD_ROWS + 1])
async def test_what_was_produced_is_fetched_on_the_loop_and_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool, count: int
) -> None:
    if not inline:
        monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
        monkeypatch.setattr(record_rules, "SEALED_INLINE_BYTES_MAX", 1_000)
    async with wire_fixture(tmp_path) as fixture:
        use_keys(fixture)
        await fixture.topic("t", count, SEALED)
        client = await fixture.connect()
        for number, data in enumerate(SENT):
            row = await produce(client, data)
            assert (row.error_code, row.base_offset) == (0, number)
        fetch = partial(client.call, 1, 12, request(count))
        for _ in range(2):
            found = records_of(await fetch())[0]
            assert [found[at + 16 : at + len(SENT[0])] for at in range(0, len(found), len(SENT[0]))] == [
                data[16:] for data in SENT
            ]  # fmt: skip
        assert fixture.services.partitions.cold_reads.warmed_count == (0 if inline else 2)


@pytest.mark.parametrize("inline", [True, False])
async def test_INV_OPS1_without_the_key_readers_and_writers_get_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool
) -> None:
    if not inline:
        monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    async with wire_fixture(tmp_path) as fixture:
        use_keys(fixture)
        await fixture.topic("t", 1, SEALED)
        client = await fixture.connect()
        await produce(client, SENT[0])
        fixture.services.partitions.sealing.keys.use(keys_in_memory(SECOND).keys.named)
        answer = await client.call(1, 12, request(1))
        (row,) = answer.responses[0].partitions
        assert (row.error_code, bytes(row.records or b"")) == (29, b"")
        fixture.services.partitions.sealing.keys.use({})
        refused = await produce(client, SENT[1])
        assert (refused.error_code, refused.base_offset) == (44, -1)
        assert "'secret'" in refused.error_message
        assert FIRST.material.hex() not in refused.error_message
        assert fixture.partition("t").log_end_offset == 1


async def test_INV_FL1_a_config_that_this_node_cannot_honour_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        (row,) = await change(client, resource("t", op(SET, "tidemark.encryption", "secret")))
        assert row.error_code == 40
        assert "'secret'" in row.error_message
        assert (await described(client))["tidemark.encryption"].value == ""
        use_keys(fixture)
        with monkeypatch.context() as older:
            older.setattr(config_resources, "SEALS_SINCE_LEVEL", 99)
            (row,) = await change(client, resource("t", op(SET, "tidemark.encryption", "secret")))
            assert row.error_code == 40
            assert "cluster upgrade --finalize" in row.error_message
        (row,) = await change(client, resource("t", op(SET, "tidemark.encryption", "secret")))
        assert row.error_code == 0
        assert (await described(client))["tidemark.encryption"].value == "secret"
        (row,) = await change(client, resource("t", op(SET, "cleanup.policy", "compact")))
        assert row.error_code == 40
        await produce(client, SENT[0])
        assert read_header(fixture.partition("t").reader.read_raw(0, 1)).is_sealed
        (row,) = await change(client, resource("t", op(SET, "tidemark.encryption", "")))
        assert row.error_code == 0
        await produce(client, OPEN)
        assert not read_header(fixture.partition("t").reader.read_raw(1, 1)).is_sealed
        assert len(records_of(await client.call(1, 12, request(1)))[0]) == len(SENT[0]) + len(OPEN)


async def test_what_is_reported_of_a_bug_holds_nothing_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The report is a line of the log with a traceback, as `tidemark broker` writes it: places in the code, and no values of its variables."""
    word = WORD

    def fails(_sealing: object, batch: Buffer, *_more: object) -> NoReturn:
        held = bytes(batch)
        raise ZeroDivisionError("a bug" if word in held else "another one")

    async with wire_fixture(tmp_path) as fixture:
        use_keys(fixture)
        await fixture.topic("t", 1, SEALED)
        client = await fixture.connect()
        monkeypatch.setattr(type(fixture.services.partitions.sealing), "sealed", fails)
        client.send(0, 9, {
            "acks": -1, "timeout": 5000, "transactional_id": None,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": build_batch([Record(b"k", word)])}]}],
        })  # fmt: skip
        assert await client.closed()
    reports = [broker.json_lines().format(each) for each in caplog.records]
    [report] = [each for each in reports if "ZeroDivisionError" in each and "a bug" in each]
    assert __file__ in report, "the traceback"
    assert word.decode() not in "".join(reports)
