"""Whether one region's history holds what another one has shown: evidence, and the judgement on it (T33).

INV-HI1  what was shown of a log is held by another one only if that one ends no earlier, and its last batch below the
         same offset has the same leader epoch, base offset and CRC
INV-HI2  what cannot be compared is no difference: bytes that retention or a cleaning took away, a log that was deleted
         by a command, a log whose disk does not answer
INV-HI3  a log that is not there, and that no command deleted, is a difference (T34)

One batch stands for all below it: every batch is written under a leader epoch that belongs to one life of one node, so
two logs that share a batch share what lies before it.
Not here: reading batches, asking the other region (`region_broker.region.mirror.shown_history`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from geo_replicator.lineage import LogKey
from idempotency.identity import LeaderEpoch

LOGS_PER_PIECE: Final = 500
"""How many logs are shown at a time."""
NAMED_MAX: Final = 10
"""How many logs a text for people names."""


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The batch that ends at or below an offset; its CRC covers the attributes and everything behind them."""

    leader_epoch: LeaderEpoch
    base_offset: int
    crc: int


@dataclass(frozen=True, slots=True)
class ShownLog:
    """What a mirror has shown of one log: everything below `cut_offset`. `last` is None where its bytes are not there.

    `end_offset` is where the log ends. Below `whole_from` others may lack records that a cleaning took away.
    """

    key: LogKey
    cut_offset: int
    end_offset: int
    last: LastBatch | None = None
    whole_from: int = 0

    @property
    def written_under(self) -> int:
        """Return the leader epoch of a batch of it, -1 where none is known."""
        return -1 if self.last is None else self.last.leader_epoch


@dataclass(frozen=True, slots=True)
class HeldLog:
    """The same log in the region that is asked. `last` is its last batch below the shown `cut_offset`.

    `epoch_end` is where it leaves the leader epoch of the mirror's last batch. `readable`: its bytes could be read.
    """

    start_offset: int
    end_offset: int
    last: LastBatch | None = None
    epoch_end: int = 0
    whole_from: int = 0
    readable: bool = True


@dataclass(frozen=True, slots=True)
class HistoryDifference:
    """A log of which a mirror has shown what this region does not hold: [`agreed_end`, `shown_end`), and copied more."""

    key: LogKey
    agreed_end: int
    shown_end: int
    copied_end: int
    reason: str


def difference_of(shown: ShownLog, held: HeldLog | None) -> HistoryDifference | None:
    """Return what separates a held log from what was shown of it, None where nothing does (INV-HI1, INV-HI2).

    `held` is None for a log that is not there (INV-HI3).
    """
    if shown.cut_offset <= 0:
        return None
    if held is None:
        return _difference(shown, 0, "it is not there, and no deletion of it is known")
    if held.end_offset < shown.cut_offset:
        agreed = min(held.end_offset, _common_end(shown, held))
        assert agreed < shown.cut_offset, f"INV-HI1: {agreed} of {shown}"
        return _difference(shown, agreed, f"it ends at {held.end_offset}")
    if not _is_comparable(shown, held):
        return None
    if held.last != shown.last:
        reason = f"{_words(held.last)} ends at {shown.cut_offset}, and not {_words(shown.last)}"
        return _difference(shown, min(_common_end(shown, held), shown.cut_offset), reason)
    assert held.end_offset >= shown.cut_offset, f"INV-HI1: {held} holds {shown}"
    return None


def _words(batch: LastBatch | None) -> str:
    if batch is None:
        return "no batch"
    return f"the batch of {batch.base_offset} with CRC {batch.crc:#010x}, leader epoch {batch.leader_epoch}"


def _is_comparable(shown: ShownLog, held: HeldLog) -> bool:
    if shown.last is None or not held.readable or held.start_offset >= shown.cut_offset:
        return False
    return shown.last.base_offset >= max(shown.whole_from, held.whole_from, held.start_offset)


def _common_end(shown: ShownLog, held: HeldLog) -> int:
    if shown.last is None or shown.last == held.last:
        return held.end_offset
    # The leader epoch is shared up to where the first of both leaves it; a batch in it that differs ends that, too.
    same_epoch = held.last is not None and held.last.leader_epoch == shown.last.leader_epoch
    return min(held.epoch_end, shown.last.base_offset if same_epoch else held.epoch_end)


def _difference(shown: ShownLog, agreed_end: int, reason: str) -> HistoryDifference:
    assert shown.cut_offset > 0, f"INV-HI1: nothing of {shown.key} was shown"
    agreed = max(0, min(agreed_end, shown.cut_offset))
    return HistoryDifference(shown.key, agreed, shown.cut_offset, shown.end_offset, reason)


def beyond_shown(found: Iterable[HistoryDifference], shown: Iterable[ShownLog]) -> str:
    """Return what another region says to hold of a log that nobody showed it so far; empty where it says no such thing."""
    ends = {log.key: log.cut_offset for log in shown}
    for each in found:
        if not 0 <= each.agreed_end <= ends.get(each.key, -1):
            return f"says that it holds {each.key.encode()} up to {each.agreed_end}: nobody asked for that"
    return ""


def in_pieces(keys: Iterable[LogKey], size: int = LOGS_PER_PIECE) -> Iterator[list[LogKey]]:
    """Yield the keys in order, `size` at a time."""
    ordered = iter(sorted(keys))
    while piece := list(islice(ordered, size)):
        yield piece
