"""Where one region's logs leave another's, by bytes: what leader epochs alone cannot tell (T33).

A log that agrees by leader epochs is reconciled only if its last batch is the primary's, too. Where it is not, the end
of what both share is found by halving: a question for each doubling of the log.

1. The primary's folder is restored from a copy that was made while it stood still. 2. It starts: its counter of starts
goes to the number that the life behind the copy had, and with it the leader epoch. 3. It writes other batches at the
same offsets: leader epochs and ends agree, the bytes do not.

INV-CG1  what both share grows, the bound of it falls, and they never pass each other; so the search ends, also where a cleaning
         left holes: of an offset in one, `batch_at` tells the batch behind it
         1. A log's [4, 20) is cleaned away. 2. The other one ends at 10. 3. The batch of 20 is not shared: that bounds nothing.
INV-CG2  no log is said to be shared beyond where it ends here

Not here: what follows from a difference (`core`), reading batches (`ports.MirrorLogs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from geo_replicator.events import MirrorLogEnd, PrimaryLogEnd
from geo_replicator.history import HistoryDifference, ShownLog, in_pieces
from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint


class OtherRegion(Protocol):
    """Who is asked what it holds."""

    async def show_history(
        self, point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        """Return what the other region does not hold of this."""
        ...


class OwnLogs(Protocol):
    """The logs that are compared."""

    async def evidence(self, cut: Cut, keys: Sequence[LogKey]) -> Sequence[ShownLog]:
        """Return what shows that these logs hold `cut`."""
        ...

    async def first_offset(self, key: LogKey) -> int:
        """Return where the log's bytes begin; raises `LinkFailed`."""
        ...

    async def batch_at(self, key: LogKey, offset: int) -> tuple[int, int]:
        """Return (base offset, end) of the batch that holds `offset`, or of the next one; raises `LinkFailed`."""
        ...


def agrees(mirror: MirrorLogEnd, primary: PrimaryLogEnd) -> bool:
    """Return whether the primary's log holds all of the mirror's: same newest epoch, and not beyond its end."""
    if mirror.end_offset == 0 or mirror.leader_epoch < 0:
        return True
    return primary.leader_epoch == mirror.leader_epoch and primary.end_offset >= mirror.end_offset


@dataclass(slots=True)
class _Search:
    """Both logs agree below `agreed`; no batch that ends beyond `bound` is shared. Either may lie in a hole."""

    agreed: int
    bound: int

    @property
    def middle(self) -> int:
        """Return the offset to look at next, at or above `agreed` and below `bound`."""
        return (self.agreed + self.bound - 1) // 2

    def is_not_shared(self, offset: int, base: int) -> None:
        """Bound what is shared: the batch at `base`, which was found for `offset`, is not (INV-CG1)."""
        before, self.bound = self.bound, max(self.agreed, min(base, offset))
        assert self.bound < before, f"INV-CG1: {self}, {base} for {offset}"


async def compared(
    session: OtherRegion,
    logs: OwnLogs,
    ends: Mapping[LogKey, MirrorLogEnd],
    answers: Mapping[LogKey, PrimaryLogEnd],
    proven: Mapping[LogKey, int],
) -> Mapping[LogKey, PrimaryLogEnd]:
    """Return the answers, with the end that is really shared where the bytes differ.

    `proven`: how far the primary was shown to hold each log in this session.
    """
    asked = {
        key: end.end_offset
        for key, end in ends.items()
        if key in answers
        and end.leader_epoch >= 0
        and agrees(end, answers[key])
        and proven.get(key) != end.end_offset
    }
    differing = await _differences(session, logs, asked)
    if not differing:
        return answers
    shared = await _shared_ends(session, logs, differing)
    assert all(end <= asked[key] for key, end in shared.items()), f"INV-CG2: {shared}"
    corrected = {
        key: replace(answers[key], leader_epoch=ends[key].leader_epoch, end_offset=end)
        for key, end in shared.items()
    }
    return {**answers, **corrected}


async def shared_ends(
    session: OtherRegion, logs: OwnLogs, ends: Mapping[LogKey, int]
) -> dict[LogKey, int]:
    """Return up to where the other region holds each of these logs, which end at `ends` here; raises `LinkFailed`."""
    differing = await _differences(session, logs, ends)
    return {**ends, **await _shared_ends(session, logs, differing)}


async def _differences(
    session: OtherRegion, logs: OwnLogs, positions: Mapping[LogKey, int]
) -> dict[LogKey, HistoryDifference]:
    found: dict[LogKey, HistoryDifference] = {}
    for keys in in_pieces(positions):
        shown = await logs.evidence(Cut(BEFORE_ALL, positions), keys)
        for difference in await session.show_history(BEFORE_ALL, shown):
            found[difference.key] = difference
    return found


async def _shared_ends(
    session: OtherRegion, logs: OwnLogs, differing: Mapping[LogKey, HistoryDifference]
) -> dict[LogKey, int]:
    searches = {
        key: _Search(await logs.first_offset(key), difference.agreed_end)
        for key, difference in differing.items()
    }
    while True:
        probes: dict[LogKey, tuple[int, int, int]] = {}
        for key, search in searches.items():
            while search.agreed < search.bound and key not in probes:
                offset = search.middle
                base, end = await logs.batch_at(key, offset)
                if end > search.bound:
                    search.is_not_shared(offset, base)
                else:
                    probes[key] = offset, base, end
        if not probes:
            return {key: search.agreed for key, search in searches.items()}
        missed = await _differences(
            session, logs, {key: end for key, (_, _, end) in probes.items()}
        )
        for key, (offset, base, end) in probes.items():
            if key in missed:
                searches[key].is_not_shared(offset, base)
            else:
                assert end > searches[key].agreed, f"INV-CG1: {searches[key]}, {end}"
                searches[key].agreed = end
            assert searches[key].agreed <= searches[key].bound, f"INV-CG1: {searches[key]}"
