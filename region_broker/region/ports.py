"""What failover needs of the rest of the node: small protocols, implemented elsewhere, joined by `node`.

A *term* is one stretch in which a region holds one role: which region is the primary, under which region epoch, and the
leader epoch that this node writes with if it acts. `from_donor`: `primary_region` does not act; it promised this region to
stand still, and is copied from, up to the tidemark `wanted`, before this one takes over (T24).
Not here: any behaviour.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from geo_replicator.folder_life import Birth, FolderIdentity, Shown
from geo_replicator.history import HistoryDifference, ShownLog
from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint
from geo_replicator.loss import UndoneChange
from idempotency.identity import LeaderEpoch, RegionEpoch, TopicPartition
from idempotency.partition_state import OpenTxn, PartitionState
from idempotency.record_batch import BatchHeader
from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import MetadataImage


class Term(NamedTuple):
    """One role's stretch. `leader_epoch` is of use in the primary region only."""

    region_epoch: RegionEpoch
    leader_epoch: LeaderEpoch
    primary_region: str
    from_donor: bool = False
    wanted: TidemarkPoint = BEFORE_ALL


OrphanCandidate = tuple[TopicPartition, OpenTxn]
"""A transaction that a partition knows as open: aborted unless a ledger decided it (T21)."""


class RawReader(Protocol):
    """Reads one partition as it is (`region_broker.partitions.parts.reader`)."""

    def read_raw(self, offset: int, max_bytes: int, limit: int | None = None) -> bytes | bytearray:
        """Return whole verbatim batches from `offset` on, below `limit`."""
        ...

    def read_durable(self, offset: int, max_bytes: int, limit: int) -> bytes | bytearray:
        """Return whole verbatim batches from `offset` on, below `limit`, that are durable on this node, committed or not."""
        ...

    def has_another(self, batch: BatchHeader) -> bool:
        """Return whether another batch is known to be in the place of this one."""
        ...


class DurableSide(Protocol):
    """How far one partition is durable on this node (`region_broker.partitions.parts.commits`)."""

    @property
    def durable_end(self) -> int:
        """Return the end of what is durable here, committed or not."""
        ...

    async def wait_durable(self, offset: int) -> None:
        """Return once everything below `offset` is; raises PartitionFailed, NotLeader."""
        ...


class CutSide(Protocol):
    """What comes before a cut of one partition, and behind it (`region_broker.partitions.trimming`)."""

    async def prepare_cut(self, offset: int) -> None:
        """Read beforehand what a `truncate_to` this offset would hold the event loop for; nothing is changed by it."""
        ...

    async def lower(self, offset: int) -> None:
        """Sync in a thread what a `truncate_to` this offset syncs first; nothing is cut off by it."""
        ...

    async def settle(self) -> None:
        """Return once the last cut is durable, by syncs in a thread."""
        ...


