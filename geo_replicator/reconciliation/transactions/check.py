"""What the judgements of one bucket share: both sides, and the findings so far.

INV-RCTX8  a finding names a transaction by the producer epoch of its data, by which it is found in the logs: under transactions v2
           its decision and its markers have the next one (KIP-890). Where no log shows it, by the decision's

Not here: what is a fault (`judging`, `decisions`).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from geo_replicator.reconciliation.evidence.ledger_facts import LedgerFact
from geo_replicator.reconciliation.findings import Finding, Kind, Side, explained
from geo_replicator.reconciliation.plan import Plan
from geo_replicator.reconciliation.transactions.instances import (
    NO_OFFSET,
    OPEN,
    SIDES,
    DecisionKey,
    Extents,
    SideView,
)


@dataclass(slots=True)
class Check:
    """One bucket of producer ids under judgement."""

    plan: Plan
    extents: Extents
    sides: tuple[SideView, SideView]
    places: list[str]
    place_of: dict[str, int]
    findings: list[Finding] = field(default_factory=list)
    disturbed: set[tuple[int, int, int]] = field(default_factory=set)
    """(side, place, producer id) with a finding: what follows there is its consequence."""


class Place(NamedTuple):
    """Where a finding about a decision is reported."""

    key: DecisionKey
    place: int
    fact: LedgerFact | None = None
    """What the ledger says, if it says anything."""
    row: Any = None
    """The transaction there, if it was found already."""


def add(check: Check, side: SideView, kind: Kind, at: Place, detail: str) -> None:
    """Report a transaction; what follows of its producer, in any partition, is a consequence."""
    row = _shown_by(check, side, at)
    first, last, records = (-1, -1, 0) if row is None else _extent_of(check, side, row)
    fact = at.fact
    producer_id = fact.producer_id if fact is not None else int(at.row["producer_id"])
    producer_epoch = (
        fact.producer_epoch if fact is not None and row is None else int(row["producer_epoch"])
    )  # INV-RCTX8
    named = f"transaction of {fact.transactional_id!r}: " if fact is not None else ""
    check.disturbed |= {(side.number, place, producer_id) for place in range(len(check.places))}
    check.findings.append(
        finding_of(
            check, side, kind, at.place, first, last,
            record_count=records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            decision="/".join(str(part) for part in at.key),
            detail=named + detail,
        )
    )  # fmt: skip


def finding_of(
    check: Check, side: SideView, kind: Kind, place: int, first: int, last: int, **facts: Any
) -> Finding:
    """Return a finding about a partition, from offset `first` to `last`."""
    planned = check.plan.partitions[check.places[place]]
    return Finding(
        kind=kind, side=SIDES[side.number], topic=planned.topic, partition=planned.partition,
        topic_id=planned.topic_id, first_offset=first, last_offset=last, **facts,
    )  # fmt: skip


def _shown_by(check: Check, side: SideView, at: Place) -> Any:
    """Return the row of a transaction in a place, of whichever side shows it; None if none does."""
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
    return row


def _extent_of(check: Check, side: SideView, row: Any) -> tuple[int, int, int]:
    """Return (first, last offset, records) of a transaction."""
    closed = int(row["marker_offset"]) != NO_OFFSET
    last = int(row["marker_offset"]) if closed else blocked_end(check, side, row)
    return int(row["first_offset"]), last, int(row["records"])


def blocked_end(check: Check, side: SideView, row: Any) -> int:
    """Return the last offset that an open transaction keeps readers of committed data from: the log's last."""
    extent = check.extents.of(side.number, int(row["place"]))
    end = 0 if extent is None else extent.end_offset
    return max(int(row["last_offset"]), end - 1)


def twins(findings: list[Finding]) -> list[Finding]:
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
