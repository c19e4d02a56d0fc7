"""A log of a follower that has stopped, or did not open, is put aside and copied again from the node that leads.

INV-CAN1 a log is put aside only while the metadata have another node lead, and this one out of the in-sync set: nobody counts on it, and
         who holds all that was committed is known. The only node in sync puts nothing aside: what it has is all that is left (T36)
INV-CAN2 nothing is put aside before the node that leads has said, under the leader epoch of the metadata, that the log runs there, and
         that it knows of no damage in it, nor has lost it: what is put aside may be the only sound copy of that; nor before that one has
         heard in the session that goes on that the log does not run here, and has no proposal open that would count this node in
         1. A leader proposes to take this node in. 2. A log stops here, and is put aside. 3. The proposal is carried out, late. 4. The
         leader is lost, and this node, which has nothing of that log, is elected as one that has all.
INV-CAN3 a log that parts from the leader's below HW is not put aside by itself: one of the two disks has lied, and it is evidence
INV-CAN5 nothing is put aside while the leaders of partitions are spread: what was committed in each group, one node holds once they are
         gathered (ADR 53)
INV-CAN6 a log that runs, and has damage that no range mends, is stopped for that only where another node leads, enough others are in sync for
         the region to go on, and who leads has said what INV-CAN2 asks for: a log that nobody could give stays, with what is sound in it
INV-CAN4 what was put aside is not put aside again at once: the pauses double, so a disk that is broken is not filled with copies

The log that takes its place is empty, and is copied like one that was never there; each batch is checked as it is written. The leader
takes this node in again once it has all of it (INV-RPL4, INV-RPL12).
Not here: the folders (`partitions.logs_aside`), the copying (`region.cluster.replica_following`), ranges of a log that runs (`node_ranges`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.mending.node_asking import asked
from region_broker.region.peers.protocol import PeerMessage, PeerRefused, PeerUnreachable
from region_broker.region.peers.sessions import Handlers, NodeSession

LOOK_MS: Final = 500
PAUSE_MS_MIN: Final = 10_000
PAUSE_MS_MAX: Final = 3_600_000
NOT_HELD: Final = "not-held"
RUNBOOK: Final = "docs/runbooks/damaged_log.md"

_log: Final = logging.getLogger("tidemark.replication")


class AskLogHeld(PeerMessage, frozen=True, kw_only=True):
    """Do you lead under `leader_epoch`, and does this log run there?

    `is_running_here`: who asks has not stopped it yet, so it may be counted on. An older version does not know that field, and refuses.
    """

    leader_epoch: LeaderEpoch
    topic_id: UUID
    partition: int
    is_running_here: bool = False


class LogHeld(PeerMessage, frozen=True, kw_only=True):
    """It does, from `log_start_offset` on, committed up to `high_watermark`, and ends at `log_end_offset` (-1: an older version)."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int = -1


