"""Batch headers as a table: one row per record batch, and digests over them.

INV-RCH1  `identity_digests` covers base and last offset, size, magic, attributes, stored CRC, both times,
        producer id and epoch, base sequence and record count; never the leader epoch (outside the CRC,
        and a fact about who wrote, not about what)
Range digests are XORs: they fold over segments and levels in any order; the count is part of the key, because XOR alone
cancels a batch that is there twice. An equal digest says equal headers, not equal bytes: the CRC in a header is a
stored one, so a row carries `crc_ok`, recomputed in the pass that read it.

Not here: reading files (`scanner`). One row costs about 130 bytes while it is in memory.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from idempotency.record_batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchHeader

BatchTable: TypeAlias = npt.NDArray[Any]
"""A structured array of `BATCH_DTYPE`."""
Digests: TypeAlias = npt.NDArray[np.uint64]

DIGEST_VERSION: Final = 1
RANGE_LEVEL: Final = 16
RANGE_LEVELS: Final = (16, 20, 24)

HEADER_DTYPE: Final = np.dtype(
    list(
        zip(
            BatchHeader._fields,
            [
                ">i8",
                ">i4",
                ">i4",
                "i1",
                ">u4",
                ">i2",
                ">i4",
                ">i8",
                ">i8",
                ">i8",
                ">i2",
                ">i4",
                ">i4",
            ],
            strict=True,
        )
    )
)
"""The wire layout of `idempotency.record_batch.BatchHeader`, for whole columns at once."""
assert HEADER_DTYPE.itemsize == HEADER_BYTES
CRC_COVERS_FROM: Final = int(HEADER_DTYPE.fields["attributes"][1])  # type: ignore[index]
LENGTH_AT: Final = int(HEADER_DTYPE.fields["batch_length"][1])  # type: ignore[index]
DELTA_AT: Final = int(HEADER_DTYPE.fields["last_offset_delta"][1])  # type: ignore[index]
MAGIC_AT: Final = int(HEADER_DTYPE.fields["magic"][1])  # type: ignore[index]

NOT_CONTROL: Final = -1
CONTROL_UNKNOWN: Final = 2
NO_DECISION: Final = -1

BATCH_DTYPE: Final = np.dtype(
    [
        ("position", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("size_bytes", "i4"),
        ("leader_epoch", "i4"),
        ("magic", "i1"),
        ("crc_ok", "i1"),
        ("attributes", "i2"),
        ("crc", "u4"),
        ("base_timestamp_ms", "i8"),
        ("max_timestamp_ms", "i8"),
        ("producer_id", "i8"),
        ("producer_epoch", "i2"),
        ("control_type", "i2"),
        ("base_sequence", "i4"),
        ("record_count", "i4"),
        ("coordinator_epoch", "i4"),
        ("decision_shard", "i4"),
        ("decision_epoch", "i4"),
        ("decision_offset", "i8"),
        ("decision_stamp", "i8"),
    ]
)
"""`control_type`: -1 data, 0 abort marker, 1 commit marker, 2 another control record. `decision_*` are -1
unless a marker carries its decision (T6)."""

RANGE_DTYPE: Final = np.dtype(
    [
        ("range", "i8"),
        ("batches", "i8"),
        ("records", "i8"),
        ("bytes", "i8"),
        ("first_offset", "i8"),
        ("last_offset", "i8"),
        ("x1", "i8"),
        ("x2", "i8"),
        ("crc_bad", "i8"),
    ]
)

_IDENTITY: Final = (
    "base_offset", "last_offset", "size_bytes", "magic", "attributes", "crc", "base_timestamp_ms",
    "max_timestamp_ms", "producer_id", "producer_epoch", "base_sequence", "record_count",
)  # fmt: skip
_SEEDS: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def empty_table() -> BatchTable:
    """Return a table without rows."""
    return np.empty(0, BATCH_DTYPE)


def table_of_headers(raw: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64]) -> BatchTable:
    """Return the rows of the batches whose 61 header bytes are the rows of `raw` (n x 61).

    `crc_ok` is set; decisions and control types are for the caller to fill in (`control_type` of every
    control batch is CONTROL_UNKNOWN until then).
    """
    headers = np.ascontiguousarray(raw).view(HEADER_DTYPE).reshape(-1)
    table = np.empty(len(headers), BATCH_DTYPE)
    table["position"] = positions
    for name in (
        "base_offset", "leader_epoch", "magic", "attributes", "crc", "base_timestamp_ms",
        "max_timestamp_ms", "producer_id", "producer_epoch", "base_sequence", "record_count",
    ):  # fmt: skip
        table[name] = headers[name]
    table["last_offset"] = table["base_offset"] + headers["last_offset_delta"]
    table["size_bytes"] = headers["batch_length"] + LENGTH_PREFIX_BYTES
    table["crc_ok"] = 1
    table["control_type"] = NOT_CONTROL
    for name in (
        "coordinator_epoch", "decision_shard", "decision_epoch", "decision_offset", "decision_stamp",
    ):  # fmt: skip
        table[name] = NO_DECISION
    return table


def identity_digests(table: BatchTable) -> tuple[Digests, Digests]:
    """Return the identity of every row under two seeds (INV-RCH1)."""
    sums: list[Digests] = []
    for seed, multiplier in zip(_SEEDS, _MULTIPLIERS, strict=True):
        total = np.full(len(table), seed, np.uint64)
        for name in _IDENTITY:
            total ^= table[name].astype(np.int64).view(np.uint64)
            total *= multiplier
            total ^= total >> np.uint64(29)
        total *= seed
        total ^= total >> np.uint64(32)
        sums.append(total)
    return sums[0], sums[1]


def range_digests(table: BatchTable, level: int = RANGE_LEVEL) -> npt.NDArray[Any]:
    """Return one `RANGE_DTYPE` row per `base_offset >> level` that occurs, in order."""
    if not len(table):
        return np.empty(0, RANGE_DTYPE)
    x1, x2 = identity_digests(table)
    ranges = table["base_offset"] >> level
    order = np.argsort(ranges, kind="stable")
    starts, keys = _group_starts(ranges[order])
    rows = np.empty(len(keys), RANGE_DTYPE)
    rows["range"] = keys
    rows["batches"] = np.diff(np.append(starts, len(table)))
    for name, column in (("records", "record_count"), ("bytes", "size_bytes")):
        rows[name] = np.add.reduceat(table[column][order].astype(np.int64), starts)
    rows["first_offset"] = np.minimum.reduceat(table["base_offset"][order], starts)
    rows["last_offset"] = np.maximum.reduceat(table["last_offset"][order], starts)
    rows["x1"] = np.bitwise_xor.reduceat(x1[order].view(np.int64), starts)
    rows["x2"] = np.bitwise_xor.reduceat(x2[order].view(np.int64), starts)
    rows["crc_bad"] = np.add.reduceat((table["crc_ok"][order] == 0).astype(np.int64), starts)
    return rows


def fold_ranges(rows: npt.NDArray[Any], levels_up: int = 0) -> npt.NDArray[Any]:
    """Return `rows` with equal ranges merged, after coarsening by `levels_up` bits."""
    if not len(rows):
        return rows
    ranges = rows["range"] >> levels_up
    order = np.argsort(ranges, kind="stable")
    starts, keys = _group_starts(ranges[order])
    folded = np.empty(len(keys), RANGE_DTYPE)
    folded["range"] = keys
    for name in ("batches", "records", "bytes", "crc_bad"):
        folded[name] = np.add.reduceat(rows[name][order], starts)
    folded["first_offset"] = np.minimum.reduceat(rows["first_offset"][order], starts)
    folded["last_offset"] = np.maximum.reduceat(rows["last_offset"][order], starts)
    for name in ("x1", "x2"):
        folded[name] = np.bitwise_xor.reduceat(rows[name][order], starts)
    return folded


def _group_starts(
    ordered: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return starts, ordered[starts]


def differing_ranges(source: npt.NDArray[Any], mirror: npt.NDArray[Any]) -> list[int]:
    """Return the ranges whose folded rows differ in count or digest, or that only one side has."""
    left = {int(row["range"]): (row["batches"], row["x1"], row["x2"]) for row in source}
    right = {int(row["range"]): (row["batches"], row["x1"], row["x2"]) for row in mirror}
    return sorted(key for key in {*left, *right} if left.get(key) != right.get(key))
