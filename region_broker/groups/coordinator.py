"""The group coordinator of a region: whom each request goes to, loading, administrators' orders, time.

INV-GC2  a commit is answered when its records are durable (B15); a fetch shows durable ones only
INV-GC4  not ACTIVE: NOT_COORDINATOR, LOADING or NOT_AVAILABLE, never a guess (C23)
INV-GC5  what looks at all groups gives way by the offsets that it looked at, found or not, of all shards together; where a topic is deleted, or a
         region takes over, also among those of one group
INV-GC6  whenever a takeover that clamps offsets gives way, each group is as it was or emptied, in memory as in the ledger, and nothing is brought
         back that went meanwhile; where it breaks off it is begun again, and what is durable is not done again
A request is judged and its records appended without an `await` between. After every `await` the shard's term is
compared before anything is read or changed.

Needs `run()` to be running: timers and the completion of generations live in its task group, so
that a client that goes away cannot take a rebalance with it.
Not here: members of classic groups (`classic_groups`) and of the new protocol (`modern_groups`), offsets
(`offset_service`), Kafka's numbers (`handlers`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from idempotency.identity import ProducerId, RegionEpoch, TopicPartition
from idempotency.java_hash import ledger_shard
from region_broker.groups.census import GroupCensus
from region_broker.groups.classic.states import GroupState
from region_broker.groups.classic_groups import ClassicGroups
from region_broker.groups.deletion import (
    deletion_records,
    judge_deletion,
    judge_offsets,
    offset_records,
)
from region_broker.groups.messages import (
    ClampReport,
    CommitOutcome,
    CommitRequest,
    FetchOutcome,
    GroupDescription,
    GroupListing,
    JoinOutcome,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.modern.messages import (
    HeartbeatOutcome,
    HeartbeatRequest,
    ModernDescription,
)
from region_broker.groups.modern_groups import ModernGroups
from region_broker.groups.offset_room import OffsetRoom
from region_broker.groups.offset_service import (
    ADMINISTRATOR,
    Asker,
    FetchRequest,
    OffsetService,
)
from region_broker.groups.offsets import OffsetTable
from region_broker.groups.ports import (
    GroupPorts,
    KeyValue,
    LedgerFailed,
    LedgerMarker,
    TxnProducer,
)
from region_broker.groups.records import (
    LedgerRecordError,
)
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import (
    RECORDS_PER_BATCH,
    EndOf,
    Looked,
    Shard,
    ShardHooks,
    ShardStatus,
    first_generation,
)
from region_broker.groups.timers import DeadlineTimers
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import YIELD_ROWS
from region_broker.wire.cooperative_yield import CooperativeYield

_log: Final = logging.getLogger("tidemark.groups")
LOOKS_AT_ONCE: Final = 1_000
"""How many offsets are looked at in one step, some 0.2 us each."""
LOOKS_OF_A_RECORD: Final = LOOKS_AT_ONCE // YIELD_ROWS
"""As what a group counts beside its offsets, each record that is written, and each open transaction whose offset goes with it."""


def _is_verified() -> None:
    """Stand for a caller that has verified the transaction itself."""


def _expect_since(shard: Shard, term: int) -> None:
    """Raise LedgerFailed where a shard does not serve as it did in `term`."""
    verdict = shard.since(term)
    if verdict is not GroupVerdict.OK:
        raise LedgerFailed(f"shard {shard.index} of the groups' ledger is not served as it was: {verdict.name}")  # fmt: skip


class GroupCoordinator:
    """All groups of a region; one object per node, all calls on its event loop."""

    def __init__(self, ports: GroupPorts, *, shard_count: int, settings: GroupSettings) -> None:
        """Take the ports; every shard starts INACTIVE, until `load`."""
        self._log = ports.log
        self._clock = ports.clock
        self._image = ports.image
        self._settings = settings
        self._shards = [Shard(index) for index in range(shard_count)]
        self._timers = DeadlineTimers(ports.clock, self._on_due)
        self._census = GroupCensus(self._shards, ports.clock, settings)
        hooks = ShardHooks(
            arm=self._timers.arm,
            admits=self._census.admits,
            fail=self._fail,
            ended_classic=self._ended_classic,
            became_classic=self._became_classic,
        )
        self._classic = ClassicGroups(ports, settings, self._timers, self._fail)
        self.offset_room = OffsetRoom(self._shards, ports.clock, settings)
        self._offsets = OffsetService(ports, hooks, self.offset_room)
        self._modern = ModernGroups(ports, settings, hooks)
        self._tasks: asyncio.TaskGroup | None = None

    # --- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled: timers, completion of generations, offset retention."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._classic.start(tasks)
            self._modern.start(tasks)
            self._timers.start(tasks)
            try:
                while True:
                    await self._clock.sleep_ms(self._settings.retention_check_interval_ms)
                    await self.expire_offsets()
            finally:
                self._timers.stop()
                self._classic.stop()
                self._modern.stop()
                self._tasks = None

    async def load(
        self, shards: Iterable[int] | None = None, *, region_epoch: RegionEpoch = RegionEpoch(0)
    ) -> None:
        """Replay the shards (all by default) and serve them, under `region_epoch`.

        Raises `LedgerFailed` or `LedgerRecordError`; the shard then answers NOT_AVAILABLE (C22:
        a ledger that cannot be read to its end is not served in part).
        """
        for index in range(len(self._shards)) if shards is None else shards:
            self._shards[index].first_generation = first_generation(region_epoch)
            await self._load(self._shards[index])

    async def _load(self, shard: Shard) -> None:
        self._leave(shard, ShardStatus.LOADING)
        term = shard.term
        try:
            table = OffsetTable()
            # Everything must be durable before it is served, and be read to the very end (B3, C22).
            await self._log.committed(shard.index, self._log.end_offset(shard.index))
            for part in self._log.replay(shard.index):
                for entry in part.entries:
                    table.apply(entry)
                await self._clock.sleep_ms(0)  # long ledgers must not hold up the loop
                if shard.term != term:
                    return
        except (LedgerFailed, LedgerRecordError):
            if shard.term == term:
                self._leave(shard, ShardStatus.FAILED)
            raise
        if shard.term == term:
            shard.enter(table, self._settings, now_ms=self._clock.monotonic_ms())
            self._classic.loaded(shard)
            self._modern.loaded(shard)

    async def resign(self, shards: Iterable[int] | None = None) -> None:
        """Stop serving the shards (all by default): who waits is told NOT_COORDINATOR (C23)."""
        for index in range(len(self._shards)) if shards is None else shards:
            self._leave(self._shards[index], ShardStatus.INACTIVE)

    def _leave(self, shard: Shard, status: ShardStatus) -> None:
        self._classic.answer(shard.leave(status))
        self._modern.left(shard)

    def on_marker_applied(self, shard: int, producer_id: ProducerId, commit: bool) -> None:
        """Apply a marker that was appended to ledger partition `shard` (P14, C35, C44, B7).

        Call it before the marker is confirmed to the transaction coordinator.
        """
        self._shards[shard].apply_marker(LedgerMarker(producer_id, commit))

    def shard_of(self, group_id: str) -> int:
        """Return the ledger partition of a group (C13)."""
        return ledger_shard(group_id, len(self._shards))

    def _shard_of(self, group_id: str) -> Shard:
        return self._shards[self.shard_of(group_id)]

    # --- membership ---------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinOutcome:
        """Join or rejoin; waits for the join phase. `request.new_member_id` is drawn here."""
        verdict = self._judge_group(group_id)
        if verdict is GroupVerdict.OK:
            verdict = self._classic.judge_join(request)
        shard = self._shard_of(group_id)
        if verdict is GroupVerdict.OK and not request.member_id:
            verdict = self._judge_new(shard, group_id)
        if verdict is not GroupVerdict.OK:
            return JoinOutcome(verdict=verdict, member_id=request.member_id)
        if group_id in shard.table.modern:
            outcome = await self._modern.classic_join(shard, group_id, request)
            if outcome is not None:
                return outcome
        return await self._classic.join(shard, group_id, request)

    async def sync(self, group_id: str, request: SyncRequest) -> SyncOutcome:
        """Return the member's assignment once the generation is durable."""
        verdict = self._judge_group(group_id)
        if verdict is not GroupVerdict.OK:
            return SyncOutcome(verdict=verdict)
        shard = self._shard_of(group_id)
        groups = self._modern.classic_sync if group_id in shard.table.modern else self._classic.sync
        syncing = groups(shard, group_id, request)
        del request  # INV-GL4
        return await syncing

    async def heartbeat(self, group_id: str, who: MemberIdentity, generation: int) -> GroupVerdict:
        """Keep a member alive."""
        verdict = self._judge_group(group_id)
        if verdict is not GroupVerdict.OK:
            return verdict
        shard = self._shard_of(group_id)
        if group_id in shard.table.modern:
            return self._modern.classic_heartbeat(shard, group_id, who, generation)
        return self._classic.heartbeat(shard, group_id, who, generation)

    async def leave(self, group_id: str, leavers: Sequence[MemberIdentity]) -> LeaveOutcome:
        """Remove members, several at once (v3+)."""
        verdict = self._judge_group(group_id)
        if verdict is not GroupVerdict.OK:
            return LeaveOutcome(verdict)
        shard = self._shard_of(group_id)
        if group_id in shard.table.modern:
            return await self._modern.classic_leave(shard, group_id, leavers)
        return self._classic.leave(shard, group_id, leavers)

    async def consumer_heartbeat(self, request: HeartbeatRequest) -> HeartbeatOutcome:
        """Serve a member of the new protocol: join, go on, leave (KIP-848)."""
        verdict = self._judge_group(request.group_id)
        shard = self._shard_of(request.group_id)
        if verdict is GroupVerdict.OK and request.member_epoch == 0:
            verdict = self._judge_new(shard, request.group_id)
        if verdict is not GroupVerdict.OK:
            return HeartbeatOutcome(verdict=verdict)
        return await self._modern.heartbeat(shard, request)

    # --- offsets ------------------------------------------------------------------------------

    async def commit_offsets(self, request: CommitRequest) -> CommitOutcome:
        """Commit offsets; returns when they are durable (B15)."""
        return await self._offsets.commit(self._shard_of(request.group_id), request, None)

    async def txn_commit_offsets(
        self,
        request: CommitRequest,
        producer: TxnProducer,
        verify: Callable[[], None] = _is_verified,
    ) -> CommitOutcome:
        """Stage offsets in `producer`'s transaction; returns when they are durable (C43).

        `verify` is called in the very step that appends (C46, P4); what it raises goes through.
        """
        if not request.group_id:
            return CommitOutcome(GroupVerdict.INVALID_GROUP_ID)
        shard = self._shard_of(request.group_id)
        return await self._offsets.commit(shard, request, producer, verify)

    async def fetch_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        *,
        require_stable: bool,
        asker: Asker = ADMINISTRATOR,
        durable_within_s: float | None = None,
    ) -> FetchOutcome:
        """Return committed offsets of these partitions, or of all (None) (C43, B4).

        With `require_stable`, a partition with an offset in an open transaction is UNSTABLE_OFFSET,
        also one that the transaction alone knows when all are asked for. NOT_AVAILABLE where they are
        not durable in time.
        """
        wanted = FetchRequest(group_id, partitions, require_stable, asker, durable_within_s)
        return await self._offsets.fetch(self._shard_of(group_id), wanted)

    async def expire_offsets(self) -> None:
        """Remove what retention lets go, and groups that hold nothing more (KIP-211, C45); others are served meanwhile."""
        yielding = CooperativeYield(LOOKS_AT_ONCE)
        for shard in self._shards:
            group_ids = shard.table.group_ids() if shard.status is ShardStatus.ACTIVE else []
            for group_id in group_ids:
                if shard.status is not ShardStatus.ACTIVE:
                    break
                looked = shard.table.offset_count(group_id)
                if yielding.due(
                    looked + LOOKS_OF_A_RECORD * (1 + self._expire_group(shard, group_id))
                ):
                    await self._clock.sleep_ms(0)

    def _expire_group(self, shard: Shard, group_id: str) -> int:
        """Return how many records end what goes of it."""
        records = shard.tombstones(
            group_id,
            self._image(),
            now_ms=self._clock.wall_ms(),
            retention_ms=self._settings.offsets_retention_ms,
        )
        if self._try_write(shard, records) and shard.is_forgettable(group_id):
            tombstones = shard.group_tombstones(group_id)
            if self._try_write(shard, tombstones):
                self._forget(shard, group_id, GroupVerdict.NOT_AVAILABLE)
        return len(records)

    async def delete_group(self, group_id: str) -> GroupVerdict:
        """Delete a group without members, with all its offsets; returns when that is durable.

        That of the empty name, too: as in Kafka no member joins it, but older clients commit offsets to it.
        """
        verdict = self._judge_served(group_id)
        shard = self._shard_of(group_id)
        if verdict is GroupVerdict.OK:
            verdict = judge_deletion(shard, group_id)
        if verdict is not GroupVerdict.OK:
            return verdict
        records = deletion_records(shard, group_id)
        self._forget(shard, group_id, GroupVerdict.UNKNOWN_MEMBER)
        return await self._ordered(shard, records)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> tuple[GroupVerdict, Mapping[TopicPartition, GroupVerdict]]:
        """Delete the offsets of partitions that no member reads; returns when that is durable."""
        verdict = self._judge_group(group_id)
        if verdict is not GroupVerdict.OK:
            return verdict, {}
        shard = self._shard_of(group_id)
        verdict, verdicts = await judge_offsets(shard, group_id, partitions)
        held = [tp for tp in verdicts if shard.table.has_offset(group_id, tp)]
        gone = [tp for tp in held if verdicts[tp] is GroupVerdict.OK]
        if verdict is GroupVerdict.OK and gone:
            verdict = await self._ordered(shard, offset_records(group_id, gone))
        return verdict, verdicts if verdict is GroupVerdict.OK else {}

    async def _ordered(self, shard: Shard, records: Sequence[KeyValue]) -> GroupVerdict:
        """Write what an administrator ordered; a ledger that fails may have taken it all the same (P18)."""
        term = shard.term
        try:
            await self._made_durable(shard, term, self._written(shard, records))
        except LedgerFailed:
            return GroupVerdict.NOT_AVAILABLE
        return GroupVerdict.OK

    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Remove all offsets of a deleted topic; returns when durable.

        Those of a shard that is not served now, or whose ledger fails, or that a crash or a takeover leaves behind, are not shown
        for another topic of that name, and removed once there is one (INV-GO6): the topic is deleted all the same.
        A few offsets at a time: another topic of that name may come meanwhile, and what is committed for it stays.
        """
        yielding = CooperativeYield(LOOKS_AT_ONCE)
        for shard in self._shards:
            if shard.status is ShardStatus.ACTIVE:
                try:
                    # Where it serves otherwise meanwhile, what is left of them is not shown, and removed later.
                    await self._write_looks(
                        shard, shard.topic_tombstones(topic, topic_id), yielding
                    )
                except LedgerFailed as error:
                    _log.warning("offsets of deleted topic %s stay in shard %d: %s", topic, shard.index, error)  # fmt: skip

    async def clamp(
        self,
        log_ends: EndOf | Mapping[TopicPartition, int],
        *,
        region_epoch: RegionEpoch = RegionEpoch(0),
    ) -> ClampReport:
        """Write the offsets that point past their logs anew, and empty all groups, a few at a time (T26, INV-GC6).

        Generations go on where no other `region_epoch` has any.

        Part of ADOPTING: after `load`, before this region takes writes. `log_ends` tells the end of
        a partition, or None for one that was not cut. Returns when durable; raises `LedgerFailed`, also where a shard is
        not served any more as it was. Whoever adopts next begins again, and finds done what has become durable.
        """
        end_of = log_ends.get if isinstance(log_ends, Mapping) else log_ends
        report, yielding = ClampReport(), CooperativeYield(LOOKS_AT_ONCE)
        terms = [shard.term for shard in self._shards]
        for shard, term in zip(self._shards, terms, strict=True):
            _expect_since(shard, term)
            wall_ms = self._clock.wall_ms()
            looks = shard.clamp(end_of, report, wall_ms=wall_ms, region_epoch=region_epoch)
            await self._write_looks(shard, looks, yielding)
            _expect_since(shard, term)
        return report

    async def _write_looks(
        self, shard: Shard, looks: Iterable[Looked], yielding: CooperativeYield
    ) -> None:
        """Write what is found a few offsets at a time; returns when durable, or when the shard serves no more as it did. Raises LedgerFailed."""
        term, next_offset = shard.term, 0
        found: list[Looked] = []
        for looked in looks:
            if looked.records:
                found.append(looked)
            if not yielding.due(looked.offsets + LOOKS_OF_A_RECORD * looked.changes):
                continue
            next_offset = max(next_offset, self._written_looks(shard, found))
            found = []
            await self._clock.sleep_ms(0)
            if shard.since(term) is not GroupVerdict.OK:
                return
        next_offset = max(next_offset, self._written_looks(shard, found))
        if next_offset:
            await self._made_durable(shard, term, next_offset)

    def _written_looks(self, shard: Shard, found: Sequence[Looked]) -> int:
        """Write what was found, and begin anew with the groups that it empties: whoever is served next finds these whole (INV-GC6)."""
        records = [record for looked in found for record in looked.records]
        next_offset = self._written(shard, records)
        now_ms = self._clock.monotonic_ms()
        for looked in found:
            if looked.emptied is not None:
                self._forget(shard, looked.emptied, GroupVerdict.UNKNOWN_MEMBER)
                shard.restore_group(looked.emptied, self._settings, now_ms=now_ms)
        return next_offset

    # --- looking ------------------------------------------------------------------------------

    def list(self) -> tuple[GroupVerdict, list[GroupListing]]:
        """Return all groups of the shards served here, or why they cannot be told (C23)."""
        listings: list[GroupListing] = []
        for shard in self._shards:
            if shard.status is not ShardStatus.ACTIVE:
                return shard.status.value, []
            for group_id in sorted(set(shard.groups) | set(shard.table.group_ids())):
                group = shard.groups.get(group_id)
                modern = shard.table.modern.get(group_id)
                if modern is not None:
                    state = modern.state.value
                    listings.append(GroupListing(group_id, "consumer", state, "consumer"))
                elif group is None:
                    listings.append(GroupListing(group_id, "", GroupState.EMPTY.value))
                else:
                    kind = group.protocol_type or ""
                    listings.append(GroupListing(group_id, kind, group.state.value))
        return GroupVerdict.OK, listings

    def describe(self, group_id: str) -> GroupDescription:
        """Return one classic group; an unknown one is GROUP_NOT_FOUND and Dead."""
        return self._classic.describe(self._shard_of(group_id), group_id)

    def describe_modern(self, group_id: str) -> ModernDescription:
        """Return one group of the new protocol; another is GROUP_NOT_FOUND and Dead."""
        return self._modern.describe(self._shard_of(group_id), group_id)

    # --- parts --------------------------------------------------------------------------------

    @property
    def shards(self) -> Sequence[Shard]:
        """Return the shards, to look at only."""
        return self._shards

    def _judge_group(self, group_id: str) -> GroupVerdict:
        if not group_id:
            return GroupVerdict.INVALID_GROUP_ID
        return self._judge_served(group_id)

    def _judge_served(self, group_id: str) -> GroupVerdict:
        verdict = self._shard_of(group_id).status.value
        if verdict is GroupVerdict.OK and self._tasks is None:
            return GroupVerdict.LOADING  # `run` has not begun: nobody would end a rebalance
        return verdict

    def _judge_new(self, shard: Shard, group_id: str) -> GroupVerdict:
        admitted = self._census.admits(shard, group_id)
        return GroupVerdict.OK if admitted else GroupVerdict.TOO_MANY_GROUPS

    def _try_write(self, shard: Shard, records: Sequence[KeyValue]) -> bool:
        try:
            self._written(shard, records)
        except LedgerFailed:
            return False
        return True

    def _written(self, shard: Shard, records: Sequence[KeyValue]) -> int:
        """Write records in batches; return the offset to wait for, 0 where there are none. Raises LedgerFailed."""
        next_offset = 0
        try:
            for start in range(0, len(records), RECORDS_PER_BATCH):
                next_offset = shard.write(self._log, records[start : start + RECORDS_PER_BATCH])
        except LedgerFailed:
            self._fail(shard, shard.term)
            raise
        return next_offset

    async def _made_durable(self, shard: Shard, term: int, next_offset: int) -> None:
        try:
            await self._log.committed(shard.index, next_offset)
        except LedgerFailed:
            self._fail(shard, term)
            raise

    def _fail(self, shard: Shard, term: int) -> None:
        """Stop serving a shard whose ledger failed: what is in memory may not be on disk."""
        if shard.term == term:
            self._leave(shard, ShardStatus.FAILED)

    def _forget(self, shard: Shard, group_id: str, verdict: GroupVerdict) -> None:
        """Drop all that is in memory of a group of either protocol; who waits for it is told `verdict`."""
        self._classic.ended(shard, group_id, verdict)
        self._modern.ended(shard, group_id)

    def _ended_classic(self, shard: Shard, group_id: str) -> None:
        """Let a group go whose records say that it is of the new protocol now."""
        self._classic.ended(shard, group_id, GroupVerdict.REBALANCE_IN_PROGRESS)

    def _became_classic(self, shard: Shard, group_id: str) -> None:
        """Take over a group whose records say that it is classic now: its members shall rejoin."""
        self._classic.became(shard, group_id)

    def _on_due(self, group_id: str) -> None:
        shard = self._shard_of(group_id)
        if group_id in shard.table.modern:
            self._modern.on_due(shard, group_id)
        else:
            self._classic.on_due(shard, group_id)
