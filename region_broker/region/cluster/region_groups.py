"""The replica groups of a region at one node: the main group, and the data groups while leaders are spread (ADR 53).

INV-RGR1 a log is copied, or led, in one group at a time, which the metadata name: where that changes the former group lets it go before the
         next one takes it, both in the step in which the image is there
INV-RGR2 data groups run only while the main group runs here under the leadership, and with logs cut by the lineage, of the same image.
         Where either changes they end in that step, and their logs are in no group until the main group begins anew: what a main
         leader of another time has heard of them says nothing of HW now
         1. A spread ends by an election. 2. The main leader of before takes the logs back, alone in its in-sync set. 3. It would show
         all that it has of them, which the data leader's in-sync set has not.
INV-RGR10 where nobody leads the main group, and until somebody is elected, data groups go on
         1. The in-sync set of a group is one node, that of the main group another one, and the main leader dies. 2. Nobody is in sync in
         all groups, so nobody can be elected. 3. The data leader takes the others in: then somebody is.
INV-RGR12 where nobody leads the main group, data leaders keep who led it in their in-sync sets (INV-SPR10), and take others in beside it
         1. Two nodes lead a data group each, and do not reach each other: each has only the main leader in sync beside itself. 2. The machine
         of the main leader is lost for good. 3. They reach each other again. Together they hold all that was acknowledged, and each asked for
         a set without the lost one, which is refused: nobody could ever be elected without a loss.
INV-RGR5 a log of a data group takes reads and writes at its leader once all that older leader epochs left there is committed (INV-LSH3), and
         while the region acts under the region epoch of that leader epoch
INV-RGR11 a data group takes no writes of clients while the last word of the main leader, under its present leader epoch, is that its gate is
         shut; without a word from it, it does. Reads, markers, and what was appended before go on, as at the main leader
         1. The region stands aside, as another one has taken over. 2. Leaders cannot be gathered, as there is no quorum for the moment.
         3. What is acknowledged by a data group meanwhile is cut when the region returns.
INV-RGR6 what a follower says is heard by the group whose leader epoch it names, and a connection is of one term (INV-RLD1)

A region without a spread has the main group alone: nothing else is made, asked or looked up.
A node that was named, and cannot lead (it has lost a log, or has led in that leader epoch before), says so (`trouble`): leaders are gathered.
Not here: one group (`data_group`), when leaders are spread or gathered (`spread_keeper`), what the main leader does (`leadership`).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from idempotency.fencing import region_epoch_of
from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.controller.cluster_image import MAIN_GROUP, GroupNumber, Leadership, Spread
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, LineageEntry, MetadataImage
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.data_group import DataGroup
from region_broker.region.cluster.group_messages import GroupMessages
from region_broker.region.cluster.leadership import is_named, lineage_of
from region_broker.region.cluster.replica_following import FollowingParts, ReplicaFollowing
from region_broker.region.cluster.replica_leading import LeadingParts, ReplicaLeading
from region_broker.region.cluster.replica_logs import GroupLogs
from region_broker.region.cluster.replica_readers import nobody_reads
from region_broker.region.cluster.replica_sending import always
from region_broker.region.peers.sessions import Handlers, NodeSession

_COUNTED: Final = ("logs_behind", "records_behind", "logs_stopped", "bytes_behind")


def _always() -> bool:
    return True


def _sound(_key: LogKey) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionGroupsParts:
    """What they are joined with. `life`: of this process. `leading`, `following`: of the main group; the others are as that."""

    region: str
    me: Member
    life: UUID
    partitions: PartitionTable
    image: Callable[[], MetadataImage]
    leading: LeadingParts
    following: FollowingParts
    may_lead: Callable[[], bool] = _always
    """Whether this node may lead a data group: no log was lost here (INV-NRP3)."""


class RegionGroups:
    """Both sides of the main group for `LeadershipDriver`, and those of the data groups; `serve_on` once, `run` owns all tasks."""

    def __init__(self, parts: RegionGroupsParts) -> None:
        """Nothing is led or followed yet."""
        self._parts = parts
        self._image = parts.image()
        self._spread: Spread | None = self._image.spread
        """By which logs belong to groups here; that of the image, but where that one is of another time than the main group (INV-RGR2)."""
        self._held: Spread | None = self._spread
        """By which they were told to the groups last."""
        self._releasing = False
        self._on: LeaderEpoch | None = None
        """Under which leader epoch the main group runs here; None while it does not."""
        self._lineage: tuple[LineageEntry, ...] = ()
        self._leads_main = False
        self._data: dict[GroupNumber, DataGroup] = {}
        self._tasks: asyncio.TaskGroup | None = None
        logs = GroupLogs(parts.partitions, self._main_logs)
        self.leading: Final = ReplicaLeading(replace(parts.leading, partitions=logs))
        self.following: Final = ReplicaFollowing(replace(parts.following, partitions=logs))
        self.disputed: Final = parts.following.disputed
        """The logs that have stopped because they part from a leader's below HW, of all groups."""
        self.is_damaged: Callable[[LogKey], bool] = _sound
        """Whether something of a log is known to be damaged here, and not mended."""

    # -- the main group, as `LeadershipDriver` moves it ------------------------------------------

    def begin(self, leadership: Leadership) -> None:
        """See `LeadingSide`."""
        self._leads_main = True
        self._main_is_off()
        self.leading.begin(leadership)
        self._main_is_on(leadership.leader_epoch)

    def image_changed(self, image: MetadataImage) -> None:
        """See `LeadingSide`."""
        self.leading.image_changed(image)

    def end(self) -> None:
        """See `LeadingSide`."""
        self._stop_data()
        self.leading.end()
        self._leads_main = False
        self._main_is_off()

    async def until_committed(self) -> None:
        """See `LeadingSide`."""
        await self.leading.until_committed()

    def follow(self, leader: Member | None, leader_epoch: LeaderEpoch) -> None:
        """See `FollowingSide`."""
        if leader_epoch != self._on or self._is_of_another_time():
            self._main_is_off()
        self.following.follow(leader, leader_epoch)
        for group in self._data.values():
            group.logs_changed()  # the role has made all logs mirrors (INV-LSH5), also those that are led on here
        self._main_is_on(leader_epoch)

    def stop(self) -> None:
        """See `FollowingSide`; data groups go on where the image has the same leader epoch, and nobody who leads (INV-RGR10)."""
        self.following.stop()
        if self._is_of_another_time():
            self._main_is_off()

    def _main_is_on(self, leader_epoch: LeaderEpoch) -> None:
        self._on, self._lineage = leader_epoch, lineage_of(self._image)
        self._look()

    def _main_is_off(self) -> None:
        """No group has a log: they belong by the newest image from now on."""
        self._stop_data()
        self._on = None
        self._spread = self._held = self._image.spread

    # -- which logs ------------------------------------------------------------------------------

    def _main_logs(self) -> Callable[[LogKey], bool] | None:
        if self._spread is None and not self._releasing:
            return None
        return partial(self._is_in, MAIN_GROUP)

    def _is_in(self, group: GroupNumber, key: LogKey) -> bool:
        if _group_in(self._spread, key) != group:
            return False
        return not self._releasing or _group_in(self._held, key) == group

    def is_main(self, key: LogKey) -> bool:
        """Return whether a log belongs to the main group here now."""
        return _group_in(self._spread, key) == MAIN_GROUP

    def logs_changed(self) -> None:
        """Partitions were opened or dropped: to be called in the same step, as a partition opens in no role."""
        if self._held is not self._spread:
            self._releasing = True  # INV-RGR1
            self._tell_of_logs()
            self._releasing = False
            self._held = self._spread
        self._tell_of_logs()

    def _tell_of_logs(self) -> None:
        self.leading.logs_changed()
        self.following.logs_changed()
        for group in self._data.values():
            group.logs_changed()

    # -- the data groups -------------------------------------------------------------------------

    def take_image(self, image: MetadataImage) -> None:
        """Hear of an image, before anybody changes a log because of it."""
        self._image = image
        if image.spread is None and self._spread is None:
            if self._leads_main:
                self._lineage = lineage_of(image)
            return
        self._look()

    def _is_of_another_time(self) -> bool:
        """Return whether the main group is about to begin anew because of the image (INV-RGR2)."""
        row, spread, held = self._image.leadership, self._image.spread, self._spread
        return (
            row is None
            or row.leader_epoch != self._on
            or lineage_of(self._image) != self._lineage
            or (held is not None and (spread is None or spread.preferred != held.preferred))
        )

    def _look(self) -> None:
        """Do what the image asks for, in this step (INV-RGR1, INV-RGR2)."""
        image, spread = self._image, self._image.spread
        if self._on is None:
            self._main_is_off()
            return
        if spread is None and self._spread is None:
            return
        if self._is_of_another_time() or spread is None:
            self._stop_data()
            return
        for group in self._data.values():
            if not group.fits(spread.groups.get(group.number)):
                group.stop()
        former, self._spread = self._spread, spread
        if former is None:
            self.logs_changed()
        elif former.topics == spread.topics and self._held is former:
            self._held = spread
        # Else topics were made, or deleted: whoever opens or drops their logs tells of that, in this step.
        for number, row in spread.groups.items():
            group = self._group(GroupNumber(number))
            may = group.may_be_led(image, row) and self._parts.may_lead()
            group.take(row, leads=may)
            if group.leads is not None:
                group.leading.image_changed(image)

    def led(self) -> dict[GroupNumber, DataGroup]:
        """Return the data groups that this node leads, or is about to."""
        return {n: group for n, group in self._data.items() if group.leads is not None}

    def give_up(self, number: GroupNumber, leader_epoch: LeaderEpoch) -> None:
        """Let a data group go that is led under this leader epoch, until the metadata have another one (INV-GUP3, INV-RGR3)."""
        group = self._data.get(number)
        if group is not None and group.leads == leader_epoch:
            group.stop()
            self._look()

    def _stop_data(self) -> None:
        for group in self._data.values():
            group.stop()

    def _group(self, number: GroupNumber) -> DataGroup:
        found = self._data.get(number)
        if found is None:
            found = self._data[number] = self._made(number)
            if self._tasks is not None:
                found.begin_tasks(self._tasks)
        return found

    def _made(self, number: GroupNumber) -> DataGroup:
        parts = self._parts
        logs = GroupLogs(parts.partitions, lambda: partial(self._is_in, number))
        # `bound` stays shared: INV-RGR6.
        leading = replace(
            parts.leading, group=number, partitions=logs, image=lambda: self._image,
            awaited=lambda: _main_leader(self._image), kept=lambda: _who_led(self._image), takes_writes=always,
        )  # fmt: skip
        following = replace(parts.following, partitions=logs, may_serve=nobody_reads)
        return DataGroup(number, parts.life, leading, following)

    async def run(self) -> None:
        """Copy until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.leading.run(), name="replica-leading")
            tasks.create_task(self.following.run(), name="replica-following")
            for group in self._data.values():
                group.begin_tasks(tasks)
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    # -- messages --------------------------------------------------------------------------------

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Answer followers of all groups; once, before the peer port is bound (INV-RGR6)."""
        GroupMessages(self._named).serve_on(handlers)

    def _named(self, leader_epoch: LeaderEpoch) -> ReplicaLeading:
        for group in self._data.values():
            if group.leads == leader_epoch:
                return group.leading
        return self.leading

    # -- what is asked of them -------------------------------------------------------------------

    def _led(self, key: LogKey) -> DataGroup | None:
        """Return the data group of a log, where this node leads it."""
        group = None if self._spread is None else self._data.get(self._spread.group_of(key))
        return None if group is None or group.leads is None else group

    def leading_of(self, key: LogKey) -> ReplicaLeading:
        """Return what would lead a log here."""
        group = None if self._spread is None else self._data.get(self._spread.group_of(key))
        return self.leading if group is None else group.leading

    def leads_under(self, key: LogKey) -> LeaderEpoch | None:
        """Return the leader epoch under which this node leads a log in a data group that is open, None otherwise (INV-RGR5)."""
        group = self._led(key)
        return None if group is None else self._open_under(group)

    def _open_under(self, group: DataGroup) -> LeaderEpoch | None:
        domain = self._image.domains.get(DEFAULT_DOMAIN)
        if group.leads is None or domain is None:
            return None
        acts = domain.acting_region == self._parts.region
        is_open = (
            acts
            and region_epoch_of(group.leads) == domain.region_epoch
            and group.leading.is_settled
        )
        return group.leads if is_open else None

    def is_open(self, partition: Partition) -> bool:
        """Return whether this node leads the log in a data group, and it may take reads and writes now (INV-RGR5)."""
        return partition.is_leader and self.leads_under(partition.key) is not None

    @property
    def takes_writes(self) -> bool:
        """Return whether the data groups that are open here take writes of clients, by the main leader's word (INV-RGR11)."""
        return self._on is None or self.following.shut_under != self._on

    @property
    def followed_count(self) -> int:
        """Return how many groups this node follows, at least 1."""
        data = sum(group.leads is None for group in self._data.values())
        return max(1, data + (not self._leads_main))

    @property
    def any_open(self) -> bool:
        """Return whether this node leads any data group so."""
        return bool(self.open_groups)

    @property
    def open_groups(self) -> list[int]:
        """Return the data groups that this node leads so, by number."""
        return [n for n, group in sorted(self._data.items()) if self._open_under(group) is not None]

    def apart(self, key: LogKey) -> tuple[Member | None, LeaderEpoch] | None:
        """Return who leads a log, and under which leader epoch, where it is in a data group; None where it is in the main group."""
        group = self._image.group_of(key)
        row = self._image.leadership_in(group)
        return None if group == MAIN_GROUP or row is None else (row.leader, row.leader_epoch)

    def compare_anew(self, reason: str) -> None:
        """Begin other sessions with all leaders: what was said in these of a log that was put aside is void (INV-RFN6)."""
        self.following.compare_anew(reason)
        for group in self._data.values():
            group.following.compare_anew(reason)

    def _leading_now(self) -> list[ReplicaLeading]:
        main = [self.leading] if self._leads_main else []
        return [*main, *(group.leading for group in self._data.values() if group.leads is not None)]

    def standings(self) -> dict[Member, dict[str, Any]]:
        """Return how far each follower is, as `ReplicaLeading.standings`, over all groups that this node leads."""
        found: dict[Member, dict[str, Any]] = {}
        for leading in self._leading_now():
            for member, each in leading.standings().items():
                found[member] = _both(found[member], each) if member in found else dict(each)
        return found

    def trouble(self) -> str | None:
        """Return why leaders had better be gathered, or not be spread, as far as this node knows as a leader; None where nothing is wrong.

        What is mended, is mended with one leader: a log that has stopped, is damaged, or lacks at a member. The main leader's copies count,
        too: mirrors copy from them.
        """
        spread = None if self._image.spread is None else self._spread
        for group in self._data.values() if spread is not None else ():
            row = spread.groups.get(group.number) if spread is not None else None
            is_off = group.leads is None and self._on is not None
            if is_off and is_named(self._image, row, self._parts.me, self._parts.life):
                return f"node {self._parts.me} is named to lead data group {group.number}, and cannot: it has lost a log, or has led in that leader epoch before"
        room = self._parts.partitions.room.refusal
        if room is not None and self._leading_now():  # the main leader, too: INV-NRP6
            return f"node {self._parts.me} leads logs, and takes no writes: {room}"
        for partition in self._parts.partitions:
            if self._leads_main or self._led(partition.key):
                if partition.failed is not None:
                    return (
                        f"{partition.tp} has stopped at node {self._parts.me}: {partition.failed}"
                    )
                if self.is_damaged(partition.key):
                    return f"{partition.tp} is damaged at node {self._parts.me}"
        stopped = Counter[Member]()
        for leading in self._leading_now():
            stopped.update(leading.logs_stopped())
        return next(
            (f"{count} logs have stopped at node {who}" for who, count in stopped.items() if count),
            None,
        )


def _main_leader(image: MetadataImage) -> Member | None:
    """Return for whom data leaders wait a moment where its connection is lost: to go on without it gathers leaders (INV-SPR10)."""
    return None if image.leadership is None else image.leadership.leader


def _who_led(image: MetadataImage) -> frozenset[Member]:
    """Return who led the main group, where nobody does and leaders are still spread (INV-RGR12)."""
    spread, main = image.spread, image.leadership
    if spread is None or main is None or main.leader is not None:
        return frozenset()
    return frozenset(each for each in main.in_sync if each.node_id == spread.preferred[0])


def _group_in(spread: Spread | None, key: LogKey) -> GroupNumber:
    return MAIN_GROUP if spread is None else spread.group_of(key)


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return how far a follower is in two groups together."""
    rates = [
        each["sent_bytes_per_s"] for each in (one, other) if each["sent_bytes_per_s"] is not None
    ]
    return {
        "connected": one["connected"] and other["connected"],
        "sent_bytes_per_s": sum(rates) if rates else None,
        **{name: one[name] + other[name] for name in _COUNTED},
        "behind_ms": None
        if None in {one["behind_ms"], other["behind_ms"]}
        else max(one["behind_ms"], other["behind_ms"]),
    }
