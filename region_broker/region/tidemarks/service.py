"""Tidemarks of one region through its roles: opens cut leader and link, and says what was reached.

The claim of a region that acts, or acted last, is what it published; of a mirror, what it reached durably (T24). A
claim always has its positions: without them nobody may cut a log. A fresh mirror may link before it has a topic: the
ledgers' ids follow from the cluster's id.

Not here: when roles change (`region.role`, `failover.driver`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from geo_replicator.cut_rounds import ROUND_INTERVAL_MS
from geo_replicator.history import HistoryDifference, ShownLog
from geo_replicator.lineage import BEFORE_ALL, EMPTY_CUT, Cut, Lineage, LogKey, TidemarkPoint
from geo_replicator.link.driver import Link
from geo_replicator.link.reaching import lost_text
from geo_replicator.loss import UndoneChange
from geo_replicator.ports import DivergenceHandler, LinkFacts, LinkPorts
from geo_replicator.reading import held_point, read_book, shortfalls
from geo_replicator.tidemark import TidemarkError
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_ends import NOTHING_WHOLE, Unlisted, WholeEnds
from idempotency.fencing import region_ordinal_of
from idempotency.identity import LeaderEpoch, Member, RegionEpoch
from idempotency.ports import Chance, Clock
from region_broker.controller.metadata_image import (
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    MetadataImage,
)
from region_broker.partitions.table import PartitionTable
from region_broker.ports.network import Network
from region_broker.region.mirror.mirror_log import MirrorPartitions, TidemarkLog, key_of
from region_broker.region.mirror.mirror_topics import MirrorTopicStore
from region_broker.region.mirror.mirror_view import MirrorView
from region_broker.region.mirror.primary_side import PrimarySide
from region_broker.region.mirror.region_link import NOTHING_TAKEN, Taking, primary_of, taking_of
from region_broker.region.mirror.shown_history import ShownHistory
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.protocol import PeerIdentity
from region_broker.region.ports import MetadataSide, Term
from region_broker.region.tidemarks.cut_leader import (
    CutLeader,
    CutLeaderParts,
    RoundTaker,
    last_book,
)
from region_broker.region.tidemarks.named_starts import NamedStarts
from region_broker.region.tidemarks.reached_store import ReachedFile
from region_broker.region.tidemarks.taking_over import OwnFile, cut_at, taken_over

NEVER_FOLLOWED: Final = (RegionEpoch(0), -1)
_log: Final = logging.getLogger("tidemark.failover")
_LEDGER_NAMESPACE: Final = UUID("8c5a0f1e-6d0b-5b6e-9a53-7469646d726b")


def ledger_topic_id(cluster_id: str, name: str) -> UUID:
    """Return the id of an internal topic: the same in every region of the cluster."""
    return uuid5(_LEDGER_NAMESPACE, f"{cluster_id}/{name}")


def ledgers_of(image: MetadataImage) -> LedgerTopics:
    """Return the ids of the ledgers; those that every region derives where there are no topics yet."""

    def topic_id(name: str) -> UUID:
        topic = image.topics.get(name)
        return ledger_topic_id(image.cluster_id, name) if topic is None else topic.topic_id

    return LedgerTopics(topic_id(TRANSACTION_LEDGER), topic_id(TIDEMARK_LEDGER))


@dataclass(frozen=True, slots=True, kw_only=True)
class TidemarkParts:
    """Everything that tidemarks are joined with. `lineage` gives the domain's lineage of this moment."""

    region: str
    ordinal: int
    network: Network
    addresses: RegionAddresses
    identity: PeerIdentity
    metadata: MetadataSide
    partitions: PartitionTable
    rounds: RoundTaker
    source: PrimarySide
    reached: ReachedFile
    divergence: DivergenceHandler
    lineage: Callable[[], Lineage]
    clock: Clock
    chance: Chance
    interval_ms: int = ROUND_INTERVAL_MS
    whole_wait_ms: int = 120_000
    me: Member | None = None
    """This member of its region; None in a region of one node."""


class _ClaimedFrom(NamedTuple):
    """All that the claim of a region depends on which neither acts nor mirrors."""

    reached: TidemarkPoint
    logs: Mapping[LogKey, tuple[int | None, int]]
    written_epoch: LeaderEpoch | None


