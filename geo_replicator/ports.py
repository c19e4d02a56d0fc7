"""What a link needs from the process around it: the primary, the mirror's logs and topics, one durable fact.

The room `region_broker.region` implements these. Errors that a link lives with are `LinkFailed`; all else is a bug.
Not here: what clock and chance are (`idempotency.ports`).
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from geo_replicator.effects import Diverged
from geo_replicator.events import HandshakeDone, MirrorLogEnd, PrimaryLogEnd
from geo_replicator.history import HistoryDifference, ShownLog
from geo_replicator.lag import Lag
from geo_replicator.lineage import BEFORE_ALL, Cut, Lineage, LogKey, TidemarkPoint
from geo_replicator.topology import LedgerTopics, MirrorTopic
from geo_replicator.whole_ends import View, WholeEnds
from idempotency.identity import RegionEpoch
from idempotency.ports import Chance, Clock

Buffer = bytes | memoryview


class LinkFailed(Exception):
    """The session cannot go on: connection lost, refused, or the mirror could not store what came."""


class LogHalted(LinkFailed):
    """One log cannot be copied on; all others can."""


@dataclass(frozen=True, slots=True)
class SentSlice:
    """One log's part of a fetch answer; `data` holds whole batches from `position` on."""

    key: LogKey
    position: int
    data: memoryview
    high_watermark: int
    log_start_offset: int
    unsent_bytes: int
    cleaned_below: int = 0


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One fetch answer; `sent_wall_ms` is the primary's clock."""

    metadata_version: int
    sent_wall_ms: int
    parts: tuple[SentSlice, ...]


