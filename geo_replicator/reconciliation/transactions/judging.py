"""Every transaction against the ledger, on both sides: whether it is whole, decided, and shown as decided.

INV-RCTX1  a transaction is named by its decision (ledger shard, leader epoch, offset), which its markers carry
         (T6); a marker says what readers see, the ledger says what is true
INV-RCTX2  COMPLETE in the ledger promises every marker: below one cut, COMPLETE below L puts them below D (T9)
INV-RCTX3  a decision without COMPLETE may lack markers anywhere: the next coordinator writes them (T21)
INV-RCTX4  what the other side has behind the end of this one is lag, not a fault
INV-RCTX5  an open transaction hangs only by age, measured in the log's own time: what began after ROUND has its
         data below D and its ledger record above L
INV-RCTX7  what compaction may have taken away below the clean point of either side is no fault

Pure; works on one bucket of producer ids, for both sides. Not here: what a bucket is made of (`instances`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.ledger_facts import UNREADABLE, LedgerFact
from geo_replicator.reconciliation.evidence.rows import EVENT_DTYPE
from geo_replicator.reconciliation.findings import Finding, Kind, Side, explained
from geo_replicator.reconciliation.plan import TRANSACTION_LEDGER, Plan
from geo_replicator.reconciliation.transactions.instances import (
    ABORT,
    COMMIT,
    NO_OFFSET,
    OPEN,
    SIDES,
    Decision,
    DecisionKey,
    Extents,
    Rows,
    SideView,
    decisions_of,
    instances_of,
    key_hash,
)


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one bucket shows: `decisions` were checked on both sides together."""

    findings: list[Finding] = []
    decisions: int = 0
    unreadable: list[str] = []


