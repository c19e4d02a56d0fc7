"""Who votes in a region's quorum: whoever leads it takes folders in that ask for it, one step after the other.

INV-MK1  a folder begins as a learner; it votes once it has almost the whole log (INV-RFD3), while fewer than `voters_max` vote
INV-MK2  two members never vote alone together, but on the way to three: with two, both would be needed
INV-MK3  a folder takes the place of another one of its node only where that one is silent (INV-RFC4), and only by a majority of those
         who vote: the other one is removed first

Not here: how a step is made safe (`raft.leading`), which node may ask (the handshake of the peer port).
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from region_broker.controller.raft.effects import Joining, MembershipAsked
from region_broker.controller.raft.entries import Member, Membership
from region_broker.controller.raft.failures import RaftStoreFull, WishFailed
from region_broker.controller.raft.shell import RaftGroup

LOOK_MS: Final = 200
"""How often whoever leads looks whether a learner may vote."""
JOINING_MAX: Final = 64
_ENOUGH: Final = 3


def next_step(
    present: Membership, joining: Mapping[Member, Member | None], voters_max: int, turn: int
) -> Membership | None:
    """Return the membership that is to follow `present`, one step from it; None where it is as it should be.

    `joining`: who asks to be taken in, and which silent folder of its node it displaces. `turn`: which learner is looked at first.
    """
    known = (*present.voters, *present.learners)
    for member, displaced in sorted(joining.items()):
        if displaced in known and displaced != member:
            return without(present, displaced)
        if member not in known:
            return Membership(present.voters, tuple(sorted((*present.learners, member))))
    if present.learners and len(present.voters) < voters_max and len(known) >= _ENOUGH:
        promoted = present.learners[turn % len(present.learners)]
        rest = without(present, promoted)
        return Membership(tuple(sorted((*rest.voters, promoted))), rest.learners)
    return None


def without(present: Membership, gone: Member | None) -> Membership:
    """Return the membership without a member."""
    return Membership(
        tuple(each for each in present.voters if each != gone),
        tuple(each for each in present.learners if each != gone),
    )


class MembershipKeeping:
    """Of one group: `run` changes the membership while this member leads."""

    def __init__(self, voters_max: int) -> None:
        """Nobody has asked."""
        self._voters_max = voters_max
        self._joining: dict[Member, Member | None] = {}
        self._asked = asyncio.Event()
        self._turn = 0

    def note_joining(self, joining: Joining) -> None:
        """Take note of a folder that asks this leader to be taken in."""
        if len(self._joining) < JOINING_MAX:
            self._joining[joining.member] = joining.displaces
            self._asked.set()

    async def run(self, group: RaftGroup) -> None:
        """Make one step after the other until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_MS / 1000):
                    await self._asked.wait()
            except TimeoutError:
                self._turn += 1
            self._asked.clear()
            await self._step(group)

    async def _step(self, group: RaftGroup) -> None:
        if not group.leads:
            self._joining.clear()
            return
        wanted = next_step(group.membership, self._joining, self._voters_max, self._turn)
        if wanted is None:
            self._joining.clear()
            return
        try:
            await group.ask(lambda ticket: MembershipAsked(ticket, wanted))
        except (WishFailed, RaftStoreFull):
            return  # who wants to join asks again, and a learner is looked at again
        self._asked.set()
