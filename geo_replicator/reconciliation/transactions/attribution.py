"""Which findings about transactions follow from a damaged batch.

A root explains a finding if it touches the transaction where it was found, or its decision in the ledger.

Pure. Not here: findings about batches among themselves (`diff.attribute`).
"""

from collections.abc import Iterable
from typing import Final

from geo_replicator.reconciliation.findings import Finding, Kind, explained
from geo_replicator.reconciliation.plan import TRANSACTION_LEDGER

_SPOILING: Final = {
    Kind.TOPIC_MISMATCH, Kind.CRC_BAD_LOCAL, Kind.TORN_BATCH, Kind.OVERLAP, Kind.DIVERGENT,
    Kind.MISSING, Kind.EXTRA, Kind.EXTRA_PAST_SOURCE, Kind.OFFSET_GAP, Kind.POST_PROMOTION_FORK,
}  # fmt: skip
"""Kinds of damage that can take away a transaction's data or marker. Lag never explains a torn one."""


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
