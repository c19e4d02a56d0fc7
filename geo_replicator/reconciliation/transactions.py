"""Every transaction against the ledger, on both sides: whether it is whole, decided, and shown as decided.

INV-RCTX1  a transaction is named by its decision (ledger shard, leader epoch, offset), which its markers carry
         (T6); a marker says what readers see, the ledger says what is true
INV-RCTX2  COMPLETE in the ledger promises every marker: below one cut, COMPLETE below L puts them below D (T9)
INV-RCTX3  a decision without COMPLETE may lack markers anywhere: the next coordinator writes them (T21)
INV-RCTX4  what the other side has behind the end of this one is lag, not a fault
INV-RCTX5  an open transaction hangs only by age, measured in the log's own time: what began after ROUND has its
         data below D and its ledger record above L

Pure; works on one bucket of producer ids, for both sides. Not here: collecting events (`evidence`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.ledger_facts import UNREADABLE, LedgerFact
from geo_replicator.reconciliation.evidence.rows import EVENT_DTYPE
from geo_replicator.reconciliation.findings import Finding, Kind, Side, explained
from geo_replicator.reconciliation.plan import TRANSACTION_LEDGER, Plan
from idempotency.ledger_records import TxnStatus

_SIDES: Final = (Side.SOURCE, Side.MIRROR)
_OPEN: Final = -1
_ABORT: Final = 0
_COMMIT: Final = 1
_NO_OFFSET: Final = np.iinfo(np.int64).max
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)

_SPOILING: Final = {
    Kind.TOPIC_MISMATCH, Kind.CRC_BAD_LOCAL, Kind.TORN_BATCH, Kind.OVERLAP, Kind.DIVERGENT,
    Kind.MISSING, Kind.EXTRA, Kind.EXTRA_PAST_SOURCE, Kind.OFFSET_GAP, Kind.POST_PROMOTION_FORK,
}  # fmt: skip
"""Kinds of damage that can take away a transaction's data or marker. Lag never explains a torn one."""

DecisionKey: TypeAlias = tuple[int, int, int]
Rows: TypeAlias = npt.NDArray[Any]