class Following(Protocol):
    """`replica_following.ReplicaFollowing`."""

    @property
    def disputed(self) -> set[LogKey]:
        """The logs that part from a leader's below HW."""
        ...

    def compare_anew(self, reason: str) -> None:
        """Begin another session."""
        ...

    def logs_changed(self) -> None:
        """Have the leader know which logs do not run here."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingAnewParts:
    """What it is joined with. `logs_changed`: told in the step in which an empty log has taken the place of another one.

    `counts_on`: whether this node, as leader, counts on what another one has of a log, or may yet. `least_others`: how many others must be
    in sync for the region to go on without this node.
    """

    me: Member
    image: Callable[[], MetadataImage]
    partitions: PartitionTable
    line: LineParts
    following: Following
    follows: Callable[[], bool]
    counts_on: Callable[[Member, LogKey], bool]
    logs_changed: Callable[[], None]
    least_others: Callable[[], int]
    is_uncut: Callable[[Partition], bool] = lambda _partition: False
    """Whether a log may hold what a takeover has made void, and is in no quarantine (INV-T10)."""


@dataclass(slots=True)
class _Tries:
    due_ms: int = 0
    pause_ms: int = PAUSE_MS_MIN


class CopyingAnew:
    """`serve_on` once; `run` is its only task."""

    def __init__(self, parts: CopyingAnewParts) -> None:
        """Nothing was looked at yet."""
        self._parts = parts
        self.is_damaged: Callable[[LogKey], bool] = _sound
        """Whether something of a log is known to be damaged here, and not mended."""
        self._tries: dict[LogKey, _Tries] = {}
        self.waiting: dict[str, str] = {}
        """Why logs that do not run are not copied again yet, by topic and partition: for people."""

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Answer what comes on such connections."""
        handlers.register(AskLogHeld, self._on_ask)

    async def _on_ask(
        self, session: NodeSession, message: AskLogHeld, _attachment: memoryview
    ) -> LogHeld:
        leadership = self._parts.image().leadership
        partition = self._parts.partitions.by_id(message.topic_id, message.partition)
        if leadership is None or (leadership.leader, leadership.leader_epoch) != (
            self._parts.me,
            message.leader_epoch,
        ):
            raise PeerRefused(
                NOT_HELD, f"node {self._parts.me} does not lead under that leader epoch"
            )
        if self._parts.image().spread is not None:
            raise PeerRefused(
                NOT_HELD, "the leaders of partitions are spread: they are gathered first"
            )
        key = LogKey(message.topic_id, message.partition)
        if message.is_running_here:  # INV-CAN6: what is put aside is asked for again
            pass
        elif session.member in leadership.in_sync:  # the asking node's metadata may lag behind
            raise PeerRefused(NOT_HELD, "it still counts that node as in sync")
        elif self._parts.counts_on(session.member, key):
            raise PeerRefused(NOT_HELD, "it may still count on what that node has of the log")
        if partition is None or partition.failed is not None:
            raise PeerRefused(NOT_HELD, f"the log does not run at node {self._parts.me}, either")
        if self.is_damaged(partition.key) or str(partition.tp) in self._parts.partitions.lost():
            raise PeerRefused(
                NOT_HELD, f"the log is damaged at node {self._parts.me}, or lost, and not whole yet"
            )
        return LogHeld(
            log_start_offset=partition.log_start_offset,
            high_watermark=partition.high_watermark,
            log_end_offset=partition.log_end_offset,
        )

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await self._parts.line.clock.sleep_ms(LOOK_MS)

    async def look(self) -> None:
        """Put aside what has stopped, where that may be; take note of why it may not."""
        stopped = [each for each in self._parts.partitions if each.failed is not None]
        if stopped:
            self._parts.following.logs_changed()
        waiting: dict[str, str] = {}
        for partition in stopped:
            why = await self._why_not(partition) or self._put_aside(partition)
            if why:
                waiting[str(partition.tp)] = why
                if self.waiting.get(str(partition.tp)) != why:
                    _log.warning("%s is not copied again yet: %s", partition.tp, why)
        self.waiting = waiting

    async def give_up(self, partition: Partition, why: str) -> str | None:
        """Stop a log that runs, so that it is copied again whole; return why it was not stopped (INV-CAN6)."""
        refusal = await self._why_not(partition, is_running=True)
        if refusal is None:
            partition.stop(f"it is to be copied again whole, as no range mends it: {why}")
        return refusal

    def _objection(self, leadership: Leadership | None, *, is_running: bool) -> str | None:
        me = self._parts.me
        return (
            objection_to_stopping(me, leadership, self._parts.least_others())
            if is_running
            else objection(me, leadership)
        )

    async def _why_not(self, partition: Partition, *, is_running: bool = False) -> str | None:
        """Return why the log stays as it is; None where it may be put aside, or stopped for that, in this step."""
        parts = self._parts
        leadership = parts.image().leadership
        why = self._objection(leadership, is_running=is_running) or self._objection_here(partition)
        if why is not None or leadership is None or leadership.leader is None:
            return why or "nobody leads"
        ask = AskLogHeld(
            leader_epoch=leadership.leader_epoch,
            topic_id=partition.topic_id,
            partition=partition.tp.partition,
            is_running_here=is_running,
        )
        try:
            await asked(parts.line, leadership.leader, ask, LogHeld)  # INV-CAN2
        except (PeerRefused, PeerUnreachable) as error:
            return f"node {leadership.leader.node_id}, which leads: {error}"
        now = parts.image().leadership
        if now is None or now.leader_epoch != leadership.leader_epoch:
            return "another node is about to lead"
        return self._objection(now, is_running=is_running) or self._objection_here(partition)

    def _objection_here(self, partition: Partition) -> str | None:
        parts = self._parts
        if parts.partitions.by_id(partition.topic_id, partition.tp.partition) is not partition:
            return "its topic was deleted"
        if parts.image().topic_by_id(partition.topic_id) is None:
            return "its topic is not known"
        if parts.image().spread is not None:  # INV-CAN5
            return "the leaders of partitions are spread: they are gathered first"
        if not parts.follows():
            return "this node has not begun to follow yet"
        if partition.key in parts.following.disputed:  # INV-CAN3
            return f"it parts from the leader's log below what was committed here: follow {RUNBOOK}"
        if parts.partitions.room.refusal is not None:
            return f"the disk has no room for a second copy: {parts.partitions.room.refusal}"
        tries = self._tries.get(partition.key)
        if tries is not None and parts.line.clock.monotonic_ms() < tries.due_ms:  # INV-CAN4
            return "it was copied again before, and has stopped again: look at the disk. It is tried again within the hour"
        return None

    def _put_aside(self, partition: Partition) -> str | None:
        """Put it aside, and have the empty log in its place copied; return why that failed."""
        parts = self._parts
        tries = self._tries.setdefault(partition.key, _Tries())
        tries.due_ms = parts.line.clock.monotonic_ms() + tries.pause_ms
        tries.pause_ms = min(2 * tries.pause_ms, PAUSE_MS_MAX)
        why = partition.failed
        try:
            became = parts.partitions.aside.put(partition, uncut=parts.is_uncut(partition))
        except OSError as error:
            return f"it cannot be put aside: {error}"
        if not became:
            tries.due_ms = 0
            return "something writes into it still"
        _log.error(
            "%s is copied again from the node that leads. What was here had stopped (%s): %s",
            partition.tp, why, became,
        )  # fmt: skip
        parts.following.compare_anew(f"{partition.tp} is copied again")
        parts.logs_changed()
        return None