@dataclass(slots=True)
class _Check:
    plan: Plan
    extents: Extents
    sides: tuple[SideView, SideView]
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
            where = f"{SIDES[fact.side].value} {TRANSACTION_LEDGER}-{fact.shard}"
            unreadable.append(f"{where} offset {fact.offset}: {fact.detail}")
        else:
            by_side[fact.side].append(fact)
    source, mirror = (
        SideView(
            side, instances_of(all_events[all_events["side"] == side]), *decisions_of(by_side[side])
        )
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


def _suspicious(check: _Check, side: SideView) -> set[DecisionKey]:
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
    want = key_hash(*(promised[:, column] for column in range(4)))
    have = key_hash(
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
    unknown = _worth_a_look(check, marked[np.setdiff1d(np.arange(len(marked)), at_have)])
    keys = {tuple(row[:3]) for row in (*wrong.tolist(), *lacking.tolist())}
    keys |= {
        (int(row["decision_shard"]), int(row["decision_epoch"]), int(row["decision_offset"]))
        for row in unknown
    }
    return keys


def _worth_a_look(check: _Check, unknown: Rows) -> Rows:
    """Return the markers of unknown decisions without those whose decision was compacted away, if they agree."""
    shards = unknown["decision_shard"]
    cleaned = np.zeros(int(shards.max(initial=0)) + 1, np.int64)
    for shard in range(len(cleaned)):
        planned = check.plan.partitions.get(f"{TRANSACTION_LEDGER}/{shard}")
        cleaned[shard] = 0 if planned is None else planned.cleaned_below
    removed = unknown["decision_offset"] < cleaned[shards]
    rows = unknown[removed]
    names = key_hash(
        rows["decision_shard"], rows["decision_epoch"], rows["decision_offset"], np.zeros(len(rows))
    )
    _, at = np.unique(names, return_inverse=True)
    commits = np.bincount(at, rows["outcome"] == COMMIT)
    disagree = (commits > 0) & (commits < np.bincount(at))
    return np.concatenate([unknown[~removed], rows[disagree[at]]])


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


def _judge_decision(check: _Check, side: SideView, key: DecisionKey) -> None:
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
    side: SideView, decision: Decision, absent: list[int]
) -> tuple[Kind | None, int]:
    for place in absent:
        kind = _lost_abort(side, decision, place)
        if kind is not None:
            return kind, place
    return None, -1


def _outcomes(
    check: _Check, side: SideView, decision: Decision
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
            (committed if side.instances["outcome"][row] == COMMIT else aborted).append(place)
        elif decision.complete and not _excused(check, side, decision.key, place):
            absent.append(place)
    return committed, aborted, absent


def _excused(check: _Check, side: SideView, key: DecisionKey, place: int) -> bool:
    """Return whether a marker may lack here: not copied yet, gone with the log's start, or compacted away."""
    extent = check.extents.of(side.number, place)
    if extent is None or not extent.is_whole:
        return True
    other = check.sides[1 - side.number]
    row = other.markers.get((key, place))
    planned = check.plan.partitions[check.places[place]]
    if row is None:
        return extent.start_offset > 0 or (
            planned.cleaned_below > 0
            and not _is_open_above(side, key, place, planned.cleaned_below)
        )
    at = int(other.instances["marker_offset"][row])
    bound = planned.bound
    return at < max(extent.start_offset, planned.cleaned_below) or (
        at >= extent.end_offset and at >= bound
    )


def _is_open_above(side: SideView, key: DecisionKey, place: int, below: int) -> bool:
    """Return whether the transaction of a decision has data at or above `below` that nothing ends."""
    rows = side.of_producer(place, side.decisions[key].fact.producer_id)
    return bool(((rows["outcome"] == OPEN) & (rows["last_offset"] >= below)).any())


def _lost_abort(side: SideView, decision: Decision, place: int) -> Kind | None:
    """Return what a lost ABORT marker does: records stay open, or the producer's next commit shows them."""
    rows = side.of_producer(place, decision.fact.producer_id)
    for row in rows:
        ended_by = (int(row["decision_epoch"]), int(row["decision_offset"]))
        if row["outcome"] == OPEN:
            return Kind.HANGING_TXN
        if ended_by > decision.key[1:]:
            return Kind.ABORTED_VISIBLE if row["outcome"] == COMMIT and row["batches"] else None
    return None


def _judge_undecided(check: _Check, side: SideView, key: DecisionKey) -> None:
    """Judge markers whose decision this side's ledger does not hold."""
    places = sorted(place for found, place in side.markers if found == key)
    outcomes = {place: int(side.instances["outcome"][side.markers[key, place]]) for place in places}
    committed = [place for place in places if outcomes[place] == COMMIT]
    if not committed:
        return
    first = side.instances[side.markers[key, committed[0]]]
    if len(committed) < len(places):
        told = _told(check, "unknown", committed, [p for p in places if p not in committed], [])
        _add(check, side, Kind.TORN_TXN, _Place(key, committed[0], row=first), told)
        return
    ledger = check.place_of.get(f"{TRANSACTION_LEDGER}/{key[0]}")
    extent = None if ledger is None else check.extents.of(side.number, ledger)
    if ledger is None or extent is None or not extent.is_whole:
        return  # that part of the ledger is not looked at
    planned = check.plan.partitions[check.places[ledger]]
    if key[2] < max(extent.start_offset, planned.cleaned_below):
        return  # it was removed
    bound = planned.bound
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


def _add(check: _Check, side: SideView, kind: Kind, at: _Place, detail: str) -> None:
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
    check: _Check, side: SideView, kind: Kind, place: int, first: int, last: int, **facts: Any
) -> Finding:
    planned = check.plan.partitions[check.places[place]]
    return Finding(
        kind=kind, side=SIDES[side.number], topic=planned.topic, partition=planned.partition,
        topic_id=planned.topic_id, first_offset=first, last_offset=last, **facts,
    )  # fmt: skip


def _extent_of(check: _Check, side: SideView, at: _Place) -> tuple[int, int, int]:
    """Return (first, last offset, records) of a transaction in a place, from whichever side shows it."""
    row = at.row
    for view in (side, check.sides[1 - side.number]):
        index = view.markers.get((at.key, at.place))
        if index is not None:
            row = view.instances[index]
            break
    if row is None and at.fact is not None:
        rows = side.of_producer(at.place, at.fact.producer_id)
        later = (rows["decision_offset"] >= at.key[2]) | (rows["outcome"] == OPEN)
        row = next(iter(rows[later]), None)
    if row is None:
        return -1, -1, 0
    closed = int(row["marker_offset"]) != NO_OFFSET
    last = int(row["marker_offset"]) if closed else _blocked_end(check, side, row)
    return int(row["first_offset"]), last, int(row["records"])


def _blocked_end(check: _Check, side: SideView, row: Any) -> int:
    """Return the last offset that an open transaction keeps readers of committed data from: the log's last."""
    extent = check.extents.of(side.number, int(row["place"]))
    end = 0 if extent is None else extent.end_offset
    return max(int(row["last_offset"]), end - 1)


def _judge_open(check: _Check, side: SideView) -> None:
    """Find open transactions that are older than their time-out, in the log's own time (INV-RCTX5)."""
    rows = side.instances[side.instances["outcome"] == OPEN]
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


def _closed_elsewhere(check: _Check, side: SideView, row: Any) -> bool:
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
        key_hash(rows["producer_id"], rows["place"], rows["marker_offset"], rows["place"])
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
            # Below the clean point each side shows what its own compaction has left of a transaction.
            start[place] = max(extent.start_offset, check.plan.partitions[name].cleaned_below)
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
    outcome = {OPEN: "open", ABORT: "aborted", COMMIT: "committed"}[int(row["outcome"])]
    at = "" if row["outcome"] == OPEN else f" at {int(row['marker_offset'])}"
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
