"""A leader whose disk is full has another voter lead: it would lead on, as a heartbeat finds room where no command does.

INV-RHO1  a leader that has no room for a command hands over to a voter that has all that is committed and was heard lately; each of them in its turn
INV-RHO2  a member does so once between two commands that are carried out: where all disks are full somebody leads, and refuses. Each
          election takes room, which commands leave (`needed_room.SPARE_BYTES`)
Not here: what a hand-over is (`leading`), what has no room (`carrying`).
"""

from typing import Final

from region_broker.controller.raft.effects import Outcome
from region_broker.controller.raft.entries import Member
from region_broker.controller.raft.group_facts import GroupFacts

AGAIN_MS: Final = 1000


class HandingOver:
    """Of one member, which leads or not."""

    def __init__(self, fresh_ms: int) -> None:
        """Count whoever was heard within `fresh_ms`."""
        self._fresh_ms = fresh_ms
        self._ticket: int | None = None
        self._again_at_ms = 0

    def successor(self, facts: GroupFacts, now_ms: int) -> Member | None:
        """Return who is to lead in place of this member; None where it is to lead on, or does not lead."""
        if self._ticket is not None or now_ms < self._again_at_ms:
            return None
        found = sorted(
            member
            for member, each in facts.followers.items()
            if member in facts.membership.voters
            and each.matched_index >= facts.commit_index
            and now_ms - each.heard_ms <= self._fresh_ms
        )
        return next((member for member in found if member > facts.me), next(iter(found), None))

    def begun(self, ticket: int) -> None:
        """Hand over, by that wish."""
        self._ticket = ticket

    def ended(self, ticket: int, outcome: Outcome, now_ms: int) -> None:
        """Take the answer to a wish: a hand-over that came to nothing may be tried again, after a while."""
        if ticket == self._ticket and outcome is not Outcome.DONE:
            self._ticket, self._again_at_ms = None, now_ms + AGAIN_MS

    def carried_out(self) -> None:
        """Note that a command was: there is room again, or was elsewhere."""
        self._ticket = None
