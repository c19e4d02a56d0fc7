"""What a region sees of the others and of itself while a failover goes on; every step asks here.

A region that does not answer in time is left out, and a claim that cannot be read is none: nothing is guessed.
Not here: what follows from it (`region.failover.steps.effects`, `region.failover.steps.fenced`, `geo_replicator.directory`).
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from geo_replicator.failover_events import EntryRecord, HistoryRefuted
from geo_replicator.lineage import EMPTY_CUT, Cut, Lineage, LineageEntry
from geo_replicator.tidemark import TidemarkError
from idempotency.identity import RegionEpoch
from idempotency.ports import Clock
from region_broker.controller import metadata_image
from region_broker.controller.metadata_image import DomainImage
from region_broker.region.failover.gathering import GatheringSide, NeverSpread
from region_broker.region.failover.messages import AskStatus, SiteStatus
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.failover.steps.lives import Lives
from region_broker.region.failover.steps.reclaim_pause import ReclaimPause
from region_broker.region.peers.protocol import Hello
from region_broker.region.ports import (
    FolderSide,
    LostLogs,
    MetadataSide,
    TidemarkFacts,
)
from region_broker.region.role import RegionRole

_log: Final = logging.getLogger("tidemark.failover")
_Read: TypeAlias = tuple[metadata_image.LineageEntry, LineageEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    """Bounds and intervals of everything that waits, in ms."""

    handshake_interval_ms: int = 500
    ask_timeout_ms: int = 1_500
    confirm_attempts: int = 3
    confirm_pause_ms: int = 200
    ask_again_ms: int = 50
    """How soon a region is asked again that was looking for another start of this one (T36)."""
    poll_ms: int = 200
    reach_poll_ms: int = 5
    final_round_timeout_ms: int = 5_000
    final_round_attempts: int = 5
    switch_timeout_ms: int = 20_000
    promise_attempts: int = 10
    catch_up_poll_ms: int = 20
    catch_up_stall_ms: int = 5_000
    """How long a failover candidate waits, without anything new, for what a region that promised has reached beyond it
    (T24)."""
    readers_ahead_ms: int = 300_000
    """How long readers beyond a cut wait for their groups: a client polls that often (max.poll.interval.ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverParts:
    """What failover is joined with."""

    domain: str
    clock: Clock
    metadata: MetadataSide
    role: RegionRole
    tidemarks: TidemarkFacts
    quarantine: QuarantineStore
    peers: FailoverPeers
    folder: FolderSide
    manifest: LostLogs
    gathering: GatheringSide = field(default_factory=NeverSpread)


class Outlook:
    """The parts that steps are joined with, and what is heard through them; `hellos`: the newest hello with a
    lineage of each region; `heard_ms`: when each one made its handshake last, whoever began.

    `refuted`: what a mirror proved last, also while it is not in the journal yet. `nobody_acts`: this region stands still,
    and all that answer say that no region acts or is about to.
    """

    def __init__(self, parts: FailoverParts, settings: FailoverSettings) -> None:
        """Nothing is heard yet."""
        self.parts: Final = parts
        self.settings: Final = settings
        self.hellos: dict[str, Hello] = {}
        self._abandoned: dict[str, RegionEpoch] = {}
        self.heard_ms: dict[str, int] = {}
        self.refuted: HistoryRefuted | None = None
        self.nobody_acts = False
        self.reclaim_pause: Final = ReclaimPause(parts.clock)
        self._read: dict[RegionEpoch, _Read] = {}
        self.lives = self._begun_lives()

    def _begun_lives(self) -> Lives:
        return Lives(
            self.parts.clock,
            self.parts.folder,
            self.parts.peers,
            ask_timeout_ms=self.settings.ask_timeout_ms,
            refused_pause_ms=self.settings.handshake_interval_ms,
        )

    def begin_anew(self) -> None:
        """Forget what was heard: this node begins to lead its region, and others have spoken for it meanwhile."""
        self.hellos.clear()
        self._abandoned.clear()
        self.heard_ms.clear()
        self.refuted = None
        self.nobody_acts = False
        former, self.lives = self.lives, self._begun_lives()
        self.lives.spawn, self.lives.on_elected = former.spawn, former.on_elected

    def forget_former_lives(self, hellos: Mapping[str, Hello]) -> None:
        """Let what these regions say now replace what lives of theirs said that no folder knows of any more.

        1. An emptied region hears of a takeover. 2. Whoever told it is given a folder from before that, and acts. 3. The
        emptied one joins it: the entry that it heard of must not void what it is to reach.
        """
        for name, hello in hellos.items():
            self.hellos.pop(name, None)
            self.heed(hello)

    def heed(self, hello: Hello) -> None:
        """Keep what a region says of itself now, and the lineage that it knows, if it knows one."""
        self._abandoned[hello.region] = hello.abandoned_epoch
        if hello.lineage:
            self.hellos[hello.region] = hello

    def abandoned_epoch(self, region: str) -> RegionEpoch:
        """Return up to which region epoch another region said last that it gave up what it was promised, 0 if none."""
        return self._abandoned.get(region, RegionEpoch(0))

    def is_refuted(self, region_epoch: RegionEpoch) -> bool:
        """Return whether a mirror has shown what this region does not hold of that epoch (T33)."""
        return self.refuted is not None and self.refuted.region_epoch == region_epoch

    @property
    def region(self) -> str:
        """This region's name."""
        return self.parts.role.region

    @property
    def domain(self) -> DomainImage:
        """The domain as the metadata has it now."""
        return self.parts.metadata.image.domains[self.parts.domain]

    def statuses_as_told(self) -> AsyncGenerator[Mapping[str, SiteStatus], None]:
        """Yield the statuses known so far whenever a region answered, or did not in time; each makes a handshake,
        too."""
        return self.parts.peers.as_answered(
            AskStatus(region=self.region), SiteStatus, timeout_ms=self.settings.ask_timeout_ms
        )

    async def statuses(self) -> dict[str, SiteStatus]:
        """Return the status of every region that answers in time."""
        message = AskStatus(region=self.region)
        answers, _ = await self.parts.peers.ask_all(
            message, SiteStatus, timeout_ms=self.settings.ask_timeout_ms
        )
        return dict(answers)

    def claim(self) -> Cut:
        """Return the cut that this region may act from: its last tidemark, or the lowest base since that voids it.

        1. Another region takes over from a base below it. 2. That one dies before this region has cut its logs. 3. An
        operator lets this one act. What the lineage has declared lost must not come back (T25): it was told so, and
        was done again. Raises `TidemarkError` where nothing can be claimed.
        """
        claim = self.parts.tidemarks.claim()
        lineage = self.lineage()
        return lineage.fallback_of(claim.point) if lineage.is_void(claim.point) else claim

    def lineage(self) -> Lineage:
        """Return all entries that are known here or were heard of."""
        known = {entry.region_epoch: entry for entry in self.domain.lineage}
        for hello in self.hellos.values():
            known.update({entry.region_epoch: entry for entry in hello.lineage})
        self._read = {epoch: self._read_once(known[epoch]) for epoch in sorted(known)}
        return Lineage(tuple(entry for _, entry in self._read.values()))

    def _read_once(self, told: metadata_image.LineageEntry) -> _Read:
        """Return an entry beside what was read of it: each names every log, and is looked at whenever somebody asks."""
        read = self._read.get(told.region_epoch)
        if read is not None and read[0] == told:
            return read
        return told, EntryRecord(**msgspec.structs.asdict(told)).entry()

    def known_claim(self) -> Cut:
        """Return this region's claim, `EMPTY_CUT` where it is not readable."""
        try:
            return self.claim()
        except TidemarkError as error:
            _log.warning("no tidemark is claimed: %s", error)
            return EMPTY_CUT
