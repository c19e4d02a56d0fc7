"""Records as lines: what is read, what is printed, and that both are the same thing."""

import json
from dataclasses import dataclass

import pytest

from region_broker.cli.records.lines import (
    BadLine,
    Headers,
    Outgoing,
    from_json,
    from_text,
    parse_header,
    to_json,
)


@dataclass
class Printed:
    """What `consume` gets of a client: the part of confluent-kafka's Message that is printed."""

    record: Outgoing

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self.record.partition

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, self.record.timestamp_ms

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> Headers | None:
        return self.record.headers


@pytest.mark.parametrize(
    "record",
    [
        Outgoing(
            value=b"1 pair of boots", key=b"alice", partition=2, timestamp_ms=1_700_000_000_000
        ),
        Outgoing(value=None, key=b"alice", partition=0),
        Outgoing(value=b"\xff\x00\n", key=b"\xfe", partition=0),
        Outgoing(value=b"", key=None, partition=0),
        Outgoing(value=b"v", headers=[("a", b"1"), ("a", b"\xff"), ("b", None)], partition=0),
        Outgoing(value='{"quoted": "ü\n"}'.encode(), partition=0),
    ],
)
def test_INV_CLI1_what_is_printed_can_be_sent_again(record: Outgoing) -> None:
    line = to_json(Printed(record))
    assert b"\n" not in line
    assert from_json(line) == record


def test_what_is_printed_can_be_read_by_people_and_programs() -> None:
    fields = json.loads(
        to_json(Printed(Outgoing(value=b"v", key=b"\xff", partition=1, timestamp_ms=5)))
    )
    assert fields == {
        "topic": "orders", "partition": 1, "offset": 7, "timestamp_ms": 5,
        "key": {"base64": "/w=="}, "value": "v",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no value"),
        (b'{"value": 1}', "value: neither a string"),
        (b'{"value": "v", "valeu": 1}', "unknown field valeu"),
        (b'{"value": {"base64": "%"}}', "not base64"),
        (b'{"value": "v", "partition": -2}', "partition: -2 is not a whole number in -1.."),
        (b'{"value": "v", "partition": true}', "partition: True"),
        (b'{"value": "v", "timestamp_ms": -1}', "timestamp_ms: -1"),
        (b'{"value": "v", "headers": "x"}', "headers: neither"),
        (b'{"value": "v", "headers": [["a"]]}', "is not [name, value]"),
        (b"[" * 100_000, "not JSON"),
        (b'{"value": "\\ud800"}', "value: neither a string of whole characters"),
        (b'{"value": "v", "headers": {"\\udfff": "x"}}', "is not [name, value]"),
    ],
)
def test_INV_CLI2_a_line_that_is_no_record_says_why(line: bytes, says: str) -> None:
    with pytest.raises(BadLine) as refused:
        from_json(line)
    assert says in str(refused.value)


def test_a_line_of_text_is_a_value_or_key_and_value() -> None:
    assert from_text(b"a:1:2", None) == Outgoing(value=b"a:1:2")
    assert from_text(b"a:1:2", ":") == Outgoing(key=b"a", value=b"1:2")
    with pytest.raises(BadLine, match="no ':'"):
        from_text(b"plain", ":")


def test_a_header_has_a_name() -> None:
    assert parse_header("type=a=b") == ("type", b"a=b")
    with pytest.raises(BadLine):
        parse_header("=b")
    with pytest.raises(BadLine):
        parse_header("type")
    assert parse_header("type=\udcff") == (
        "type",
        b"\xff",
    )  # a byte of the command line that is no UTF-8
    with pytest.raises(BadLine):
        parse_header("\udcff=b")
