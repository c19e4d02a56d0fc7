"""How many producers the logs of a node may know: whoever may write to a topic can make producer ids up.

INV-PRR1  a producer that a log does not know is refused, and nothing of it written, where that log knows as many as one log may, or
          where all logs of the node together do and that log has its fair share; who is known goes on, and so does whoever writes in a
          transaction: those are counted by their transactional ids
INV-PRR2  where a log knows more than half of what it may, or all together do, the idlest are forgotten before their day is over, those without
          a transaction first, and none that was heard of in the last IDLE_MS: no client sends a batch again after that long, unless its
          delivery time-out was set higher

INV-PRR3  for FOUND_MS from a start each log may know what was found in it and half of what it may, and so may all: who is idle is not known
          yet, and an older version has let in any number

What a log says counts as it is (INV-P1): a mirror, a follower and a replay take in any number, and forget as above.

Not here: which producers are idle (`idempotency.producer_state`), the error that a client gets (`handlers.produce.errors`).
Source: KIP-936 (throttle the number of active producer ids) for what goes wrong without; its quota was never released.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from idempotency.identity import TopicPartition
from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom
from region_broker.limits import PARTITION_PRODUCERS_DEFAULT, PRODUCERS_DEFAULT

_log: Final = logging.getLogger("tidemark.produce")

IDLE_MS: Final = 15 * 60_000
"""Kafka's clients give a batch up after two minutes (delivery.timeout.ms), librdkafka's after five (message.timeout.ms)."""
FOUND_MS: Final = IDLE_MS + 5 * 60_000


class ProducerRoom:
    """One for all logs of a node. Belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        partition_max: int = PARTITION_PRODUCERS_DEFAULT,
        node_max: int = PRODUCERS_DEFAULT,
    ) -> None:
        """Nobody is known before `counted`."""
        self._clock = clock
        self.partition_max = partition_max
        self.node_max = node_max
        self.known = 0
        """How many all logs know together: as of the last count, and those that were let in since."""
        self._share = self._share_of_half = node_max
        self._found: Mapping[TopicPartition, int] = {}
        self._found_in_all = 0
        self._found_until_ms = -1
        self._said = SaidSeldom(clock)

    def counted(self, counts: Iterable[int]) -> None:
        """Note how many producers each log knows."""
        rising = sorted(counts)
        self.known = sum(rising)
        self._share = _level(rising, self.node_max)
        self._share_of_half = _level(rising, self.node_max // 2)

    def let_in(self) -> None:
        """Count one more."""
        self.known += 1

    @property
    def kept(self) -> int:
        """How many a log keeps, if there are idle ones (INV-PRR2)."""
        of_log, of_all = self.partition_max // 2, self.node_max // 2
        return of_log if self.known <= of_all else min(of_log, self._share_of_half)

    def started(self, counts: Mapping[TopicPartition, int]) -> None:
        """Note what a start has found: older versions let in any number, and nobody is known to be idle yet (INV-PRR3)."""
        self._found = {tp: count for tp, count in counts.items() if count > self.partition_max // 2}
        self._found_in_all = sum(counts.values())
        self._found_until_ms = self._clock.monotonic_ms() + FOUND_MS

    def _allowed(self, tp: TopicPartition) -> tuple[int, int]:
        """Return how many producers a log, and all logs, may know now."""
        of_log, of_all = self.partition_max, self.node_max
        if self._clock.monotonic_ms() >= self._found_until_ms:
            return of_log, of_all
        found = self._found.get(tp, 0)
        return max(of_log, found + of_log // 2), max(of_all, self._found_in_all + of_all // 2)

    def refusal(self, tp: TopicPartition, known_here: int) -> str | None:
        """Return why a log that knows so many has no room for one more producer, if so (INV-PRR1)."""
        has_share = self.known < self.node_max or known_here < self._share
        if known_here < self.partition_max and has_share:
            return None
        of_log, of_all = self._allowed(tp)
        if known_here >= of_log:
            return self._refused(
                f"{tp} knows {known_here} producers, as many as partition_producers_max ="
                f" {self.partition_max} allows"
            )
        if self.known >= of_all and known_here >= self._share:
            return self._refused(
                f"this node knows {self.known} producers, as many as producers_max ="
                f" {self.node_max} allows, of which {tp} has {known_here}"
            )
        return None

    def _refused(self, why: str) -> str:
        text = (
            f"{why}: there is room again once some were idle for {IDLE_MS // 60_000} minutes."
            " Keep a producer instead of making one for each record"
        )
        if self._said.is_due():
            _log.warning("a new producer is refused: %s. Said once a minute", text)
        return text


def _level(rising: Sequence[int], allowed: int) -> int:
    """Return how many each log may know at most, so that all together know what is allowed: small ones need less than that."""
    left = allowed
    for at, count in enumerate(rising):
        logs = len(rising) - at
        if count * logs >= left:
            return left // logs
        left -= count
    return allowed
