"""Markers read by the column: what `read_marker` says of each, for thousands of them at once.

INV-RCMC1  equal to `idempotency.record_batch.read_marker` on every control batch: the layout is not written
         down here but measured on markers that the kernel builds, and a batch that differs from that layout
         in any fixed byte goes to `read_marker` itself

Most batches of a transactional log are markers of one size; reading them one by one takes longer than all else
in a scan together.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.segments.batch_table import BatchTable
from idempotency.decision import DecisionId
from idempotency.identity import CoordinatorEpoch, LeaderEpoch, ProducerEpoch, ProducerId, Round
from idempotency.record_batch import (
    HEADER_BYTES,
    BatchError,
    ControlType,
    MarkerFacts,
    build_marker,
    read_marker,
)

_Bytes = npt.NDArray[np.uint8]
_PROBE_EPOCH: Final = CoordinatorEpoch(0x5A5B5C5D)
_PROBE_DECISION: Final = DecisionId(
    0x11121314, LeaderEpoch(0x21222324), 0x3132333435363738, Round(0x4142434445464748)
)
_DECISION_FIELDS: Final = (
    ("decision_shard", ">i4", _PROBE_DECISION.shard.to_bytes(4, "big")),
    ("decision_epoch", ">i4", _PROBE_DECISION.leader_epoch.to_bytes(4, "big")),
    ("decision_offset", ">i8", _PROBE_DECISION.offset.to_bytes(8, "big")),
    ("decision_stamp", ">i8", _PROBE_DECISION.stamp.to_bytes(8, "big")),
    ("coordinator_epoch", ">i4", _PROBE_EPOCH.to_bytes(4, "big")),
)


def _probe(control_type: ControlType) -> bytes:
    return build_marker(
        MarkerFacts(ProducerId(1), ProducerEpoch(1), control_type, _PROBE_EPOCH, _PROBE_DECISION, 1)
    )


_COMMIT: Final = np.frombuffer(_probe(ControlType.COMMIT), np.uint8)
_ABORT: Final = np.frombuffer(_probe(ControlType.ABORT), np.uint8)
MARKER_BYTES: Final = len(_COMMIT)
_TYPE_AT: Final = HEADER_BYTES + int(np.flatnonzero((_COMMIT != _ABORT)[HEADER_BYTES:])[-1])
_PLACES: Final = tuple(
    (name, layout, _COMMIT.tobytes().index(probe), len(probe))
    for name, layout, probe in _DECISION_FIELDS
)


def _fixed_columns() -> npt.NDArray[np.bool_]:
    fixed = np.ones(MARKER_BYTES, np.bool_)
    fixed[:HEADER_BYTES] = False
    fixed[_TYPE_AT] = False
    for _, _, at, size in _PLACES:
        fixed[at : at + size] = False
    return fixed


_FIXED: Final = _fixed_columns()


def read_markers(
    table: BatchTable, control: npt.NDArray[np.intp], window: _Bytes, starts: npt.NDArray[np.int64]
) -> None:
    """Fill in control type, coordinator epoch and decision of the rows `control` of `table`.

    `starts` are positions in `window` by row. A control batch that is no marker stays CONTROL_UNKNOWN.
    """
    whole = control[table["size_bytes"][control] == MARKER_BYTES]
    raw = window[starts[whole][:, None] + np.arange(MARKER_BYTES)]
    known = (raw[:, _FIXED] == _COMMIT[_FIXED]).all(axis=1) & (raw[:, _TYPE_AT] <= 1)
    rows, raw = whole[known], raw[known]
    table["control_type"][rows] = raw[:, _TYPE_AT]
    for name, layout, at, size in _PLACES:
        column = np.ascontiguousarray(raw[:, at : at + size]).view(layout).reshape(-1)
        table[name][rows] = column
    for row in np.setdiff1d(control, rows, assume_unique=True):
        _read_one(table[row], window, int(starts[row]))


def _read_one(row: Any, window: _Bytes, start: int) -> None:
    try:
        marker = read_marker(window[start : start + int(row["size_bytes"])].tobytes())
    except BatchError:
        return
    row["control_type"] = int(marker.control_type)
    row["coordinator_epoch"] = marker.coordinator_epoch
    if marker.decision is not None:
        row["decision_shard"] = marker.decision.shard
        row["decision_epoch"] = marker.decision.leader_epoch
        row["decision_offset"] = marker.decision.offset
        row["decision_stamp"] = marker.decision.stamp