class PrimarySession(Protocol):
    """One connection to the primary, after its handshake. Every call raises `LinkFailed` when it cannot be answered."""

    async def show_history(
        self, point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        """Show a piece of what was reached at `point`; return what the primary does not hold of it (T33)."""
        ...

    async def registry(self) -> tuple[int, tuple[MirrorTopic, ...]]:
        """Return (metadata version M, all topics of the domain)."""
        ...

    async def deletions(self, lost: Mapping[LogKey, int]) -> Sequence[UUID]:
        """Return which topics of these logs the primary has deleted by a command (T34); it hears that the others are
        here.

        With each log goes the leader epoch of its newest batch.
        """
        ...

    async def check(self, logs: Mapping[LogKey, MirrorLogEnd]) -> Mapping[LogKey, PrimaryLogEnd]:
        """Return where the primary's logs leave these leader epochs; a log that the primary lacks is left out."""
        ...

    def fetch(
        self, positions: Mapping[LogKey, int], forgotten: Sequence[LogKey]
    ) -> Awaitable[FetchAnswer]:
        """Send a fetch now; await the result for its answer. Several may be under way."""
        ...

    async def report_reached(self, point: TidemarkPoint, lag: Lag) -> None:
        """Tell the primary what was reached durably, and how far the mirror lags."""
        ...


class Primary(Protocol):
    """The primary region, as it can be reached now."""

    def session(self) -> AbstractAsyncContextManager[tuple[PrimarySession, HandshakeDone]]:
        """Connect and make the handshake; raises `LinkFailed`. Leaving the context closes the connection."""
        ...


class MirrorLogs(Protocol):
    """The mirror's own logs. `append` and `show` act at once; durability is told by `on_durable`."""

    def keys(self) -> Iterable[LogKey]:
        """Return every open log of the domain."""
        ...

    def end(self, key: LogKey) -> MirrorLogEnd:
        """Return where the log ends, and its newest leader epoch."""
        ...

    def high_watermark(self, key: LogKey) -> int:
        """Return below which offset the log is durable; 0 for a log that is not open."""
        ...

    def durable_end(self, key: LogKey) -> int | None:
        """Return below which offset the log is durable; None where it has stopped, or there is no such topic."""
        ...

    def whole_from(self, key: LogKey) -> int:
        """Return below which offset the log may lack others, because it or its original was cleaned; 0: none."""
        ...

    def cleaned_at_primary(self, key: LogKey, cleaned_below: int) -> None:
        """Note how far the primary has cleaned the log: so far it may have holes, and may be cleaned here."""
        ...

    async def evidence(self, cut: Cut, keys: Sequence[LogKey]) -> Sequence[ShownLog]:
        """Return what shows that these logs hold `cut` (T33)."""
        ...

    async def first_offset(self, key: LogKey) -> int:
        """Return where the log's bytes begin; raises `LinkFailed`."""
        ...

    async def batch_at(self, key: LogKey, offset: int) -> tuple[int, int]:
        """Return (base offset, end) of the batch that holds `offset`, or of the next one; raises `LinkFailed`."""
        ...

    def append(self, key: LogKey, data: Buffer) -> int:
        """Append whole batches verbatim and return the new log end; raises `LogHalted`."""
        ...

    def start_at(self, key: LogKey, offset: int) -> None:
        """Let an empty log begin at `offset`; raises `LinkFailed` where it holds records."""
        ...

    def take_back_start(self, key: LogKey, offset: int) -> None:
        """Let a log start at `offset` again, as far as its bytes reach, durably; raises `LinkFailed`."""
        ...

    def doubt_starts(self) -> None:
        """Let readers wait where an order has moved the start of a log: the order may be lost (T14)."""
        ...

    def confirm_starts(self, keys: Iterable[LogKey]) -> None:
        """Let readers read these logs: they start where the primary's do, as far as bytes reach."""
        ...

    def show_again(self, cuts: Mapping[LogKey, int], whole: WholeEnds) -> None:
        """Show what was shown before: every log up to its D, read-committed readers up to `whole`, which is durable."""
        ...

    def take_back_view(self) -> None:
        """Show nothing, and tell readers of no end, in one step, until `show_again` (T17)."""
        ...

    def view(self, cuts: Mapping[LogKey, int]) -> View:
        """Return what to show with the new D of `cuts`, and with nothing new; logs that are not open are skipped."""
        ...

    def show(self, view: View) -> None:
        """Let readers see `view`, in one step (T17)."""
        ...

    def delete_below(self, key: LogKey, offset: int) -> None:
        """Let the log start at `offset`, which its readers see at once (T14); waits for no disk: bytes go, and it is durable, later (INV-NST2)."""
        ...

    def watch(self, on_durable: Callable[[LogKey], None]) -> None:
        """Call `on_durable` whenever the HW of an open log moved, now and for logs opened later."""
        ...

    def unwatch(self) -> None:
        """Stop calling."""
        ...

    def tidemark_records(self, start_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (offset, key, value) of the records of `__tidemarks` from there on, below its HW."""
        ...

    def last_tidemark_record(self) -> tuple[int, bytes, bytes] | None:
        """Return the last record of `__tidemarks` below its HW."""
        ...


class MirrorTopics(Protocol):
    """The mirror's topic registry. All changes are durable when they return; repeats change nothing."""

    def mirrored(self) -> tuple[MirrorTopic, ...]:
        """Return the domain's topics as they are here."""
        ...

    async def create(self, topic: MirrorTopic) -> None:
        """Create the topic with the primary's id and open its logs as mirrors; raises `LinkFailed`."""
        ...

    async def open_logs(self, topic: MirrorTopic) -> None:
        """Open all logs of `topic` as mirrors, also those that it has not yet here; raises `LinkFailed`."""
        ...

    async def grow(self, topic_id: UUID, partition_count: int) -> None:
        """Give the topic at least that many partitions; their logs are open. Raises `LinkFailed`."""
        ...

    async def shrink(self, topic_id: UUID, partition_count: int) -> None:
        """Take the partitions from `partition_count` on away, with their logs; raises `LinkFailed`."""
        ...

    async def rename(self, names: Mapping[UUID, str]) -> bool:
        """Give topics that wait for their name the one that the primary knows them by, where it is free; tell if any
        got it."""
        ...

    async def update_configs(self, topic: MirrorTopic) -> None:
        """Make the topic's configs those of `topic`; raises `LinkFailed`."""
        ...

    async def delete(self, topic: MirrorTopic) -> None:
        """Delete the topic and its logs; raises `LinkFailed`."""
        ...


class ReachedStore(Protocol):
    """The durable fact {region epoch, k} of this region, and what of it read-committed readers were shown (T16)."""

    @property
    def point(self) -> TidemarkPoint:
        """Return the last point that is durable."""
        ...

    @property
    def whole(self) -> WholeEnds:
        """Return the ends of the whole cut at `point`."""
        ...

    async def save(self, point: TidemarkPoint, whole: WholeEnds) -> None:
        """Return once both are durable; also when cancelled it ends only with the write."""
        ...

    async def forget_whole(self) -> None:
        """Return once it is durable that nothing is known to be whole at `point`."""
        ...


class DivergenceHandler(Protocol):
    """Failover's side of a diverged log: quarantine, then cut (T23)."""

    async def diverged(self, divergences: Sequence[Diverged]) -> None:
        """Return once every tail is in quarantine and every log is cut; raises `LinkFailed`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPorts:
    """Everything a link is handed."""

    primary: Primary
    logs: MirrorLogs
    topics: MirrorTopics
    reached: ReachedStore
    divergence: DivergenceHandler
    clock: Clock
    chance: Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """What a link follows: under which region epoch, whose lineage, which ledgers.

    `wanted`: a tidemark that somebody waits for, and that is passed by on no account (INV-THN3).
    """

    region_epoch: RegionEpoch
    primary_region: str
    lineage: Lineage
    ledgers: LedgerTopics
    wanted: TidemarkPoint = BEFORE_ALL
