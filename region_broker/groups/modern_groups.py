"""Groups of the new protocol on their shards: requests in, records appended, answers when durable.

INV-ND2  nothing is told of a group before all of its records so far are durable
INV-ND3  topics are looked at when a member speaks: what changed begins a group epoch with the next
         heartbeat, whoever sends it; what patterns stand for that takes long, with the next one once that is known (INV-NX8)
INV-ND4  a member that does not say what it subscribes to, and yet must be written again with all of that, is so once the record of the last such
         member of its group is durable
INV-ND5  a member is heard when its heartbeat comes, not when there was time for it
A request is judged and its records appended without an `await` between; they are one batch. After every `await` the
shard's term is compared before anything is read or changed.

`GroupCoordinator` owns shards and timers and calls this for what concerns the new protocol.
Not here: rules (`modern.heartbeat`, `modern.classic_members`), Kafka's numbers and shapes (`handlers`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from region_broker.groups.classic.group import Group
from region_broker.groups.classic.judgements import refuse_join
from region_broker.groups.messages import (
    JoinOutcome,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.modern.classic_members import (
    admit,
    can_downgrade,
    check_generation,
    downgrade,
    emptied,
    identify,
    join,
    must_rejoin,
    sync,
)
from region_broker.groups.modern.classic_members import leave as classic_leave
from region_broker.groups.modern.heartbeat import (
    beat,
    check,
    check_begins,
    check_patterns,
    fence,
    leave,
    speaker,
    writes_again,
)
from region_broker.groups.modern.messages import (
    HeartbeatOutcome,
    HeartbeatRequest,
    ModernDescription,
    ModernMemberDescription,
    Refused,
)
from region_broker.groups.modern.records import encode_value
from region_broker.groups.modern.sessions import Sessions
from region_broker.groups.modern.sight import read_ahead
from region_broker.groups.modern.state import LEFT_FOR_NOW, ConsumerGroup
from region_broker.groups.modern.states import ModernState
from region_broker.groups.modern.target import DEFAULT_ASSIGNOR, Change, Draft, TopicView
from region_broker.groups.modern.topic_watch import Compared, Found, TopicWatch
from region_broker.groups.modern.upgrade import GroupReader, Said, upgrade
from region_broker.groups.ports import GroupPorts, KeyValue, LedgerFailed
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    encode_group_key,
    encode_group_value,
    encode_modern_key,
)
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import Shard, ShardHooks, ShardStatus
from region_broker.groups.verdicts import GroupVerdict

_TRIES: Final = 3


@dataclass(slots=True)
class _Runtime:
    """What of a group is not in the ledger: deadlines, and the topics it was compared with."""

    sessions: Sessions
    compared: Compared = field(default_factory=Compared)
    writing_again: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModernGroups:
    """The groups of the new protocol of all shards."""

    def __init__(self, ports: GroupPorts, settings: GroupSettings, hooks: ShardHooks) -> None:
        """Begin without groups; `loaded` brings those of a shard."""
        self._ports = ports
        self._settings = settings
        self._hooks = hooks
        self._watch = TopicWatch(ports)
        self._reader = GroupReader()
        self._runtimes: dict[int, dict[str, _Runtime]] = {}

    # --- life ---------------------------------------------------------------------------------

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Resolve patterns in `tasks` from now on."""
        self._watch.start(tasks)

    def stop(self) -> None:
        """Begin no more of it."""
        self._watch.stop()

    def loaded(self, shard: Shard) -> None:
        """Begin the sessions of a shard's groups anew."""
        runtimes: dict[str, _Runtime] = {}
        self._runtimes[shard.index] = runtimes
        now_ms = self._ports.clock.monotonic_ms()
        for group_id, group in shard.table.modern.items():
            runtimes[group_id] = self._new_runtime(group, now_ms)

    def ended(self, shard: Shard, group_id: str) -> None:
        """Forget what was in memory of a group that is no more."""
        self._runtimes.get(shard.index, {}).pop(group_id, None)

    def left(self, shard: Shard) -> None:
        """Forget what was in memory of a shard's groups."""
        self._runtimes.pop(shard.index, None)

    def _new_runtime(self, group: ConsumerGroup, now_ms: int) -> _Runtime:
        """Begin the sessions of all members, those too that a classic group brought; they are timed from now on."""
        timeout_ms = self._settings.consumer_session_timeout_ms
        runtime = _Runtime(Sessions.begin(group, timeout_ms, now_ms=now_ms))
        self._arm(group.group_id, runtime)
        return runtime

    def _runtime(self, shard: Shard, group: ConsumerGroup) -> _Runtime:
        runtimes = self._runtimes.setdefault(shard.index, {})
        if group.group_id not in runtimes:
            now_ms = self._ports.clock.monotonic_ms()
            runtimes[group.group_id] = self._new_runtime(group, now_ms)
        return runtimes[group.group_id]

    def _arm(self, group_id: str, runtime: _Runtime) -> None:
        deadline_ms = runtime.sessions.next_deadline_ms()
        if deadline_ms is not None:
            self._hooks.arm(group_id, deadline_ms)

    # --- heartbeats ---------------------------------------------------------------------------

    async def heartbeat(self, shard: Shard, request: HeartbeatRequest) -> HeartbeatOutcome:
        """Let a member join, go on or leave; the shard is ACTIVE."""
        try:
            check(request)
            if not request.member_id:
                request = replace(request, member_id=str(self._ports.chance.uuid()))
            request = self._admitted(shard, request)
            term = shard.term
            find = partial(self._found, shard, request.group_id)
            for prepare in (self._watch.resolve, self._watch.look_ahead):
                await prepare(request, find)
                if (verdict := shard.since(term)) is not GroupVerdict.OK:
                    return HeartbeatOutcome(verdict=verdict)
            said = await self._read_classic(shard, request)
            if (verdict := shard.since(term)) is not GroupVerdict.OK:
                return HeartbeatOutcome(verdict=verdict)
            async with self._turn(shard, request):
                if (verdict := shard.since(term)) is not GroupVerdict.OK:
                    return HeartbeatOutcome(verdict=verdict)
                outcome = self._act(shard, request, said)
                verdict = await self.wait_durable(shard, request.group_id)
        except Refused as refusal:
            return HeartbeatOutcome(verdict=refusal.verdict, message=str(refusal))
        except LedgerFailed:
            return HeartbeatOutcome(verdict=GroupVerdict.NOT_AVAILABLE)
        return outcome if verdict is GroupVerdict.OK else HeartbeatOutcome(verdict=verdict)

    def _turn(
        self, shard: Shard, request: HeartbeatRequest
    ) -> asyncio.Lock | AbstractAsyncContextManager[None]:
        """Return what lets one by one through who would be written again for little (INV-ND4), and all others at once."""
        group = shard.table.modern.get(request.group_id)
        if group is None or not writes_again(group, request):
            return nullcontext()
        return self._runtime(shard, group).writing_again

    def _admitted(self, shard: Shard, request: HeartbeatRequest) -> HeartbeatRequest:
        """Refuse who is no member, and a pattern that cannot be taken, before anything is looked up for it (INV-NX6)."""
        group = shard.table.modern.get(request.group_id)
        if request.member_epoch < 0:
            return replace(request, topic_regex=None)
        if group is None:
            check_begins(request)
        else:
            speaker(group, request)
            check_patterns(group, request)
        if request.topic_regex:
            self._watch.check(request.topic_regex)
        if group is not None and request.member_id in group.metadata:
            self._heard(shard, request.group_id, request.member_id)
        return request

    def _found(self, shard: Shard, group_id: str) -> Found:
        group = shard.table.modern.get(group_id)
        return group, Compared() if group is None else self._runtime(shard, group).compared

    async def _read_classic(self, shard: Shard, request: HeartbeatRequest) -> Said | None:
        """Read what the members of a classic group say, before the step in which it becomes another one (INV-NUG1)."""
        for _ in range(_TRIES):
            classic, topics = shard.groups.get(request.group_id), self._ports.image().topics
            if classic is None or not classic.roster.members or request.member_epoch != 0:
                return None
            said = await self._reader.read(classic, topics, request.sight)
            now = shard.groups.get(request.group_id)
            if now is not None and said.is_said_in(now, self._ports.image().topics):
                return said
        return None

    def _act(self, shard: Shard, request: HeartbeatRequest, said: Said | None) -> HeartbeatOutcome:
        """Judge and append, in one step; raises `Refused`, `LedgerFailed`."""
        group = shard.table.modern.get(request.group_id)
        if group is None:
            return self._begin(shard, request, said)
        view = self._view(shard, group, request)
        if request.member_epoch < 0:
            return self._leave(shard, group, request, view)
        step = beat(group, request, view, interval_ms=self._settings.consumer_heartbeat_interval_ms)
        self._write(shard, encoded(step.changes))
        self._note_seen(shard, request, view)
        self._heard(shard, group.group_id, request.member_id)
        return step.outcome

    def _begin(
        self, shard: Shard, request: HeartbeatRequest, said: Said | None
    ) -> HeartbeatOutcome:
        """Make a group with its first member, out of a classic one if there is one."""
        group_id = request.group_id
        check_begins(request)
        view = self._view(shard, ConsumerGroup(group_id), request)
        classic = shard.groups.get(group_id)
        records: list[KeyValue] = []
        draft = Draft(ConsumerGroup(group_id, shard.first_generation))
        if classic is not None:
            records.append((encode_group_key(GroupKey(group_id)), None))
            if classic.roster.members:
                draft = upgrade(classic, view, said)
        step = beat(
            draft.group, request, view,
            interval_ms=self._settings.consumer_heartbeat_interval_ms,
        )  # fmt: skip
        self._write(shard, [*records, *encoded(draft.changes), *encoded(step.changes)])
        self._hooks.ended_classic(shard, group_id)
        self._note_seen(shard, request, view)
        self._heard(shard, group_id, request.member_id)
        return step.outcome

    def _leave(
        self, shard: Shard, group: ConsumerGroup, request: HeartbeatRequest, view: TopicView
    ) -> HeartbeatOutcome:
        step = leave(group, request, view)
        if request.member_epoch != LEFT_FOR_NOW and can_downgrade(group, [request.member_id]):
            self._downgrade(shard, group, [request.member_id])
        else:
            self._write(shard, encoded(step.changes))
            self._runtime(shard, group).sessions.forget(group)
        return step.outcome

    def _fence(self, shard: Shard, group: ConsumerGroup, member_ids: list[str]) -> None:
        """Remove members; if none of the new protocol is left, the group becomes a classic one."""
        if can_downgrade(group, member_ids):
            self._downgrade(shard, group, member_ids)
            return
        image = self._ports.image()
        changes = fence(group, member_ids, TopicView(image.topics, image.version))
        self._write(shard, encoded(changes))
        self._runtime(shard, group).sessions.forget(group)

    def _downgrade(self, shard: Shard, group: ConsumerGroup, leaving: list[str]) -> None:
        wall_ms = self._ports.clock.wall_ms()
        value = downgrade(group, leaving, self._ports.image().topics, wall_ms=wall_ms)
        self._become_classic(shard, group, value)

    def _become_classic(self, shard: Shard, group: ConsumerGroup, value: GroupValue) -> None:
        ended: list[KeyValue] = [(encode_modern_key(key), None) for key in group.tombstones()]
        begun = (encode_group_key(GroupKey(group.group_id)), encode_group_value(value))
        self._write(shard, [*ended, begun])
        self._runtimes[shard.index].pop(group.group_id, None)
        self._hooks.became_classic(shard, group.group_id)

    def _view(self, shard: Shard, group: ConsumerGroup, request: HeartbeatRequest) -> TopicView:
        _, compared = self._found(shard, group.group_id)
        return self._watch.view(group, request, compared)

    def _note_seen(self, shard: Shard, request: HeartbeatRequest, view: TopicView) -> None:
        group = shard.table.modern[request.group_id]
        self._runtime(shard, group).compared.note(group, request, view)

    def _write(self, shard: Shard, records: list[KeyValue]) -> None:
        if not records:
            return
        term = shard.term
        try:
            _ = shard.write(self._ports.log, records)
        except LedgerFailed:
            self._hooks.fail(shard, term)
            raise

    def _heard(self, shard: Shard, group_id: str, member_id: str) -> _Runtime:
        """Note that a member was heard, and what it must do until when."""
        group = shard.table.modern[group_id]
        runtime = self._runtime(shard, group)
        runtime.sessions.forget(group)
        now_ms = self._ports.clock.monotonic_ms()
        self._hooks.arm(group_id, runtime.sessions.heard(group, member_id, now_ms=now_ms))
        return runtime

    async def wait_durable(self, shard: Shard, group_id: str) -> GroupVerdict:
        """Return OK once all records of the group are durable (INV-ND2)."""
        last_offset = shard.table.last_record_offset.get(group_id)
        term = shard.term
        if last_offset is not None:
            try:
                await self._ports.log.committed(shard.index, last_offset + 1)
            except LedgerFailed:
                self._hooks.fail(shard, term)
                return GroupVerdict.NOT_AVAILABLE
        return shard.since(term)

    # --- members of the classic protocol ------------------------------------------------------

    async def classic_join(
        self, shard: Shard, group_id: str, asked: JoinRequest
    ) -> JoinOutcome | None:
        """Let a classic member in; None if the group is a classic one, or none, by now."""
        term, request = shard.term, asked
        if not asked.member_id:
            prefix = asked.instance_id or asked.client_id
            request = replace(asked, member_id=f"{prefix}-{self._ports.chance.uuid()}")
        refused = self._refused(shard.table.modern[group_id], asked, request.member_id)
        if refused is not None:
            return refused
        request, read = await read_ahead(request)
        said = HeartbeatRequest(
            group_id=group_id, member_id=request.member_id, member_epoch=0, sight=request.sight
        )
        try:
            await self._watch.resolve(said, partial(self._found, shard, group_id))
            if (verdict := shard.since(term)) is not GroupVerdict.OK:
                return JoinOutcome(verdict=verdict, member_id=request.member_id)
            group = shard.table.modern.get(group_id)
            if group is None:
                return None
            refused = self._refused(group, asked, request.member_id)
            if refused is not None:
                return refused
            returns = bool(asked.member_id)
            subscription = admit(group, request, read, returns=returns) if group.metadata else None
            if self._gave_way(shard, group, request.instance_id) or subscription is None:
                return None
            view = self._view(shard, group, said)
            changes, outcome = join(group, request, subscription, view)
            self._write(shard, encoded(changes))
        except Refused as refusal:
            return JoinOutcome(verdict=refusal.verdict, member_id=request.member_id)
        except LedgerFailed:
            return JoinOutcome(verdict=GroupVerdict.NOT_AVAILABLE, member_id=request.member_id)
        return await self._joined(shard, group_id, request, outcome)

    def _refused(self, group: ConsumerGroup, asked: JoinRequest, drawn: str) -> JoinOutcome | None:
        """Refuse what a group without members, which gives way to a classic one, would not let in (INV-NB2); ask others to come with their id."""
        if not group.metadata:
            verdict = refuse_join(Group(group.group_id, self._settings), asked)
            return None if verdict is None else JoinOutcome(verdict=verdict, member_id=asked.member_id)  # fmt: skip
        if asked.must_know_member_id and not asked.member_id and asked.instance_id is None:
            return JoinOutcome(verdict=GroupVerdict.MEMBER_ID_REQUIRED, member_id=drawn)
        return None

    async def _joined(
        self, shard: Shard, group_id: str, request: JoinRequest, outcome: JoinOutcome
    ) -> JoinOutcome:
        """Time the member that joined, and answer it once that is durable."""
        sessions = self._heard(shard, group_id, outcome.member_id).sessions
        sync_ms = self._ports.clock.monotonic_ms() + max(request.rebalance_timeout_ms, 0)
        self._hooks.arm(group_id, sessions.joined(outcome.member_id, sync_ms))
        verdict = await self.wait_durable(shard, group_id)
        if verdict is GroupVerdict.OK:
            return outcome
        return JoinOutcome(verdict=verdict, member_id=outcome.member_id)

    def _gave_way(self, shard: Shard, group: ConsumerGroup, instance_id: str | None) -> bool:
        """End the group where it has no member of the new protocol once this instance has joined."""
        held_by = group.holder_of(instance_id)
        others = [each for each in group.metadata if each != held_by]
        if any(not group.uses_classic(each) for each in others):
            return False
        if held_by is not None and can_downgrade(group, [held_by]):
            self._downgrade(shard, group, [held_by])
            return True
        if others:
            return False
        self._become_classic(shard, group, emptied(group, wall_ms=self._ports.clock.wall_ms()))
        return True

    async def classic_sync(self, shard: Shard, group_id: str, request: SyncRequest) -> SyncOutcome:
        """Tell a classic member what it has."""
        group = shard.table.modern[group_id]
        try:
            outcome = sync(group, request, self._ports.image().topics)
        except Refused as refusal:
            if refusal.verdict is GroupVerdict.REBALANCE_IN_PROGRESS:
                self._expect_join(shard, group, request.member_id)
            return SyncOutcome(verdict=refusal.verdict)
        sessions = self._heard(shard, group_id, request.member_id).sessions
        sessions.synced(request.member_id)
        del request  # INV-GL4
        verdict = await self.wait_durable(shard, group_id)
        return outcome if verdict is GroupVerdict.OK else SyncOutcome(verdict=verdict)

    def classic_heartbeat(
        self, shard: Shard, group_id: str, who: MemberIdentity, generation: int
    ) -> GroupVerdict:
        """Keep a classic member alive, and tell it whether to rejoin."""
        group = shard.table.modern[group_id]
        try:
            member_id = identify(group, who)
            check_generation(group, member_id, generation)
        except Refused as refusal:
            return refusal.verdict
        _ = self._heard(shard, group_id, member_id)
        if not must_rejoin(group, member_id):
            return GroupVerdict.OK
        self._expect_join(shard, group, member_id)
        return GroupVerdict.REBALANCE_IN_PROGRESS

    def _expect_join(self, shard: Shard, group: ConsumerGroup, member_id: str) -> None:
        sessions = self._runtime(shard, group).sessions
        timeout_ms = max(group.metadata[member_id].rebalance_timeout_ms, 0)
        deadline_ms = self._ports.clock.monotonic_ms() + timeout_ms
        self._hooks.arm(group.group_id, sessions.expect_join(member_id, deadline_ms))

    async def classic_leave(
        self, shard: Shard, group_id: str, leavers: Sequence[MemberIdentity]
    ) -> LeaveOutcome:
        """Remove classic members."""
        group = shard.table.modern[group_id]
        verdicts, gone = classic_leave(group, leavers)
        if gone:
            try:
                self._fence(shard, group, list(dict.fromkeys(gone)))
            except LedgerFailed:
                return LeaveOutcome(GroupVerdict.NOT_AVAILABLE)
        return LeaveOutcome(GroupVerdict.OK, tuple(verdicts))

    # --- time ---------------------------------------------------------------------------------

    def on_due(self, shard: Shard, group_id: str) -> None:
        """Fence the members of a group whose time is over."""
        group = shard.table.modern.get(group_id)
        if group is None:
            return
        runtime = self._runtime(shard, group)
        due = runtime.sessions.due(now_ms=self._ports.clock.monotonic_ms())
        due = [member_id for member_id in due if member_id in group.metadata]
        try:
            if due:
                self._fence(shard, group, due)
        except LedgerFailed:
            return  # the shard has failed, and says so
        if group_id in shard.table.modern:
            self._arm(group_id, runtime)

    # --- looking ------------------------------------------------------------------------------

    @staticmethod
    def describe(shard: Shard, group_id: str) -> ModernDescription:
        """Return one group; what is not one of these is GROUP_NOT_FOUND and Dead."""
        if shard.status is not ShardStatus.ACTIVE:
            return ModernDescription(verdict=shard.status.value, group_id=group_id)
        group = shard.table.modern.get(group_id)
        if group is None:
            known = shard.table.knows(group_id) or group_id in shard.groups
            why = "is not a consumer group" if known else "not found"
            return ModernDescription(
                verdict=GroupVerdict.GROUP_NOT_FOUND,
                group_id=group_id,
                message=f"Group {group_id} {why}.",
                state=ModernState.DEAD.value,
            )
        return ModernDescription(
            verdict=GroupVerdict.OK,
            group_id=group_id,
            state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=group.preferred_assignor(DEFAULT_ASSIGNOR),
            members=tuple(_described(group, member_id) for member_id in group.metadata),
        )


def encoded(changes: Iterable[Change]) -> list[KeyValue]:
    """Return the records of these changes, in order."""
    return [
        (encode_modern_key(key), None if value is None else encode_value(value))
        for key, value in changes
    ]


def _described(group: ConsumerGroup, member_id: str) -> ModernMemberDescription:
    member, current = group.metadata[member_id], group.current_of(member_id)
    return ModernMemberDescription(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=member.topic_names,
        topic_regex=member.topic_regex,
        assigned=current.assigned,
        target=group.target_of(member_id),
        is_classic=member.classic is not None,
    )
