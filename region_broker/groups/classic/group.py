"""One classic consumer group: a pure state machine, requests in, effects out, time an argument.

INV-GG1  every transition is in LEGAL; an absent pair is a programmer error
INV-GG4  assignments are answered only when the generation's record is durable (`Store`, `stored`)
INV-GG5  a phase that is over, and goes on as nobody is there, ends later: a rebalance time-out may be 0, or less
INV-GG6  who was given a member id, and comes with it and an instance that another member is, is fenced: an instance is one member
INV-GG7  who brings no instance takes nobody's place: the empty text is an instance like another, and null is none
INV-GG8  a member that we owe an answer does not lose its session, except a new one after `new_member_join_timeout_ms`: one that came back as its
         instance is not new
The generation never goes down, and grows by one with each completed join phase. A token is answered exactly once; no
token waits in EMPTY or DEAD, no sync token in PREPARING_REBALANCE or STABLE.

After Kafka's GroupCoordinator / ClassicGroup; KIP-62 (rebalance time-out), KIP-134 (initial
delay), KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED), KIP-814 (skip assignment).
Assignments and subscriptions are opaque bytes: any client-side assignor works, cooperative too.
Not here: who may join, sync, leave and commit (`judgements`), how long joins are waited for (`join_phase`), futures, ledger, clock (`classic_groups`), offsets (`offsets`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from region_broker.groups.classic.answers import assigned, joined
from region_broker.groups.classic.join_phase import JoinPhase
from region_broker.groups.classic.judgements import (
    fits_one_record,
    judge_commit,
    judge_leave,
    judge_sync,
    refuse_join,
)
from region_broker.groups.classic.membership import Member, Roster
from region_broker.groups.classic.replacements import Replacements
from region_broker.groups.classic.states import LEGAL, GroupState
from region_broker.groups.messages import (
    AnswerJoin,
    AnswerSync,
    Effect,
    JoinRequest,
    MemberIdentity,
    Store,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.records import GroupValue
from region_broker.groups.settings import GroupSettings
from region_broker.groups.verdicts import GroupVerdict

GENERATION_MAX: Final = (1 << 31) - 1
WAIT_ON_MS_MIN: Final = 1_000
"""How long static members that are all away are waited for at the least, before that is looked at again (INV-GG5)."""


@dataclass(slots=True)
class Group:
    """One group; all `now_ms` are monotonic, `state_wall_ms` is wall time."""

    group_id: str
    settings: GroupSettings
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    state_wall_ms: int = 0
    roster: Roster = field(default_factory=Roster)
    _phase: JoinPhase | None = None
    _sync_deadline_ms: int | None = None
    _unsynced: dict[str, None] = field(default_factory=dict)
    _storing: dict[int, tuple[int, dict[str, bytes]]] = field(default_factory=dict)
    _replaced: Replacements = field(default_factory=Replacements)
    _next_ticket: int = 0

    # --- life ---------------------------------------------------------------------------------

    @classmethod
    def restore(
        cls, group_id: str, value: GroupValue, settings: GroupSettings, *, now_ms: int
    ) -> "Group":
        """Return the group as its last ledger record says: Stable with members, else Empty.

        Every session starts anew, so members that survived the coordinator go on heartbeating.
        """
        group = cls(group_id, settings, generation=value.generation)
        group.protocol_type = value.protocol_type or None
        group.state_wall_ms = value.state_timestamp_ms
        group.roster = Roster.restore(value, now_ms=now_ms)
        if value.members:
            group.state = GroupState.STABLE
            group.protocol_name = value.protocol_name
        return group

    def dissolve(self, verdict: GroupVerdict) -> list[Effect]:
        """Answer everyone who waits with `verdict` and die (resign, takeover, expiry)."""
        effects: list[Effect] = []
        for member in self.roster.members.values():
            effects += member.fail_join(verdict, member_id=member.member_id)
            effects += member.fail_sync(verdict)
        effects += [_refused(answer, verdict) for answer in self._replaced.take_all()]
        self._storing.clear()
        self._phase = None
        self._sync_deadline_ms = None
        if self.state is not GroupState.DEAD:
            self._move(GroupState.DEAD)
        return effects

    def value(self, assignments: dict[str, bytes] | None = None) -> GroupValue:
        """Return what is persisted of this generation; the driver adds the wall time."""
        return GroupValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            state_timestamp_ms=self.state_wall_ms,
            members=self.roster.values(self.protocol_name, assignments),
        )

    # --- join ---------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: int, *, now_ms: int) -> list[Effect]:
        """Let a member in or back in; the answer may come with a later effect."""
        refusal = refuse_join(self, request)
        if refusal is not None:
            return [AnswerJoin.refusing(token, request.member_id, refusal)]
        if not request.member_id:
            return self._join_unknown(request, token, now_ms)
        if request.member_id in self.roster.invited:
            if request.instance_id in self.roster.instances:  # INV-GG6
                refusal = GroupVerdict.FENCED_INSTANCE
                return [AnswerJoin.refusing(token, request.member_id, refusal)]
            return self._admit(request, request.member_id, token, now_ms)
        identity = MemberIdentity(request.member_id, request.instance_id)
        verdict = self.roster.identify(identity)
        if verdict is not GroupVerdict.OK:
            return [AnswerJoin.refusing(token, request.member_id, verdict)]
        return self._rejoin(request, token, now_ms)

    def _join_unknown(self, request: JoinRequest, token: int, now_ms: int) -> list[Effect]:
        if request.instance_id is not None and request.instance_id in self.roster.instances:
            return self._replace_static(request, request.instance_id, token, now_ms)
        if request.must_know_member_id and request.instance_id is None:
            deadline_ms = now_ms + request.session_timeout_ms
            self.roster.invited[request.new_member_id] = deadline_ms
            return [
                AnswerJoin.refusing(token, request.new_member_id, GroupVerdict.MEMBER_ID_REQUIRED)
            ]
        return self._admit(request, request.new_member_id, token, now_ms)

    def _admit(self, request: JoinRequest, member_id: str, token: int, now_ms: int) -> list[Effect]:
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            session_deadline_ms=now_ms + self.settings.new_member_join_timeout_ms,
            join_token=token,
        )
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        self.roster.add(member)
        if self._phase is not None:
            self._phase.newcomer = True
        return self._rebalance(now_ms)

    def _replace_static(
        self, request: JoinRequest, instance_id: str, token: int, now_ms: int
    ) -> list[Effect]:
        old = self.roster.members[self.roster.instances[instance_id]]
        was_leader = self.roster.leader == old.member_id
        old_member_id = old.member_id
        # Fence a duplicate instance at once if it waits here.
        fenced = GroupVerdict.FENCED_INSTANCE
        effects = old.fail_join(fenced, member_id=old_member_id)
        effects += old.fail_sync(fenced)
        waiting = self._replaced.take(old_member_id)
        effects += [] if waiting is None else [_refused(waiting, fenced)]
        member = self.roster.replace_static(instance_id, request.new_member_id)
        if old_member_id in self._unsynced:
            del self._unsynced[old_member_id]
            self._unsynced[member.member_id] = None
        member.update(request)
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        member.is_new = False  # as Kafka's: its instance is known, it comes under another id
        stays = self.state is GroupState.STABLE and self.roster.vote() == self.protocol_name
        if not stays or not fits_one_record(self.roster, self.protocol_name):
            member.join_token = token
            return effects + self._rebalance(now_ms)
        skip = was_leader and request.may_skip_assignment
        # To an old client the leader keeps its old name, so that the member does not take itself
        # for the leader: a stable group would not hand its assignment out (KAFKA-7728).
        shown = old_member_id if was_leader and not skip else self.roster.leader
        answer = joined(self, member, leader=shown, skip=skip)
        self._replaced.add(AnswerJoin(token, answer))
        return effects + self._store_replaced()

    def _store_replaced(self) -> list[Effect]:
        """Write those who came back, unless such a record is being written (INV-GSR1)."""
        if not self._replaced.is_due:
            return []
        ticket = self._take_ticket()
        self._replaced.begin(ticket)
        return [Store(ticket, self.value())]

    def _join_waiting(self) -> list[Effect]:
        """Let who still waits for such a record take part in the rebalance that begins (INV-GSR2)."""
        effects: list[Effect] = []
        for answer in self._replaced.take_waiting():
            member = self.roster.members.get(answer.outcome.member_id)
            if member is None or member.join_token is not None:
                effects.append(_refused(answer, GroupVerdict.UNKNOWN_MEMBER))
            else:
                member.join_token = answer.token
        return effects

    def _rejoin(self, request: JoinRequest, token: int, now_ms: int) -> list[Effect]:
        member = self.roster.members[request.member_id]
        same = member.protocols == request.protocols
        match self.state:
            case GroupState.COMPLETING_REBALANCE if same:
                leads = self.roster.leader == member.member_id
                return [AnswerJoin(token, joined(self, member, tell_members=leads))]
            case GroupState.STABLE if same and self.roster.leader != member.member_id:
                return [AnswerJoin(token, joined(self, member))]
            case _:
                # A retry on a new connection takes the place of the join that waits.
                effects = member.fail_join(
                    GroupVerdict.REBALANCE_IN_PROGRESS, member_id=member.member_id
                )
                member.update(request)
                member.join_token = token
                return effects + self._rebalance(now_ms)

    def rebalance(self, *, now_ms: int) -> list[Effect]:
        """Have all members rejoin: the group was one of the new protocol a moment ago."""
        return self._rebalance(now_ms)

    # --- the join phase -----------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> list[Effect]:
        """Start a join phase unless one runs, and end it if nobody is waited for."""
        effects: list[Effect] = []
        if self.state is not GroupState.PREPARING_REBALANCE:
            effects += self._prepare(now_ms)
        return effects + self._complete_join_if_all_here(now_ms)

    def _prepare(self, now_ms: int) -> list[Effect]:
        effects = self._join_waiting()
        for member in self.roster.members.values():
            effects += member.fail_sync(GroupVerdict.REBALANCE_IN_PROGRESS)
            if self.state is GroupState.COMPLETING_REBALANCE:
                member.assignment = b""
        self._storing.clear()
        self._unsynced.clear()
        self._sync_deadline_ms = None
        timeout_ms = self.roster.rebalance_timeout_ms()
        if self.state is GroupState.EMPTY:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._phase = JoinPhase.first(timeout_ms, delay_ms, now_ms=now_ms)
        else:
            self._phase = JoinPhase(now_ms + timeout_ms)
        self._move(GroupState.PREPARING_REBALANCE)
        return effects

    def _complete_join_if_all_here(self, now_ms: int) -> list[Effect]:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return []
        assert self._phase is not None
        return [] if self._phase.waits(self.roster, now_ms) else self._complete_join(now_ms)

    def _join_phase_over(self, now_ms: int) -> list[Effect]:
        """Act on the phase's deadline."""
        assert self._phase is not None
        longer = self._phase.extended(self.settings.initial_rebalance_delay_ms, now_ms=now_ms)
        if longer is None:
            return self._complete_join(now_ms)
        self._phase = longer
        return []

    def _complete_join(self, now_ms: int) -> list[Effect]:
        absent = [m for m in self.roster.members.values() if m.join_token is None]
        for member in absent:
            if not member.is_static:
                self.roster.remove(member.member_id)
        if not self.roster.members:
            return self._become_empty()
        leader = self.roster.members[self.roster.leader or ""]
        if leader.join_token is None:
            here = [m for m in self.roster.members.values() if m.join_token is not None]
            if not here:  # only static members, all away: wait on (KIP-345, INV-GG5)
                wait_ms = max(self.roster.rebalance_timeout_ms(), WAIT_ON_MS_MIN)
                self._phase = JoinPhase(now_ms + wait_ms)
                return []
            self.roster.leader = here[0].member_id
        self._phase = None
        self.generation = self._next_generation()
        self.protocol_name = self.roster.vote()
        self._move(GroupState.COMPLETING_REBALANCE)
        return self._answer_joins(now_ms)

    def _answer_joins(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for member in self.roster.members.values():
            token, member.join_token = member.join_token, None
            member.is_new = False
            if token is not None:
                leads = member.member_id == self.roster.leader
                effects.append(AnswerJoin(token, joined(self, member, tell_members=leads)))
                member.session_deadline_ms = now_ms + member.session_timeout_ms
        self._unsynced = dict.fromkeys(self.roster.members)
        self._sync_deadline_ms = now_ms + self.roster.rebalance_timeout_ms()
        return effects

    def _become_empty(self) -> list[Effect]:
        self._phase = None
        self.generation = self._next_generation()
        self.protocol_name = None
        self._move(GroupState.EMPTY)
        return [Store(self._take_ticket(), self.value())]

    def _next_generation(self) -> int:
        return self.generation + 1 if self.generation < GENERATION_MAX else 1

    # --- sync ---------------------------------------------------------------------------------

    def sync(self, request: SyncRequest, token: int, *, now_ms: int) -> list[Effect]:
        """Take the leader's assignments; answer when the generation is durable."""
        verdict = judge_sync(self, request)
        if verdict is not GroupVerdict.OK:
            return [AnswerSync(token, SyncOutcome(verdict=verdict))]
        member = self.roster.members[request.member_id]
        if self.state is GroupState.STABLE:
            self._note_synced(member.member_id)
            member.session_deadline_ms = now_ms + member.session_timeout_ms
            return [AnswerSync(token, assigned(self, member))]
        effects = member.fail_sync(GroupVerdict.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        self._note_synced(member.member_id)
        if member.member_id == self.roster.leader and not self._storing:
            ticket = self._take_ticket()
            members = self.roster.members
            assignments = {who: raw for who, raw in request.assignments if who in members}
            self._storing[ticket] = (self.generation, assignments)
            effects.append(Store(ticket, self.value(assignments)))
        return effects

    def _note_synced(self, member_id: str) -> None:
        self._unsynced.pop(member_id, None)
        if not self._unsynced:
            self._sync_deadline_ms = None

    def stored(self, ticket: int, *, now_ms: int) -> list[Effect]:
        """Go on after the record of `ticket` is durable; a ticket of the past is ignored."""
        replaced = self._replaced.stored(ticket)
        if replaced:
            return [*replaced, *self._store_replaced()]
        generation, assignments = self._storing.pop(ticket, (-1, {}))
        if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
            return []
        self._move(GroupState.STABLE)
        effects: list[Effect] = []
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                effects.append(AnswerSync(member.sync_token, assigned(self, member)))
                member.sync_token = None
                member.session_deadline_ms = now_ms + member.session_timeout_ms
        return effects

    # --- heartbeat, leave, commits ------------------------------------------------------------

    def heartbeat(self, who: MemberIdentity, generation: int, *, now_ms: int) -> GroupVerdict:
        """Keep a member alive, and tell it whether to rejoin."""
        if self.state is GroupState.DEAD:
            return GroupVerdict.NOT_AVAILABLE
        verdict = self.roster.identify(who)
        if verdict is not GroupVerdict.OK:
            return verdict
        if generation != self.generation:
            return GroupVerdict.ILLEGAL_GENERATION
        self._touch(who.member_id, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return GroupVerdict.REBALANCE_IN_PROGRESS
        return GroupVerdict.OK

    def leave(
        self, leavers: Sequence[MemberIdentity], *, now_ms: int
    ) -> tuple[list[GroupVerdict], list[Effect]]:
        """Remove members; an empty member id with an instance id means whoever holds it now."""
        verdicts: list[GroupVerdict] = []
        effects: list[Effect] = []
        lost = False
        for who in leavers:
            verdict = judge_leave(self, who)
            verdicts.append(verdict)
            if verdict is GroupVerdict.OK and self.roster.invited.pop(who.member_id, None) is None:
                member_id = who.member_id or self.roster.instances[who.instance_id or ""]
                effects += self._drop(member_id)
                lost = True
        return verdicts, effects + self._after_loss(now_ms, lost=lost)

    def judge_commit(
        self, who: MemberIdentity, generation: int, *, transactional: bool, now_ms: int
    ) -> GroupVerdict:
        """Judge an offset commit (C42); a good one counts as a heartbeat."""
        verdict = judge_commit(self, who, generation, transactional=transactional)
        if verdict is GroupVerdict.OK and who.member_id in self.roster.members:
            self._touch(who.member_id, now_ms)
        return verdict

    # --- time ---------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `on_time` next has something to do, or None."""
        deadlines = list(self.roster.invited.values())
        deadlines += [
            member.session_deadline_ms
            for member in self.roster.members.values()
            if not member.waits or member.is_new
        ]
        if self._phase is not None:
            deadlines.append(self._phase.deadline_ms)
        if self._sync_deadline_ms is not None:
            deadlines.append(self._sync_deadline_ms)
        return min(deadlines, default=None)

    def on_time(self, *, now_ms: int) -> list[Effect]:
        """Expire what is due: invitations, sessions, syncs that never came, the join phase."""
        invited = self.roster.invited
        lapsed = [member_id for member_id, due_ms in invited.items() if due_ms <= now_ms]
        for member_id in lapsed:
            del invited[member_id]
        silent = [
            member.member_id
            for member in self.roster.members.values()
            if member.session_deadline_ms <= now_ms and (not member.waits or member.is_new)
        ]
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            silent += [member_id for member_id in self._unsynced if member_id not in silent]
        effects: list[Effect] = []
        for member_id in silent:
            effects += self._drop(member_id)
        if lapsed or silent:
            effects += self._after_loss(now_ms, lost=bool(silent))
        if self._phase is not None and self._phase.deadline_ms <= now_ms:
            effects += self._join_phase_over(now_ms)
        return effects

    # --- parts --------------------------------------------------------------------------------

    def _after_loss(self, now_ms: int, *, lost: bool) -> list[Effect]:
        """Go on after members (`lost`) or invitations went: someone may have waited for them."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return self._complete_join_if_all_here(now_ms)
        return self._rebalance(now_ms) if lost else []

    def _drop(self, member_id: str) -> list[Effect]:
        member = self.roster.remove(member_id)
        self._unsynced.pop(member_id, None)
        effects = member.fail_join(GroupVerdict.UNKNOWN_MEMBER, member_id="")
        return effects + member.fail_sync(GroupVerdict.UNKNOWN_MEMBER)

    def _touch(self, member_id: str, now_ms: int) -> None:
        member = self.roster.members[member_id]
        if not member.is_new:
            member.session_deadline_ms = now_ms + member.session_timeout_ms

    def _take_ticket(self) -> int:
        self._next_ticket += 1
        return self._next_ticket

    def _move(self, state: GroupState) -> None:
        assert state in LEGAL[self.state], (self.group_id, self.state, state)
        self.state = state


def _refused(answer: AnswerJoin, verdict: GroupVerdict) -> AnswerJoin:
    """Return the answer to the same join that it came to nothing."""
    return AnswerJoin.refusing(answer.token, answer.outcome.member_id, verdict)
