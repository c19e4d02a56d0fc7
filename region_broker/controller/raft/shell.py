"""One group of a quorum on raftos: its node, its state, its roles and its timer, which here only carry.

INV-RV2  nothing of a group is global: each has a node, a state, a core and a folder of its own
INV-RV3  the timer of a role that is over never calls back

What is raftos': a node hands what arrives to its state; a state has one role at a time, stops the old one and starts the
new one; a role has a timer, which calls back again and again. What is replaced: all that decides, stores or sends
(docs/adr/0043-raft-on-raftos.md). The timer's call becomes a tick of the core, what arrives an event; which role it is
says the core.
Not here: what is decided (`core`), how effects are carried out (`carrying`), connections (a `Transport`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from region_broker.controller.raft.carrying import Carrier, Wish
from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import (
    Proposed,
    Received,
    Role,
    RoleChanged,
)
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.controller.raft.group_setup import GroupSetup, StateMachine
from region_broker.controller.raft.raftos_classes import (
    RaftosBaseState,
    RaftosCandidate,
    RaftosFollower,
    RaftosLeader,
    RaftosNode,
    RaftosState,
    RaftosTimer,
)

TICKS_PER_HEARTBEAT: Final = 2


class GroupTimer(RaftosTimer):
    """Calls back every `interval` seconds on the running loop, while it is active (INV-RV3)."""

    def __init__(self, interval: float, callback: Callable[[], None]) -> None:
        """Not raftos': that one asks for a loop outside of one (RP7)."""
        self.interval = interval
        self.callback = callback
        self.loop = asyncio.get_running_loop()
        self.is_active = False

    def stop(self) -> None:
        """Call back no more; nothing to do for one that was not started."""
        if self.is_active:
            super().stop()

    def reset(self) -> None:
        """Begin the interval anew; one that is stopped stays so (RS18)."""
        if self.is_active:
            super().reset()


class GroupFollower(RaftosFollower):
    """Ticks. raftos' own would forget its vote at each start (RS1)."""

    def __init__(self, state: "GroupState") -> None:
        """Take what all roles share, and a timer."""
        RaftosBaseState.__init__(self, state)
        self.election_timer = state.new_timer()

    def start(self) -> None:
        """Begin to tick."""
        self.election_timer.start()


class GroupCandidate(RaftosCandidate):
    """Ticks. raftos' own would count votes, not voters (RS3)."""

    def __init__(self, state: "GroupState") -> None:
        """Take what all roles share, and a timer."""
        RaftosBaseState.__init__(self, state)
        self.election_timer = state.new_timer()

    def start(self) -> None:
        """Begin to tick."""
        self.election_timer.start()


class GroupLeader(RaftosLeader):
    """Ticks. raftos' own would commit by stale answers (RS4), and what no entry of its term follows not at all (RS8)."""

    def __init__(self, state: "GroupState") -> None:
        """Take what all roles share, and a timer; when to step down says the core (INV-RFD4)."""
        RaftosBaseState.__init__(self, state)
        self._is_alone = state.is_alone
        self.heartbeat_timer = state.new_timer()
        self.step_down_timer = state.new_timer()

    def start(self) -> None:
        """Begin to tick; who is alone has nobody to tell, and nobody can be leader in its place."""
        if not self._is_alone:
            self.heartbeat_timer.start()


_ROLES: Final[dict[Role, type[RaftosFollower | RaftosCandidate | RaftosLeader]]] = {
    Role.FOLLOWER: GroupFollower,
    Role.CANDIDATE: GroupCandidate,
    Role.LEADER: GroupLeader,
}


class GroupState(RaftosState):
    """One group's role, as its core says. raftos' own keeps the leader and the loop for the whole process (RS17)."""

    def __init__(self, server: "RaftGroup", setup: GroupSetup, carrier: Carrier) -> None:
        """Begin as a follower, who does not tick before `start`."""
        self.server = server
        self.id = self._get_id(setup.member.node_id, setup.member.incarnation)
        self.loop = server.loop
        self.storage = self.log = self.state_machine = carrier  # raftos' roles want all three
        self.leader: Member | None = None
        self._setup = setup
        self._carrier = carrier
        self.is_alone = setup.transport is None
        self.state = GroupFollower(self)

    def new_timer(self) -> GroupTimer:
        """Return a timer that ticks for the core."""
        interval_ms = self._setup.settings.heartbeat_ms / TICKS_PER_HEARTBEAT
        return GroupTimer(interval_ms / 1000, self._carrier.tick)

    def request_handler(self, data: Received) -> None:
        """Take a message, whole and of a type that is known; raftos' own lets the sender name the method (RS22)."""
        self._carrier.receive(data)

    def follow(self, change: RoleChanged) -> None:
        """Be what the core says, and tell who waits for it."""
        role = _ROLES[change.role]
        if type(self.state) is not role:
            self._change_state(role)
        self.leader = change.leader
        if change.role is Role.LEADER:
            self._setup.on_leader(change)
        elif change.role is Role.FOLLOWER:
            self._setup.on_follower(change)


