"""What copies the logs inside a region, joined together: who leads, leading, following, topics that other nodes change.

INV-NRP1  before a node leads or follows for the first time, nothing of its logs counts as committed: what is durable here may be on
          no other node
Not here: what each does (`region.cluster`), the quorum (`cluster_node`), logs that are gone from a disk (`lost_logs`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.controller import metadata_image
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.leader_keeping import LeaderKeeping
from region_broker.node.lost_logs import LostLogs, LostLogsParts
from region_broker.node.stepping_down import SteppingDown
from region_broker.node.storage import Storage
from region_broker.partitions.partition import Partition
from region_broker.partitions.upkeep import no_bound
from region_broker.region.cluster.leadership import LeadershipDriver, LeadershipParts
from region_broker.region.cluster.reader_places import ReaderParts, RegionReaders
from region_broker.region.cluster.region_groups import RegionGroups, RegionGroupsParts
from region_broker.region.cluster.registry_following import RegistryFollowing
from region_broker.region.cluster.replica_cuts import CutBelow
from region_broker.region.cluster.replica_following import FollowingParts
from region_broker.region.cluster.replica_leading import InSyncChange, LeadingParts
from region_broker.region.cluster.statement_copies import StatementCopies, StatementCopiesParts
from region_broker.region.cluster.tail_copies import TailCopies, TailCopiesParts
from region_broker.region.failover.known_lineage import KnownLineage
from region_broker.region.failover.lineage_cuts import LineageCutParts, LineageCuts, digest_of
from region_broker.region.failover.log_surgery import CutReason, cut_copy
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.mending.copying_anew import CopyingAnew, CopyingAnewParts
from region_broker.region.mirror.mirror_topics import BY_TIDEMARK
from region_broker.region.peers.node_protocol import REPLICA, STATEMENTS
from region_broker.region.role import RegionRole
from region_broker.region.tidemarks.service import TidemarkService
from region_broker.region.topics import BY_ORDER
from region_broker.replication.leading import LeadingSettings

LAG_MS_MAX: Final = 5_000
"""A member that is alive and lags holds acknowledgements back for so long; one that is not heard is fenced long before."""
AGAIN_MS: Final = 1_000

_log: Final = logging.getLogger("tidemark.replication")


def default_min_in_sync(node_count: int) -> int:
    """Return on how many members a record is before it is acknowledged, where its topic does not say: two of three."""
    return 2 if node_count >= 3 else 1


async def _cut_copy(
    reason: CutReason, quarantine: QuarantineStore, partition: Partition, meets_at: int
) -> None:
    await cut_copy(partition, meets_at, reason, quarantine)


class RegionWork(NamedTuple):
    """What the node does that leads: `begin` comes before anybody copies from it (INV-LSH6), `lead` runs until it is cancelled."""

    begin: Callable[[], Awaitable[None]]
    lead: Callable[[], Awaitable[None]]


class Replication:
    """`run` for as long as the node runs."""

    def __init__(
        self, cluster: ClusterParts, storage: Storage, role: RegionRole, clock: Clock,
        region_work: RegionWork, tidemarks: TidemarkService,
    ) -> None:  # fmt: skip
        """Join them."""
        self._cluster = cluster
        self._storage = storage
        self._clock = clock
        self._role = role
        self._tidemarks = tidemarks
        tidemarks.on_logs_changed = self.logs_changed
        metadata, partitions = storage.metadata, storage.partitions
        lineage = KnownLineage(lambda: metadata.image)
        self._cuts = LineageCuts(
            LineageCutParts(
                region=role.region, domain=DEFAULT_DOMAIN, logs=role.logs, lineage=lineage, quarantine=storage.quarantine,
                clock=clock, aside_uncut=partitions.aside.uncut,
            )
        )  # fmt: skip
        self.readers = RegionReaders(
            ReaderParts(
                region=role.region,
                me=cluster.member,
                life=cluster.line.standing.life,
                image=lambda: metadata.image,
                serving=self._serving,
                is_deleted_elsewhere=lambda key, offset: self.groups.leading_of(
                    key
                ).is_deleted_elsewhere(key, offset),
                is_open=lambda: self.following.readers.is_open,
                partitions=partitions,
                clock=clock,
            )
        )
        self.groups = RegionGroups(
            RegionGroupsParts(
                region=role.region,
                me=cluster.member,
                life=cluster.line.standing.life,
                partitions=partitions,
                image=lambda: metadata.image,
                leading=self._leading_parts(lineage),
                following=FollowingParts(
                    partitions=partitions,
                    line=cluster.line,
                    lineage=lambda: self._cuts.digest,
                    cut_below=self._cut_below,
                    may_serve=self.readers.may_serve,
                    taken_bytes_per_s=self._taken_bytes_per_s,
                ),
                may_lead=lambda: not partitions.lost(),
            )
        )
        self.groups.serve_on(cluster.door.handlers_for(REPLICA))
        self.leading, self.following = self.groups.leading, self.groups.following
        role.on_gate = self.leading.gate_moved
        self.leadership = LeadershipDriver(
            LeadershipParts(
                me=cluster.member,
                life=cluster.line.standing.life,
                image=lambda: metadata.image,
                role=role,
                leading=self.groups,
                following=self.groups,
                lead=region_work.lead,
                begin_region=region_work.begin,
                cut_logs=self._cuts.run,
            )
        )
        keeping = LeaderKeeping(cluster, storage, clock, self.groups, self.leadership)
        self.giving_up = keeping.giving_up
        self._statements = StatementCopies(
            StatementCopiesParts(
                me=cluster.member,
                image=lambda: metadata.image,
                store=storage.quarantine,
                line=cluster.line,
            )
        )
        self._statements.serve_on(cluster.door.handlers_for(STATEMENTS))
        self.tails = TailCopies(
            TailCopiesParts(
                me=cluster.member, region=role.region, image=lambda: metadata.image, store=storage.quarantine, line=cluster.line,
                cut_by=lambda: self._cuts.digest_of_all, lineage=lambda: digest_of(lineage()),
                no_room=lambda: storage.partitions.room.refusal, acknowledged_on=self.leading.acknowledged_on,
                aside_uncut=partitions.aside.uncut,
            )
        )  # fmt: skip
        self.tails.serve_on(cluster.door.handlers_for(STATEMENTS))
        self.stepping_down = SteppingDown(
            me=cluster.member,
            metadata=metadata,
            partitions=partitions,
            clock=clock,
            least_others=self._least,
            damaged=lambda: cluster.controller.damaged,
        )
        self.spread_keeper = keeping.spread_keeper(role, self.trouble)
        self.copying_anew = CopyingAnew(
            CopyingAnewParts(
                me=cluster.member,
                image=lambda: metadata.image,
                partitions=partitions,
                line=cluster.line,
                following=self.groups,
                follows=lambda: self.leadership.follows,
                counts_on=lambda member, key: self.groups.leading_of(key).counts_on(member, key),
                logs_changed=self._copied_anew,
                least_others=self._least,
                is_uncut=lambda log: self._cuts.may_owe(log, is_known=log.log.is_opened),
            )
        )
        self.copying_anew.serve_on(cluster.door.handlers_for(REPLICA))
        self._registry = RegistryFollowing(partitions, self._opened, self._why_deleted)
        self._registry.take(storage.opened_for, metadata.image)  # INV-STG1
        for partition in partitions:
            partition.commit_up_to(partition.log_start_offset)  # INV-NRP1
        metadata.on_foreign = self._changed_by_others
        metadata.on_going = self._registry.mark_going
        metadata.follow(self.groups.take_image)
        metadata.follow(lambda _image: self.following.image_changed())
        metadata.follow(self.leadership.take_image)
        metadata.follow(self._statements.take_image)
        metadata.follow(self.tails.take_image)
        self.lost_logs = LostLogs(
            LostLogsParts(
                me=cluster.member,
                metadata=metadata,
                partitions=partitions,
                clock=clock,
                line=cluster.line,
                copies=self.following.copies,
                damaged=lambda: cluster.controller.damaged,
            )
        )
        metadata.follow(self.lost_logs.take_image)

    def _leading_parts(self, lineage: KnownLineage) -> LeadingParts:
        metadata, cluster = self._storage.metadata, self._cluster
        return LeadingParts(
            me=cluster.member,
            partitions=self._storage.partitions,
            clock=self._clock,
            image=lambda: metadata.image,
            propose=self._propose,
            min_in_sync=self._least,
            settings=LeadingSettings(replica_lag_time_ms_max=LAG_MS_MAX),
            lineage=lambda: digest_of(lineage()),
            owes_cut=self._cuts.owes,
            acts=lambda: self._role.acting and metadata.image.spread is None,
            takes_writes=lambda: self._role.acting,
            rates=self._cluster.catch_up,
        )

    def _taken_bytes_per_s(self) -> int:
        """Return what one leader may send: while leaders are spread each has its share, as none knows what the others send."""
        return max(1, self._cluster.catch_up.taken_bytes_per_s // self.groups.followed_count)

    def _least(self) -> int:
        return default_min_in_sync(self._cluster.node_count())

    async def _propose(self, command: InSyncChange) -> None:
        await self._storage.metadata.apply(command)

    def _serving(self) -> frozenset[Member]:
        return self.leading.serving()

    def _cut_below(self) -> CutBelow | None:
        """Return how a log is cut below HW, while another region acts (INV-RFN5)."""
        domain = self._mirrored()
        if domain is None:
            return None
        reason = CutReason.divergence(domain, self._role.region, self._clock.wall_ms())
        return partial(_cut_copy, reason, self._storage.quarantine)

    def _mirrored(self) -> metadata_image.DomainImage | None:
        """Return the domain while another region acts in it."""
        domain = self._storage.metadata.image.domains.get(DEFAULT_DOMAIN)
        return None if domain is None or domain.acting_region == self._role.region else domain

    async def reached_of(self) -> Callable[[Partition], int | None] | None:
        """Return what says how far the region has reached a log, where this node follows and the region mirrors (INV-TKO5).

        None where that changed while it was read in pieces: another node leads, or another lineage counts.
        """
        if not self.leadership.follows or self._mirrored() is None:
            return no_bound
        before = self._judged_by()
        cut = await self._tidemarks.held_cut()
        if self._judged_by() != before:
            return None
        return lambda partition: cut.position_of(partition.key)

    def _judged_by(self) -> tuple[bool, object, object]:
        image = self._storage.metadata.image
        leadership = image.leadership
        return (
            self.leadership.follows,
            None if leadership is None else leadership.leader_epoch,
            image.domains.get(DEFAULT_DOMAIN),
        )

    def logs_changed(self) -> None:
        """Partitions were opened or dropped here."""
        self.groups.logs_changed()

    def is_short(self, partition: Partition) -> bool:
        """Return whether the in-sync set is smaller than the log's `min.insync.replicas` (R1)."""
        return self.groups.leading_of(partition.key).is_short(partition)

    def is_sure(self, partition: Partition) -> bool:
        """Return whether this node leads a log, as far as can be known (INV-RTM5)."""
        return self.groups.leading_of(partition.key).is_sure()

    def keeps_rounds(self, _partition: Partition) -> bool:
        """Return whether D of a log is read here: this node leads the main group, and the region acts (INV-SCU4)."""
        return self.leadership.leads is not None and self._mirrored() is None

    def trouble(self) -> str | None:
        """Return why leaders are not to be spread, as far as this node knows; None where nothing is wrong."""
        return self.groups.trouble() or self.stepping_down.waits

    def _copied_anew(self) -> None:
        self.logs_changed()
        self._tidemarks.notice_topics()

    def _opened(self, partition: Partition) -> None:
        """Lead it where this node leads, or is about to: then the other logs lead already, and nobody looks again.

        In a region that mirrors its link takes it on; one that is still to begin takes on what is there. A data group takes its own
        when it hears of them, in this step.
        """
        if self.leadership.leads is None or not self.groups.is_main(partition.key):
            return
        if self._mirrored() is None:
            partition.become_leader(self.leadership.leads)
        elif self._role.mirrors and self._tidemarks.copies is not None:
            self._tidemarks.copies.opened_by_others(partition)

    def _why_deleted(self) -> str:
        return BY_ORDER if self._mirrored() is None else BY_TIDEMARK

    def _changed_by_others(self, old: MetadataImage, new: MetadataImage) -> None:
        self.groups.take_image(new)  # a log that is opened now begins in its group
        self._registry.take(old, new)
        if old.topics is not new.topics:
            self.logs_changed()
            self._tidemarks.notice_topics()

    async def run(self) -> None:
        """Lead and follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.groups.run(), name="replica-groups")
            tasks.create_task(self.leadership.run(), name="leadership")
            tasks.create_task(self.giving_up.run(), name="giving-up")
            tasks.create_task(self._statements.run(), name="statement-copies")
            tasks.create_task(self.tails.run(), name="tail-copies")
            tasks.create_task(self.copying_anew.run(), name="copying-anew")
            tasks.create_task(self.readers.run(), name="readers")
            tasks.create_task(self.lost_logs.run(), name="lost-logs")
            while True:
                await self._clock.sleep_ms(AGAIN_MS)
                if self._registry.is_behind:
                    self._registry.again(self._storage.metadata.image)
                    self.logs_changed()
                await self.stepping_down.look()
                await self.spread_keeper.look()