_INSTANCE_DTYPE: Final = np.dtype(
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
    """What both sides hold, by place in the plan (None: not there), and the newest timestamp of each side."""

    source: list[Extent | None]
    mirror: list[Extent | None]
    newest_ms: tuple[int, int]

    def of(self, side: int, place: int) -> Extent | None:
        """Return what a side (0 source, 1 mirror) holds of a place."""
        return (self.source, self.mirror)[side][place]


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one bucket shows: `decisions` were checked on both sides together."""

    findings: list[Finding] = []
    decisions: int = 0
    unreadable: list[str] = []


@dataclass(slots=True)
class Decision:
    """One decision of the ledger."""

    key: DecisionKey
    fact: LedgerFact
    commit: bool
    complete: bool = False


@dataclass(slots=True)
class _Side:
    """One side's transactions in this bucket."""

    number: int
    instances: Rows
    decisions: dict[DecisionKey, Decision]
    statuses: dict[int, LedgerFact]
    markers: dict[tuple[DecisionKey, int], int] = field(default_factory=dict)
    """Row in `instances` by (decision, place); filled only for what is looked at closely."""

    def of_producer(self, place: int, producer_id: int) -> Rows:
        """Return one producer's transactions in one place, by offset."""
        rows = self.instances
        chosen: Rows = rows[(rows["place"] == place) & (rows["producer_id"] == producer_id)]
        return chosen


@dataclass(slots=True)
class _Check:
    plan: Plan
    extents: Extents
    sides: tuple[_Side, _Side]
    places: list[str]
    place_of: dict[str, int]
    findings: list[Finding] = field(default_factory=list)
    disturbed: set[tuple[int, int, int]] = field(default_factory=set)
    """(side, place, producer id) with a finding: what follows there is its consequence."""


def check_transactions(
    plan: Plan, extents: Extents, events: Sequence[Rows], facts: Iterable[LedgerFact]
) -> TransactionResult:
    """Judge one bucket: its events of all partitions and both sides, and its ledger facts."""
    all_events = np.concatenate(events) if events else np.empty(0, EVENT_DTYPE)
    by_side: tuple[list[LedgerFact], list[LedgerFact]] = ([], [])
    unreadable = []
    for fact in facts:
        if fact.status == UNREADABLE:
            where = f"{_SIDES[fact.side].value} {TRANSACTION_LEDGER}-{fact.shard}"
            unreadable.append(f"{where} offset {fact.offset}: {fact.detail}")
        else:
            by_side[fact.side].append(fact)
    source, mirror = (
        _Side(side, _instances(all_events[all_events["side"] == side]), *_decisions(by_side[side]))
        for side in (0, 1)
    )
    places = list(plan.partitions)
    check = _Check(
        plan, extents, (source, mirror), places, {name: i for i, name in enumerate(places)}
    )
    suspicious = [_suspicious(check, side) for side in check.sides]
    for side, keys in zip(check.sides, suspicious, strict=True):
        _index_markers(check, {key for chosen in suspicious for key in chosen})
        for key in sorted(keys):
            _judge_decision(check, side, key)
    for side in check.sides:
        _judge_open(check, side)
    _compare_instances(check)
    return TransactionResult(
        findings=_twins(check.findings),
        decisions=len(source.decisions) + len(mirror.decisions),
        unreadable=unreadable,
    )


def _instances(events: Rows) -> Rows:
    if not len(events):
        return np.empty(0, _INSTANCE_DTYPE)
    events = events[np.lexsort((events["first_offset"], events["producer_id"], events["place"]))]
    data = events["control_type"] < 0
    other = (events["place"][1:] != events["place"][:-1]) | (
        events["producer_id"][1:] != events["producer_id"][:-1]
    )
    starts = np.flatnonzero(np.append(True, other | ~data[:-1]))
    ends = np.append(starts[1:], len(events)) - 1
    made = np.empty(len(starts), _INSTANCE_DTYPE)
    for name in ("place", "producer_id", "producer_epoch"):
        made[name] = events[name][starts]
    closed = ~data[ends]
    made["first_offset"] = events["first_offset"][starts]
    made["last_offset"] = np.maximum.reduceat(events["last_offset"], starts)
    for name in ("records", "batches"):
        made[name] = np.add.reduceat(np.where(data, events[name], 0), starts)
    made["outcome"] = events["control_type"][ends]
    made["marker_offset"] = np.where(closed, events["first_offset"][ends], _NO_OFFSET)
    made["max_timestamp_ms"] = np.maximum.reduceat(events["max_timestamp_ms"], starts)
    for name in ("decision_shard", "decision_epoch", "decision_offset"):
        made[name] = np.where(closed, events[name][ends], -1)
    return made


def _decisions(
    facts: list[LedgerFact],
) -> tuple[dict[DecisionKey, Decision], dict[int, LedgerFact]]:
    decisions: dict[DecisionKey, Decision] = {}
    statuses: dict[int, LedgerFact] = {}
    prepared: dict[str, DecisionKey] = {}
    for fact in sorted(facts, key=lambda fact: (fact.shard, fact.offset)):
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


def _key_hash(shard: Any, epoch: Any, offset: Any, place: Any) -> npt.NDArray[np.uint64]:
    total = np.zeros(len(offset), np.uint64)
    for column in (shard, epoch, offset, place):
        total ^= np.asarray(column).astype(np.int64).view(np.uint64)
        total *= _MIX
        total ^= total >> np.uint64(29)
    return total


def _suspicious(check: _Check, side: _Side) -> set[DecisionKey]:
    """Return the decisions whose markers are not exactly those that the ledger promises."""
    rows = [
        (*decision.key, check.place_of[name], int(decision.commit), decision.complete)
        for decision in side.decisions.values()
        for name in _place_names(decision)
        if name in check.place_of
    ]
    promised = np.array(rows, np.int64).reshape(-1, 6)
    marked = side.instances[
        (side.instances["outcome"] >= 0) & (side.instances["decision_offset"] >= 0)
    ]
    want = _key_hash(*(promised[:, column] for column in range(4)))
    have = _key_hash(
        marked["decision_shard"],
        marked["decision_epoch"],
        marked["decision_offset"],
        marked["place"],
    )
    _, at_want, at_have = np.intersect1d(want, have, return_indices=True)
    wrong = promised[at_want][promised[at_want, 4] != marked["outcome"][at_have]]
    unmarked = np.ones(len(promised), np.bool_)
    unmarked[at_want] = False
    lacking = promised[unmarked & (promised[:, 5] == 1)]
    unknown = marked[np.setdiff1d(np.arange(len(marked)), at_have)]
    keys = {tuple(row[:3]) for row in (*wrong.tolist(), *lacking.tolist())}
    keys |= {
        (int(row["decision_shard"]), int(row["decision_epoch"]), int(row["decision_offset"]))
        for row in unknown
    }
    return keys


def _place_names(decision: Decision) -> list[str]:
    return [f"{topic}/{partition}" for topic, partition in decision.fact.partitions]


def _index_markers(check: _Check, keys: set[DecisionKey]) -> None:
    wanted = np.array(sorted(keys), np.int64).reshape(-1, 3)
    for side in check.sides:
        rows = side.instances
        some = np.flatnonzero(
            np.isin(rows["decision_offset"], wanted[:, 2]) & (rows["outcome"] >= 0)
        )
        for row in some.tolist():
            entry = rows[row]
            key = (
                int(entry["decision_shard"]), int(entry["decision_epoch"]), int(entry["decision_offset"])
            )  # fmt: skip
            if key in keys:
                side.markers[key, int(entry["place"])] = row


def _judge_decision(check: _Check, side: _Side, key: DecisionKey) -> None:
    decision = side.decisions.get(key)
    if decision is None:
        _judge_undecided(check, side, key)
        return
    committed, aborted, absent = _outcomes(check, side, decision)
    fact, kind, place = decision.fact, None, -1
    if decision.commit and (aborted or absent):
        kind = Kind.TORN_TXN if committed else Kind.COMMITTED_INCOMPLETE
        place = (aborted or absent)[0]
    elif not decision.commit and committed:
        kind, place = Kind.ABORTED_VISIBLE, committed[0]
    elif not decision.commit:
        kind, place = _first_lost_abort(side, decision, absent)
    if kind is not None:
        ledger = "committed" if decision.commit else "aborted"
        told = _told(check, ledger, committed, aborted, absent)
        _add(check, side, kind, _Place(key, place, fact), told)


def _first_lost_abort(
    side: _Side, decision: Decision, absent: list[int]
) -> tuple[Kind | None, int]:
    for place in absent:
        kind = _lost_abort(side, decision, place)
        if kind is not None:
            return kind, place
    return None, -1


def _outcomes(
    check: _Check, side: _Side, decision: Decision
) -> tuple[list[int], list[int], list[int]]:
    """Return the places where a decision is committed, aborted, and (if complete) has no marker."""
    committed: list[int] = []
    aborted: list[int] = []
    absent: list[int] = []
    for name in _place_names(decision):
        place = check.place_of.get(name)
        if place is None:
            continue  # left out of this run, or a topic deleted since (C33)
        row = side.markers.get((decision.key, place))
        if row is not None:
            (committed if side.instances["outcome"][row] == _COMMIT else aborted).append(place)
        elif decision.complete and not _excused(check, side, decision.key, place):
            absent.append(place)
    return committed, aborted, absent


def _excused(check: _Check, side: _Side, key: DecisionKey, place: int) -> bool:
    """Return whether a marker may lack here: not copied yet, or gone with the log's start."""
    extent = check.extents.of(side.number, place)
    if extent is None or not extent.is_whole:
        return True
    other = check.sides[1 - side.number]
    row = other.markers.get((key, place))
    if row is None:
        return extent.start_offset > 0
    at = int(other.instances["marker_offset"][row])
    bound = check.plan.partitions[check.places[place]].bound
    return at < extent.start_offset or (at >= extent.end_offset and at >= bound)


def _lost_abort(side: _Side, decision: Decision, place: int) -> Kind | None:
    """Return what a lost ABORT marker does: records stay open, or the producer's next commit shows them."""
    rows = side.of_producer(place, decision.fact.producer_id)
    for row in rows:
        ended_by = (int(row["decision_epoch"]), int(row["decision_offset"]))
        if row["outcome"] == _OPEN:
            return Kind.HANGING_TXN
        if ended_by > decision.key[1:]:
            return Kind.ABORTED_VISIBLE if row["outcome"] == _COMMIT and row["batches"] else None
    return None


def _judge_undecided(check: _Check, side: _Side, key: DecisionKey) -> None:
    """Judge markers whose decision this side's ledger does not hold."""
    places = sorted(place for found, place in side.markers if found == key)
    outcomes = {place: int(side.instances["outcome"][side.markers[key, place]]) for place in places}
    committed = [place for place in places if outcomes[place] == _COMMIT]
    if not committed:
        return
    first = side.instances[side.markers[key, committed[0]]]
    if len(committed) < len(places):
        told = _told(check, "unknown", committed, [p for p in places if p not in committed], [])
        _add(check, side, Kind.TORN_TXN, _Place(key, committed[0], row=first), told)
        return
    ledger = check.place_of.get(f"{TRANSACTION_LEDGER}/{key[0]}")
    extent = None if ledger is None else check.extents.of(side.number, ledger)
    if ledger is None or extent is None or not extent.is_whole or extent.start_offset > key[2]:
        return  # that part of the ledger is not looked at, or was removed
    bound = check.plan.partitions[check.places[ledger]].bound
    if key[2] >= extent.end_offset and key[2] >= bound:
        return  # the ledger's copy is behind the data's: lag
    told = "no decision in the ledger allows this COMMIT marker"
    _add(check, side, Kind.ABORTED_VISIBLE, _Place(key, committed[0], row=first), told)


def _told(
    check: _Check, ledger: str, committed: list[int], aborted: list[int], absent: list[int]
) -> str:
    groups = (("committed in", committed), ("aborted in", aborted), ("no marker in", absent))
    parts = [
        f"{text} {', '.join(check.places[place] for place in places)}"
        for text, places in groups
        if places
    ]
    return f"ledger: {ledger}; " + "; ".join(parts)


class _Place(NamedTuple):
    """Where a finding about a decision is reported."""

    key: DecisionKey
    place: int
    fact: LedgerFact | None = None
    """What the ledger says, if it says anything."""
    row: Any = None
    """The transaction there, if it was found already."""


def _add(check: _Check, side: _Side, kind: Kind, at: _Place, detail: str) -> None:
    first, last, records = _extent_of(check, side, at)
    fact = at.fact
    producer_id = fact.producer_id if fact is not None else int(at.row["producer_id"])
    producer_epoch = fact.producer_epoch if fact is not None else int(at.row["producer_epoch"])
    named = f"transaction of {fact.transactional_id!r}: " if fact is not None else ""
    check.disturbed |= {(side.number, place, producer_id) for place in range(len(check.places))}
    check.findings.append(
        _finding(
            check, side, kind, at.place, first, last,
            record_count=records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            decision="/".join(str(part) for part in at.key),
            detail=named + detail,
        )
    )  # fmt: skip


def _finding(
    check: _Check, side: _Side, kind: Kind, place: int, first: int, last: int, **facts: Any
) -> Finding:
    planned = check.plan.partitions[check.places[place]]
    return Finding(
        kind=kind, side=_SIDES[side.number], topic=planned.topic, partition=planned.partition,
        topic_id=planned.topic_id, first_offset=first, last_offset=last, **facts,
    )  # fmt: skip


def _extent_of(check: _Check, side: _Side, at: _Place) -> tuple[int, int, int]:
    """Return (first, last offset, records) of a transaction in a place, from whichever side shows it."""
    row = at.row
    for view in (side, check.sides[1 - side.number]):
        index = view.markers.get((at.key, at.place))
        if index is not None:
            row = view.instances[index]
            break
    if row is None and at.fact is not None:
        rows = side.of_producer(at.place, at.fact.producer_id)
        later = (rows["decision_offset"] >= at.key[2]) | (rows["outcome"] == _OPEN)
        row = next(iter(rows[later]), None)
    if row is None:
        return -1, -1, 0
    closed = int(row["marker_offset"]) != _NO_OFFSET
    last = int(row["marker_offset"]) if closed else _blocked_end(check, side, row)
    return int(row["first_offset"]), last, int(row["records"])


def _blocked_end(check: _Check, side: _Side, row: Any) -> int:
    """Return the last offset that an open transaction keeps readers of committed data from: the log's last."""
    extent = check.extents.of(side.number, int(row["place"]))
    end = 0 if extent is None else extent.end_offset
    return max(int(row["last_offset"]), end - 1)


def _judge_open(check: _Check, side: _Side) -> None:
    """Find open transactions that are older than their time-out, in the log's own time (INV-RCTX5)."""
    rows = side.instances[side.instances["outcome"] == _OPEN]
    newest_ms = max(check.extents.newest_ms[side.number], check.plan.cut_wall_ms)
    for row in rows:
        producer_id, place = int(row["producer_id"]), int(row["place"])
        if (side.number, place, producer_id) in check.disturbed:
            continue
        fact = side.statuses.get(producer_id)
        limit_ms = check.plan.options.hanging_ms if fact is None else max(1, fact.timeout_ms)
        extent = check.extents.of(side.number, place)
        if extent is None or not extent.is_whole:
            continue
        age_ms = newest_ms - int(row["max_timestamp_ms"])
        if age_ms <= limit_ms or _closed_elsewhere(check, side, row):
            continue
        check.disturbed.add((side.number, place, producer_id))
        check.findings.append(
            _finding(
                check, side, Kind.HANGING_TXN, place, int(row["first_offset"]), _blocked_end(check, side, row),
                record_count=int(row["records"]),
                producer_id=producer_id,
                producer_epoch=int(row["producer_epoch"]),
                detail=f"open for {age_ms} ms, time-out {limit_ms} ms; end it with: tidemark txn abort"
                f" --partition {check.places[place]} --producer-id {producer_id}",
            )
        )  # fmt: skip


def _closed_elsewhere(check: _Check, side: _Side, row: Any) -> bool:
    """Return whether the other side has the end of it behind the end of this one (INV-RCTX4)."""
    extent = check.extents.of(side.number, int(row["place"]))
    other = check.sides[1 - side.number].instances
    same = (
        (other["place"] == row["place"])
        & (other["producer_id"] == row["producer_id"])
        & (other["first_offset"] == row["first_offset"])
        & (other["outcome"] >= 0)
    )
    ends = other["marker_offset"][same]
    return extent is not None and bool((ends >= extent.end_offset).any())


def _compare_instances(check: _Check) -> None:
    """Compare what both sides show of each transaction in each partition: the end of it, and how much."""
    source, mirror = (side.instances for side in check.sides)
    closed = source[source["outcome"] >= 0]
    start, end = _mirror_bounds(check)
    closed = closed[
        (closed["first_offset"] >= start[closed["place"]])
        & (closed["marker_offset"] < end[closed["place"]])
    ]
    ended = mirror[mirror["outcome"] >= 0]
    left, right = (
        _key_hash(rows["producer_id"], rows["place"], rows["marker_offset"], rows["place"])
        for rows in (closed, ended)
    )
    _, at_left, at_right = np.intersect1d(left, right, return_indices=True)
    same = (closed["outcome"][at_left] == ended["outcome"][at_right]) & (
        closed["records"][at_left] == ended["records"][at_right]
    )
    unmatched = np.ones(len(closed), np.bool_)
    unmatched[at_left[same]] = False
    suspects = closed[unmatched]
    for row in suspects[np.argsort(suspects["first_offset"], kind="stable")]:
        _add_difference(check, row)


def _mirror_bounds(check: _Check) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    start = np.zeros(len(check.places), np.int64)
    end = np.zeros(len(check.places), np.int64)
    for place, name in enumerate(check.places):
        extent, source = check.extents.of(1, place), check.extents.of(0, place)
        if extent is not None and extent.is_whole and source is not None and source.is_whole:
            start[place] = extent.start_offset
            end[place] = max(extent.end_offset, check.plan.partitions[name].bound)
    return start, end


def _add_difference(check: _Check, row: Any) -> None:
    place, producer_id = int(row["place"]), int(row["producer_id"])
    mirror = check.sides[1]
    key = (int(row["decision_shard"]), int(row["decision_epoch"]), int(row["decision_offset"]))
    if (1, place, producer_id) in check.disturbed:
        return
    check.disturbed.add((1, place, producer_id))
    ours = mirror.of_producer(place, producer_id)
    ours = ours[ours["last_offset"] >= row["first_offset"]][:1]
    first = min([int(row["first_offset"]), *ours["first_offset"].tolist()])
    check.findings.append(
        _finding(
            check, mirror, Kind.TORN_TXN, place, first, int(row["marker_offset"]),
            record_count=int(row["records"]),
            producer_id=producer_id,
            producer_epoch=int(row["producer_epoch"]),
            decision="" if key[2] < 0 else "/".join(str(part) for part in key),
            detail=f"source: {_shown(row)}; mirror: {_shown(ours[0]) if len(ours) else 'nothing of it'}",
        )
    )  # fmt: skip


def _shown(row: Any) -> str:
    outcome = {_OPEN: "open", _ABORT: "aborted", _COMMIT: "committed"}[int(row["outcome"])]
    at = "" if row["outcome"] == _OPEN else f" at {int(row['marker_offset'])}"
    return f"{int(row['records'])} records {outcome}{at}"


def _twins(findings: list[Finding]) -> list[Finding]:
    """Return findings with those of the mirror explained by the source's about the same transaction."""
    roots = {_identity(finding): finding for finding in findings if finding.side is Side.SOURCE}
    return [
        explained(finding, roots[_identity(finding)])
        if finding.side is Side.MIRROR and _identity(finding) in roots
        else finding
        for finding in findings
    ]


def _identity(finding: Finding) -> tuple[object, ...]:
    if finding.decision:
        return (finding.decision,)
    return (finding.topic, finding.partition, finding.producer_id, finding.first_offset)


def attribute_transactions(found: Iterable[Finding], verified: Iterable[Finding]) -> list[Finding]:
    """Return findings about transactions with those explained that a damaged batch accounts for.

    A root explains them if it touches the transaction where it was found, or its decision in the ledger.
    """
    roots: dict[tuple[str, int], list[Finding]] = {}
    for finding in verified:
        if finding.is_root and finding.kind in _SPOILING:
            roots.setdefault((finding.topic, finding.partition), []).append(finding)
    return [_attributed(finding, roots) for finding in found]


def _attributed(finding: Finding, roots: dict[tuple[str, int], list[Finding]]) -> Finding:
    places = [(finding.topic, finding.partition, finding.first_offset, finding.last_offset)]
    if finding.decision:
        shard, _, offset = (int(part) for part in finding.decision.split("/"))
        places.append((TRANSACTION_LEDGER, shard, offset, offset))
    for topic, partition, first, last in places:
        for root in roots.get((topic, partition), []):
            if root.touches(first, last) or root.first_offset < 0:
                return explained(finding, root)
    return finding
