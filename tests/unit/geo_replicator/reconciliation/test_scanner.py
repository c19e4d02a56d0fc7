"""The walk over a segment file: what it reads, where it stops, and what it never believes."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from geo_replicator.reconciliation.segments import scanner
from geo_replicator.reconciliation.segments.batch_table import HEADER_DTYPE, range_digests
from geo_replicator.reconciliation.segments.scanner import (
    Stop,
    end_offset,
    list_region,
    scan_segment,
)
from idempotency.decision import DecisionId
from idempotency.identity import (
    NO_SEQUENCE,
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    Round,
)
from idempotency.record_batch import (
    BatchHeader,
    ControlType,
    MarkerFacts,
    build_marker,
    iter_headers,
    read_header,
    read_marker,
)
from region_broker.records.batches import Origin, Record, build_batch
from tests.reconciliation.two_regions import (
    A0,
    TXN_LEDGER,
    Pair,
    flipped,
    restamped,
    sound_primary,
    with_crc,
)


def marker(offset: int, *, decision: DecisionId | None, commit: bool = True) -> bytes:
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    facts = MarkerFacts(ProducerId(7), ProducerEpoch(3), kind, CoordinatorEpoch(5), decision, 1000)
    return build_marker(facts, base_offset=offset, leader_epoch=LeaderEpoch(9))


@pytest.fixture
def log() -> list[bytes]:
    return sound_primary().logs[A0]


def test_the_header_columns_are_those_of_the_kernel(log: list[bytes]) -> None:
    assert HEADER_DTYPE.names == BatchHeader._fields
    for batch in log:
        (row,) = np.frombuffer(batch[: HEADER_DTYPE.itemsize], HEADER_DTYPE)
        assert tuple(row.tolist()) == tuple(read_header(batch))


def test_rows_say_what_headers_and_markers_say(tmp_path: Path, log: list[bytes]) -> None:
    path = tmp_path / "s.log"
    data = b"".join(log)
    path.write_bytes(data)
    scan = scan_segment(path)
    assert (scan.stop, scan.skipped_bytes, len(scan.table)) == (Stop.END, 0, len(log))
    for row, (position, header) in zip(scan.table, iter_headers(data), strict=True):
        assert row["position"] == position
        assert row["crc_ok"] == 1
        assert (row["base_offset"], row["last_offset"]) == (header.base_offset, header.last_offset)
        assert (row["size_bytes"], row["crc"]) == (header.size_bytes, header.crc)
        assert row["leader_epoch"] == header.leader_epoch
        assert (row["producer_id"], row["base_sequence"]) == (
            header.producer_id,
            header.base_sequence,
        )
        if header.is_control:
            facts = read_marker(data[position:])
            assert row["control_type"] == facts.control_type
            assert facts.decision is not None
            assert row["decision_offset"] == facts.decision.offset
        else:
            assert row["control_type"] == -1


# Holds INV-RCMC1.
@pytest.mark.parametrize(
    "decision",
    [
        None,
        DecisionId(0, LeaderEpoch(0), 0, Round(0)),
        DecisionId(3, LeaderEpoch(2**31 - 1), 2**62, Round(2**62)),
        DecisionId(-1, LeaderEpoch(5), 2**40, Round(-1)),
    ],
)
@pytest.mark.parametrize("commit", [True, False])
def test_markers_read_by_the_column_equal_the_kernels(
    tmp_path: Path, decision: DecisionId | None, commit: bool
) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(marker(4, decision=decision, commit=commit))
    (row,) = scan_segment(path).table
    assert row["control_type"] == int(commit)
    assert row["coordinator_epoch"] == 5
    expected = (-1, -1, -1, -1) if decision is None else (
        decision.shard, decision.leader_epoch, decision.offset, decision.stamp,
    )  # fmt: skip
    found = tuple(int(row[f"decision_{name}"]) for name in ("shard", "epoch", "offset", "stamp"))
    assert found == expected


def test_a_control_batch_that_is_no_marker_stays_unknown(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(
        build_batch(
            [Record(b"??", b"")],
            origin=Origin(ProducerId(1), ProducerEpoch(1), NO_SEQUENCE, control=True),
        )
    )
    (row,) = scan_segment(path).table
    assert row["control_type"] == 2


def test_a_window_smaller_than_the_log_and_than_a_batch_changes_nothing(
    tmp_path: Path, log: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(b"".join(log))
    whole = scan_segment(path, sha256=True)
    for window_bytes in (62, 100, 257, 1000):
        monkeypatch.setattr(scanner, "WINDOW_BYTES", window_bytes)
        again = scan_segment(path, sha256=True)
        assert (again.table == whole.table).all()
        assert (again.sha256, again.stop) == (whole.sha256, Stop.END)


@pytest.mark.parametrize("missing", [1, 30, 70])
def test_a_file_that_ends_inside_a_batch_is_whole_up_to_there(
    tmp_path: Path, log: list[bytes], missing: int
) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(b"".join(log)[:-missing])
    scan = scan_segment(path)
    assert scan.stop is Stop.TORN_TAIL
    assert len(scan.table) == len(log) - 1
    assert scan.skipped_bytes == len(log[-1]) - missing


# Holds INV-RCSC2.
@pytest.mark.parametrize(
    ("tail", "stop"),
    [
        (bytes(500), Stop.TORN_TAIL),
        (struct.pack(">qi", 99, 48) + bytes(4) + b"\x02" + b"x" * 500, Stop.BAD_LENGTH),
        (struct.pack(">qi", 99, -1) + bytes(4) + b"\x02" + b"x" * 500, Stop.BAD_LENGTH),
        (struct.pack(">qi", 99, 2**31 - 1) + bytes(4) + b"\x02" + b"x" * 500, Stop.BAD_LENGTH),
        (struct.pack(">qi", 99, 100) + bytes(4) + b"\x01" + b"x" * 500, Stop.BAD_MAGIC),
    ],
)
def test_the_walk_stops_where_no_batch_is_and_never_searches_on(
    tmp_path: Path, log: list[bytes], tail: bytes, stop: Stop
) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(b"".join(log) + tail + b"".join(log))
    scan = scan_segment(path, size_bytes=sum(map(len, log)) + len(tail))
    assert scan.stop is stop
    assert (len(scan.table), scan.skipped_bytes) == (len(log), len(tail))


# Holds INV-RCSC4.
def test_a_wrong_crc_is_kept_and_marked(tmp_path: Path, log: list[bytes]) -> None:
    path = tmp_path / "s.log"
    spoiled = [*log[:3], flipped(log[3]), *log[4:]]
    path.write_bytes(b"".join(spoiled))
    assert scan_segment(path).table["crc_ok"].tolist() == [1] * 3 + [0] + [1] * (len(log) - 4)


# Holds INV-RCSC3.
def test_what_is_appended_after_the_sample_is_not_seen(tmp_path: Path, log: list[bytes]) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(b"".join(log))
    scan = scan_segment(path, size_bytes=len(b"".join(log[:4])))
    assert (len(scan.table), scan.stop) == (4, Stop.END)


# Holds INV-RCSC1.
def test_a_file_that_shrank_since_is_told_apart_from_a_torn_one(
    tmp_path: Path, log: list[bytes]
) -> None:
    path = tmp_path / "s.log"
    path.write_bytes(b"".join(log[:4]))
    scan = scan_segment(path, size_bytes=len(b"".join(log)))
    assert (len(scan.table), scan.stop) == (4, Stop.SHRUNK)


# Holds INV-RCH1.
def test_identity_leaves_out_the_leader_epoch_and_nothing_else(
    tmp_path: Path, log: list[bytes]
) -> None:
    def digest(batch: bytes) -> tuple[int, int]:
        path = tmp_path / "one.log"
        path.write_bytes(batch)
        (row,) = range_digests(scan_segment(path).table)
        return int(row["x1"]), int(row["x2"])

    batch = log[2]
    assert digest(batch) == digest(restamped(batch, leader_epoch=77))
    assert digest(batch) != digest(restamped(batch, base_offset=77))
    for at in (22, 26, 30, 40, 45, 52, 56, 60, len(batch) - 1):
        assert digest(batch) != digest(with_crc(flipped(batch, at=at))), at


def test_listing_names_topics_and_skips_what_is_no_partition(tmp_path: Path) -> None:
    pair = Pair.of(sound_primary(), roll_batches=6)
    pair.write(tmp_path)
    logs = tmp_path / "primary" / "logs"
    (logs / ("f" * 32)).mkdir()  # a topic on its way in: no topic.json yet
    (logs / ("e" * 32 + ".deleted")).mkdir()
    found = list_region(tmp_path / "primary", first=(TXN_LEDGER,))
    assert found[0].topic == TXN_LEDGER
    assert {(files.topic, files.partition) for files in found} == set(pair.source)
    for files in found:
        log = pair.source[files.topic, files.partition]
        assert sum(segment.size_bytes for segment in files.segments) == sum(map(len, log))
        assert end_offset(files) == read_header(log[-1]).next_offset


def test_a_folder_that_is_no_region_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data_dir"):
        list_region(tmp_path)


def test_an_unreadable_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(2)):
        scan_segment(tmp_path / "absent.log")
