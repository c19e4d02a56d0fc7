"""What writers of all clients tell: each try, where its records were put, each error by client and name; and a gate to rest at.

INV-WRJ1  a commit belongs to the term in which it was answered, every other try to that in which it began: what was begun
          before a takeover may be written as a whole after it

Not here: who writes (`confluent`, `aio`, `java`), what is wrong (`chaos.checker`).
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace

from confluent_kafka import KafkaException

from chaos.history import Attempt, Outcome
from chaos.transfers import Journal


class WritersJournal(Journal):
    """`places`: try -> partition -> offset, as answered. `acked_s`: writer -> when its commits were answered (monotonic)."""

    def __init__(self) -> None:
        """Nothing was written."""
        super().__init__()
        self.places: dict[str, dict[int, int]] = defaultdict(dict)
        self.acked_s: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()

    def place(self, attempt: str, partition: int, offset: int) -> None:
        """Keep where."""
        with self.changed:
            self.places[attempt][partition] = offset

    def note(self, attempt: Attempt) -> None:
        """Keep what (INV-WRJ1), and when it was answered."""
        if attempt.outcome is not Outcome.COMMITTED:
            super().note(attempt)
            return
        with self.changed:
            self.acked_s[attempt.teller].append(time.monotonic())
            super().note(replace(attempt, term=self.term))

    def fail(self, error: KafkaException) -> None:
        """Count an error of confluent-kafka."""
        self.fail_of("confluent", error.args[0].name())

    def fail_of(self, client: str, name: str) -> None:
        """Count an error that reached an application."""
        with self.changed:
            self.errors[f"{client} {name}"] += 1

    def errors_now(self) -> Counter[str]:
        """Return how often each error reached an application until now."""
        with self.changed:
            return Counter(self.errors)

    def acked_now(self) -> dict[str, list[float]]:
        """Return when each writer's commits were answered, ascending."""
        with self.changed:
            return {name: list(times) for name, times in self.acked_s.items()}

    def last_acked_s(self, name: str) -> float:
        """Return when a writer's last commit was answered, 0 where none was."""
        with self.changed:
            return self.acked_s[name][-1] if name in self.acked_s else 0.0

    def next_term(self) -> None:
        """Another region is to act from now on."""
        with self.changed:
            self.term += 1


class Gate:
    """Where writers rest, between transactions, while it is closed."""

    def __init__(self) -> None:
        """It is open."""
        self._changed = threading.Condition()
        self._resting: set[str] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether who comes rests."""
        return self._is_closed

    def close(self) -> None:
        """Let nobody pass."""
        with self._changed:
            self._is_closed = True

    def open(self) -> None:
        """Let all pass."""
        with self._changed:
            self._is_closed = False
            self._resting.clear()
            self._changed.notify_all()

    def arrive(self, name: str) -> None:
        """Note that a writer is here, with no transaction open; without effect while it is open."""
        with self._changed:
            if self._is_closed:
                self._resting.add(name)
                self._changed.notify_all()

    def pass_through(self, name: str) -> None:
        """Return once it is open."""
        self.arrive(name)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)

    def missing(self, names: Collection[str], timeout_s: float) -> set[str]:
        """Wait until all of these rest; return who does not in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._resting >= set(names), timeout_s)
            return set(names) - self._resting
