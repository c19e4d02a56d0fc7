"""What happened in a run of transfers: what tellers tried, what readers were shown, what was declared lost.

Plain values, written by a workload and read by `chaos.checker`. A transfer is one transaction over two
account partitions: `change` leaves one and arrives at the other. Each try at one has a name of its own,
which stands in both records, so that what is read back says which try it is.

Not here: who produces a history (`chaos.transfers`, the simulation), what it proves (`chaos.checker`).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Outcome(enum.Enum):
    """How a try ended for its teller."""

    COMMITTED = enum.auto()
    NOT_COMMITTED = enum.auto()
    """The commit was never asked for, or refused: nobody may ever read it."""
    UNKNOWN = enum.auto()
    """The commit was asked for and not answered: it is there whole, or not at all."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. `number` counts the tries of its teller; `term` counts the takeovers before it."""

    teller: str
    number: int
    term: int
    source: int
    target: int
    amount: int
    outcome: Outcome

    @property
    def name(self) -> str:
        """Return what its records say."""
        return f"{self.teller}.{self.number}"

    @property
    def changes(self) -> dict[int, int]:
        """Return the change of each partition."""
        return {self.source: -self.amount, self.target: self.amount}


@dataclass(frozen=True, slots=True, order=True)
class Seen:
    """One record as a read-committed reader was given it."""

    partition: int
    offset: int
    attempt: str
    change: int


def record_value(attempt: str, change: int) -> bytes:
    """Return the value of a transfer's record."""
    return f"{attempt} {change}".encode()


def seen(partition: int, offset: int, value: bytes) -> Seen:
    """Return what a record says; raises ValueError for a record that no teller wrote."""
    attempt, change = value.decode().split(" ")
    return Seen(partition, offset, attempt, int(change))


@dataclass(frozen=True, slots=True)
class History:
    """One run.

    `final`: region -> everything that a read-committed reader finds there at the end. `shown`: what readers of
    the region that took over were shown before it did. `listed`: teller -> how many of its commits the losses
    list. `covered`, `beyond`: names of tries that lie below, or not below, the tidemark taken over at, where
    the run knows it.
    """

    attempts: Sequence[Attempt]
    final: Mapping[str, Sequence[Seen]]
    shown: Sequence[Seen] = ()
    listed: Mapping[str, int] = field(default_factory=dict)
    covered: frozenset[str] = frozenset()
    beyond: frozenset[str] = frozenset()