class RegionLog(Protocol):
    """One partition (`region_broker.partitions.partition.Partition`), as failover uses it."""

    readers_ahead: bool
    """Whether readers beyond the end wait: they may have read on in a region that was lost (T26)."""

    @property
    def tp(self) -> TopicPartition:
        """Return topic and partition number."""
        ...

    @property
    def topic_id(self) -> UUID:
        """Return the topic's id."""
        ...

    @property
    def log_start_offset(self) -> int:
        """Return the first offset retained."""
        ...

    @property
    def kept_from(self) -> int:
        """Return the first offset whose bytes are there, at or below `log_start_offset`."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Return the next offset to be written."""
        ...

    @property
    def written_epoch(self) -> LeaderEpoch:
        """Return the newest leader epoch that something in the log was written under, -1 if nothing was."""
        ...

    @property
    def failed(self) -> str | None:
        """Return why the partition stopped, None while it works."""
        ...

    def epoch_end_offset(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, int]:
        """Return (largest leader epoch <= `leader_epoch`, its end); (-1, -1) if unknown (KIP-101)."""
        ...

    def end_of_older(self, leader_epoch: LeaderEpoch) -> int:
        """Return where the records of leader epochs below `leader_epoch` end."""
        ...

    @property
    def state(self) -> PartitionState:
        """Return the replay of the log."""
        ...

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Take writes under `leader_epoch`."""
        ...

    def become_mirror(self) -> None:
        """Refuse writes; take mirrored batches."""
        ...

    @property
    def is_leader(self) -> bool:
        """Return whether the partition takes writes."""
        ...

    @property
    def high_watermark(self) -> int:
        """Return below which offset the log is durable."""
        ...

    def show_up_to(self, cut_offset: int, whole_end: int) -> None:
        """Show readers of a mirror what lies below `cut_offset`, read-committed ones below `whole_end`."""
        ...

    def rewind_cut(self, cut_offset: int, *, is_end: bool = True) -> None:
        """Show readers nothing at or beyond `cut_offset` (T25: the one way down); without `is_end` tell nobody that it ends there (INV-PT9)."""
        ...

    def doubt_start(self) -> None:
        """Tell readers of no start that an order has moved: it may be lost (INV-PT10)."""
        ...

    @property
    def reader(self) -> RawReader:
        """Return what reads it."""
        ...

    def start_at(self, offset: int) -> None:
        """Give up all records and go on, empty, at `offset`."""
        ...

    def stop(self, reason: str) -> None:
        """Take and serve nothing any more, loudly, until the process starts again."""
        ...

    @property
    def trimming(self) -> CutSide:
        """Return who prepares its cuts."""
        ...

    def truncate_to(self, offset: int, *, settles: bool = True) -> None:
        """Cut the log at a batch boundary, durably; without `settles` once `trimming.settle` has returned. The state is rebuilt."""
        ...

    async def wait_committed(self, offset: int) -> None:
        """Return once everything below `offset` is below HW."""
        ...

    @property
    def commits(self) -> DurableSide:
        """Return who knows how far it is durable on this node."""
        ...


class TransactionSide(Protocol):
    """The transaction coordinator's life."""

    async def load(self, term: Term) -> None:
        """Read the ledger and take over under `term`; markers owed are sent again."""
        ...

    async def adopt(
        self, term: Term, candidates: Sequence[OrphanCandidate], drained: RegionEpoch | None
    ) -> None:
        """Load, then write every outcome into the ledger before its markers (T21, 1 to 4).

        `drained`: the region epoch that a planned switch ended; its producers go on (T22).
        """
        ...

    async def resign(self) -> None:
        """Stop deciding; whoever waits is told to look elsewhere."""
        ...

    async def run(self) -> None:
        """Expire and retry, until cancelled."""
        ...


class GroupSide(Protocol):
    """The group coordinator's life."""

    async def load(self, term: Term) -> None:
        """Read the offsets ledger and take over under `term`."""
        ...

    async def clamp(self, log_ends: Mapping[TopicPartition, int]) -> None:
        """Write, as records, every committed offset that points past its log; empty groups (T26)."""
        ...

    async def resign(self) -> None:
        """Stop; members are told to look elsewhere."""
        ...

    async def run(self) -> None:
        """Expire members and offsets, until cancelled."""
        ...


class CutLeaderSide(Protocol):
    """Publishes tidemarks while this region acts."""

    async def run(self) -> None:
        """Open and close rounds, until cancelled."""
        ...

    async def first_tidemark(self) -> TidemarkPoint:
        """Return once a tidemark of this term is below HW (T21, 6)."""
        ...

    async def final_round(self) -> TidemarkPoint:
        """Close a round now, publish it, and return the tidemark; raises `RoundFailed`."""
        ...


class RoundFailed(Exception):
    """No tidemark could be published; the text says which part did not answer."""


class LinkSide(Protocol):
    """Copies from the primary region while this one mirrors."""

    def silent_ms(self) -> int:
        """Return how long the primary region has not answered."""
        ...

    async def run(self) -> None:
        """Copy, reach tidemarks, reconnect; until cancelled."""
        ...


class LogStarts(Protocol):
    """Where the logs of this region start by a tidemark (T14)."""

    async def keep(self, point: TidemarkPoint) -> None:
        """Let logs start where the tidemark `point` says, durably, before this region acts from there (INV-NMS1)."""
        ...

    def take_back(self, point: TidemarkPoint) -> None:
        """Void orders to delete records that were given above `point`, durably, after the logs were cut to it."""
        ...


