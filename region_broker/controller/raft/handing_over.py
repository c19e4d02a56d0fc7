"""A leader whose disk is full has another voter lead: it would lead on, as a heartbeat finds room where no command does.

INV-RHO1  a leader that has no room for a command hands over to a voter that has all that is committed and was heard lately; each of them in its turn.
          It leads on where these are no majority without it: nobody could commit a command that it cannot take
INV-RHO2  between two commands that are carried out a member does so again only after a pause, which doubles: where all disks are full somebody
          leads, and refuses, and where another one than the leader has room again that one leads. Each election takes room, which commands
          leave (`needed_room.SPARE_BYTES`)
Not here: what a hand-over is (`leading`), what has no room (`carrying`).
"""

from typing import Final

from region_broker.controller.raft.effects import Outcome
from region_broker.controller.raft.entries import Member
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.controller.raft.memberships import is_majority

AGAIN_MS: Final = 1000
"""How long the leadership is kept where a hand-over came to nothing."""
PAUSE_MS_MIN: Final = 30_000
PAUSE_MS_MAX: Final = 600_000
"""How long it is kept after one that was done, and helped nobody: the room for elections lasts for hours of that."""


class HandingOver:
    """Of one member, which leads or not."""

    def __init__(self, fresh_ms: int) -> None:
        """Count whoever was heard within `fresh_ms`."""
        self._fresh_ms = fresh_ms
        self._ticket: int | None = None
        self._again_at_ms = 0
        self._pause_ms = PAUSE_MS_MIN

    def successor(self, facts: GroupFacts, now_ms: int) -> Member | None:
        """Return who is to lead in place of this member; None where it is to lead on, or does not lead."""
        if self._ticket is not None or now_ms < self._again_at_ms:
            return None
        voters = facts.membership.voters
        found = sorted(
            member
            for member, each in facts.followers.items()
            if member in voters
            and each.matched_index >= facts.commit_index
            and now_ms - each.heard_ms <= self._fresh_ms
        )
        if not is_majority(found, voters):
            return None
        return next((member for member in found if member > facts.me), found[0])

    def begun(self, ticket: int) -> None:
        """Hand over, by that wish."""
        self._ticket = ticket

    def ended(self, ticket: int, outcome: Outcome, now_ms: int) -> None:
        """Take the answer to a wish: a hand-over may be tried again after a while, which is longer for one that was done."""
        if ticket != self._ticket:
            return
        self._ticket = None
        if outcome is Outcome.DONE:
            self._again_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        else:
            self._again_at_ms = now_ms + AGAIN_MS

    def carried_out(self) -> None:
        """Note that a command was: there is room again, or was elsewhere."""
        self._ticket, self._again_at_ms, self._pause_ms = None, 0, PAUSE_MS_MIN
