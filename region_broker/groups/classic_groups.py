"""Classic groups on their shards: requests in, effects of the groups carried out, answers when they are due.

INV-GL2  a group that nobody is in, or was invited to, and that the ledger has no record of, is none: it would count among all groups until a
         restart, as only what the ledger knows expires
INV-GL3  what a durable record lets go on (`stored`) goes on only in the group and the term that wrote it
INV-GL4  who waits for a generation holds nothing of what it brought: of assignments those of the leader to members are kept, in `Group`, until they
         are durable. A group of a few members would else hold as many frames, for as long as a member says that a rebalance may take
A request is judged and its records appended without an `await` between. An answer waits in a future named by a token:
whose client has gone is answered into nothing, and no rebalance ends with it.

`GroupCoordinator` owns shards and timers and calls this for what concerns classic groups, as it calls
`modern_groups` for the others.
Not here: rules of one group (`classic.group`), Kafka's numbers and shapes (`handlers`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from region_broker.groups.classic.group import Group
from region_broker.groups.classic.membership import Member
from region_broker.groups.classic.states import GroupState
from region_broker.groups.messages import (
    AnswerJoin,
    AnswerSync,
    DescribedMember,
    Effect,
    GroupDescription,
    JoinOutcome,
    JoinRequest,
    LeaveOutcome,
    MemberIdentity,
    Store,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.ports import GroupPorts, LedgerFailed
from region_broker.groups.records import GroupKey, encode_group_key, encode_group_value
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import Shard, ShardStatus
from region_broker.groups.timers import DeadlineTimers
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import GROUP_NAME_BYTES_MAX


class ClassicGroups:
    """The classic groups of all shards."""

    def __init__(
        self,
        ports: GroupPorts,
        settings: GroupSettings,
        timers: DeadlineTimers,
        fail: Callable[[Shard, int], None],
    ) -> None:
        """Write to the ledger of `ports`; `fail` stops serving a shard whose ledger failed in a term."""
        self._log = ports.log
        self._clock = ports.clock
        self._chance = ports.chance
        self._settings = settings
        self._timers = timers
        self._fail = fail
        self._tasks: asyncio.TaskGroup | None = None
        self._joins: dict[int, asyncio.Future[JoinOutcome]] = {}
        self._syncs: dict[int, asyncio.Future[SyncOutcome]] = {}
        self._last_token = 0

    # --- life ---------------------------------------------------------------------------------

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Complete generations in `tasks` from now on."""
        self._tasks = tasks

    def stop(self) -> None:
        """Begin nothing more."""
        self._tasks = None

    def loaded(self, shard: Shard) -> None:
        """Begin the sessions of a shard's groups."""
        for group in shard.groups.values():
            self._arm(group)

    def ended(self, shard: Shard, group_id: str, verdict: GroupVerdict) -> None:
        """Forget a group that is no more, or no more a classic one; who waits for it is told `verdict`."""
        group = shard.groups.pop(group_id, None)
        if group is not None:
            self._timers.disarm(group_id)
            self.answer(group.dissolve(verdict))

    def became(self, shard: Shard, group_id: str) -> None:
        """Take over a group whose records say that it is classic now: its members, if any, shall rejoin."""
        now_ms = self._clock.monotonic_ms()
        shard.restore_groups(self._settings, now_ms=now_ms)
        group = shard.groups.get(group_id)
        if group is not None and group.roster.members:
            self._perform(shard, group, group.rebalance(now_ms=now_ms))

    # --- membership ---------------------------------------------------------------------------

    async def join(self, shard: Shard, group_id: str, request: JoinRequest) -> JoinOutcome:
        """Join or rejoin; waits for the join phase."""
        group = shard.groups.get(group_id)
        if group is None:
            if request.member_id:
                unknown = GroupVerdict.UNKNOWN_MEMBER
                return JoinOutcome(verdict=unknown, member_id=request.member_id)
            group = Group(group_id, self._settings, generation=shard.first_generation)
            shard.groups[group_id] = group
        prefix = request.instance_id or request.client_id
        request = replace(request, new_member_id=f"{prefix}-{self._chance.uuid()}")
        token = self._take_token()
        future: asyncio.Future[JoinOutcome] = asyncio.get_running_loop().create_future()
        self._joins[token] = future
        try:
            now_ms = self._clock.monotonic_ms()
            self._perform(shard, group, group.join(request, token, now_ms=now_ms))
            return await future
        finally:
            del self._joins[token]

    def judge_join(self, request: JoinRequest) -> GroupVerdict:
        """Return whether what a member says of itself may be taken at all, by a group of either protocol."""
        settings = self._settings
        if not (
            settings.session_timeout_ms_min
            <= request.session_timeout_ms
            <= settings.session_timeout_ms_max
        ):
            return GroupVerdict.INVALID_SESSION_TIMEOUT
        names = [request.client_id, request.instance_id or "", request.protocol_type]
        names += [name for name, _ in request.protocols]
        if any(len(name.encode()) > GROUP_NAME_BYTES_MAX for name in names):
            return GroupVerdict.REQUEST_TOO_LARGE
        return GroupVerdict.OK

    async def sync(self, shard: Shard, group_id: str, request: SyncRequest) -> SyncOutcome:
        """Return the member's assignment once the generation is durable."""
        group = shard.groups.get(group_id)
        if group is None:
            return SyncOutcome(verdict=GroupVerdict.UNKNOWN_MEMBER)
        token = self._take_token()
        future: asyncio.Future[SyncOutcome] = asyncio.get_running_loop().create_future()
        self._syncs[token] = future
        try:
            now_ms = self._clock.monotonic_ms()
            self._perform(shard, group, group.sync(request, token, now_ms=now_ms))
            del request  # INV-GL4
            return await future
        finally:
            del self._syncs[token]

    def heartbeat(
        self, shard: Shard, group_id: str, who: MemberIdentity, generation: int
    ) -> GroupVerdict:
        """Keep a member alive."""
        group = shard.groups.get(group_id)
        if group is None:
            return GroupVerdict.UNKNOWN_MEMBER
        verdict = group.heartbeat(who, generation, now_ms=self._clock.monotonic_ms())
        self._arm(group)
        return verdict

    def leave(self, shard: Shard, group_id: str, leavers: Sequence[MemberIdentity]) -> LeaveOutcome:
        """Remove members."""
        group = shard.groups.get(group_id)
        if group is None:
            return LeaveOutcome(GroupVerdict.OK, (GroupVerdict.UNKNOWN_MEMBER,) * len(leavers))
        verdicts, effects = group.leave(leavers, now_ms=self._clock.monotonic_ms())
        self._perform(shard, group, effects)
        return LeaveOutcome(GroupVerdict.OK, tuple(verdicts))

    # --- time ---------------------------------------------------------------------------------

    def on_due(self, shard: Shard, group_id: str) -> None:
        """Let a group act on what is over."""
        group = shard.groups.get(group_id)
        if group is not None:
            self._perform(shard, group, group.on_time(now_ms=self._clock.monotonic_ms()))

    def _arm(self, group: Group) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._timers.arm(group.group_id, deadline_ms)

    # --- effects ------------------------------------------------------------------------------

    def _take_token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _perform(self, shard: Shard, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self._store(shard, group, effect)
        self.answer([effect for effect in effects if not isinstance(effect, Store)])
        if shard.groups.get(group.group_id) is not group:
            return
        occupied = group.roster.members or group.roster.invited
        if not occupied and group.group_id not in shard.table.group_values:
            del shard.groups[group.group_id]
            self._timers.disarm(group.group_id)
        else:
            self._arm(group)

    def answer(self, effects: Sequence[Effect]) -> None:
        """Wake the requests that wait; one whose client has gone is no longer there."""
        for effect in effects:
            if isinstance(effect, AnswerJoin):
                joining = self._joins.get(effect.token)
                if joining is not None and not joining.done():
                    joining.set_result(effect.outcome)
            elif isinstance(effect, AnswerSync):
                syncing = self._syncs.get(effect.token)
                if syncing is not None and not syncing.done():
                    syncing.set_result(effect.outcome)

    def _store(self, shard: Shard, group: Group, effect: Store) -> None:
        assert self._tasks is not None, "GroupCoordinator.run() is not running"
        wall_ms = self._clock.wall_ms()
        group.state_wall_ms = wall_ms
        value = replace(effect.value, state_timestamp_ms=wall_ms)
        record = (encode_group_key(GroupKey(group.group_id)), encode_group_value(value))
        term = shard.term
        try:
            next_offset = shard.write(self._log, [record])
        except LedgerFailed:
            self._fail(shard, term)
            return
        finishing = self._finish_store(shard, group, effect.ticket, next_offset, term)
        self._tasks.create_task(finishing)

    async def _finish_store(
        self, shard: Shard, group: Group, ticket: int, next_offset: int, term: int
    ) -> None:
        try:
            await self._log.committed(shard.index, next_offset)
        except LedgerFailed:
            self._fail(shard, term)
            return
        if shard.term == term and shard.groups.get(group.group_id) is group:
            now_ms = self._clock.monotonic_ms()
            self._perform(shard, group, group.stored(ticket, now_ms=now_ms))

    # --- looking ------------------------------------------------------------------------------

    @staticmethod
    def describe(shard: Shard, group_id: str) -> GroupDescription:
        """Return one group; an unknown one is GROUP_NOT_FOUND and Dead."""
        if shard.status is not ShardStatus.ACTIVE:
            return GroupDescription(shard.status.value, group_id)
        group = shard.groups.get(group_id)
        if group is None:
            if shard.table.knows(group_id) and group_id not in shard.table.modern:
                return GroupDescription(GroupVerdict.OK, group_id, GroupState.EMPTY.value)
            modern = group_id in shard.table.modern
            return GroupDescription(
                GroupVerdict.GROUP_NOT_FOUND,
                group_id,
                GroupState.DEAD.value,
                message=f"Group {group_id} {'is not a classic group' if modern else 'not found'}.",
            )
        stable = group.state is GroupState.STABLE
        shown = group.protocol_name if stable else None
        return GroupDescription(
            GroupVerdict.OK,
            group_id,
            group.state.value,
            group.protocol_type or "",
            shown or "",
            tuple(_described(member, shown) for member in group.roster.members.values()),
        )


def _described(member: Member, protocol_name: str | None) -> DescribedMember:
    stable = protocol_name is not None
    return DescribedMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.metadata(protocol_name) if stable else b"",
        member.assignment if stable else b"",
    )
