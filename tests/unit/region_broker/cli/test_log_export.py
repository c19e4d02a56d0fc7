"""`tidemark log export`: what a kept topic's folder comes to, line by line, as `consume -o json` would have printed it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from idempotency.identity import CoordinatorEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, MarkerFacts, build_marker, read_header
from region_broker.cli.inspect.log_export import log
from region_broker.cli.records.lines import from_json
from region_broker.log.indexes.log_start import LogStart
from region_broker.log.indexes.sparse_index import SegmentSummary, SparseIndex
from region_broker.log.recovery.kept_deletions import NOTE_NAME, DeletionNote
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import NO_ORIGIN, Origin, Record, build_batch

NOTE = DeletionNote(
    topic_id="6f", name="orders", partition_count=2, configs={"retention.ms": "5"}, why="an order"
)


def data(value: bytes, producer_id: int = -1, sequence: int = 0) -> bytes:
    origin = (
        NO_ORIGIN
        if producer_id < 0
        else Origin(
            ProducerId(producer_id), ProducerEpoch(1), SequenceNumber(sequence), transactional=True
        )
    )
    return build_batch([Record(b"k", value, timestamp_ms=7)], origin=origin)


def end(producer_id: int, how: ControlType) -> bytes:
    return build_marker(
        MarkerFacts(ProducerId(producer_id), ProducerEpoch(1), how, CoordinatorEpoch(4), None, 9)
    )


def kept_folder(tmp_path: Path, *partitions: list[bytes], tail: bytes = b"") -> Path:
    folder = tmp_path / f"{'8' * 32}.kept"
    for number, batches in enumerate(partitions):
        (folder / str(number)).mkdir(parents=True)
        content, offset = b"", 0
        for batch in batches:
            content += offset.to_bytes(8, "big") + batch[8:]
            offset += read_header(batch).last_offset_delta + 1
        (folder / str(number) / f"{0:020}.log").write_bytes(content + tail)
    (folder / NOTE_NAME).write_bytes(NOTE.content())
    return folder


def exported(folder: Path) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(log, ["export", str(folder)])
    return (
        result.exit_code,
        [json.loads(line) for line in result.stdout.splitlines()],
        result.stderr,
    )


def test_INV_EX2_only_records_of_committed_transactions_and_plain_ones_are_exported(
    tmp_path: Path,
) -> None:
    folder = kept_folder(
        tmp_path,
        [
            data(b"plain"), data(b"aborted", 5), data(b"committed", 6), end(5, ControlType.ABORT),
            data(b"then committed", 5, 1), end(6, ControlType.COMMIT), end(5, ControlType.COMMIT),
            data(b"open", 6, 1), data(b"last"),
        ],
        [data(b"other")],
    )  # fmt: skip
    code, lines, told = exported(folder)
    assert code == 0
    assert [(line["partition"], line["offset"], line["value"]) for line in lines] == [
        (0, 0, "plain"), (0, 2, "committed"), (0, 4, "then committed"), (0, 8, "last"),
        (1, 0, "other"),
    ]  # fmt: skip
    assert {line["topic"] for line in lines} == {"orders"}
    assert "tidemark topic create orders --partitions 2 --config retention.ms=5" in told


def test_INV_CLI1_a_line_gives_the_record_back_whatever_its_bytes_are(tmp_path: Path) -> None:
    record = Record(b"\xff", None, (("h", b"\x00\xfe"), ("n", None)), timestamp_ms=1_234)
    folder = kept_folder(tmp_path, [build_batch([record])])
    [line] = CliRunner().invoke(log, ["export", str(folder)]).stdout_bytes.splitlines()
    back = from_json(line)
    assert (back.key, back.value, back.headers) == (record.key, None, list(record.headers))
    assert (back.partition, back.timestamp_ms) == (0, 1_234)


def test_INV_EX2_what_DeleteRecords_took_is_not_exported(tmp_path: Path) -> None:
    folder = kept_folder(tmp_path, [data(b"a"), data(b"b"), data(b"c")])
    LogStart(RealDisk(), folder / "0", 3).raise_to(2, 0)
    assert [line["value"] for line in exported(folder)[1]] == ["c"]


def test_INV_EX3_damage_is_named_and_what_lies_before_it_and_beside_it_is_exported(
    tmp_path: Path,
) -> None:
    folder = kept_folder(tmp_path, [data(b"a"), data(b"b")], [data(b"c")])
    path = folder / "0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, lines, told = exported(folder)
    assert code == 1
    assert [line["value"] for line in lines] == ["a", "c"]
    assert f"at byte {len(content) // 2}" in told


def sealed_in_three(tmp_path: Path) -> tuple[Path, list[Path]]:
    """One partition of three segments, of which a transaction of producer 5 is aborted in the second one, and another committed in the third."""
    folder = kept_folder(tmp_path, [])
    (folder / "0" / f"{0:020}.log").unlink()
    segments = []
    for base, batches in enumerate([
        [data(b"a"), data(b"aborted", 5)],
        [end(5, ControlType.ABORT), data(b"b")],
        [data(b"committed", 5, 1), end(5, ControlType.COMMIT)],
    ]):  # fmt: skip
        offset = 2 * base
        content = b"".join(
            (offset + at).to_bytes(8, "big") + batch[8:] for at, batch in enumerate(batches)
        )
        path = folder / "0" / f"{offset:020}.log"
        path.write_bytes(content)
        path.with_suffix(".index").write_bytes(
            SparseIndex(4096).encode(SegmentSummary(len(content), offset + 2, 7, 7))
        )
        segments.append(path)
    return folder, segments


@pytest.mark.parametrize("indexed", [True, False])
def test_INV_EX3_a_segment_that_is_gone_is_damage_and_nothing_behind_it_is_printed(
    indexed: bool, tmp_path: Path
) -> None:
    """The abort was in it: by the commit that follows, the records of the first transaction would count as committed."""
    folder, segments = sealed_in_three(tmp_path)
    assert [line["value"] for line in exported(folder)[1]] == ["a", "b", "committed"]
    segments[1].unlink()
    if not indexed:
        for segment in segments:
            segment.with_suffix(".index").unlink()
    code, lines, told = exported(folder)
    assert (code, [line["value"] for line in lines]) == (1, ["a"])
    assert "what lies between is gone" in told


def test_INV_EX3_a_full_segment_of_which_the_end_is_zeros_is_damage(tmp_path: Path) -> None:
    folder, segments = sealed_in_three(tmp_path)
    content = segments[1].read_bytes()
    segments[1].write_bytes(content[: len(content) - len(data(b"b"))] + bytes(len(data(b"b"))))
    code, lines, told = exported(folder)
    assert (code, [line["value"] for line in lines]) == (1, ["a"])
    assert f"was sealed with {len(content)} bytes" in told


def test_a_ledger_and_a_folder_without_partitions_are_refused(tmp_path: Path) -> None:
    assert exported(tmp_path)[0] == 3
    assert exported(tmp_path / "none")[0] == 3
    folder = kept_folder(tmp_path, [data(b"a")])
    (folder / NOTE_NAME).write_bytes(DeletionNote(name="__offsets", internal=True).content())
    assert exported(folder)[:2] == (2, [])
