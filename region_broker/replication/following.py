"""A follower of a replica group: it compares its logs with the leader's, cuts what parts from them, copies, and says what is durable.

INV-RPF1  nothing of a log is copied or reported in a session before its history was compared with the leader's in that session,
          by leader epochs, until the two meet (R5; KIP-101, KIP-279, KIP-320)
INV-RPF2  a log is never cut below its HW: where the histories part below it the log stops, loudly
INV-RPF3  what comes of another session than the present one changes nothing; a session belongs to one leader epoch (R4)
INV-RPF4  what is reported is durable here, of the log as it is after it was cut (R8)
INV-RPF5  a leader epoch that is not newer than the one followed changes nothing (R4)
INV-RPF6  at most `FETCHES_IN_FLIGHT` fetches are under way, and `URGENT_FETCHES_MAX` where logs are new; answers are taken in their order.
          One is always under way; while what came is little, and not durable here yet, the others wait, to go with the report of that
INV-RPF7  HW of a log here is at most what is durable here, and never goes down, but with a log that is given up (INV-RPF10)
INV-RPF8  a log start is reported once it is durable here, and as what a start that the leader said in this session came to, never as
          it was before: this log may start above the leader's, and go back there
          1. B alone has an order up to 6 of a leader that is lost. 2. A leads, and starts at 0. 3. B says 6, goes back to 0, as A has
          told it, and A answers an order up to 4. 4. A is lost, and B leads with records that were deleted.
INV-RPF9  which logs have stopped here, or did not open, is said in a session before, or with, the first report of it, and whenever
          that changes

INV-RPF10 a log that lacks tombstones, or markers, that the leader's has no more is given up, and copied whole: what they deleted would come back,
          what they aborted would count as committed by the next marker of its producer, or stay open for good. That is so where the
          leader has dropped one above this log's end, unless all of this log was copied since, under the same leader epoch
          1. This node is away with `K` at 100. 2. A tombstone for it at 500 is committed, and cleaned away a day later. 3. This node returns with
          its end at 440, is sent what follows 500, and is in sync. 4. It leads: `K` is there again, for good.
          Who is in sync is never told (`LeaderLog.drops`), and need not be: it has all that is committed, and nothing else is cleaned. While
          it copies below, its leader drops no more (INV-CLN7): so it comes to the end however often the log is cleaned, and a session
          that ends costs it nothing but where something was dropped before the next one

A log goes: *asked* about its history, perhaps several times; *copied*; or *absent*, where the leader does not have it yet and is asked
again later; or *stopped*, until a session begins with it again. So a log that is made, or is new to the leader, holds up no other.

A folder that was emptied is another member, and its logs begin at nothing: they are copied whole, and the leader takes the member in
when R3 allows it. One that was wound back is shorter, and is copied on. Nobody votes for oneself: there is no such effect.
Not here: who leads (`controller.cluster`), how the leader takes reports (`leading`), bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey, Member
from region_broker.replication.effects import (
    AppendSlices,
    CheckEpochs,
    Connect,
    CutLog,
    Disconnect,
    DivergedBelowHighWatermark,
    FollowerEffect,
    HighWatermark,
    LogStart,
    SendFetch,
    SendReport,
    StartAt,
)
from region_broker.replication.events import (
    Connected,
    ConnectionBroken,
    EpochsChecked,
    Fetched,
    FollowerEvent,
    FollowLeader,
    LeaderLog,
    LocalLog,
    LogAdded,
    LogRemoved,
    LogsDurable,
    LogsLacking,
    LogsStartAt,
    Slice,
    Ticked,
)
from region_broker.replication.facts import (
    AskAgain,
    Drops,
    LogHistory,
    MeetAt,
    compare,
    first_asked,
    trusted,
)

FETCHES_IN_FLIGHT: Final = 2
URGENT_FETCHES_MAX: Final = 8
HELD_BYTES_MAX: Final = 64 * 1024
"""What is little: the leader has another fetch to answer, and fills it as fast as this is synced."""
BACKOFF_MS_MIN: Final = 50
BACKOFF_MS_MAX: Final = 2_000
ASK_AGAIN_MS: Final = 500
"""When a log that the leader did not have is asked for again."""


class Stage(Enum):
    """Where a log is in its session."""

    ASKED = auto()
    ABSENT = auto()
    COPIED = auto()
    STOPPED = auto()


@dataclass(slots=True)
class _Log:
    history: LogHistory | None
    """Until it was compared."""
    asked: LeaderEpoch
    position: int
    durable_end: int
    high_watermark: int
    leaders_high_watermark: int
    log_start_offset: int
    """What the leader has said of it in this session, -1 before that: it may lie below this log's, where an order is void (T14)."""
    cleaned_below: int
    told_start: int = 0
    """What the leader was told of where this log starts, in this session."""
    stage: Stage = Stage.ASKED

    @classmethod
    def found(cls, log: LocalLog) -> "_Log":
        history = log.history
        # Only what was committed is deleted, so that it parts below HW if it parts below its start (INV-RPH3, INV-RPF2).
        high_watermark = max(log.high_watermark, history.log_start_offset)
        assert high_watermark <= log.durable_end <= history.end_offset, log
        return cls(
            history,
            first_asked(history),
            position=history.end_offset,
            durable_end=log.durable_end,
            high_watermark=high_watermark,
            leaders_high_watermark=high_watermark,
            log_start_offset=-1,
            cleaned_below=log.cleaned_below,
        )

    def compared(self, history: LogHistory, answer: LeaderLog) -> MeetAt | AskAgain:
        """Return what comes of the leader's answer about this log, whose history is not compared yet."""
        found = compare(history, self.asked, answer.epoch_end)
        if isinstance(found, AskAgain):
            return found
        committed = max(self.high_watermark, self.cleaned_below)
        return MeetAt(trusted(found.offset, answer.epoch_end, answer.held_to, committed))