class RaftGroup(RaftosNode):
    """One member of one group (INV-RV2). raftos' own lists all nodes of the process, and sends by itself (RP2, RS17, RS24)."""

    def __init__(self, setup: GroupSetup, machine: StateMachine) -> None:
        """Open the member's folder, which waits for the disk, on the running loop; the state machine gets its snapshot.

        Raises RaftStoreForeign, RaftStoreDamaged, RaftStoreFull, RaftStoreFailed.
        """
        self.loop = asyncio.get_running_loop()
        store, found = RaftStore.open(setup.disk, setup.folder, setup.member)
        if found.snapshot is None:
            point = SnapshotPoint(BEFORE_FIRST, NO_TERM, setup.founders)
        else:
            point, image = found.snapshot
            try:
                machine.load(image)
            except BaseException:
                store.close()
                raise
        core = RaftCore(
            setup.member, found.hard_state, point, found.entries,
            settings=setup.settings, draw=lambda below: setup.chance.randbits(32) % below,
        )  # fmt: skip
        self._carrier = Carrier(core, store, machine, setup, self._follow)
        self._group_state = self.state = GroupState(self, setup, self._carrier)

    async def begin(self) -> None:
        """Lead a group of one from now on, before `run`: until then whoever proposes carries that out itself.

        Raises RaftStoreFull: nothing has begun; RaftStoreFailed, or what the state machine raised: close it then.
        """
        assert self._group_state.is_alone, "who has peers needs `run` to hear them"
        await self._carrier.begin()

    async def run(self) -> None:
        """Be a member until `stop`; raises RaftStoreFailed, or what the state machine raised: the node has to end then."""
        self.state.start()
        try:
            await self._carrier.run()
        finally:
            self.state.stop()

    def stop(self) -> None:
        """Let `run` end; who waits is told that its wish may be lost."""
        self._carrier.stop()

    async def close(self) -> None:
        """Close the folder behind what is carried out, where `run` has not done so; who waits is told that its wish may be lost."""
        await self._carrier.finish()

    @property
    def membership(self) -> Membership:
        """Return the membership in force, as far as this member knows: whom to have connections with."""
        return self._carrier.membership

    @property
    def leader(self) -> Member | None:
        """Return who leads, as far as this member knows."""
        return self._group_state.leader

    @property
    def term(self) -> Term:
        """Return the present term, as far as this member knows."""
        return self._carrier.term

    @property
    def leads(self) -> bool:
        """Return whether this member leads, as far as it knows."""
        return self._group_state.leader == self._carrier.me

    @property
    def is_member(self) -> bool:
        """Return whether this member is in the membership in force, as far as it knows."""
        membership = self.membership
        return self._carrier.me in (*membership.voters, *membership.learners)

    def lost(self, member: Member) -> None:
        """Take note that a connection with a member has ended: who leads need not be waited for then."""
        self._carrier.lost(member)

    def facts(self) -> GroupFacts:
        """Return what this member knows of its group now."""
        return self._carrier.facts

    def _follow(self, change: RoleChanged) -> None:
        self._group_state.follow(change)

    async def propose(self, payload: bytes) -> LogIndex:
        """Return the index at which `payload` was committed and applied here.

        Raises NotLeader, Busy, Refused, RaftStoreFull: nothing was appended; Lost: nobody knows.
        """
        return await self.ask(lambda ticket: Proposed(ticket, payload))

    async def ask(self, wish: Callable[[int], Wish]) -> LogIndex:
        """Return once the wish that is made of a ticket is settled, as the index that it came to; raises as `propose`.

        `ReadAsked`: all is applied here that was committed when this was called. `MembershipAsked`: the membership, one step
        from the present one, is committed. `TransferAsked`: the other voter is about to lead.
        """
        return await self._carrier.ask(wish)
