"""How far one follower is in all logs of a group, kept so that a report costs what has moved.

INV-RPP1  within a session what a follower has durably only grows, and what it said in another session counts for nothing; nor does
          what it said of a log that has stopped there since
INV-RPP2  a follower is caught up as of a moment once it has, in all logs, what was durable at the leader at that moment

INV-RPP3  a step costs the logs that it names, and those of a mark that was reached: not those that the follower was behind in, or late with,
          before

The moment (Kafka's `lastCaughtUpTimeMs`, for a whole group): while nothing is missing it is now. Else there is a *mark*: the ends, at
some moment, of the logs in which the follower was behind then. Once all of them are reached it was caught up as of that moment,
and the next mark is set. Each entry of a mark is paid for by the report that reaches it.

It is measured against what is durable at the leader, not against its log end: a leader whose own disk is slow blames nobody.
A log start that the leader has and the follower has not is another thing that it may be late with.
Not here: what follows from it (`leading`).
"""

from collections import OrderedDict
from collections.abc import Container, Mapping

from idempotency.identity import LogKey, Member
from region_broker.replication.events import LogOpened
from region_broker.replication.facts import FollowerStanding


class LeaderLogState:
    """One log at its leader."""

    __slots__ = (
        "durable_end", "epoch_start_offset", "high_watermark", "log_start_offset", "low_watermark", "min_in_sync", "older_end",
    )  # fmt: skip

    def __init__(self, opened: LogOpened) -> None:
        """Begin as it was opened."""
        self.durable_end = opened.durable_end
        self.epoch_start_offset = self.older_end = opened.epoch_start_offset
        self.high_watermark = opened.high_watermark
        self.min_in_sync = opened.min_in_sync
        self.log_start_offset = opened.log_start_offset
        self.low_watermark = opened.low_watermark
        """The least log start of all that may lead next, as far as is known."""

    @property
    def joins_at(self) -> int:
        """What a member must have durably to be taken into the in-sync set (R3)."""
        return max(self.high_watermark, self.epoch_start_offset)


Logs = Mapping[LogKey, LeaderLogState]


