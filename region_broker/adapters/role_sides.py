"""The services whose life follows the region's role, as `region_role` and fail-over see them.

INV-SI1  one of cut leader and link is current, or neither; both are built here, once per term
INV-SI2  a claim is a tidemark that is durable here: published (acting) or reached (mirror), never one that
         was only copied

Not here: the services themselves; when a term begins (`region_role`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from geo_replicator.driver import Link
from geo_replicator.lineage import BEFORE_ALL, EMPTY_CUT, Cut, Lineage, TidemarkPoint
from geo_replicator.ports import ReachedStore
from geo_replicator.reading import read_book
from geo_replicator.topology import LedgerTopics
from idempotency.identity import TopicPartition
from idempotency.ports import Clock
from region_broker.adapters.cut_leader import CutLeader
from region_broker.adapters.failover_ports import MetadataSide, OrphanCandidate, Term
from region_broker.adapters.failover_steps import as_entry
from region_broker.adapters.link_source import LinkSource
from region_broker.adapters.mirror_log import TidemarkLog
from region_broker.groups.coordinator import GroupCoordinator
from txn_coordinator.driver import TransactionCoordinator


class TransactionRole:
    """`TransactionSide` on the transaction coordinator."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        """Speak for `coordinator`."""
        self._coordinator = coordinator

    async def load(self, term: Term) -> None:
        """Read the ledger and take over under `term`."""
        await self._coordinator.load(term.leader_epoch, term.region_epoch)

    async def adopt(self, term: Term, candidates: Sequence[OrphanCandidate]) -> None:
        """Load, decide everything open, and write the markers owed (T21)."""
        _ = await self._coordinator.adopt(term.region_epoch, term.leader_epoch, candidates)

    async def resign(self) -> None:
        """Stop deciding."""
        await self._coordinator.resign()

    async def run(self) -> None:
        """Own the background tasks until cancelled."""
        await self._coordinator.run()


class GroupRole:
    """`GroupSide` on the group coordinator."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        """Speak for `coordinator`."""
        self._coordinator = coordinator

    async def load(self, _term: Term) -> None:
        """Read the offsets ledger."""
        await self._coordinator.load()

    async def clamp(self, log_ends: Mapping[TopicPartition, int]) -> None:
        """Write clamped offsets as records, empty all groups (T26)."""
        _ = await self._coordinator.clamp(log_ends)

    async def resign(self) -> None:
        """Stop serving groups."""
        await self._coordinator.resign()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._coordinator.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class TidemarkParts:
    """What the claim of a region is read from; the factories build one service per term."""

    region: str
    domain: str
    metadata: MetadataSide
    records: TidemarkLog
    ledgers: LedgerTopics
    reached: ReachedStore
    source: LinkSource
    clock: Clock
    make_cut_leader: Callable[[Term], CutLeader]
    make_link: Callable[[Term], Link]


class RegionTidemarks:
    """`TidemarkFacts`, and the factories that `RoleServices` wants."""

    def __init__(self, parts: TidemarkParts) -> None:
        """Read nothing yet."""
        self._parts = parts
        self._cut_leader: CutLeader | None = None
        self._link: Link | None = None
        self._heard_at_ms: int | None = None
        self._read: tuple[tuple[object, ...], Cut] | None = None

    def open_cut_leader(self, term: Term) -> CutLeader:
        """Build the cut leader of `term`; from now on the claim is what it published."""
        self._forget()
        self._cut_leader = self._parts.make_cut_leader(term)
        return self._cut_leader

    def open_link(self, term: Term) -> Link:
        """Build the link of `term`; from now on the claim is what it reached."""
        self._forget()
        link = self._parts.make_link(term)
        link.restore()
        self._link = link
        return link

    def _forget(self) -> None:
        if self._link is not None and self._link.lag.heard_at_ms is not None:
            self._heard_at_ms = self._link.lag.heard_at_ms
        self._cut_leader = None
        self._link = None
        self._read = None

    def claim(self) -> Cut:
        """Return the greatest tidemark published or reached here (INV-SI2)."""
        if self._cut_leader is not None:
            return self._cut_leader.published_cut()
        if self._link is not None:
            return self._link.reached_cut()
        return self._claim_from_disk()

    def has_positions(self) -> bool:
        """Return whether the claim's positions are known; before the first tidemark all are 0."""
        cut = self.claim()
        return cut.point == BEFORE_ALL or bool(cut.positions)

    def _claim_from_disk(self) -> Cut:
        domain = self._parts.metadata.image.domains[self._parts.domain]
        acted = domain.acting_region == self._parts.region
        partition = self._parts.records.partition
        end = -1 if partition is None else partition.high_watermark
        seen = (acted, end, self._parts.reached.point, domain.region_epoch)
        if self._read is None or self._read[0] != seen:
            self._read = (seen, self._read_claim(acted=acted))
        return self._read[1]

    def _read_claim(self, *, acted: bool) -> Cut:
        domain = self._parts.metadata.image.domains[self._parts.domain]
        lineage = Lineage(tuple(as_entry(entry) for entry in domain.lineage))
        floor: TidemarkPoint | None = None
        if not acted:
            floor = lineage.greatest_valid([self._parts.reached.point])
        if floor == BEFORE_ALL:
            return EMPTY_CUT
        book = read_book(self._parts.records, self._parts.ledgers, floor).book
        point = floor
        if point is None:
            point = BEFORE_ALL if book.newest is None else book.newest.newest.point
        return book.positions(point) or Cut(point)

    async def cut_to(self, cut: Cut) -> None:
        """Make `cut` the reached tidemark, durably; what ran before is forgotten."""
        await self._parts.reached.save(cut.point)
        self._forget()

    def last_heard_ms(self) -> int:
        """Return how long ago home was last heard, -1 for never since the start."""
        heard_at_ms = self._heard_at_ms
        if self._link is not None and self._link.lag.heard_at_ms is not None:
            heard_at_ms = self._link.lag.heard_at_ms
        if heard_at_ms is None:
            return -1
        return self._parts.clock.monotonic_ms() - heard_at_ms

    def lag(self) -> Mapping[str, Any]:
        """Return this mirror's lag; while acting, what each mirror reported last."""
        if self._link is not None:
            status = self._link.status()
            return {**status["lag"], "state": status["state"], "logs": status["logs"]}
        now_ms = self._parts.clock.monotonic_ms()
        return {
            "mirrors": {
                name: {
                    "reached_number": report.reached.number,
                    "records": report.lag_records,
                    "bytes": report.lag_bytes,
                    "ms": report.lag_ms,
                    "heard_ms_ago": now_ms - report.heard_ms,
                }
                for name, report in self._parts.source.reports.items()
            }
        }
