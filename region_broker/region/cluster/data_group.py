"""One data group at this node: it leads the group's logs, follows whoever does, or lets them alone (ADR 53).

INV-RGR3 in one life of the process a leader epoch of a group is led in once, and only where the metadata name that very life (INV-LSH2)
INV-RGR4 what was led here is led no more in the step in which another row is there: whoever waits for a commit hears that the outcome is
         unknown, and the log takes what its next leader has, and nothing else
INV-RGR9 where the region epoch began with a takeover, producers may leave their gap here as at the main leader: once, below its base (T22)
Not here: when it may be led or followed, and which logs are in it (`region_groups`).
"""

import asyncio
import logging
from typing import Final
from uuid import UUID

from idempotency.fencing import region_epoch_of
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, Member
from region_broker.controller.cluster_image import GroupNumber, Leadership
from region_broker.controller.metadata_image import MetadataImage
from region_broker.region.cluster.leadership import base_of, is_named
from region_broker.region.cluster.replica_following import FollowingParts, ReplicaFollowing
from region_broker.region.cluster.replica_leading import LeadingParts, ReplicaLeading
from region_broker.region.cluster.replica_logs import LogSet

_log: Final = logging.getLogger("tidemark.cluster")


class DataGroup:
    """`take`, `stop`, and again, each in one step; `begin_tasks` once."""

    def __init__(
        self, number: GroupNumber, life: UUID, leading: LeadingParts, following: FollowingParts
    ) -> None:
        """Let the logs alone. `life`: of this process; both parts have the same logs."""
        self.number: Final = number
        self.leading: Final = ReplicaLeading(leading)
        self.following: Final = ReplicaFollowing(following)
        self.leads: LeaderEpoch | None = None
        """Under which leader epoch this node leads the group, or is about to: some of what is older may not be committed yet."""
        self._me = leading.me
        self._life = life
        self._logs: LogSet = leading.partitions
        self._image = leading.image
        self._led: LeaderEpoch = NO_LEADER_EPOCH
        self._follows: tuple[Member | None, LeaderEpoch] | None = None

    def begin_tasks(self, tasks: asyncio.TaskGroup) -> None:
        """Run in `tasks`, until they are cancelled."""
        tasks.create_task(self.leading.run(), name=f"replica-leading-{self.number}")
        tasks.create_task(self.following.run(), name=f"replica-following-{self.number}")

    def fits(self, row: Leadership | None) -> bool:
        """Return whether what is done here is what this row of the metadata asks for."""
        if self.leads is not None:
            return row is not None and (row.leader, row.leader_epoch) == (self._me, self.leads)
        return self._follows is None or (row is not None and self._wanted(row) == self._follows)

    def _wanted(self, row: Leadership) -> tuple[Member | None, LeaderEpoch]:
        # A former life of this node: an election follows (INV-LSH2).
        return (None if row.leader == self._me else row.leader), row.leader_epoch

    def may_be_led(self, image: MetadataImage, row: Leadership) -> bool:
        """Return whether this process is to begin to lead (INV-RGR3)."""
        return is_named(image, row, self._me, self._life) and row.leader_epoch > self._led

    def take(self, row: Leadership, *, leads: bool) -> None:
        """Lead, or follow whoever does, by a row that `fits`, or where nothing is done here yet."""
        if self.leads is not None or self._follows is not None:
            return
        if leads:
            self._lead(row)
        else:
            self._follows = leader, leader_epoch = self._wanted(row)
            self.following.follow(leader, leader_epoch)

    def _lead(self, row: Leadership) -> None:
        self.leads = self._led = row.leader_epoch
        _log.warning("this node leads data group %d under leader epoch %d", self.number, self.leads)
        self._take_lead()
        self.leading.begin(row)

    def _take_lead(self) -> None:
        """Lead the logs that are not led yet, as `RegionRole.act` does those of the main group."""
        leads = self.leads
        if leads is None:
            return
        base = base_of(self._image(), region_epoch_of(leads))
        for partition in self._logs:
            leads_already = partition.is_leader and partition.sight.leader_epoch == leads
            if partition.failed is None and not leads_already:
                partition.become_leader(leads)
                partition.readers_ahead = False  # spread is what has acted for a while (T26)
                if (below := base.get(partition.key.encode())) is not None:
                    partition.state.allow_gap_once(below)

    def logs_changed(self) -> None:
        """Partitions were opened, dropped, or given to another group: in the same step."""
        self._take_lead()
        self.leading.logs_changed()
        self.following.logs_changed()

    def stop(self) -> None:
        """Let the logs alone, as mirrors (INV-RGR4)."""
        if self.leads is not None:
            _log.warning("this node leads data group %d no more", self.number)
            self.leads = None
            self.leading.end()
            for partition in self._logs:
                if partition.is_leader:
                    partition.rewind_cut(0, is_end=False)  # INV-PT9
                    partition.become_mirror()
        if self._follows is not None:
            self._follows = None
            self.following.stop()
