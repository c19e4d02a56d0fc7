"""Which member of an in-sync set leads a group next, as an election of the metadata has it (`controller.cluster.elections`).

What an incarnation catches is an emptied or exchanged folder. It does not catch a folder that was wound back to an older copy of itself:
the same incarnation, with less in it. Such a member is not let in as alive: the metadata see that it does not know its newest start
(INV-MN7, `tests/simulation/controller`). A leader sees it only if it has heard more of it in its own leader epoch (`effects.WentBack`).
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from idempotency.identity import Member


@dataclass(frozen=True, slots=True)
class Election:
    """Who is to lead, and the in-sync set that it begins with."""

    leader: Member
    in_sync: frozenset[Member]


def choose(
    in_sync: Set[Member], alive: Set[Member], preferred: Sequence[Member] = ()
) -> Election | None:
    """Return who leads next; None while nobody can.

    `alive`: the members that are registered and not fenced, as the folders that they run with now; `preferred`: whom to take first, in
    this order, if they are in sync.
    """
    able = in_sync & alive
    if not able:
        return None
    leader = next((member for member in preferred if member in able), None) or min(able)
    return Election(leader, frozenset(able))