class TidemarkService:
    """`open_cut_leader` and `open_link` are the factories of `RoleServices`; the rest is `TidemarkFacts`."""

    def __init__(self, parts: TidemarkParts) -> None:
        """Nothing runs yet."""
        self._parts = parts
        self._interval_ms, self._whole_wait_ms = parts.interval_ms, parts.whole_wait_ms
        self.cut_leader: CutLeader | None = None
        self.link: Link | None = None
        self.view: MirrorView | None = None
        self.copies: MirrorPartitions | None = None
        """What the link that was opened last copies into."""
        self.on_logs_changed: Callable[[], None] = lambda: None
        """Called in the step in which a link has opened or dropped logs."""
        self._logged: tuple[_ClaimedFrom, Cut] | None = None
        self._copies_donor = False
        self._followed = NEVER_FOLLOWED
        self._taking = NOTHING_TAKEN
        self._heard_at_ms: int | None = None
        self._changes_at_primary: tuple[UndoneChange, ...] = ()
        self._history = ShownHistory(parts.partitions)
        self.starts: Final = NamedStarts(parts.partitions, lambda: ledgers_of(parts.metadata.image))
        parts.source.published = self._published
        parts.source.followed_version = self._followed_version
        parts.source.access_epoch = self._access_epoch
        parts.source.waiting_since_ms = self._waiting_since_ms

    async def open_cut_leader(self, term: Term, adopts: bool) -> CutLeader:
        """Return the cut leader of `term`; it publishes nothing, and says so, if `__tidemarks` is not readable.

        `adopts`: the term adopts a takeover's cut; see `CutLeader`.
        """
        parts = self._parts
        leader_parts = CutLeaderParts(
            partitions=parts.partitions,
            metadata=parts.metadata,
            rounds=parts.rounds,
            ledgers=ledgers_of(parts.metadata.image),
            clock=parts.clock,
            interval_ms=self._interval_ms,
            on_published=parts.source.note_published,
            me=parts.me,
        )
        self.link = None
        self._keep_from_primary(term)
        parts.source.lags.term_began(parts.clock.monotonic_ms())
        last = await last_book(parts.partitions, leader_parts.ledgers)
        self.cut_leader = CutLeader(leader_parts, term, last, adopts=adopts)
        return self.cut_leader

    def open_link(self, term: Term) -> Link:
        """Return the link that follows `term`; what was reached before is shown at once (T16)."""
        parts = self._parts
        ledgers = ledgers_of(parts.metadata.image)
        rounds_before = TidemarkLog(parts.partitions, ledgers).rounds_before(parts.reached)
        self.view = MirrorView(parts.partitions, parts.clock, self._whole_wait_ms, rounds_before)
        logs = MirrorPartitions(parts.partitions, ledgers, self.view)
        taking = self._taking_of(term)
        primary = primary_of(parts.network, parts.addresses, term, parts.identity, logs, taking)
        ports = LinkPorts(
            primary=primary,
            logs=logs,
            topics=MirrorTopicStore(parts.metadata, parts.partitions, logs, self.on_logs_changed),
            reached=parts.reached,
            divergence=parts.divergence,
            clock=parts.clock,
            chance=parts.chance,
        )
        facts = LinkFacts(
            region_epoch=term.region_epoch,
            primary_region=term.primary_region,
            lineage=parts.lineage(),
            ledgers=ledgers,
            wanted=term.wanted,
        )
        link = Link(ports, facts)
        link.restore()
        self.cut_leader = None
        self.link = link
        self.copies = logs
        return link

    def _taking_of(self, term: Term) -> Taking:
        """Return what becomes of what the primary of `term` says beside its records, by what was followed before."""
        access_epoch = self._access_epoch()
        version = self._followed_version(term.region_epoch)
        self._keep_from_primary(term)
        self._taking = taking_of(term, self._parts.metadata, version, access_epoch=access_epoch)
        return self._taking

    def _keep_from_primary(self, term: Term) -> None:
        """Keep what the link to the primary knew: a loss statement speaks of the primary, not of who is copied from
        meanwhile (T24)."""
        if not term.from_donor:
            self._heard_at_ms, self._changes_at_primary = None, ()
            self._followed = NEVER_FOLLOWED
        else:
            self._followed = self._followed_now()
            if self.link is not None and not self._copies_donor:
                self._heard_at_ms = self.link.lag.heard_at_ms
                self._changes_at_primary = tuple(self.link.waiting_topic_changes())
        self._copies_donor = term.from_donor

    def _followed_version(self, region_epoch: RegionEpoch) -> int:
        """Return as of which version of the primary of that region epoch topics are here, -1 where that is not known (INV-QM4)."""
        epoch, version = self._followed_now()
        return version if epoch == region_epoch else -1

    def _followed_now(self) -> tuple[RegionEpoch, int]:
        """Return as of which version of the primary topics are here, and under which region epoch."""
        if self.link is None:
            return self._followed
        region_epoch, version = self.link.followed
        if not self._copies_donor:
            return region_epoch, version
        # The donor's topics count once they are carried out: before that they may be half of each.
        return (region_epoch, self._taking.version()) if version >= 0 else self._followed

    def _access_epoch(self) -> int:
        """Return the newest region epoch of whose history access here is known to be, -1 where of none (INV-QM3).

        It comes with the topics, and before each tidemark.
        """
        domain = self._parts.metadata.image.main_domain
        acted = domain.region_epoch if domain.acting_region == self._parts.region else -1
        followed, version = self._followed_now()
        return max(acted, self._parts.reached.point.region_epoch, followed if version >= 0 else -1)

    def change_pace(self, *, interval_ms: int, whole_wait_ms: int) -> None:
        """Publish, and wait at a mirror for whole transactions, as often and as long as that from now on."""
        if interval_ms != self._interval_ms and self.cut_leader is not None:
            self.cut_leader.change_interval(interval_ms)
        self._interval_ms, self._whole_wait_ms = interval_ms, whole_wait_ms
        if self.view is not None:
            self.view.whole_wait_ms = whole_wait_ms

    def notice_topics(self) -> None:
        """Say that topics were created, changed or deleted: cut leader and mirrors look again."""
        self._parts.source.notice_topics()
        if self.cut_leader is not None:
            self.cut_leader.notice_topics()

    def claim(self) -> Cut:
        """Return the greatest tidemark published or reached here; raises `TidemarkError`."""
        if self.cut_leader is not None:
            return self.cut_leader.published_cut()
        if self.link is not None:
            return self.link.reaching.reached_cut()
        return self._logged_claim()

    def publishes(self) -> bool:
        """See `TidemarkFacts`."""
        return self.cut_leader is not None and self.cut_leader.publishes

    def lost_here(self) -> str:
        """Return what was shown here and is not held any more, for people; empty where nothing is missing."""
        if self.link is not None:
            return self.link.reaching.lost
        if self.cut_leader is not None:
            return ""
        records = TidemarkLog(self._parts.partitions, ledgers_of(self._parts.metadata.image))
        point = self._last_point(records)
        held = self._logged_claim().point
        if point is None or held == point:
            return ""
        cut = self._cut_at(records, point)
        lacking = [] if cut is None else shortfalls(cut, records.durable_end)
        return lost_text(point, held, lacking, self._parts.lineage())

    def newest_cut(self) -> Cut:
        """Return the last tidemark published or reached here, also where bytes of it are gone; raises `TidemarkError`."""
        records = TidemarkLog(self._parts.partitions, ledgers_of(self._parts.metadata.image))
        point = self._last_point(records)
        cut = None if point is None else self._cut_at(records, point)
        return EMPTY_CUT if cut is None else cut

    def shown_cut(self) -> Cut:
        """Return what was published or reached here, also where its bytes are gone; raises `TidemarkError`."""
        return self.claim() if self.link is None else self.link.reaching.shown_cut()

    def shown_floor(self) -> Cut:
        """Return the cut below which nothing goes back under the region epoch that is followed (T35)."""
        link = self.link
        if link is None or link.reaching.stored.region_epoch < link.core.region_epoch:
            return EMPTY_CUT
        return link.reaching.shown_cut()

    async def evidence(self, cut: Cut, keys: Sequence[LogKey]) -> Sequence[ShownLog]:
        """Return what shows that these logs hold `cut` (T33)."""
        return await self._history.evidence(cut, keys)

    async def differences(self, shown: Sequence[ShownLog]) -> Sequence[HistoryDifference]:
        """Return what the logs here do not hold of what another region has shown (T33)."""
        return await self._history.differences(shown, self._parts.metadata.image.may_have_deleted)

    async def first_offset(self, key: LogKey) -> int:
        """Return where the log's bytes begin; raises `LinkFailed`."""
        return self._history.first_offset(key)

    async def batch_at(self, key: LogKey, offset: int) -> tuple[int, int]:
        """Return (base offset, end) of the batch that holds `offset`, or of the next one; raises `LinkFailed`."""
        return await self._history.batch_at(key, offset)

    def _logged_claim(self) -> Cut:
        """Return what the logs here hold of what was published or reached; asked again and again by whoever waits.

        Reading it back takes as many records as there are between two full vectors: it is done once for each state that
        the logs are in.
        """
        ledgers = ledgers_of(self._parts.metadata.image)
        records = TidemarkLog(self._parts.partitions, ledgers)
        logs = self._parts.partitions
        state = _ClaimedFrom(
            self._parts.reached.point,
            {key_of(each): (records.durable_end(key_of(each)), each.kept_from) for each in logs},
            None if records.partition is None else records.partition.written_epoch,
        )
        if self._logged is None or self._logged[0] != state:
            self._logged = state, self._read_claim(records, ledgers)
        return self._logged[1]

    def _read_claim(self, records: TidemarkLog, ledgers: LedgerTopics) -> Cut:
        point = self._last_point(records)
        if point is None:
            return EMPTY_CUT
        point = held_point(records, ledgers, point, records.durable_end)
        if point == BEFORE_ALL:
            return EMPTY_CUT
        cut = self._cut_at(records, point)
        if cut is None:
            raise TidemarkError(f"{point} is claimed here, but __tidemarks does not hold it")
        return cut

    def _last_point(self, records: TidemarkLog) -> TidemarkPoint | None:
        """Return the last tidemark published or reached here, whether its bytes are there or not; None for none."""
        newest = read_book(records, ledgers_of(self._parts.metadata.image), None).book.newest
        if newest is None:
            return None
        point = newest.newest.point
        published_here = region_ordinal_of(point.region_epoch) == self._parts.ordinal
        return point if published_here else self._parts.reached.point

    def _cut_at(self, records: TidemarkLog, point: TidemarkPoint) -> Cut | None:
        return read_book(records, ledgers_of(self._parts.metadata.image), point).book.positions(
            point
        )

    def published_cut(self) -> Cut | None:
        """Return the last tidemark published here, the empty cut if it cannot be read; None where this does not act."""
        if self.cut_leader is None:
            return None
        try:
            return self.cut_leader.published_cut()
        except TidemarkError:
            return EMPTY_CUT  # `run` of the cut leader says why

    def published_starts(self) -> Mapping[LogKey, int]:
        """Return below which offset the last tidemark published here says that each log was deleted by order (T14)."""
        vector = None if self.cut_leader is None else self.cut_leader.published_vector()
        positions = {} if vector is None else vector.positions
        return {key: position.deleted_below for key, position in positions.items()}

    def _published(self) -> TidemarkPoint:
        return BEFORE_ALL if self.cut_leader is None else self.cut_leader.published

    def _waiting_since_ms(self) -> int | None:
        return None if self.cut_leader is None else self.cut_leader.waiting_since_ms

    async def cut_to(self, cut: Cut) -> None:
        """Make `cut` the reached tidemark, durably, after the logs were cut to it (T25).

        A region that never got so far has reached what it had reached: its logs are shorter than the cut. Where
        `__tidemarks` cannot be read, that is what it had written down of its time as a mirror.
        """
        self.link = None
        self.cut_leader = None
        reached = self._parts.reached
        try:
            held = self._logged_claim()
            kept = held if held.point < cut.point else cut
            whole = self._whole_at(kept)
        except TidemarkError:  # `_tidemark_check` of the node says why
            await reached.save(min(cut.point, reached.point), NOTHING_WHOLE)
            return
        await reached.save(kept.point, whole)

    async def take_over_reached(self) -> None:
        """Make durable what this region has reached, as this node's logs tell it; raises OSError (INV-TKO1..4).

        To be called whenever this node begins to lead a region of several, once HW is that of the region and before the
        failover machine runs; running it again, or cancelling it, does no harm.
        """
        reached = self._parts.reached
        self.link = self.cut_leader = None  # of an earlier time: others have led since
        self._followed = NEVER_FOLLOWED
        point = await self._taken_over()
        if point == reached.point:
            await reached.forget_whole()
        else:
            _log.info("this node leads now: by its logs, this region has reached %s", point)
            await reached.save(point, NOTHING_WHOLE)

    async def _taken_over(self) -> TidemarkPoint:
        parts = self._parts
        own = OwnFile(parts.region, parts.ordinal, parts.reached.point)
        image = parts.metadata.image
        return await taken_over(parts.partitions, ledgers_of(image), image, parts.lineage(), own)

    async def held_cut(self) -> Cut:
        """Return what this node would find reached if it led next, the empty cut where that cannot be read (INV-TKO5)."""
        ledgers = ledgers_of(self._parts.metadata.image)
        records = TidemarkLog(self._parts.partitions, ledgers)
        try:
            point = await self._taken_over()
            return await cut_at(records, ledgers, point) or EMPTY_CUT
        except TidemarkError:
            return EMPTY_CUT

    def _whole_at(self, cut: Cut) -> WholeEnds:
        """Return what this region had shown whole at the last tidemark that it reached, if `cut` holds that.

        Since then it may have acted, and then forgot what it completed; but what was whole stays whole. Raises
        `TidemarkError`.
        """
        point, whole = self._parts.reached.point, self._parts.reached.whole
        if point == cut.point:
            return NOTHING_WHOLE if whole.unlisted is Unlisted.AS_FORGOTTEN else whole
        if whole.unlisted is not Unlisted.AT_CUT or point > cut.point:
            return NOTHING_WHOLE
        if self._parts.lineage().is_void(point):
            return NOTHING_WHOLE
        records = TidemarkLog(self._parts.partitions, ledgers_of(self._parts.metadata.image))
        before = EMPTY_CUT if point == BEFORE_ALL else self._cut_at(records, point)
        if before is None:
            return NOTHING_WHOLE
        ends = {key: whole.end_of(key, before.position_of(key), 0) for key in cut.positions}
        below = {key: end for key, end in ends.items() if end < cut.position_of(key)}
        return WholeEnds(Unlisted.AT_CUT, below)

    def held_back(self) -> dict[str, int]:
        """Return what the whole cut holds back from readers of this mirror (`MirrorView.status`)."""
        if self.link is None or self.view is None:
            return {"logs": 0, "ms": 0, "splits": 0}
        return self.view.status()

    def waiting_topic_changes(self) -> Sequence[UndoneChange]:
        """See `TidemarkFacts`."""
        waiting = () if self.link is None else self.link.waiting_topic_changes()
        return (
            *self._changes_at_primary,
            *(c for c in waiting if c not in self._changes_at_primary),
        )

    def follows_topics(self) -> bool:
        """Return whether a mirror's topics, with their configs, are those of the primary at the tidemark it reached
        (T15)."""
        return self.link is None or self.link.follows_topics

    def last_heard_ms(self) -> int:
        """Return how long ago the primary region was last heard, -1 for never (or while acting)."""
        heard = None if self.link is None else self.link.lag.heard_at_ms
        heard = self._heard_at_ms if self._copies_donor else heard
        return -1 if heard is None else self._parts.clock.monotonic_ms() - heard

    def lag(self) -> Mapping[str, object]:
        """Return the link's status at a mirror; rounds and the mirrors' reports where this region acts."""
        if self.link is not None:
            return {**self.link.status(), "held_back": self.held_back()}
        rounds = {} if self.cut_leader is None else self.cut_leader.status()
        return {"rounds": rounds, "mirrors": self._parts.source.status()}