class FollowingCore:
    """One member as a follower of one group, for as long as the process runs."""

    def __init__(self) -> None:
        """Follow nobody yet."""
        self._leader_epoch = NO_LEADER_EPOCH
        self._leader: Member | None = None
        self._session = 0
        self._is_connected = False
        self._retry_at_ms: int | None = None
        self._ask_absent_at_ms: int | None = None
        self._backoff_ms = BACKOFF_MS_MIN
        self._logs: dict[LogKey, _Log] = {}
        self._begun: dict[LogKey, int] = {}
        """The logs that were empty when they were compared, or were given up: how often the leader had dropped something by then."""
        self._in_flight = 0
        self._unsynced: set[LogKey] = set()
        """The logs of which little was written here that is not durable yet."""
        self._lacking: frozenset[LogKey] = frozenset()
        # What the next fetch says.
        self._added: dict[LogKey, int] = {}
        self._forgotten: list[LogKey] = []
        self._to_report: dict[LogKey, int] = {}
        self._starts_to_report: dict[LogKey, int] = {}
        self._tells_lacking = False
        self._effects: list[FollowerEffect] = []

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Return the newest leader epoch that this member was told of: nothing of an older one is taken."""
        return self._leader_epoch

    @property
    def waits_for_time(self) -> bool:
        """Return whether a `Ticked` will do something, sooner or later: else nobody need tell of the time."""
        return self._retry_at_ms is not None or self._ask_absent_at_ms is not None

    def stage(self, key: LogKey) -> Stage | None:
        """Return where a log is; None for one that is not in the session."""
        log = self._logs.get(key)
        return None if log is None else log.stage

    def step(self, event: FollowerEvent, now_ms: int) -> list[FollowerEffect]:
        """Take one event; the effects are to be carried out in their order."""
        match event:
            case LogsDurable(durable_ends):
                self._durable(durable_ends)
            case FollowLeader():
                self._follow(event)
            case LogsStartAt(log_starts):
                self._start_at(log_starts)
            case LogAdded() | LogRemoved() | LogsLacking():
                self._log_event(event)
            case Ticked():
                self._ticked(now_ms)
            case Connected() | EpochsChecked() | Fetched() | ConnectionBroken():
                if event.session == self._session and self._leader and self._retry_at_ms is None:
                    self._session_event(event, now_ms)  # INV-RPF3
            case _:
                assert_never(event)
        self._send()
        effects, self._effects = self._effects, []
        return effects

    def _log_event(self, event: LogAdded | LogRemoved | LogsLacking) -> None:
        match event:
            case LogsLacking(keys):
                self._tells_lacking |= self._is_connected and keys != self._lacking
                self._lacking = keys
            case LogAdded(key, log):
                if self._is_connected:
                    self._ask({key: _Log.found(log)})
            case LogRemoved(key):
                self._remove(key)
            case _:
                assert_never(event)

    # -- sessions --------------------------------------------------------------------------------

    def _session_event(
        self, event: Connected | EpochsChecked | Fetched | ConnectionBroken, now_ms: int
    ) -> None:
        match event:
            case Connected(_, logs):
                assert not self._is_connected, event
                self._is_connected = True
                self._tells_lacking = bool(self._lacking)
                self._ask({key: _Log.found(log) for key, log in logs.items()})
            case EpochsChecked(_, answers):
                self._checked(answers, now_ms)
            case Fetched(_, slices):
                self._fetched(slices, now_ms)
            case ConnectionBroken():
                self._pause(now_ms)
            case _:
                assert_never(event)

    def _follow(self, event: FollowLeader) -> None:
        if event.leader_epoch <= self._leader_epoch:
            return  # INV-RPF5
        if self._leader is not None and self._retry_at_ms is None:
            self._effects.append(Disconnect(self._session))
        self._leader_epoch, self._leader = event.leader_epoch, event.leader
        self._backoff_ms = BACKOFF_MS_MIN
        self._begun.clear()
        self._forget_session()
        self._connect()

    def _connect(self) -> None:
        self._session += 1
        self._retry_at_ms = None
        if self._leader is not None:
            self._effects.append(Connect(self._session, self._leader, self._leader_epoch))

    def _forget_session(self) -> None:
        self._is_connected = False
        self._ask_absent_at_ms = None
        self._in_flight = 0
        self._unsynced.clear()
        self._logs.clear()
        self._added.clear()
        self._forgotten.clear()
        self._to_report.clear()
        self._starts_to_report.clear()
        self._tells_lacking = False

    def _pause(self, now_ms: int) -> None:
        self._forget_session()
        self._retry_at_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MS_MAX)

    def _ticked(self, now_ms: int) -> None:
        if self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            self._connect()
        if self._ask_absent_at_ms is not None and now_ms >= self._ask_absent_at_ms:
            self._ask_absent_at_ms = None
            self._ask({key: log for key, log in self._logs.items() if log.stage is Stage.ABSENT})

    # -- comparing -------------------------------------------------------------------------------

    def _ask(self, logs: Mapping[LogKey, _Log]) -> None:
        for key, log in logs.items():
            log.stage = Stage.ASKED
            self._logs[key] = log
        if logs:
            asked = {key: log.asked for key, log in logs.items()}
            self._effects.append(CheckEpochs(self._session, asked))

    def cuts_by(self, answers: Mapping[LogKey, LeaderLog | None]) -> dict[LogKey, int]:
        """Return which logs these answers will have cut, and where, for who may prepare it; nothing is decided by it."""
        return {
            key: meets_at
            for key, log, answer, meets_at in self._meeting(answers)
            if not self._lacks(key, meets_at, answer.drops)
            and log.high_watermark <= meets_at < log.position
        }

    def anew_by(self, answers: Mapping[LogKey, LeaderLog | None]) -> list[LogKey]:
        """Return which logs these answers will have begun anew: each takes syncs of its own; nothing is decided by it."""
        return [
            key
            for key, log, answer, meets_at in self._meeting(answers)
            if log.history is not None
            and log.history.epochs
            and (meets_at < answer.log_start_offset or self._lacks(key, meets_at, answer.drops))
        ]

    def _meeting(
        self, answers: Mapping[LogKey, LeaderLog | None]
    ) -> Iterator[tuple[LogKey, _Log, LeaderLog, int]]:
        """Yield the logs of which these answers say where they meet the leader's, and where that is."""
        for key, answer in answers.items():
            log = self._logs.get(key)
            if log is None or log.history is None or answer is None or answer.asked != log.asked:
                continue
            found = log.compared(log.history, answer)
            if isinstance(found, MeetAt):
                yield key, log, answer, found.offset

    def _checked(self, answers: Mapping[LogKey, LeaderLog | None], now_ms: int) -> None:
        again: dict[LogKey, _Log] = {}
        for key, answer in answers.items():
            log = self._logs.get(key)
            if log is None or log.stage is not Stage.ASKED or log.history is None:
                continue
            if answer is None:
                log.stage = Stage.ABSENT
                self._ask_absent_at_ms = now_ms + ASK_AGAIN_MS
            elif answer.asked == log.asked:
                found = log.compared(log.history, answer)
                if isinstance(found, AskAgain):
                    log.asked = found.leader_epoch
                    again[key] = log
                else:
                    self._meet(key, log, found.offset, answer)
        self._ask(again)

    def _lacks(self, key: LogKey, end_offset: int, drops: Drops | None) -> bool:
        """Return whether a log that ends there may lack what the leader's has no more (INV-RPF10)."""
        return (
            drops is not None and end_offset < drops.below and self._begun.get(key) != drops.times
        )

    def _meet(self, key: LogKey, log: _Log, meets_at: int, answer: LeaderLog) -> None:
        """Cut the log to where the histories meet, or begin it anew, and copy from there on; or stop it (INV-RPF2)."""
        leaders_start = answer.log_start_offset
        if log.high_watermark > max(meets_at, leaders_start):
            log.stage = Stage.STOPPED
            self._effects.append(DivergedBelowHighWatermark(key, meets_at, log.high_watermark))
            return
        lacks = self._lacks(key, meets_at, answer.drops)
        has_records = log.history is not None and bool(log.history.epochs)
        if answer.drops is not None and (lacks or not has_records):
            self._begun[key] = answer.drops.times
        if meets_at < leaders_start or (lacks and has_records):
            self._effects.append(StartAt(key, leaders_start))
            log.durable_end = log.high_watermark = log.position = leaders_start
            log.log_start_offset = leaders_start
        elif meets_at < log.position:
            self._effects.append(CutLog(key, meets_at))
            log.position = log.durable_end = meets_at
        log.stage = Stage.COPIED
        log.history = None
        self._added[key] = log.position
        self._to_report[key] = log.durable_end

    # -- copying ---------------------------------------------------------------------------------

    def _fetched(self, slices: tuple[Slice, ...], now_ms: int) -> None:
        assert self._in_flight > 0, "an answer that nobody asked for"
        self._in_flight -= 1
        copied = [(part, log) for part in slices if (log := self._copied(part.key)) is not None]
        if any(
            part.position != log.position or self._lacks(part.key, part.position, part.drops)
            for part, log in copied
        ):
            # A leader that goes on elsewhere than it was told to, or has dropped something in front of this: compare anew.
            self._effects.append(Disconnect(self._session))
            self._pause(now_ms)
            return
        self._backoff_ms = BACKOFF_MS_MIN
        filled = tuple(part for part, _ in copied if part.end_offset > part.position)
        if filled:
            self._effects.append(AppendSlices(filled))
            if sum(part.data_bytes for part in filled) <= HELD_BYTES_MAX:
                self._unsynced.update(part.key for part in filled)
        for part, log in copied:
            log.position = part.end_offset
            log.leaders_high_watermark = part.high_watermark
            self._show(part.key, log)
            if part.log_start_offset != log.log_start_offset:
                log.log_start_offset = part.log_start_offset
                self._effects.append(LogStart(part.key, part.log_start_offset))

    def _copied(self, key: LogKey) -> _Log | None:
        log = self._logs.get(key)
        return log if log is not None and log.stage is Stage.COPIED else None

    def _durable(self, durable_ends: Mapping[LogKey, int]) -> None:
        for key, durable_end in durable_ends.items():
            log = self._logs.get(key)
            if log is None or durable_end <= log.durable_end:
                continue
            assert durable_end <= log.position, "INV-RPF4: a sync from before a cut was told"
            log.durable_end = durable_end
            if durable_end == log.position:
                self._unsynced.discard(key)
            if log.stage is Stage.COPIED:
                self._to_report[key] = durable_end
                self._show(key, log)

    def _start_at(self, log_starts: Mapping[LogKey, int]) -> None:
        for key, log_start_offset in log_starts.items():
            log = self._copied(key)
            if log is not None and log_start_offset != log.told_start:
                self._starts_to_report[key] = log.told_start = log_start_offset

    def _show(self, key: LogKey, log: _Log) -> None:
        """Move HW to the leader's, as far as it is durable here (INV-RPF7)."""
        high_watermark = min(log.leaders_high_watermark, log.durable_end)
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark
            self._effects.append(HighWatermark(key, high_watermark))

    def _remove(self, key: LogKey) -> None:
        log = self._logs.pop(key, None)
        self._begun.pop(key, None)
        self._unsynced.discard(key)
        self._added.pop(key, None)
        self._to_report.pop(key, None)
        self._starts_to_report.pop(key, None)
        if log is not None and log.stage is Stage.COPIED:
            self._forgotten.append(key)

    def _send(self) -> None:
        """Send what there is to say: with a fetch where one may go, else by itself (INV-RPF6)."""
        if not self._is_connected or (self._in_flight == 0 and self._waits_for_histories()):
            return
        is_urgent = bool(self._added or self._forgotten)
        while self._in_flight < (URGENT_FETCHES_MAX if is_urgent else self._fetches_wanted()):
            self._effects.append(
                SendFetch(
                    self._session, self._added, tuple(self._forgotten), self._to_report, self._starts_to_report,
                    self._lacking_to_tell(),
                )
            )  # fmt: skip
            self._in_flight += 1
            self._added, self._forgotten, self._to_report, self._starts_to_report = {}, [], {}, {}
            is_urgent = False
        if self._to_report or self._starts_to_report or self._tells_lacking:
            self._effects.append(
                SendReport(
                    self._session, self._to_report, self._starts_to_report, self._lacking_to_tell()
                )
            )
            self._to_report, self._starts_to_report = {}, {}

    def _fetches_wanted(self) -> int:
        """Return how many fetches are to be under way now (INV-RPF6)."""
        has_report = self._to_report or self._starts_to_report
        return 1 if self._unsynced and not has_report else FETCHES_IN_FLIGHT

    def _lacking_to_tell(self) -> frozenset[LogKey] | None:
        tells, self._tells_lacking = self._tells_lacking, False
        return self._lacking if tells else None

    def _waits_for_histories(self) -> bool:
        """Return whether the first answer about histories is still to come: the first fetch says all that is durable here."""
        return not self._added and any(log.stage is Stage.ASKED for log in self._logs.values())
