"""Token buckets: how much of a limit is left, and when what was taken too much is paid back.

INV-SQB1  who takes only while nothing is owed is given no more over any time t than rate * (t + burst), but for the one use that went
          beyond: it is paid back before the next is free; what others take meanwhile is owed, too
INV-SQB2  what is owed is bounded: DEBT_S_MAX seconds of the rate, so a slip is not for ever
INV-SQB3  at most BUCKETS_MAX are kept: those that are full again and unused are forgotten first, they would be made anew as they are;
          then the one that was used longest ago
A use is never cut in two: what begins while something is left goes through whole, and what it takes too much is owed. Kafka averages
over windows (11 of 1 s) instead, and has a token bucket for controller mutations only (KIP-599); the time that it names is the same:
how long until the rate holds again.
Not here: whose bucket it is (`entities`), what is done with the time (`throttles`).
"""

import math
from collections import OrderedDict
from typing import Final

from region_broker.security.quotas.entities import Limit, QuotaKey, Sharers

BUCKETS_MAX: Final = 20_000
DEBT_S_MAX: Final = 600.0
_FORGOTTEN_AT_ONCE: Final = 2


class Bucket:
    """One limit of one entity; `rate` a second, at most `burst_s` seconds of it saved up."""

    __slots__ = ("_at_s", "_burst_s", "_left", "_rate")

    def __init__(self, rate: float, burst_s: float, now_s: float) -> None:
        """Start full."""
        assert rate > 0.0, "INV-SQE3"
        self._rate = rate
        self._burst_s = burst_s
        self._left = rate * burst_s
        self._at_s = now_s

    def follow(self, rate: float, now_s: float) -> None:
        """Go by another rate from now on: what was saved up is cut to it, what is owed is paid back at it."""
        if rate != self._rate:
            self._fill(now_s)
            self._rate = rate
            self._left = self._bounded(self._left)

    def take(self, amount: float, now_s: float) -> None:
        """Take so much, whatever is left."""
        self._fill(now_s)
        self._left = self._bounded(self._left - amount)

    def left(self, now_s: float) -> float:
        """Return how much may be taken now; below 0: how much is owed."""
        self._fill(now_s)
        return self._left

    def wait_ms(self, now_s: float) -> int:
        """Return how long it takes until nothing is owed."""
        self._fill(now_s)
        return 0 if self._left >= 0.0 else math.ceil(-self._left * 1_000 / self._rate)

    def is_full(self, now_s: float) -> bool:
        """Return whether it is as a new one would be."""
        self._fill(now_s)
        return self._left >= self._rate * self._burst_s

    @property
    def capacity(self) -> float:
        """Return how much can be saved up."""
        return self._rate * self._burst_s

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._left = self._bounded(self._left + (now_s - self._at_s) * self._rate)
            self._at_s = now_s

    def _bounded(self, left: float) -> float:
        return max(-DEBT_S_MAX * self._rate, min(self._rate * self._burst_s, left))


class Buckets:
    """The buckets of all who were seen lately (INV-SQB3)."""

    __slots__ = ("_burst_s", "_by_sharers", "_count_max")

    def __init__(self, burst_s: dict[QuotaKey, float], count_max: int = BUCKETS_MAX) -> None:
        """Keep none yet."""
        self._burst_s = burst_s
        self._count_max = count_max
        self._by_sharers: OrderedDict[Sharers, Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._by_sharers)

    def of(self, limit: Limit, now_s: float) -> Bucket:
        """Return the bucket of a limit, which goes by its present rate."""
        bucket = self._by_sharers.get(limit.sharers)
        if bucket is None:
            self._forget(now_s)
            bucket = Bucket(limit.rate, self._burst_s[limit.sharers[0]], now_s)
            self._by_sharers[limit.sharers] = bucket
            return bucket
        self._by_sharers.move_to_end(limit.sharers)
        bucket.follow(limit.rate, now_s)
        return bucket

    def _forget(self, now_s: float) -> None:
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._by_sharers), None)
            if oldest is None:
                return
            if len(self._by_sharers) < self._count_max and not self._by_sharers[oldest].is_full(
                now_s
            ):
                return
            del self._by_sharers[oldest]

    def owing(self, now_s: float) -> dict[QuotaKey, int]:
        """Return how many owe something, by limit."""
        counts = dict.fromkeys(QuotaKey, 0)
        for (key, _, _), bucket in self._by_sharers.items():
            counts[key] += bucket.wait_ms(now_s) > 0
        return counts

    def clear(self) -> None:
        """Forget all."""
        self._by_sharers.clear()