def _sound(_key: LogKey) -> bool:
    return False


def objection(me: Member, leadership: Leadership | None) -> str | None:
    """Return why a member that the metadata know so may put no log aside; None where it may (INV-CAN1)."""
    if leadership is None or leadership.leader is None:
        return "nobody leads this region: nobody could be copied from"
    others = [member for member in leadership.in_sync if member != me]
    if not others:
        return (
            f"this node is the only one in sync: nobody else is known to hold what was committed. Mend the disk and start this node"
            f" anew, or follow {RUNBOOK}"
        )
    if leadership.leader == me:
        return "this node leads: another one that is in sync is to lead first"
    if me in leadership.in_sync:
        return "this node still counts as in sync: the one that leads is to take it out first"
    return None


def objection_to_stopping(
    me: Member, leadership: Leadership | None, least_others: int
) -> str | None:
    """Return why a member that the metadata know so may not stop a log that runs, to copy it again; None where it may (INV-CAN6)."""
    if leadership is None or leadership.leader is None:
        return "nobody leads this region: nobody could be copied from"
    if leadership.leader == me:
        return (
            "this node leads: another one that is in sync is to lead first (tidemark cluster move)"
        )
    others = [member for member in leadership.in_sync if member != me]
    if me in leadership.in_sync and len(others) < least_others:
        return f"only {len(others)} other nodes are in sync, and writes need {least_others}: start the others, or wait until they have caught up"
    return None
