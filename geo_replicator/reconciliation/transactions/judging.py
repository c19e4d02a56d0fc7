"""Every transaction of one bucket of producer ids, on both sides: whether it is whole, decided, and shown as decided.

INV-RCTX4  what the other side has behind the end of this one is lag, not a fault
INV-RCTX5  an open transaction hangs only if nothing ends it behind the cut either, and only by age: what began after
         ROUND has its data below D and its ledger record above L. Age is told by the primary region's clock (ledger
         records, and tidemarks by which the data was there), never by what clients write into records

Pure. Not here: what a bucket is made of (`instances`), decisions and their markers (`decisions`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.ledger_facts import UNREADABLE, LedgerFact
from geo_replicator.reconciliation.evidence.rows import EVENT_DTYPE
from geo_replicator.reconciliation.findings import Finding, Kind
from geo_replicator.reconciliation.plan import TRANSACTION_LEDGER, Plan
from geo_replicator.reconciliation.transactions.check import Check, blocked_end, finding_of, twins
from geo_replicator.reconciliation.transactions.decisions import judge_decisions
from geo_replicator.reconciliation.transactions.instances import (
    ABORT,
    COMMIT,
    NO_OFFSET,
    OPEN,
    SIDES,
    Extents,
    Rows,
    SideView,
    decisions_of,
    instances_of,
    key_hash,
)
from idempotency.identity import ProducerId
from idempotency.ledger_records import TxnStatus

_UNDER_WAY: Final = frozenset(
    {TxnStatus.ONGOING, TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT}
)


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one bucket shows: `decisions` were checked on both sides together."""

    findings: list[Finding] = []
    decisions: int = 0
    unreadable: list[str] = []


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
    places = list(plan.partitions)
    source, mirror = (
        _side_view(plan, side, all_events[all_events["side"] == side], by_side[side])
        for side in (0, 1)
    )
    check = Check(
        plan, extents, (source, mirror), places, {name: i for i, name in enumerate(places)}
    )
    judge_decisions(check)
    for side in check.sides:
        _judge_open(check, side)
    _compare_instances(check)
    return TransactionResult(
        findings=twins(check.findings),
        decisions=len(source.decisions) + len(mirror.decisions),
        unreadable=unreadable,
    )


def _side_view(plan: Plan, side: int, events: Rows, facts: list[LedgerFact]) -> SideView:
    """Return one side as it is at the cut, with what is known of later."""
    bounds = np.array([part.bound for part in plan.partitions.values()], np.int64)
    bounds[bounds < 0] = NO_OFFSET
    later = events["first_offset"] >= bounds[events["place"]]
    _, statuses = decisions_of(facts)
    decisions, _ = decisions_of([fact for fact in facts if not _is_later(plan, fact)])
    return SideView(side, instances_of(events[~later]), decisions, statuses, events[later])


def _is_later(plan: Plan, fact: LedgerFact) -> bool:
    planned = plan.partitions.get(f"{TRANSACTION_LEDGER}/{fact.shard}")
    return planned is not None and 0 <= planned.bound <= fact.offset


def _judge_open(check: Check, side: SideView) -> None:
    """Find open transactions that nothing ends and that are older than their time-out (INV-RCTX5)."""
    rows = side.instances[side.instances["outcome"] == OPEN]
    for row in rows:
        producer_id, place = int(row["producer_id"]), int(row["place"])
        if (side.number, place, producer_id) in check.disturbed:
            continue
        extent = check.extents.of(side.number, place)
        if extent is None or not extent.is_whole:
            continue
        age = _excess_age(check, side, row)
        if not age or _ended_later(check, row) or _closed_elsewhere(check, side, row):
            continue
        check.disturbed.add((side.number, place, producer_id))
        check.findings.append(
            finding_of(
                check, side, Kind.HANGING_TXN, place, int(row["first_offset"]), blocked_end(check, side, row),
                record_count=int(row["records"]),
                producer_id=producer_id,
                producer_epoch=int(row["producer_epoch"]),
                detail=f"open for {age}; end it with: tidemark txn abort"
                f" --partition {check.places[place]} --producer-id {producer_id}",
            )
        )  # fmt: skip


def _excess_age(check: Check, side: SideView, row: Any) -> str:
    """Return for how long a transaction is open, in words; empty if that is not too long, or not known."""
    fact = side.statuses.get(int(row["producer_id"]))
    if fact is not None and fact.status in _UNDER_WAY:
        newest_ms = max(check.extents.newest_ms[side.number], check.plan.cut_wall_ms)
        age_ms, limit_ms = newest_ms - fact.last_update_ms, max(1, fact.timeout_ms)
        return f"{age_ms} ms, time-out {limit_ms} ms" if age_ms > limit_ms else ""
    # The ledger knows of nothing under way: the data came late, or its record lies behind what was read.
    planned = check.plan.partitions[check.places[int(row["place"])]]
    is_old = int(row["last_offset"]) < planned.old_below
    return f"more than {check.plan.options.hanging_ms} ms, by the tidemarks" if is_old else ""


def _ended_later(check: Check, row: Any) -> bool:
    """Return whether either side has its marker behind the cut: it was open when the cut was made, and ended (INV-RCTX4)."""
    return any(
        (
            (side.later_markers["place"] == row["place"])
            & (side.later_markers["producer_id"] == row["producer_id"])
            & (side.later_markers["producer_epoch"] >= row["producer_epoch"])
            & (side.later_markers["first_offset"] > row["last_offset"])
        ).any()
        for side in check.sides
    )


def _closed_elsewhere(check: Check, side: SideView, row: Any) -> bool:
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


def _compare_instances(check: Check) -> None:
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


def _mirror_bounds(check: Check) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    start = np.zeros(len(check.places), np.int64)
    end = np.zeros(len(check.places), np.int64)
    for place, name in enumerate(check.places):
        extent, source = check.extents.of(1, place), check.extents.of(0, place)
        if extent is not None and extent.is_whole and source is not None and source.is_whole:
            # Below the clean point each side shows what its own compaction has left of a transaction.
            start[place] = max(extent.start_offset, check.plan.partitions[name].cleaned_below)
            end[place] = max(extent.end_offset, check.plan.partitions[name].bound)
    return start, end


def _add_difference(check: Check, row: Any) -> None:
    place, producer_id = int(row["place"]), ProducerId(int(row["producer_id"]))
    mirror = check.sides[1]
    key = (int(row["decision_shard"]), int(row["decision_epoch"]), int(row["decision_offset"]))
    if (1, place, producer_id) in check.disturbed:
        return
    check.disturbed.add((1, place, producer_id))
    ours = mirror.of_producer(place, producer_id)
    ours = ours[ours["last_offset"] >= row["first_offset"]][:1]
    first = min([int(row["first_offset"]), *ours["first_offset"].tolist()])
    check.findings.append(
        finding_of(
            check, mirror, Kind.TORN_TXN, place, first, int(row["marker_offset"]),
            record_count=int(row["records"]),
            producer_id=producer_id,
            producer_epoch=int(row["producer_epoch"]),
            decision="" if key[2] < 0 else "/".join(str(part) for part in key),
            detail=f"primary: {_shown(row)}; mirror: {_shown(ours[0]) if len(ours) else 'nothing of it'}",
        )
    )  # fmt: skip


def _shown(row: Any) -> str:
    outcome = {OPEN: "open", ABORT: "aborted", COMMIT: "committed"}[int(row["outcome"])]
    at = "" if row["outcome"] == OPEN else f" at {int(row['marker_offset'])}"
    return f"{int(row['records'])} records {outcome}{at}"