class TidemarkFacts(Protocol):
    """What this region knows of tidemarks: the last one it published or reached."""

    def claim(self) -> Cut:
        """Return the greatest tidemark published here or reached here, `EMPTY_CUT` before the first."""
        ...

    def publishes(self) -> bool:
        """Return whether a tidemark was appended here that is not known to be durable (INV-CL9)."""
        ...

    def lost_here(self) -> str:
        """Return what was shown here and is not held any more, for people; empty where nothing is missing."""
        ...

    def newest_cut(self) -> Cut:
        """Return the last tidemark published or reached here, also where bytes of it are gone; raises `TidemarkError`."""
        ...

    def shown_cut(self) -> Cut:
        """Return what was published or reached here, also where its bytes are gone by now; raises `TidemarkError`."""
        ...

    async def evidence(self, cut: Cut, keys: Sequence[LogKey]) -> Sequence[ShownLog]:
        """Return what shows that these logs hold `cut` (T33)."""
        ...

    async def differences(self, shown: Sequence[ShownLog]) -> Sequence[HistoryDifference]:
        """Return what the logs here do not hold of what another region has shown (T33)."""
        ...

    async def first_offset(self, key: LogKey) -> int:
        """Return where the log's bytes begin; raises `LinkFailed`."""
        ...

    async def batch_at(self, key: LogKey, offset: int) -> tuple[int, int]:
        """Return (base offset, end) of the batch that holds `offset`, or of the next one; raises `LinkFailed`."""
        ...

    @property
    def starts(self) -> LogStarts:
        """Return where the logs start by a tidemark."""
        ...

    async def cut_to(self, cut: Cut) -> None:
        """Make `cut` the reached tidemark, durably, after the logs were cut to it (T25)."""
        ...

    def follows_topics(self) -> bool:
        """Return whether a mirror's topics, with their configs, are those of the primary at the tidemark it reached
        (T15)."""
        ...

    def waiting_topic_changes(self) -> Sequence[UndoneChange]:
        """Return the changes of topics that the primary made and no tidemark reached covers: a takeover undoes them
        (T15)."""
        ...

    def last_heard_ms(self) -> int:
        """Return how long ago the primary region was last heard, -1 for never (or while acting)."""
        ...

    def lag(self) -> Mapping[str, object]:
        """Return the lag of this mirror, or of each mirror, as plain JSON values."""
        ...


class FolderSide(Protocol):
    """The identity of the data folder (`region.folder.identity_file.FolderRecord`)."""

    @property
    def identity(self) -> FolderIdentity:
        """Return what is durable."""
        ...

    async def join(self, history: Birth) -> None:
        """Return once this folder is, durably, one that copies `history`."""
        ...

    async def note_met(self, region: str, shown: Shown) -> None:
        """Return once the known start of another region is remembered durably; raises OSError."""
        ...


class LostLogs(Protocol):
    """What the manifest of logs misses (`partitions.table.PartitionTable`)."""

    def lost(self) -> Sequence[str]:
        """Return the names of logs that were made, and were gone at a start (T36)."""
        ...

    def take_note_of_lost(self) -> None:
        """Forget them: a takeover begins at what is held, or this region mirrors."""
        ...


class MetadataSide(Protocol):
    """The metadata store."""

    @property
    def image(self) -> MetadataImage:
        """Return the image of now."""
        ...

    async def apply(self, command: Command) -> MetadataImage:
        """Apply a command durably; raises `CommandRefused`."""
        ...


async def _all_is_committed(_term: Term) -> None:
    """Nobody else in the region has these logs."""


def _nobody_else_leads(_term: Term) -> bool:
    """The region has no other node."""
    return True


def _one_leads_all() -> bool:
    """The region has one node."""
    return True


@dataclass(frozen=True, slots=True)
class RoleServices:
    """Everything whose life follows the region's role. Factories are called once per term.

    `settle_logs` makes the logs those of the registry; it is called before the region acts (T15). `settle_commits` returns once
    all that the logs hold is committed, where other nodes of the region copy them; it is called when they lead, before anything is
    read (R6, B3), and before a mirror shows anything. `leads` says whether this node leads under a term still, as far as it has heard; it is asked as the gate opens
    (INV-LSH1). `is_gathered`: whether one node leads all logs. `open_cut_leader` is told whether the term is the first one to adopt a takeover's cut, so that nothing was written in its region epoch yet.
    """

    logs: Callable[[], Iterable[RegionLog]]
    settle_logs: Callable[[], Awaitable[None]]
    transactions: TransactionSide
    groups: GroupSide
    open_cut_leader: Callable[[Term, bool], Awaitable[CutLeaderSide]]
    open_link: Callable[[Term], LinkSide]
    settle_commits: Callable[[Term], Awaitable[None]] = _all_is_committed
    leads: Callable[[Term], bool] = _nobody_else_leads
    is_gathered: Callable[[], bool] = _one_leads_all
