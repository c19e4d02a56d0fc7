"""What reconciliation can find, how bad it is, and which finding is the root of which.

INV-RCR1  the same fault has the same finding id in every run: the id hashes kind, place and both digests,
        never a time, a run or a path
INV-RCR2  a finding that another one explains names it in `caused_by`; only roots count as faults
INV-RCR4  no list ends without a word: what is not listed by itself is counted in `more` of the last one that is
Severity decides the exit code: corruption over incomplete coverage over lag (`diff(1)` spirit).

Not here: the checks (`diff`, `transactions`), how findings are shown (`report`).
"""

import hashlib
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId


class Side(Enum):
    """Which of the two regions of a comparison."""

    SOURCE = "source"
    MIRROR = "mirror"

    @property
    def shown(self) -> str:
        """Return what people read; the value is what files say."""
        return "primary" if self is Side.SOURCE else "mirror"


class Severity(Enum):
    """How bad a finding is."""

    CORRUPTION = "corruption"
    LAG = "lag"


class Kind(Enum):
    """Every kind of finding; the value is the name in tables, reports and suppress lists."""

    TOPIC_MISMATCH = "topic_mismatch"
    MISSING = "missing"
    EXTRA = "extra"
    EXTRA_PAST_SOURCE = "extra_past_source"
    DIVERGENT = "divergent"
    CRC_BAD_LOCAL = "crc_bad_local"
    TORN_BATCH = "torn_batch"
    REORDERED = "reordered"
    OVERLAP = "overlap"
    DUPLICATE = "duplicate"
    OFFSET_GAP = "offset_gap"
    SEQ_GAP = "seq_gap"
    POST_PROMOTION_FORK = "post_promotion_fork"
    TAIL_UNREPLICATED = "tail_unreplicated"
    TORN_TXN = "torn_txn"
    HANGING_TXN = "hanging_txn"
    ABORTED_VISIBLE = "aborted_visible"
    COMMITTED_INCOMPLETE = "committed_incomplete"


VERIFY_KINDS: Final = frozenset(kind for kind in Kind if not kind.value.endswith("_txn")) - {
    Kind.ABORTED_VISIBLE,
    Kind.COMMITTED_INCOMPLETE,
}
TRANSACTION_KINDS: Final = frozenset(Kind) - VERIFY_KINDS

MEANING: Final[dict[Kind, str]] = {
    Kind.TOPIC_MISMATCH: "the two regions do not hold the same topic: nothing else in it was compared",
    Kind.MISSING: "the primary has this batch, the mirror does not",
    Kind.EXTRA: "the mirror has a batch where the primary has none",
    Kind.EXTRA_PAST_SOURCE: "the mirror has a batch behind the end of the primary",
    Kind.DIVERGENT: "both have a batch at this offset, and they differ",
    Kind.CRC_BAD_LOCAL: "the bytes do not match their own checksum: damaged on this side's disk",
    Kind.TORN_BATCH: "no batch where one must be: the bytes up to the next segment cannot be read",
    Kind.REORDERED: "batches lie in the file in another order than their offsets",
    Kind.OVERLAP: "two batches of one log claim the same offsets",
    Kind.DUPLICATE: "one producer's sequence numbers appear twice",
    Kind.OFFSET_GAP: "offsets are missing, in both regions alike or with nothing to compare to",
    Kind.SEQ_GAP: "sequence numbers of one producer are missing",
    Kind.POST_PROMOTION_FORK: "from here on the two logs were written under different regions",
    Kind.TAIL_UNREPLICATED: "not copied yet: lag, not damage",
    Kind.TORN_TXN: "one transaction is committed in one place and not in another",
    Kind.HANGING_TXN: "an open transaction that nobody will end: readers of committed data stand still",
    Kind.ABORTED_VISIBLE: "readers see records of a transaction that was not committed",
    Kind.COMMITTED_INCOMPLETE: "the ledger says committed and complete, the log lacks the markers",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, or one consequence of it. Offsets are inclusive; -1 where there is none.

    `side` is where the fault lies as far as one can tell from the bytes. `digest_source` and
    `digest_mirror` are 64-bit hexadecimal identities of the batches compared, empty if absent.
    """

    kind: Kind
    side: Side
    topic: str
    partition: int
    first_offset: int = -1
    last_offset: int = -1
    batch_count: int = 0
    record_count: int = 0
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    digest_source: str = ""
    digest_mirror: str = ""
    detail: str = ""
    severity: Severity = Severity.CORRUPTION
    caused_by: str = ""
    topic_id: str = ""
    decision: str = ""
    """Ledger position of the decision a finding about a transaction speaks of: ``shard/epoch/offset``."""
    more: int = 0
    """How many others of its kind and place are counted only (INV-RCR4)."""

    @property
    def finding_id(self) -> str:
        """Return the stable id (INV-RCR1): 16 hexadecimal digits."""
        return _finding_id(self)

    @property
    def is_root(self) -> bool:
        """Return whether nothing else explains it."""
        return not self.caused_by

    @property
    def count(self) -> int:
        """Return how many faults it stands for: itself, and what is counted only."""
        return 1 + self.more

    def touches(self, first_offset: int, last_offset: int) -> bool:
        """Return whether the offset ranges share an offset."""
        return self.first_offset <= last_offset and first_offset <= self.last_offset


def _finding_id(finding: Finding) -> str:
    text = "\x1f".join(
        (
            finding.kind.value,
            finding.side.value,
            finding.topic_id or finding.topic,
            str(finding.partition),
            str(finding.first_offset),
            str(finding.last_offset),
            str(finding.producer_id),
            finding.digest_source,
            finding.digest_mirror,
            finding.decision,
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_KIND_ORDER: Final = {kind: index for index, kind in enumerate(Kind)}


def sort_key(finding: Finding) -> tuple[int, str, int, int, int, str]:
    """Order findings for people and for byte-stable output: roots first, then place, then kind."""
    return (
        0 if finding.is_root else 1,
        finding.topic,
        finding.partition,
        finding.first_offset,
        _KIND_ORDER[finding.kind],
        finding.finding_id,
    )


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted, each id once."""
    return sorted({finding.finding_id: finding for finding in findings}.values(), key=sort_key)


def with_rest(listed: list[Finding], total: int) -> list[Finding]:
    """Return `listed`, its last one counting those of `total` that are not in it (INV-RCR4)."""
    rest = total - len(listed)
    if not listed or rest <= 0:
        return listed
    last = msgspec.structs.replace(
        listed[-1], more=rest, detail=f"{listed[-1].detail}; and {rest} more like it"
    )
    return [*listed[:-1], last]


def explained(finding: Finding, root: Finding) -> Finding:
    """Return `finding` as a consequence of `root` (of root's own root, if it has one)."""
    return msgspec.structs.replace(finding, caused_by=root.caused_by or root.finding_id)