class FollowerProgress:
    """One member other than the leader, from its first session, or its place in the in-sync set, on."""

    __slots__ = (
        "_behind", "_former_ends", "_lacking", "_late_starts", "_mark", "_mark_ms", "_short", "_tells_starts", "caught_up_ms", "durable_ends",
        "has_reported", "is_lost", "log_starts", "lost_ms", "member", "session", "went_back",
    )  # fmt: skip

    def __init__(self, member: Member, caught_up_ms: int | None) -> None:
        """`caught_up_ms`: None for one that has nothing yet."""
        self.member = member
        self.session: int | None = None
        self.is_lost = False
        """Its last session has ended."""
        self.lost_ms = 0
        """When it did."""
        self.has_reported = False
        """Something was heard in this session."""
        self.went_back = False
        """It has less than it said, while it was counted: it is to leave, and may come in again from outside."""
        self.caught_up_ms = caught_up_ms
        self.durable_ends: dict[LogKey, int] = {}
        """What it has, of this session; a log that is not in here may be empty there, or not be there."""
        self.log_starts: dict[LogKey, int] = {}
        """Where its logs start, of this session; 0 for a log that is not in here."""
        self._tells_starts = True
        """False of a version that does not tell."""
        self._late_starts: OrderedDict[LogKey, int] = OrderedDict()
        """The logs that start below the leader's log start there, and since when that is so, the oldest first.

        It is asked for its first one in every step: a dict walks over all that was taken from its front."""
        self._lacking: frozenset[LogKey] = frozenset()
        """The logs that have stopped there, or did not open, as it said in this session."""
        self._former_ends: dict[LogKey, int] = {}
        self._behind: set[LogKey] = set()
        self._short: set[LogKey] = set()
        self._mark: dict[LogKey, int] = {}
        self._mark_ms = 0

    # -- sessions --------------------------------------------------------------------------------

    def begin(self, session: int, logs: Logs, now_ms: int) -> None:
        """Begin a session: nothing counts until it is reported again (INV-RPP1)."""
        self.session = session
        self.is_lost = self.has_reported = False
        self._former_ends, self.durable_ends = self.durable_ends, {}
        self.log_starts, self._tells_starts, self._lacking = {}, True, frozenset()
        self._late_starts = OrderedDict(
            (key, now_ms) for key, log in logs.items() if log.log_start_offset > 0
        )
        self._behind = {key for key, log in logs.items() if log.durable_end > 0}
        self._short = {key for key, log in logs.items() if log.joins_at > 0}
        self._set_mark(logs, now_ms)

    def end(self, now_ms: int) -> None:
        """End the session. What was durable there still is, and holds the high watermark back no more than before."""
        self.is_lost, self.lost_ms = True, now_ms

    # -- what moves ------------------------------------------------------------------------------

    def report(
        self, durable_ends: Mapping[LogKey, int], logs: Logs, now_ms: int
    ) -> tuple[list[LogKey], list[LogKey]]:
        """Take a report in; return the logs that have moved, and those in which it has less than in its last session."""
        self.has_reported = True
        moved: list[LogKey] = []
        fewer: list[LogKey] = []
        for key, durable_end in durable_ends.items():
            log = logs.get(key)
            if log is None:
                continue
            if self._former_ends and durable_end < self._former_ends.pop(key, 0):
                fewer.append(key)
            if durable_end <= self.durable_ends.get(key, 0):
                continue
            self.durable_ends[key] = durable_end
            moved.append(key)
            if durable_end >= log.durable_end:
                self._behind.discard(key)
            if durable_end >= log.joins_at:
                self._short.discard(key)
            if durable_end >= self._mark.get(key, durable_end + 1):
                del self._mark[key]
        self._look_at_mark(logs, now_ms)
        return moved, fewer

    def lack(self, keys: frozenset[LogKey], logs: Logs, now_ms: int) -> None:
        """Take in which logs do not run there: what it had of them counts for nothing."""
        self._lacking = keys
        was_level = not self._behind
        for key in keys:
            self.forget(key)
            log = logs.get(key)
            if log is None:
                continue
            if log.durable_end > 0:
                self._behind.add(key)
            if log.joins_at > 0:
                self._short.add(key)
            self.start_moved(key, log, now_ms)
        if was_level and self._behind:
            self.caught_up_ms = now_ms
            self._set_mark(logs, now_ms)

    def lacks(self, keys: Container[LogKey]) -> bool:
        """Return whether one of these logs has stopped there: looks at those that have, which are few, not at `keys`, which may be all."""
        return any(key in keys for key in self._lacking)

    def report_starts(self, log_starts: Mapping[LogKey, int] | None, logs: Logs) -> list[LogKey]:
        """Take in where logs start there; return those in which that has moved."""
        if log_starts is None:
            moved = list(self._late_starts) if self._tells_starts else []
            self._tells_starts, self._late_starts = False, OrderedDict()
            return moved
        moved = []
        for key, start in log_starts.items():
            log = logs.get(key)
            if log is None or start <= self.log_starts.get(key, 0):
                continue
            self.log_starts[key] = start
            moved.append(key)
            if start >= log.log_start_offset:
                self._late_starts.pop(key, None)
        return moved

    def _look_at_mark(self, logs: Logs, now_ms: int) -> None:
        if not self._behind:
            self.caught_up_ms = now_ms
            self._mark = {}
        elif not self._mark:
            self.caught_up_ms = self._mark_ms
            self._set_mark(logs, now_ms)

    def _set_mark(self, logs: Logs, now_ms: int) -> None:
        # Walking through a set costs the most that it ever held: all logs, as a session begins. A copy has room for what is left.
        self._behind = set(self._behind)
        self._mark = {key: logs[key].durable_end for key in self._behind}
        self._mark_ms = now_ms

    def leader_moved(self, keys: list[LogKey], logs: Logs, now_ms: int) -> None:
        """Note that more is durable at the leader, or that these logs were opened."""
        if self.session is None:
            return
        was_level = not self._behind
        ends = self.durable_ends
        self._behind.update(key for key in keys if ends.get(key, 0) < logs[key].durable_end)
        if was_level and self._behind:
            self.caught_up_ms = now_ms
            self._set_mark(logs, now_ms)

    def threshold_moved(self, key: LogKey, log: LeaderLogState) -> None:
        """Note that a member must have more of this log now to be taken in."""
        if self.session is not None and self.durable_ends.get(key, 0) < log.joins_at:
            self._short.add(key)

    def start_moved(self, key: LogKey, log: LeaderLogState, now_ms: int) -> None:
        """Note that a log starts at the leader where it may not start here yet."""
        if (
            self.session is not None
            and self.start_of(key, log.log_start_offset) < log.log_start_offset
        ):
            self._late_starts.setdefault(key, now_ms)

    def forget(self, key: LogKey) -> None:
        """Forget a log that is closed."""
        self.log_starts.pop(key, None)
        self._late_starts.pop(key, None)
        self.durable_ends.pop(key, None)
        self._former_ends.pop(key, None)
        self._behind.discard(key)
        self._short.discard(key)
        self._mark.pop(key, None)

    # -- what is known ---------------------------------------------------------------------------

    def start_of(self, key: LogKey, at_most: int) -> int:
        """Return where a log starts there, `at_most` if it starts further or if its version does not tell."""
        return min(self.log_starts.get(key, 0), at_most) if self._tells_starts else at_most

    @property
    def is_heard(self) -> bool:
        """Whether it has said something in a session that goes on."""
        return self.has_reported and not self.is_lost

    def standing(self, logs: Logs, now_ms: int) -> FollowerStanding:
        """Return how far it is, for people."""
        ends = self.durable_ends
        records = sum(logs[key].durable_end - ends.get(key, 0) for key in self._behind)
        if self.is_heard and not self._behind:
            return FollowerStanding(True, 0, 0, 0, len(self._lacking))
        behind_ms = None if self.caught_up_ms is None else now_ms - self.caught_up_ms
        return FollowerStanding(
            self.is_heard, len(self._behind), records, behind_ms, len(self._lacking)
        )

    def lacked(self, logs: Logs) -> dict[LogKey, int]:
        """Return how many records it lacks, by log, for people."""
        ends = self.durable_ends
        return {key: logs[key].durable_end - ends.get(key, 0) for key in self._behind}

    @property
    def has_enough(self) -> bool:
        """Whether it has what R3 asks for, in all logs, and their log starts, and has said so in this session."""
        return self.is_heard and not self._short and not self._late_starts

    def lags(self, now_ms: int, lag_ms_max: int) -> bool:
        """Return whether the moment as of which it is caught up is too long ago, or a log start is due for so long."""
        if now_ms - next(iter(self._late_starts.values()), now_ms) > lag_ms_max:
            return True
        if self.is_heard and not self._behind:
            return False
        return self.caught_up_ms is None or now_ms - self.caught_up_ms > lag_ms_max
