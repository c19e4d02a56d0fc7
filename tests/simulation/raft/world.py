"""The simulated group: its members, the network between them, and the order in which things happen.

INV-RSW1  a seed is one run: nothing that happens depends on the process, its hashes or its time
"""

import hashlib
import heapq
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from region_broker.controller.raft.effects import Event, Message, Received, Role, Ticked
from region_broker.controller.raft.entries import Member, Membership
from region_broker.controller.raft.settings import RaftSettings
from tests.simulation.raft.judge import Judge
from tests.simulation.raft.plan import Plan
from tests.simulation.raft.sim_member import SimMember

ELECTION_MS = 150
TICK_MS = 15
LATE_MS = 8 * ELECTION_MS
EVENTS_MAX = 100_000
"""What one life may come to: the longest of 10,000 has a fifth of it."""


class World:
    """Members by number; `now_ms` is nobody's clock."""

    def __init__(self, plan: Plan, chance: Random) -> None:
        """Make the members; none is up."""
        self.plan = plan
        self.chance = chance
        self.judge = Judge()
        self.now_ms = 0
        self.events = 0
        self.quiet = False
        """The faults are over."""
        self.members: dict[Member, SimMember] = {}
        self.cuts: set[tuple[Member, Member]] = set()
        self._paused: dict[Member, list[Event]] = {}
        self._deaf: set[Member] = set()
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._hash = hashlib.blake2b(digest_size=8)
        names = [Member(number, UUID(int=number)) for number in range(1, plan.members + 1)]
        founders = Membership(tuple(names[: plan.first_voters]))
        settings = RaftSettings(
            election_timeout_ms=ELECTION_MS, heartbeat_ms=30, append_entries_max=plan.append_entries,
            append_bytes_max=80, in_flight_requests_max=3, in_flight_bytes_max=160,
            payload_bytes_max=100, uncommitted_bytes_max=2_000, waiting_max=20,
            promotion_lag_max=3, kept_entries=plan.kept_entries,
        )  # fmt: skip
        for name in names:
            first = founders if name in founders.voters else Membership(())
            self.members[name] = SimMember(
                name, first, settings, chance.randrange(1 << 30), self.judge,
                snapshot_entries=plan.snapshot_entries,
            )  # fmt: skip
        self.disks = {name: each.disk for name, each in self.members.items()}

    @property
    def digest(self) -> str:
        """Return the hash of all that happened."""
        return self._hash.hexdigest()

    def after(self, delay_ms: int, act: Callable[..., object], *arguments: Any) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._count, act, arguments))

    def run(self, up_to_ms: int) -> None:
        """Let happen what does up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= up_to_ms:
            self.now_ms, _, act, arguments = heapq.heappop(heap)
            act(*arguments)
        self.now_ms = up_to_ms

    # --- members ---

    def start(self, name: Member) -> None:
        """Start a member that is down."""
        member = self.members[name]
        if member.core is not None:
            return
        member.start(self.now_ms)
        self._carry_out(member)
        self.after(self.chance.randrange(TICK_MS), self._tick, name, member.lives)

    def crash(self, name: Member) -> None:
        """End a member's life between two events."""
        member = self.members[name]
        if member.core is not None:
            member.crash()
            self._end_of_pause(name)

    def pause(self, name: Member, *, deaf: bool) -> None:
        """Let a member stand still: what comes meanwhile waits, or of `deaf` members only what callers want."""
        if self.members[name].core is not None and name not in self._paused:
            self._paused[name] = []
            self._deaf |= {name} if deaf else set()

    def resume(self, name: Member) -> None:
        """Let a member go on with what waited for it."""
        self._deaf.discard(name)
        for event in self._paused.pop(name, ()):
            self.give(name, event)

    def give(self, name: Member, event: Event) -> None:
        """Let an event happen to a member, if it is up."""
        member = self.members[name]
        if member.core is None:
            return
        if name in self._paused:
            if name not in self._deaf or not isinstance(event, Received):
                self._paused[name].append(event)
            return
        self.events += 1
        assert self.events <= EVENTS_MAX, "INV-RSJ10 no rest: each message brings more of them"
        member.take(event, self.now_ms)
        self._note(name, type(event).__name__)
        if member.core.role is Role.LEADER:
            self.judge.counts_on(name, member.core.term, member.followers(), self.disks)
        if not self.quiet and self.chance.random() < self.plan.late_sync:
            self.after(self.chance.randint(1, 8), self._carry_out_late, name, member.lives)
        else:
            self._carry_out(member)

    def _carry_out_late(self, name: Member, life: int) -> None:
        member = self.members[name]
        if member.core is not None and member.lives == life:
            self._carry_out(member)

    def _carry_out(self, member: SimMember) -> None:
        member.carry_out(self.now_ms, self._post, self.disks)
        if member.core is None:
            self._end_of_pause(member.me)

    def _end_of_pause(self, name: Member) -> None:
        self._paused.pop(name, None)
        self._deaf.discard(name)

    def _tick(self, name: Member, life: int) -> None:
        member = self.members[name]
        if member.core is None or member.lives != life:
            return
        self.after(TICK_MS, self._tick, name, life)
        if name not in self._paused:
            self.give(name, Ticked())

    # --- network ---

    def _post(self, sender: Member, target: Member, message: Message) -> None:
        plan, chance = self.plan, self.chance
        if self.quiet:
            self.after(1, self.give, target, Received(sender, message))
            return
        if (sender, target) in self.cuts or chance.random() < plan.loss:
            return
        copies = 2 if chance.random() < plan.duplication else 1
        for _ in range(copies):
            longest_ms = LATE_MS if chance.random() < plan.lateness else plan.delay_ms
            delay_ms = 1 + int(longest_ms * chance.random() ** 3)
            self.after(delay_ms, self.give, target, Received(sender, message))

    def _note(self, name: Member, what: str) -> None:
        core = self.members[name].core
        assert core is not None
        line = f"{self.now_ms} {name.node_id} {what} {core.term} {core.role.value} {core.commit_index}\n"
        self._hash.update(line.encode())
