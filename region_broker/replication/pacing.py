"""How fast a follower that is not in sync is sent what it lacks: so that clients of the node that leads hardly notice.

INV-RPA1  who is in sync is never held up by this, whatever an operator allows (KIP-73): `applies` is asked before anything else
INV-RPA2  at most `window_bytes` are on their way to a follower and not durable there: its disk is kept as busy as it can bear, and no
          more. What is not reported within `OVERDUE_MS` counts no longer: a log may have stopped there
INV-RPA3  an answer that took this node some time, whoever else it served meanwhile, is followed by a pause some times as long: the busier
          a node is, the slower it copies
INV-RPA4  who is sent less than twice of what is written meanwhile is given more room, step by step, until nothing is held back: a copy
          that is not nearer to its end than before would never be in sync
INV-RPA5  over time no more is sent than an operator allows: all followers together by `sent_bytes_per_s` of the leader, each by
          the `taken_bytes_per_s` that it tells. Rates that have changed count at once, also for what was sent before

Whoever copies a whole node is in no hurry; whoever was away for a moment has little to copy, and is not paced noticeably.
Source: KIP-73 for the rates and for whom they count. The pauses are ours: Kafka sends as fast as it can where no rate is set.
Not here: what is sent (`region.cluster.replica_sending`), who is in sync (`leading`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from idempotency.identity import LogKey
from region_broker.limits import CATCH_UP_BYTES_PER_S_MAX

KIB: Final = 1024
ANSWER_BYTES: Final = 256 * KIB
"""A node reads, checks and sends it in less than a millisecond."""
WINDOW_BYTES: Final = 4 * ANSWER_BYTES
STEPS_MAX: Final = 4
"""With so many steps of more room an answer has 4 MiB, and nothing is waited for but 16 MiB that are not durable."""
OVERDUE_MS: Final = 2_000
PAUSE_MS_MAX: Final = 20
"""However busy this node is, some 8 MB/s go on."""
PERIOD_MS: Final = 2_000


@dataclass(slots=True)
class CatchUpRates:
    """What an operator allows one node, in bytes per second: to send as a leader, to be sent as a follower."""

    sent_bytes_per_s: int = CATCH_UP_BYTES_PER_S_MAX
    taken_bytes_per_s: int = CATCH_UP_BYTES_PER_S_MAX


class Allowance:
    """What was sent, against a rate: nothing may be sent while more was than is due (INV-RPA5)."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._debt_bytes = 0.0
        self._as_of_ms = 0

    def wait_ms(self, bytes_per_s: int, now_ms: int) -> int:
        """Return how long to wait at this rate, in whole ms; 0: something may be sent now, however much."""
        paid = (now_ms - self._as_of_ms) * bytes_per_s / 1000
        self._debt_bytes = max(0.0, self._debt_bytes - paid)
        self._as_of_ms = now_ms
        return int(1000 * self._debt_bytes / bytes_per_s)

    def take(self, size_bytes: int) -> None:
        """Note that so much was sent, after `wait_ms` of the same moment."""
        self._debt_bytes += size_bytes


@dataclass(slots=True)
class _Answer:
    ends: dict[LogKey, int]
    size_bytes: int
    sent_ms: int


@dataclass(slots=True)
class _Period:
    """What was sent since a moment; `total_bytes`: of all logs at that moment."""

    from_ms: int
    total_bytes: int
    sent_bytes: int = 0


@dataclass(slots=True)
class CatchUpPace:
    """Of one session of a follower. `node`: what all of this node's followers share; `applies`: whether this one is not in sync now."""

    rates: CatchUpRates
    node: Allowance
    applies: Callable[[], bool]
    taken_bytes_per_s: int = CATCH_UP_BYTES_PER_S_MAX
    """As the follower has said last."""
    steps: int = 0
    """How much more room there is than at first (INV-RPA4)."""
    sent_bytes_per_s: float | None = None
    """How much it was sent in the last period, for people; None before one has ended."""
    _own: Allowance = field(default_factory=Allowance)
    _under_way: deque[_Answer] = field(default_factory=deque)
    _under_way_bytes: int = 0
    _not_before_ms: int = 0
    _period: _Period | None = None

    @property
    def answer_bytes(self) -> int:
        """Return how much an answer may have, and its last batch."""
        return ANSWER_BYTES << self.steps

    @property
    def window_bytes(self) -> int:
        """Return how much may be on its way (INV-RPA2)."""
        return WINDOW_BYTES << self.steps

    def wait_ms(self, now_ms: int) -> int:
        """Return how long the next answer is to wait, unless something is reported before that; 0: it may go."""
        self._forget_overdue(now_ms)
        waits = [
            self._not_before_ms - now_ms,
            self.node.wait_ms(self.rates.sent_bytes_per_s, now_ms),
            self._own.wait_ms(self.taken_bytes_per_s, now_ms),
        ]
        if self._under_way_bytes >= self.window_bytes:
            waits.append(self._under_way[0].sent_ms + OVERDUE_MS - now_ms)
        return max(0, *waits)

    def sent(
        self, ends: Mapping[LogKey, int], size_bytes: int, *, took_ms: int, now_ms: int, total_bytes: Callable[[], int]
    ) -> None:  # fmt: skip
        """Note an answer: how far it leads in each log, and how long this node took for it.

        `total_bytes`: of all logs that are copied; asked now and then, as it costs a look at each.
        """
        self._not_before_ms = now_ms + min(PAUSE_MS_MAX, took_ms * (STEPS_MAX - self.steps))
        if size_bytes:
            self._under_way.append(_Answer(dict(ends), size_bytes, now_ms))
            self._under_way_bytes += size_bytes
            self.node.take(size_bytes)
            self._own.take(size_bytes)
        period = self._period
        if period is None:
            period = self._period = _Period(now_ms, total_bytes())
        period.sent_bytes += size_bytes
        if now_ms - period.from_ms >= PERIOD_MS:
            self._period_ended(period, now_ms, total_bytes())

    def _period_ended(self, period: _Period, now_ms: int, total_bytes: int) -> None:
        written = max(0, total_bytes - period.total_bytes)
        if period.sent_bytes < 2 * written:
            self.steps = min(STEPS_MAX, self.steps + 1)
        elif period.sent_bytes > 4 * written:
            self.steps = max(0, self.steps - 1)
        self.sent_bytes_per_s = 1000 * period.sent_bytes / (now_ms - period.from_ms)
        self._period = _Period(now_ms, total_bytes)

    def durable(self, ends: Mapping[LogKey, int]) -> None:
        """Note how far logs are durable at the follower."""
        for answer in self._under_way:
            for key in answer.ends.keys() & ends.keys():
                if answer.ends[key] <= ends[key]:
                    del answer.ends[key]
        self._drop_done()

    def forget(self, key: LogKey) -> None:
        """Note that a log is copied no more: nothing of it will be reported."""
        for answer in self._under_way:
            answer.ends.pop(key, None)
        self._drop_done()

    def _drop_done(self) -> None:
        while self._under_way and not self._under_way[0].ends:
            self._under_way_bytes -= self._under_way.popleft().size_bytes

    def _forget_overdue(self, now_ms: int) -> None:
        while self._under_way and now_ms - self._under_way[0].sent_ms >= OVERDUE_MS:
            self._under_way_bytes -= self._under_way.popleft().size_bytes
