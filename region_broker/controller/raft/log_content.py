"""What the frames of a member's log come to: its hard state, and the entries behind where the log starts.

INV-RT2  the log is cut only behind an index that was given, and never into what a snapshot holds
Pure. Not here: frames and files (`log_file`), what is written when (`durable`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from region_broker.controller.raft.effects import Persist
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    Entry,
    HardState,
    LogIndex,
    Term,
)

GROUP_BYTES: Final = 4 * 1024 * 1024
"""A log that is written anew is written in frames of about this size."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The payload of one frame, to be applied in this order.

    `restart`: index and term from where the log starts; what it held before is gone.
    """

    restart: tuple[LogIndex, Term] | None
    hard_state: HardState | None
    cut_behind: LogIndex | None
    entries: tuple[Entry, ...]


DECODER: Final = msgspec.msgpack.Decoder(Change)


def merged(wanted: Sequence[Persist]) -> Change:
    """Return the one change that is all of `wanted`, one after the other."""
    hard_state: HardState | None = None
    cut_behind: LogIndex | None = None
    entries: list[Entry] = []
    for each in wanted:
        hard_state = each.hard_state or hard_state
        if each.cut_behind is not None:
            while entries and entries[-1].index > each.cut_behind:
                entries.pop()
            if not entries and (cut_behind is None or each.cut_behind < cut_behind):
                cut_behind = each.cut_behind
        entries.extend(each.entries)
    return Change(None, hard_state, cut_behind, tuple(entries))


@dataclass(slots=True)
class LogContent:
    """Hard state and entries; `start_index` is BEFORE_FIRST, or lies in a snapshot."""

    hard_state: HardState
    start_index: LogIndex
    start_term: Term
    entries: list[Entry]

    @classmethod
    def empty(cls) -> "LogContent":
        """Return what a new member has."""
        return cls(HardState(), BEFORE_FIRST, NO_TERM, [])

    @property
    def last_index(self) -> LogIndex:
        """The index of the last entry, or where the log starts."""
        return LogIndex(self.start_index + len(self.entries))

    def term_at(self, index: LogIndex) -> Term | None:
        """Return the term of the entry at `index`, or of where the log starts; None if that is not here."""
        if index == self.start_index:
            return self.start_term
        if self.start_index < index <= self.last_index:
            return self.entries[index - self.start_index - 1].term
        return None

    def complaint(self, change: Change) -> str | None:
        """Return why a change cannot follow what is here; None if it can (INV-RE1, INV-RT2)."""
        start, last = self.start_index, self.last_index
        term = self.term_at(last)
        if change.restart is not None:
            start, term = change.restart
            last = start
        if change.cut_behind is not None:
            if not start <= change.cut_behind <= last:
                return f"a cut behind {change.cut_behind} in a log of [{start}, {last}]"
            if change.restart is None:
                last, term = change.cut_behind, self.term_at(change.cut_behind)
        for entry in change.entries:
            if entry.index != last + 1 or entry.term < (term or NO_TERM):
                return (
                    f"entry {entry.index} of term {entry.term} behind entry {last} of term {term}"
                )
            last, term = entry.index, entry.term
        if change.hard_state is not None and change.hard_state.term < self.hard_state.term:
            return f"term {change.hard_state.term} behind term {self.hard_state.term}"
        return None

    def apply(self, change: Change) -> None:
        """Take over a change that nothing was to be said against."""
        if change.restart is not None:
            self.start_index, self.start_term = change.restart
            self.entries = []
        if change.hard_state is not None:
            self.hard_state = change.hard_state
        if change.cut_behind is not None:
            del self.entries[change.cut_behind - self.start_index :]
        self.entries.extend(change.entries)

    def drop(self, up_to: LogIndex) -> None:
        """Let go of the entries up to an index that is here."""
        term = self.term_at(up_to)
        assert term is not None, (up_to, self.start_index, self.last_index)
        del self.entries[: up_to - self.start_index]
        self.start_index, self.start_term = up_to, term

    def changes(self) -> Iterator[Change]:
        """Yield what makes an empty log into this one."""
        yield Change((self.start_index, self.start_term), self.hard_state, None, ())
        group: list[Entry] = []
        group_bytes = 0
        for entry in self.entries:
            group.append(entry)
            group_bytes += len(entry.payload)
            if group_bytes >= GROUP_BYTES:
                yield Change(None, None, None, tuple(group))
                group, group_bytes = [], 0
        if group:
            yield Change(None, None, None, tuple(group))
