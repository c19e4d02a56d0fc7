"""What one request uses of its client's limits, and for how long the client is to be quiet after it.

INV-SQT1  a request is charged once for each limit, whatever way it takes through the node
INV-SQT2  the time told is how long it takes until what is owed is paid back, never more than the most of its kind; it is the longest of
          all limits, not their sum
INV-SQT3  bytes that another node forwarded were charged there; here a forwarded request is charged for what it changes in the metadata, and
          for the time of this node's loop
Bytes of Produce are those of the whole request, of Fetch those of the whole answer, as in Kafka. Request time is time on the event
loop, in percent of it: 100 is one whole loop. Controller mutations are partitions made, added or deleted (KIP-599).
Not here: where the time is measured (the dispatcher), what becomes of the socket (`wire.server`).
"""

from collections.abc import Callable, Mapping
from typing import Final

from region_broker.security.access import QuotaEntity
from region_broker.security.quotas.buckets import Buckets
from region_broker.security.quotas.entities import NAME_LENGTH_MAX, Limits, QuotaKey

BURST_S: Final[dict[QuotaKey, float]] = {
    QuotaKey.PRODUCE: 1.0,
    QuotaKey.FETCH: 1.0,
    QuotaKey.REQUEST: 1.0,
    QuotaKey.MUTATION: 11.0,  # controller.quota.window.num * controller.quota.window.size.seconds
    QuotaKey.CONNECTION: 2.0,
}
WAIT_MS_MAX: Final[dict[QuotaKey, int]] = {
    QuotaKey.PRODUCE: 30_000,
    QuotaKey.FETCH: 30_000,
    QuotaKey.REQUEST: 1_000,  # quota.window.size.seconds, as in ClientRequestQuotaManager
    QuotaKey.MUTATION: 30_000,
}
"""Clients give an answer up after 30 s at the least; what is owed beyond is told after the next request."""
_PERCENT: Final = 100.0


class Throttles:
    """The quotas of a node; one for its life, so that what is owed outlives a change of quotas."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Limit nobody yet; `now_s` is a clock that never goes back."""
        self._now_s = now_s
        self.buckets = Buckets(BURST_S)
        self.limits = Limits({})
        self.waited_ms: dict[QuotaKey, int] = dict.fromkeys(WAIT_MS_MAX, 0)
        self.waits: dict[QuotaKey, int] = dict.fromkeys(WAIT_MS_MAX, 0)

    def take(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Go by these quotas from now on."""
        self.limits = Limits(quotas)
        if not self.limits.has_clients:
            self.buckets.clear()

    def meter(self, user: str, client_id: str | None, *, is_forwarded: bool) -> "Meter":
        """Return what one request of a client is charged by."""
        # A name that is longer than any that a quota may name is one of no quota: what is kept of it is cut (INV-SQB3).
        known = (client_id or "")[: NAME_LENGTH_MAX + 1]
        return Meter(self, user, known, is_forwarded=is_forwarded)

    def owing(self) -> dict[QuotaKey, int]:
        """Return how many entities are beyond their limits now."""
        return self.buckets.owing(self._now_s())

    def left(self, key: QuotaKey, user: str, client_id: str) -> tuple[float, float] | None:
        """Return what a client has left, and the most it can have; None: it has no such limit."""
        limit = self.limits.of(key, user, client_id)
        if limit is None:
            return None
        now_s = self._now_s()
        bucket = self.buckets.of(limit, now_s)
        return bucket.left(now_s), bucket.capacity

    def charge(self, key: QuotaKey, user: str, client_id: str, amount: float) -> int:
        """Take so much of a client's limit; return for how many ms it is to be quiet (INV-SQT2)."""
        limit = self.limits.of(key, user, client_id)
        if limit is None:
            return 0
        now_s = self._now_s()
        bucket = self.buckets.of(limit, now_s)
        bucket.take(amount, now_s)
        return min(bucket.wait_ms(now_s), WAIT_MS_MAX[key])

    def count(self, key: QuotaKey, wait_ms: int) -> None:
        """Count a client that was told to wait."""
        self.waits[key] += 1
        self.waited_ms[key] += wait_ms


class Meter:
    """What one request is charged by. `start` and `stop` say when the loop works for it."""

    __slots__ = (
        "_client_id", "_is_forwarded", "_is_over", "_since_s", "_spent_s", "_throttles", "_user", "_waits_ms",
    )  # fmt: skip

    def __init__(
        self, throttles: Throttles, user: str, client_id: str, *, is_forwarded: bool
    ) -> None:
        """Charge nothing yet."""
        self._throttles = throttles
        self._user = user
        self._client_id = client_id
        self._is_forwarded = is_forwarded
        self._is_over = False
        self._since_s: float | None = None
        self._spent_s = 0.0
        self._waits_ms: dict[QuotaKey, int] = {}

    def start(self, now_s: float) -> None:
        """The loop begins to work for this request."""
        self._since_s = now_s

    def stop(self, now_s: float) -> None:
        """It works for others; calling it again does nothing."""
        if self._since_s is not None:
            self._spent_s += now_s - self._since_s
            self._since_s = None

    def produced(self, request_bytes: int) -> int:
        """Charge a Produce; return for how many ms its connection is to be left unread at once."""
        return self._charge(QuotaKey.PRODUCE, request_bytes)

    def fetch_room(self, bytes_max: int) -> int:
        """Return how many bytes a Fetch may read: what can be saved up at the most, nothing while something is owed."""
        if self._is_forwarded:
            return bytes_max
        found = self._throttles.left(QuotaKey.FETCH, self._user, self._client_id)
        if found is None:
            return bytes_max
        left, capacity = found
        self._is_over = left < 0.0
        return 0 if self._is_over else min(bytes_max, max(1, int(capacity)))

    @property
    def is_over(self) -> bool:
        """Return whether a Fetch may read nothing now."""
        return self._is_over

    def fetched(self, answer_bytes: int) -> None:
        """Charge a Fetch; one that was given nothing waits, and is not charged, as in Kafka."""
        self._charge(QuotaKey.FETCH, 0 if self._is_over else answer_bytes)

    def mutate(self, partition_count: int, *, strict: bool) -> bool:
        """Charge a change of the metadata; return whether it may be made.

        `strict`: none may while something is owed (KIP-599); else all may, and the client is told to wait.
        """
        key = QuotaKey.MUTATION
        found = self._throttles.left(key, self._user, self._client_id)
        if found is None:
            return True
        if not strict:
            self._charge(key, partition_count, forwarded_too=True)
            return True
        if found[0] < 0.0:
            self._charge(key, 0, forwarded_too=True)
            return False
        self._throttles.charge(key, self._user, self._client_id, partition_count)
        return True

    def settle(self, now_s: float) -> int:
        """Charge the time that the loop has worked; return for how many ms the client is to be quiet (INV-SQT2)."""
        self.stop(now_s)
        self._charge(QuotaKey.REQUEST, self._spent_s * _PERCENT, forwarded_too=True)
        self._spent_s = 0.0
        if not self._waits_ms:
            return 0
        key, wait_ms = max(self._waits_ms.items(), key=lambda pair: pair[1])
        self._throttles.count(key, wait_ms)
        return wait_ms

    def _charge(self, key: QuotaKey, amount: float, *, forwarded_too: bool = False) -> int:
        if self._is_forwarded and not forwarded_too:
            return 0
        wait_ms = self._throttles.charge(key, self._user, self._client_id, amount)
        if wait_ms:
            self._waits_ms[key] = wait_ms
        return wait_ms
