"""Which member of an in-sync set leads a group next, and what an operator's order may cost.

INV-RPC1  who is chosen is in the committed in-sync set, with the folder that it had when it came in, and is alive
INV-RPC2  the same facts choose the same member
INV-RPC3  only an operator's explicit order names somebody outside, and the result says what may be lost by it (R7)

The in-sync set only loses those that are not alive, and never its last one. With each election the leader epoch grows, whoever is
chosen: also for a member that led before and has started again (`replication`, 3). Clients find what an order has cut off by the
leader epoch (KIP-320).

What an incarnation catches is an emptied or exchanged folder. It does not catch a folder that was wound back to an older copy of itself:
the same incarnation, with less in it. Such a member must not be let in as alive: whoever registers it has to see that it has started
fewer times than the metadata say. A leader sees it only if it has heard more of it in its own leader epoch (`effects.WentBack`).
Not here: who is alive, the command that makes the choice durable.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from idempotency.identity import LogKey, Member


@dataclass(frozen=True, slots=True)
class Election:
    """Who is to lead, and the in-sync set that it begins with."""

    leader: Member
    in_sync: frozenset[Member]


@dataclass(frozen=True, slots=True)
class OrderedElection:
    """An election by an operator's order. What may be lost: see `choose_by_order`."""

    election: Election
    left_out: tuple[Member, ...]
    """Members of the in-sync set that the order passes over: what only they have is given up."""
    lost_ranges: Mapping[LogKey, tuple[int, int]]
    """Per log, from where and up to where records that were committed are known not to be in the new leader's log."""
    may_lose_unknown: bool
    """Whether more may be lost than `lost_ranges` says: nobody knows how far the set was."""


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


def choose_by_order(
    ordered: Member,
    in_sync: Set[Member],
    alive: Set[Member],
    *,
    durable_ends: Mapping[LogKey, int],
    high_watermarks: Mapping[LogKey, int],
) -> OrderedElection | None:
    """Return what an operator's order to have `ordered` lead comes to; None if it is not alive.

    `durable_ends` are its own (an end in a diverged history says less: the order cuts nothing below it); `high_watermarks`: what
    was committed, as far as anybody who can be asked knows. One that is in sync loses nothing, and takes the others along.
    """
    if ordered not in alive:
        return None
    if ordered in in_sync:
        return OrderedElection(
            Election(ordered, frozenset(in_sync & alive)), (), {}, may_lose_unknown=False
        )
    lost = {
        key: (durable_ends.get(key, 0), high_watermark)
        for key, high_watermark in high_watermarks.items()
        if durable_ends.get(key, 0) < high_watermark
    }
    return OrderedElection(
        Election(ordered, frozenset({ordered})), tuple(sorted(in_sync)), lost, may_lose_unknown=True
    )
