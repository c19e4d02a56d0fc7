"""What one bucket of producer ids shows: each transaction in each partition, and what the ledger decided of it.

A transaction in a partition is the data of a producer up to and with the next marker of that producer. Of a decision
without an id of its own (PREPARE) the id is its position in the ledger.

Pure. Not here: collecting events (`evidence`), any judgement (`judging`).
"""

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.ledger_facts import LedgerFact
from geo_replicator.reconciliation.findings import Side
from idempotency.identity import ProducerId
from idempotency.ledger_records import TxnStatus

SIDES: Final = (Side.SOURCE, Side.MIRROR)
OPEN: Final = -1
ABORT: Final = 0
COMMIT: Final = 1
NO_OFFSET: Final = np.iinfo(np.int64).max
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

DecisionKey: TypeAlias = tuple[int, int, int]
Rows: TypeAlias = npt.NDArray[Any]

INSTANCE_DTYPE: Final = np.dtype(
    [
        ("place", "i4"), ("producer_id", "i8"), ("producer_epoch", "i2"), ("first_offset", "i8"),
        ("last_offset", "i8"), ("records", "i8"), ("batches", "i4"), ("outcome", "i2"),
        ("marker_offset", "i8"), ("max_timestamp_ms", "i8"), ("decision_shard", "i4"),
        ("decision_epoch", "i4"), ("decision_offset", "i8"),
    ]
)  # fmt: skip
"""One transaction in one partition: its data, and the marker that ended it (`outcome` -1: none)."""


class Extent(msgspec.Struct, frozen=True):
    """What one side holds of one partition."""

    start_offset: int
    end_offset: int
    is_whole: bool = True
    """False where some of it could not be read: what lacks there is not known to lack."""


class Extents(msgspec.Struct, frozen=True):
    """What both sides hold, by place in the plan (None: not there), and the newest timestamp of each side's ledgers."""

    source: list[Extent | None]
    mirror: list[Extent | None]
    newest_ms: tuple[int, int]

    def of(self, side: int, place: int) -> Extent | None:
        """Return what a side (0 source, 1 mirror) holds of a place."""
        return (self.source, self.mirror)[side][place]


@dataclass(slots=True)
class Decision:
    """One decision of the ledger."""

    key: DecisionKey
    fact: LedgerFact
    commit: bool
    complete: bool = False


@dataclass(slots=True)
class SideView:
    """One side's transactions in this bucket."""

    number: int
    instances: Rows
    decisions: dict[DecisionKey, Decision]
    statuses: dict[int, LedgerFact]
    """The newest ledger record of each producer id, also behind the cut."""
    later_markers: Rows
    """Markers behind the cut."""
    markers: dict[tuple[DecisionKey, int], int] = field(default_factory=dict)
    """Row in `instances` by (decision, place); filled only for what is looked at closely."""

    def of_producer(self, place: int, producer_id: ProducerId) -> Rows:
        """Return one producer's transactions in one place, by offset."""
        rows = self.instances
        chosen: Rows = rows[(rows["place"] == place) & (rows["producer_id"] == producer_id)]
        return chosen


def instances_of(events: Rows) -> Rows:
    if not len(events):
        return np.empty(0, INSTANCE_DTYPE)
    # The last columns decide between batches that stand twice: the same order in every engine.
    columns = (
        "records",
        "last_offset",
        "decision_offset",
        "control_type",
        "first_offset",
        "producer_id",
        "place",
    )
    events = events[np.lexsort([events[name] for name in columns])]
    data = events["control_type"] < 0
    other = (events["place"][1:] != events["place"][:-1]) | (
        events["producer_id"][1:] != events["producer_id"][:-1]
    )
    starts = np.flatnonzero(np.append(True, other | ~data[:-1]))
    ends = np.append(starts[1:], len(events)) - 1
    made = np.empty(len(starts), INSTANCE_DTYPE)
    for name in ("place", "producer_id", "producer_epoch"):
        made[name] = events[name][starts]
    closed = ~data[ends]
    made["first_offset"] = events["first_offset"][starts]
    made["last_offset"] = np.maximum.reduceat(events["last_offset"], starts)
    for name in ("records", "batches"):
        made[name] = np.add.reduceat(np.where(data, events[name], 0), starts)
    made["outcome"] = events["control_type"][ends]
    made["marker_offset"] = np.where(closed, events["first_offset"][ends], NO_OFFSET)
    made["max_timestamp_ms"] = np.maximum.reduceat(events["max_timestamp_ms"], starts)
    for name in ("decision_shard", "decision_epoch", "decision_offset"):
        made[name] = np.where(closed, events[name][ends], -1)
    return made


def _place_of(fact: LedgerFact) -> tuple[int, int, int, int, str]:
    return fact.shard, fact.offset, fact.leader_epoch, fact.status, fact.transactional_id


def decisions_of(
    facts: list[LedgerFact],
) -> tuple[dict[DecisionKey, Decision], dict[int, LedgerFact]]:
    decisions: dict[DecisionKey, Decision] = {}
    statuses: dict[int, LedgerFact] = {}
    prepared: dict[str, DecisionKey] = {}
    for fact in sorted(facts, key=_place_of):
        statuses[fact.producer_id] = fact
        if fact.status in (TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT):
            key = fact.decision or (fact.shard, fact.leader_epoch, fact.offset)
            decisions[key] = Decision(key, fact, fact.status == TxnStatus.PREPARE_COMMIT)
            prepared[fact.transactional_id] = key
        elif fact.status in (TxnStatus.COMPLETE_COMMIT, TxnStatus.COMPLETE_ABORT):
            ended = fact.decision or prepared.get(fact.transactional_id)
            if ended in decisions:
                decisions[ended].complete = True
    return decisions, statuses


def key_hash(shard: Any, epoch: Any, offset: Any, place: Any) -> npt.NDArray[np.uint64]:
    total = np.zeros(len(offset), np.uint64)
    for column in (shard, epoch, offset, place):
        total ^= np.asarray(column).astype(np.int64).view(np.uint64)
        total *= _MIX
        total ^= total >> np.uint64(29)
    return total
