"""`tidemark log dump` on files written batch by batch: what is printed is what was put in."""

import json
from pathlib import Path

from click.testing import CliRunner

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    Round,
    SequenceNumber,
)
from idempotency.record_batch import ControlType, MarkerFacts, build_marker, read_header
from region_broker.cli.inspect.log_dump import log
from region_broker.records.batches import Origin, Record, build_batch

DECISION = DecisionId(3, LeaderEpoch(524_289), 17, Round(99))


def stamped(batch: bytes, offset: int) -> bytes:
    """Return the batch as it lies in a log at `offset`."""
    return offset.to_bytes(8, "big") + batch[8:]


def segment(folder: Path, *batches: bytes, tail: bytes = b"") -> Path:
    """Write a segment of a topic called payments."""
    partition = folder / "topic" / "0"
    partition.mkdir(parents=True)
    (partition.parent / "topic.json").write_text('{"name": "payments"}')
    data, offset = b"", 0
    for batch in batches:
        data += stamped(batch, offset)
        offset += read_header(batch).last_offset_delta + 1
    path = partition / "00000000000000000000.log"
    path.write_bytes(data + tail)
    return path


def payment() -> bytes:
    return build_batch(
        [
            Record(b"k1", b"v1", (("h", b"x"),), timestamp_ms=1_000),
            Record(None, b"\xff\x1b[2J", timestamp_ms=2_000),
        ],
        origin=Origin(ProducerId(7), ProducerEpoch(1), SequenceNumber(5), transactional=True),
    )


def commit() -> bytes:
    return build_marker(
        MarkerFacts(
            ProducerId(7),
            ProducerEpoch(1),
            ControlType.COMMIT,
            CoordinatorEpoch(4),
            DECISION,
            3_000,
        )
    )


def dumped(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(log, ["dump", *arguments])
    return result.exit_code, result.output


def test_batches_and_markers_are_described(tmp_path: Path) -> None:
    path = segment(tmp_path, payment(), commit())
    code, output = dumped(str(path), "-o", "json")
    data, marker = json.loads(output)
    assert code == 0
    assert (data["base_offset"], data["last_offset"], data["records"]) == (0, 1, 2)
    assert (data["producer_id"], data["producer_epoch"], data["base_sequence"]) == (7, 1, 5)
    assert (data["transactional"], data["codec"], data["crc"]) == (True, "none", "ok")
    assert data["max_timestamp"] == "1970-01-01T00:00:02.000+00:00"
    assert (marker["base_offset"], marker["kind"], marker["coordinator_epoch"]) == (2, "commit", 4)
    assert marker["decision"] == {"shard": 3, "leader_epoch": 524_289, "offset": 17, "round": 99}


def test_records_show_text_as_text_and_the_rest_as_hexadecimal(tmp_path: Path) -> None:
    path = segment(tmp_path, payment())
    _, output = dumped(str(path.parent), "--records", "-o", "json")
    first, second = json.loads(output)[0]["content"]
    assert (first["offset"], first["key"], first["value"]) == (0, "k1", "v1")
    assert first["headers"] == {"h": "x"}
    assert (second["offset"], second["key"], second["value"]) == (1, None, "0xff1b5b324a")


def test_from_and_limit_choose_batches(tmp_path: Path) -> None:
    path = segment(tmp_path, payment(), commit(), payment())
    _, output = dumped(str(path), "--from", "2", "--limit", "1", "-o", "json")
    assert [row["base_offset"] for row in json.loads(output)] == [2]


def test_a_torn_tail_is_named_with_its_position_and_nothing_before_it_is_lost(
    tmp_path: Path,
) -> None:
    whole = payment()
    path = segment(tmp_path, whole, tail=stamped(whole, 2)[:-3])
    code, output = dumped(str(path))
    assert code == 1
    assert "0..1" in output
    assert f"at byte {len(whole)}" in output
    assert "not written to the end" in output


def test_a_wrong_crc_is_shown(tmp_path: Path) -> None:
    whole = payment()
    path = segment(tmp_path, whole[:-1] + bytes([whole[-1] ^ 1]))
    code, output = dumped(str(path))
    assert "crc WRONG" in output
    assert (code, "checksum of 1 batches is wrong" in output) == (1, True)


def test_a_codec_that_is_none_is_named_by_its_number(tmp_path: Path) -> None:
    """One bit of the attributes has flipped: what follows is printed all the same."""
    whole = bytearray(payment())
    whole[22] |= 7  # the lower byte of the attributes
    code, output = dumped(str(segment(tmp_path, bytes(whole) + payment())))
    assert code == 1
    assert "codec 7" in output
    assert output.count("crc ok") == 1


def test_zeros_behind_the_last_batch_are_space_not_damage(tmp_path: Path) -> None:
    path = segment(tmp_path, payment(), tail=bytes(4096))
    assert dumped(str(path))[0] == 0


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    code, output = dumped(str(tmp_path / "nothing"))
    assert (code, "there is no" in output) == (3, True)
    code, output = dumped(str(tmp_path))
    assert (code, "name a partition's folder" in output) == (3, True)


def test_a_file_that_is_not_called_like_a_segment_is_doubted_where_it_cannot_be_read(
    tmp_path: Path,
) -> None:
    whole = segment(tmp_path, payment())
    copy, other = whole.with_name("copy"), whole.with_name("checkpoint")
    copy.write_bytes(whole.read_bytes())
    other.write_text("not a batch, but more than a header's worth of something else, in words\n")
    assert dumped(str(copy))[0] == 0
    code, output = dumped(str(other))
    assert (code, "Is it a segment? Those are called as 0000" in output) == (1, True)
    whole.write_bytes(whole.read_bytes()[:-1])
    assert "Is it a segment" not in dumped(str(whole))[1]


def test_a_folder_is_dumped_segment_by_segment_and_nothing_else_in_it(tmp_path: Path) -> None:
    folder = segment(tmp_path, payment()).parent
    (folder / "node.log").write_text("a line of a node\n")
    code, output = dumped(str(folder), "-o", "json")
    assert (code, len(json.loads(output))) == (0, 1)
    code, output = dumped(str(folder.parent))
    assert code == 3
    assert "holds no segment (such as 00000000000000000000.log)" in output
