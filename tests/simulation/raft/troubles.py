"""What happens to a simulated group: faults, and callers that want something of it."""

from collections.abc import Callable
from random import Random

from region_broker.controller.raft.effects import (
    MembershipAsked,
    Proposed,
    ReadAsked,
    Role,
    TransferAsked,
)
from region_broker.controller.raft.entries import Member, Membership
from region_broker.controller.raft.memberships import membership_payload
from tests.simulation.raft.judge import Wish
from tests.simulation.raft.plan import NEVER
from tests.simulation.raft.world import ELECTION_MS, World

Act = Callable[[], None]


class Troubles:
    """Goes on until the world is quiet."""

    def __init__(self, world: World) -> None:
        """Let everything begin that the plan names."""
        self._world = world
        self._chance = world.chance
        self._tickets = 0
        plan = world.plan
        for mean_ms, act in (
            (plan.crash_ms, self._crash),
            (plan.pause_ms, self._pause),
            (plan.cut_ms, self._cut),
            (plan.jump_ms, self._jump),
            (plan.client_ms, self._call),
            (plan.membership_ms, self._change),
            (plan.transfer_ms, self._transfer),
        ):
            if mean_ms != NEVER:
                self._again(mean_ms, act)

    def propose(self, target: Member) -> int:
        """Propose something new; return the ticket."""
        ticket = self._ticket()
        payload = f"command {ticket}".encode()
        self._world.judge.asks(ticket, Wish.PROPOSE, target, payload)
        self._world.give(target, Proposed(ticket, payload))
        return ticket

    def read(self, target: Member) -> int:
        """Ask for a read; return the ticket."""
        ticket = self._ticket()
        self._world.judge.asks(ticket, Wish.READ, target)
        self._world.give(target, ReadAsked(ticket))
        return ticket

    def _again(self, mean_ms: int, act: Act) -> None:
        self._world.after(1 + self._chance.randrange(2 * mean_ms), self._once, mean_ms, act)

    def _once(self, mean_ms: int, act: Act) -> None:
        if not self._world.quiet:
            act()
            self._again(mean_ms, act)

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _any(self) -> Member:
        return self._chance.choice(list(self._world.members))

    def _up(self) -> Member | None:
        """Return somebody who is up, most often one who leads, or thinks so."""
        up = {name: each.core for name, each in self._world.members.items() if each.core}
        leaders = [name for name, core in up.items() if core.role is Role.LEADER]
        names = leaders if leaders and self._chance.random() < 0.9 else list(up)
        return self._chance.choice(names) if names else None

    # --- callers ---

    def _call(self) -> None:
        target = self._up()
        if target is not None:
            wish = self.propose if self._chance.random() < 0.7 else self.read
            wish(target)

    def _change(self) -> None:
        target = self._up()
        core = self._world.members[target].core if target else None
        if target is None or core is None:
            return
        ticket = self._ticket()
        wanted = changed(core.membership, list(self._world.members), self._chance)
        self._world.judge.asks(ticket, Wish.MEMBERSHIP, target, membership_payload(wanted))
        self._world.give(target, MembershipAsked(ticket, wanted))

    def _transfer(self) -> None:
        target = self._up()
        core = self._world.members[target].core if target else None
        if target is None or core is None:
            return
        ticket = self._ticket()
        voters = [each for each in core.membership.voters if each != target]
        successor = self._chance.choice(voters) if voters else self._any()
        self._world.judge.asks(ticket, Wish.TRANSFER, target)
        self._world.give(target, TransferAsked(ticket, successor))

    # --- faults ---

    def _victim(self) -> Member:
        """Return whom a fault befalls."""
        up = self._up() if self._chance.random() < self._world.plan.leaders else None
        return up or self._any()

    def _crash(self) -> None:
        victim = self._victim()
        if self._chance.random() < 0.5:
            self._world.crash(victim)
        else:
            self._world.members[victim].dies_after = self._chance.randrange(8)
        self._world.after(1 + self._chance.randrange(3 * ELECTION_MS), self._start, victim)

    def _start(self, victim: Member) -> None:
        self._world.members[victim].dies_after = None
        self._world.start(victim)

    def _pause(self) -> None:
        victim = self._victim()
        self._world.pause(victim, deaf=self._chance.random() < 0.5)
        self._world.after(self._chance.randrange(5 * ELECTION_MS), self._world.resume, victim)

    def _cut(self) -> None:
        """Cut one direction, one member off, or the group in two; for a while."""
        names = list(self._world.members)
        draw = self._chance.random()
        if draw < 0.4:
            cuts = {(self._any(), self._any())}
        else:
            some = (
                {self._any()} if draw < 0.7 else {n for n in names if self._chance.random() < 0.5}
            )
            cuts = {(a, b) for a in names for b in names if (a in some) != (b in some)}
        self._world.cuts |= cuts
        self._world.after(self._chance.randrange(6 * ELECTION_MS), self._heal, cuts)

    def _heal(self, cuts: set[tuple[Member, Member]]) -> None:
        self._world.cuts -= cuts

    def _jump(self) -> None:
        """Let a clock jump, or all of them together, as when their machine stood still."""
        everybody = list(self._world.members)
        ahead_ms = self._chance.randrange(3 * ELECTION_MS)
        for name in everybody if self._chance.random() < 0.5 else [self._any()]:
            self._world.members[name].clock_ahead_ms += ahead_ms


def changed(present: Membership, everybody: list[Member], chance: Random) -> Membership:
    """Return a membership in which one member, or now and then two, stand otherwise."""
    voters, learners = set(present.voters), set(present.learners)
    for member in chance.sample(everybody, 2 if chance.random() < 0.25 and everybody[1:] else 1):
        if member in voters and chance.random() < 0.5:
            continue
        if member in voters:
            voters.discard(member)
            if chance.random() < 0.5:
                learners.add(member)
        elif member in learners:
            learners.discard(member)
            if chance.random() < 0.8:
                voters.add(member)
        else:
            learners.add(member)
    return Membership(tuple(sorted(voters)), tuple(sorted(learners)))
