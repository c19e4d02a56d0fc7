"""What a takeover loses, bounded before it acts: the statement.

INV-LO1  everything that a statement calls covered is below the cut; everything that may be lost is at or
        beyond it, and is either named (it was copied) or lies behind `copied_end` (it never arrived)

Not here: what a tail holds (`tail`), what was lost in the end (`counted_losses`), reading logs and quarantine (drivers).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.tail import LostOffsets, LostTransaction, RecordRange, Tail
from idempotency.identity import RegionEpoch

LISTED_MAX: Final = 10_000


class UndoneChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a topic that was heard of and that no tidemark reached covers: it is not carried out."""

    topic: str
    change: str


class LogBound(msgspec.Struct, frozen=True, kw_only=True):
    """One log at the moment of the statement: covered below `cut`, known below `copied_end`, open behind.

    `stopped` says why it cannot be read here: then nothing of it is known by name. `shown_end` is how far of it was
    shown to readers, -1 where that is not told: behind it lies what was copied and confirmed by no tidemark.
    """

    topic: str
    topic_id: str
    partition: int
    cut: int
    copied_end: int
    stopped: str = ""
    shown_end: int = -1

    @property
    def trouble(self) -> str:
        """Return what is wrong with the log in this region, empty if nothing is."""
        if self.stopped:
            return (
                f"{self.topic}-{self.partition} has stopped here: what it holds from {self.cut} to {self.copied_end}"
                f" cannot be named, and it serves nobody until the node restarts ({self.stopped})"
            )
        if self.copied_end < self.cut:
            return f"{self.topic}-{self.partition} lacks {self.copied_end} to {self.cut} of the tidemark itself"
        return ""


class LossStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What acting now at this tidemark would lose, at most.

    `age_ms` is how long ago the tidemark was published, by the two regions' wall clocks.
    `last_heard_ms` is how long this region has not heard the old one; -1 if it never did. `accepted`: it is what
    `from_region` holds beyond `to_region`, as it said itself, and an operator gave that up (T33).
    """

    domain: str
    from_region: str
    to_region: str
    region_epoch: RegionEpoch
    tidemark_region_epoch: RegionEpoch
    tidemark_number: int
    age_ms: int
    last_heard_ms: int
    made_wall_ms: int
    planned: bool
    bounds: tuple[LogBound, ...]
    transactions: tuple[LostTransaction, ...]
    transaction_count: int
    plain: tuple[RecordRange, ...]
    plain_record_count: int
    open_bound: str
    offsets: tuple[LostOffsets, ...] = ()
    offset_commit_count: int = 0
    topic_changes: tuple[UndoneChange, ...] = ()
    accepted: bool = False

    @property
    def base(self) -> TidemarkPoint:
        """Return the tidemark that is acted from; it is the base of the takeover's entry in the lineage."""
        return TidemarkPoint(self.tidemark_region_epoch, self.tidemark_number)

    def names_diverged(self, region: str, log: LogKey, first_offset: int) -> bool:
        """Return whether this is what `region` held beyond a region that accepted its loss (INV-LO6)."""
        return (
            self.accepted
            and self.from_region == region
            and any(
                (bound.topic_id, bound.partition) == (log.topic_id.hex, log.partition)
                and bound.cut <= first_offset < bound.copied_end
                for bound in self.bounds
            )
        )


@dataclass(frozen=True, slots=True)
class Takeover:
    """Who would take over from whom, and what is known of the old region's silence."""

    domain: str
    from_region: str
    to_region: str
    region_epoch: RegionEpoch
    planned: bool
    last_heard_ms: int


def make_statement(
    takeover: Takeover,
    cut: Cut,
    bounds: Sequence[LogBound],
    tail: Tail,
    *,
    now_wall_ms: int,
    topic_changes: Sequence[UndoneChange] = (),
) -> LossStatement:
    """Return what acting at `cut` loses at most (INV-LO1). `bounds` are this region's logs."""
    transactions, offsets = tail.transactions(), tail.offsets()
    plain = (known for known in tail.ranges() if not known.transactional)
    return LossStatement(
        domain=takeover.domain,
        from_region=takeover.from_region,
        to_region=takeover.to_region,
        region_epoch=takeover.region_epoch,
        tidemark_region_epoch=cut.point.region_epoch,
        tidemark_number=cut.point.number,
        age_ms=max(0, now_wall_ms - cut.published_wall_ms) if cut.published_wall_ms else -1,
        last_heard_ms=takeover.last_heard_ms,
        made_wall_ms=now_wall_ms,
        planned=takeover.planned,
        bounds=tuple(bounds),
        transactions=transactions[:LISTED_MAX],
        transaction_count=len(transactions),
        plain=tuple(islice(plain, LISTED_MAX)),
        plain_record_count=tail.plain_record_count(),
        open_bound="; ".join([_open_bound(takeover, cut), *troubles(bounds), *tail.unreadable]),
        topic_changes=tuple(topic_changes),
        offsets=offsets[:LISTED_MAX],
        offset_commit_count=sum(known.commit_count for known in offsets),
    )


def troubles(bounds: Iterable[LogBound]) -> list[str]:
    """Return what is wrong with these logs, so that they cannot be stated whole."""
    return [bound.trouble for bound in bounds if bound.trouble]


def _open_bound(takeover: Takeover, cut: Cut) -> str:
    if takeover.planned:
        return f"nothing: region {takeover.from_region} was drained at {cut.point}"
    heard = (
        f"was last heard {takeover.last_heard_ms} ms ago"
        if takeover.last_heard_ms >= 0
        else "was not heard since this node started"
    )
    return (
        f"whatever region {takeover.from_region} acknowledged that never arrived here: every record"
        " at or behind the end of its log's copy here (copied_end in -o json), ledgers of groups and"
        " transactions too, and every topic, config, user, ACL, quota or token that it created, changed or deleted since: a right that it"
        " took away counts again. A topic's growth or deletion that no tidemark"
        f" covers is undone. It {heard}; what it acknowledged since is unknown"
        " until it returns: records are then listed by tidemark region losses; users, ACLs, quotas and tokens in its log"
    )
