"""Every decision of the ledger against its markers, and every marker against the ledger.

INV-RCTX7  what compaction may have taken away below the clean point of either side is no fault
A transaction is named by its decision (ledger shard, leader epoch, offset), which its markers carry (T6); a marker says
what readers see, the ledger says what is true. COMPLETE in the ledger promises every marker: below one cut, COMPLETE
below L puts them below D (T9). A decision without COMPLETE may lack markers anywhere: the next coordinator writes them
(T21).

Decisions whose markers are exactly as promised are set aside in numpy, all at once; the others are looked at one by one.
Not here: transactions that nothing ends, and what the sides show of the others (`judging`).
"""

import numpy as np

from geo_replicator.reconciliation.findings import Kind
from geo_replicator.reconciliation.plan import TRANSACTION_LEDGER
from geo_replicator.reconciliation.transactions.check import Check, Place, add
from geo_replicator.reconciliation.transactions.instances import (
    COMMIT,
    OPEN,
    Decision,
    DecisionKey,
    Rows,
    SideView,
    key_hash,
)


def judge_decisions(check: Check) -> None:
    """Judge the decisions of both sides."""
    suspicious = [_suspicious(check, side) for side in check.sides]
    _index_markers(check, {key for chosen in suspicious for key in chosen})
    for side, keys in zip(check.sides, suspicious, strict=True):
        for key in sorted(keys):
            _judge_decision(check, side, key)


def _suspicious(check: Check, side: SideView) -> set[DecisionKey]:
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


def _worth_a_look(check: Check, unknown: Rows) -> Rows:
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


def _index_markers(check: Check, keys: set[DecisionKey]) -> None:
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


def _judge_decision(check: Check, side: SideView, key: DecisionKey) -> None:
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
        add(check, side, kind, Place(key, place, fact), told)


def _first_lost_abort(
    side: SideView, decision: Decision, absent: list[int]
) -> tuple[Kind | None, int]:
    for place in absent:
        kind = _lost_abort(side, decision, place)
        if kind is not None:
            return kind, place
    return None, -1


def _outcomes(
    check: Check, side: SideView, decision: Decision
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


def _excused(check: Check, side: SideView, key: DecisionKey, place: int) -> bool:
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


def _judge_undecided(check: Check, side: SideView, key: DecisionKey) -> None:
    """Judge markers whose decision this side's ledger does not hold."""
    places = sorted(place for found, place in side.markers if found == key)
    outcomes = {place: int(side.instances["outcome"][side.markers[key, place]]) for place in places}
    committed = [place for place in places if outcomes[place] == COMMIT]
    if not committed:
        return
    first = side.instances[side.markers[key, committed[0]]]
    if len(committed) < len(places):
        told = _told(check, "unknown", committed, [p for p in places if p not in committed], [])
        add(check, side, Kind.TORN_TXN, Place(key, committed[0], row=first), told)
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
    add(check, side, Kind.ABORTED_VISIBLE, Place(key, committed[0], row=first), told)


def _told(
    check: Check, ledger: str, committed: list[int], aborted: list[int], absent: list[int]
) -> str:
    groups = (("committed in", committed), ("aborted in", aborted), ("no marker in", absent))
    parts = [
        f"{text} {', '.join(check.places[place] for place in places)}"
        for text, places in groups
        if places
    ]
    return f"ledger: {ledger}; " + "; ".join(parts)
