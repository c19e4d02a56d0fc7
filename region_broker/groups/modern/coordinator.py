"""Groups of the new protocol on their shards: requests in, records appended, answers when durable.

INV-ND1  a request is judged and its records appended without an `await` between; they are one batch
INV-ND2  nothing is told of a group before all of its records so far are durable
INV-ND3  topics are looked at when a member speaks: what changed begins a group epoch with the next
         heartbeat, whoever sends it
INV-ND4  after every `await` the shard's term is compared before anything is read or changed

`GroupCoordinator` owns shards and timers and calls this for what concerns the new protocol.
Not here: rules (`heartbeat`, `classic_members`), Kafka's numbers and shapes (`handlers`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from region_broker.groups.modern.heartbeat import (
    beat,
    check,
    fence,
    leave,
    patterns_needed,
)
from region_broker.groups.modern.messages import (
    HeartbeatOutcome,
    HeartbeatRequest,
    ModernDescription,
    ModernMemberDescription,
    Refused,
)
from region_broker.groups.modern.patterns.resolver import Patterns
from region_broker.groups.modern.records import encode_value
from region_broker.groups.modern.sessions import Sessions
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.modern.states import ModernState
from region_broker.groups.modern.target import DEFAULT_ASSIGNOR, Change, TopicView
from region_broker.groups.ports import GroupPorts, KeyValue, LedgerFailed, Topic
from region_broker.groups.records import GroupKey, encode_group_key, encode_modern_key
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import Shard, ShardHooks, ShardStatus
from region_broker.groups.verdicts import GroupVerdict

_RESOLVE_TRIES: Final = 3


@dataclass(slots=True)
class _Runtime:
    """What of a group is not in the ledger: deadlines, and the topics it was compared with."""

    sessions: Sessions
    seen: Mapping[str, Topic] | None = None


class ModernGroups:
    """The groups of the new protocol of all shards."""

    def __init__(self, ports: GroupPorts, settings: GroupSettings, hooks: ShardHooks) -> None:
        """Begin without groups; `loaded` brings those of a shard."""
        self._ports = ports
        self._settings = settings
        self._hooks = hooks
        self._patterns = Patterns()
        self._runtimes: dict[int, dict[str, _Runtime]] = {}

    # --- life ---------------------------------------------------------------------------------

    def loaded(self, shard: Shard) -> None:
        """Begin the sessions of a shard's groups anew."""
        runtimes: dict[str, _Runtime] = {}
        self._runtimes[shard.index] = runtimes
        now_ms = self._ports.clock.monotonic_ms()
        for group_id, group in shard.table.modern.items():
            runtimes[group_id] = self._new_runtime(group, now_ms)
            self._arm(group_id, runtimes[group_id])

    def left(self, shard: Shard) -> None:
        """Forget what was in memory of a shard's groups."""
        self._runtimes.pop(shard.index, None)

    def _new_runtime(self, group: ConsumerGroup, now_ms: int) -> _Runtime:
        timeout_ms = self._settings.consumer_session_timeout_ms
        return _Runtime(Sessions.begin(group, timeout_ms, now_ms=now_ms))

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
            if request.topic_regex:
                self._patterns.check(request.topic_regex)
            await self._resolve(shard, request)
            if shard.status is not ShardStatus.ACTIVE:
                return HeartbeatOutcome(verdict=shard.status.value)
            outcome = self._act(shard, request)
        except Refused as refusal:
            return HeartbeatOutcome(verdict=refusal.verdict, message=str(refusal))
        except LedgerFailed:
            return HeartbeatOutcome(verdict=GroupVerdict.NOT_AVAILABLE)
        verdict = await self.wait_durable(shard, request.group_id)
        return outcome if verdict is GroupVerdict.OK else HeartbeatOutcome(verdict=verdict)

    async def _resolve(self, shard: Shard, request: HeartbeatRequest) -> None:
        """Find out what the group's patterns stand for, as long as topics keep changing."""
        for _ in range(_RESOLVE_TRIES):
            group = shard.table.modern.get(request.group_id)
            patterns, topics = patterns_needed(group, request), self._ports.image().topics
            if self._patterns.known(patterns, topics) is not None:
                return
            await self._patterns.resolve(patterns, topics)

    def _act(self, shard: Shard, request: HeartbeatRequest) -> HeartbeatOutcome:
        """Judge and append, in one step (INV-ND1); raises `Refused`, `LedgerFailed`."""
        group = shard.table.modern.get(request.group_id)
        first: list[KeyValue] = []
        if group is None:
            if request.member_epoch != 0:
                # Kafka says GROUP_ID_NOT_FOUND, which ends a client. After a takeover a group may be
                # gone that a member of the lost region knows: that member shall come back (T26).
                raise Refused(
                    GroupVerdict.UNKNOWN_MEMBER, f"Group {request.group_id} has no such member."
                )
            first = self._take_over_classic(shard, request.group_id)
            group = ConsumerGroup(request.group_id)
        runtime = self._runtime(shard, group)
        view = self._view(runtime, patterns_needed(group, request))
        if request.member_epoch < 0:
            step = leave(group, request, view)
        else:
            interval_ms = self._settings.consumer_heartbeat_interval_ms
            step = beat(group, request, view, interval_ms=interval_ms)
        self._write(shard, [*first, *encoded(step.changes)])
        if first:
            shard.groups.pop(request.group_id, None)
        runtime.seen = view.topics
        self._heard(shard, request)
        return step.outcome

    def _view(self, runtime: _Runtime, patterns: Iterable[str]) -> TopicView:
        image = self._ports.image()
        resolved = self._patterns.known(set(patterns), image.topics)
        if resolved is None:
            raise Refused(
                GroupVerdict.NOT_AVAILABLE,
                "The topics changed while patterns were resolved; retry.",
            )
        return TopicView(
            image.topics,
            image.version,
            resolved,
            self._ports.clock.wall_ms(),
            is_news=runtime.seen is not image.topics,
        )

    def _write(self, shard: Shard, records: list[KeyValue]) -> None:
        if not records:
            return
        term = shard.term
        try:
            _ = shard.write(self._ports.log, records)
        except LedgerFailed:
            self._hooks.fail(shard, term)
            raise

    def _heard(self, shard: Shard, request: HeartbeatRequest) -> None:
        group = shard.table.modern[request.group_id]
        runtime = self._runtime(shard, group)
        runtime.sessions.forget(group)
        if request.member_epoch >= 0:
            now_ms = self._ports.clock.monotonic_ms()
            deadline_ms = runtime.sessions.heard(group, request.member_id, now_ms=now_ms)
            self._hooks.arm(request.group_id, deadline_ms)

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
        return GroupVerdict.OK if shard.term == term else shard.status.value

    def _take_over_classic(self, shard: Shard, group_id: str) -> list[KeyValue]:
        """Return the records that end an empty classic group of that name; raises `Refused`."""
        classic = shard.groups.get(group_id)
        if classic is None:
            return []
        if classic.roster.members or classic.roster.invited:
            raise Refused(
                GroupVerdict.GROUP_NOT_FOUND,
                f"Group {group_id} is not a consumer group: it has members of the classic protocol. "
                "Stop them, or give the new members group.protocol=classic.",
            )
        return [(encode_group_key(GroupKey(group_id)), None)]

    # --- time ---------------------------------------------------------------------------------

    def on_due(self, shard: Shard, group_id: str) -> None:
        """Fence the members of a group whose time is over."""
        group = shard.table.modern.get(group_id)
        if group is None:
            return
        runtime = self._runtime(shard, group)
        due = runtime.sessions.due(now_ms=self._ports.clock.monotonic_ms())
        due = [member_id for member_id in due if member_id in group.metadata]
        if due:
            image = self._ports.image()
            changes = fence(group, due, TopicView(image.topics, image.version))
            try:
                self._write(shard, encoded(changes))
            except LedgerFailed:
                return  # the shard has failed, and says so
        runtime.sessions.forget(group)
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
