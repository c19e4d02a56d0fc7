"""One directed link, seen from the mirror: connect, follow the topics, check, then fetch and apply.

INV-LK1  nothing is fetched before every log was checked against the primary's leader epochs in this session (T23)
INV-LK2  a diverged log is handed to quarantine and checked again; the link never cuts a log
INV-LK3  at most `FETCHES_IN_FLIGHT` fetches are under way; each answer is appended before the next is taken
INV-LK4  a topic that is gone at the primary is kept until a tidemark past its deletion is reached (T15); without a
         deletion that the primary names, a log that holds records is kept for good, and the link stands still (T34)
INV-LK8  a log that cannot go on waits, with the reason, until the primary's registry is looked at again: all others go
         on
INV-LK7  nothing is asked of the primary, copied, cut or deleted before the primary was shown to hold what was reached
         here under this region epoch; where it does not, the mirror stays as it is, and asks again (T33, T35)
INV-LK9  where the primary does not hold what was shown here under an older region epoch, nothing is shown while logs are cut
         one by one: readers see no half of it (T17)
INV-LK10 the batches of an answer are appended once the registry of its version is carried out here: what is under a tidemark counts with
         the configs of then
         1. A topic is sealed, and written to; both, and a tidemark behind them, come in one answer. 2. That tidemark is reached, and the
         registry is on its way. 3. The primary is lost, and this region takes over: it would write the topic in the open.
INV-LK5  every failure ends in a pause that doubles up to `BACKOFF_MS_MAX` until an answer is taken whole, and
         then in a fresh session
Logs of a topic that grew are copied early; the topic grows, or shrinks, at a tidemark (T15).

Not here: reached tidemarks (`frontier`), I/O (`driver`), what the primary does (`primary_side` in the broker).
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, assert_never

from geo_replicator.effects import (
    ApplyTopics,
    AwaitTidemarkToDelete,
    AwaitTidemarkToShrink,
    CheckEpochs,
    Connect,
    Disconnect,
    Diverged,
    HandOverDivergence,
    LinkEffect,
    LogsReconciled,
    ReadRegistry,
    SendFetch,
    ShowHistory,
    StartLogs,
    TakeBackStarts,
    TakeBackView,
    WaitBackoff,
)
from geo_replicator.events import (
    Answered,
    BackoffOver,
    DivergenceResolved,
    Fetched,
    FetchedSlice,
    HandshakeDone,
    HistoryShown,
    LinkBroken,
    LinkEvent,
    LinkStarted,
    LogsChecked,
    MirrorLogEnd,
    PrimaryLogEnd,
    RegistryRead,
    TopicsApplied,
)
from geo_replicator.history import NAMED_MAX
from geo_replicator.lineage import NO_LINEAGE, Lineage, LogKey
from geo_replicator.link.comparing import agrees
from geo_replicator.link.cursor import Cursor
from geo_replicator.topology import MirrorTopic, topic_difference
from idempotency.identity import RegionEpoch

FETCHES_IN_FLIGHT: Final = 2
BACKOFF_MS_MIN: Final = 50
BACKOFF_MS_MAX: Final = 2_000


class LinkState(Enum):
    """Where a link is."""

    STOPPED = auto()
    CONNECTING = auto()
    PROVING = auto()
    SYNCING = auto()
    APPLYING = auto()
    CHECKING = auto()
    DIVERGED = auto()
    STREAMING = auto()
    PAUSED = auto()


_WORKING: Final = {
    LinkState.STOPPED: {LinkState.CONNECTING},
    LinkState.CONNECTING: {LinkState.PROVING},
    LinkState.PROVING: {LinkState.SYNCING},
    LinkState.SYNCING: {LinkState.APPLYING},
    LinkState.APPLYING: {LinkState.CHECKING},
    LinkState.CHECKING: {LinkState.DIVERGED, LinkState.STREAMING},
    LinkState.DIVERGED: {LinkState.CHECKING},
    LinkState.STREAMING: {LinkState.STREAMING, LinkState.APPLYING},
    LinkState.PAUSED: {LinkState.CONNECTING},
}
LEGAL: Final[Mapping[LinkState, Set[LinkState]]] = {
    before: after | {LinkState.PAUSED} for before, after in _WORKING.items()
}
"""What may follow what: a session can break in any state."""


@dataclass(slots=True)
class LinkCore:
    """Decides what one link does next. Feed events, run the returned effects in order.

    `region_epoch` is the one this region follows: the primary must act under exactly that.
    """

    region_epoch: RegionEpoch
    primary_region: str
    lineage: Lineage = NO_LINEAGE
    state: LinkState = LinkState.STOPPED
    cursor: Cursor = field(default_factory=Cursor)
    last_error: str = ""
    refused_history: str = ""
    session_count: int = 0
    metadata_version: int = -1
    followed_version: int = -1
    """The version of the primary's registry that was carried out here last, -1 for none."""
    waiting: dict[LogKey, str] = field(default_factory=dict)
    """The logs that cannot go on, and why."""
    _backoff_ms: int = BACKOFF_MS_MIN
    _ends: dict[LogKey, MirrorLogEnd] = field(default_factory=dict)
    _unchecked: tuple[LogKey, ...] = ()
    _topics: tuple[MirrorTopic, ...] = ()
    _in_flight: int = 0
    _gives_up: bool = False
    _forgotten: tuple[LogKey, ...] = ()

    def step(self, event: LinkEvent) -> list[LinkEffect]:
        """Take one event and return what to do."""
        match event:
            case LinkStarted() | BackoffOver():
                assert self.state in (LinkState.STOPPED, LinkState.PAUSED), self.state
                self._go_to(LinkState.CONNECTING)
                return [Connect()]
            case HandshakeDone():
                return self._handshake_done(event)
            case HistoryShown():
                return self._compared(event)
            case RegistryRead():
                return self._follow_topics(event)
            case TopicsApplied() | DivergenceResolved():
                return self._check(event)
            case LogsChecked(answers=answers):
                return self._checked(answers)
            case Answered(metadata_version=metadata_version):
                return self._answered(metadata_version)
            case Fetched(slices=slices):
                return self._fetched(slices)
            case LinkBroken(reason=reason):
                return self._broken(reason)
            case _:
                assert_never(event)

    def stop(self) -> None:
        """Be as before the first session: whoever ran the effects was cancelled, in whatever state."""
        self.state = LinkState.STOPPED

    def _go_to(self, state: LinkState) -> None:
        assert state in LEGAL[self.state], (self.state, state)
        self.state = state

    def _handshake_done(self, event: HandshakeDone) -> list[LinkEffect]:
        assert self.state is LinkState.CONNECTING, self.state
        if event.region_epoch == 0:
            return self._broken(
                f"region {event.primary_region} answers, and its data folder has no history: it does not act"
            )
        if event.region_epoch < self.region_epoch:
            return self._broken(
                f"region {event.primary_region} answers, and does not act: it is at region epoch {event.region_epoch}, before"
                f" {self.region_epoch}, which this one follows. Its own status says why"
            )
        if event.region_epoch != self.region_epoch:
            return self._broken(
                f"region {event.primary_region} is at region epoch {event.region_epoch}, this one follows"
                f" {self.region_epoch}: the lineage must be followed first"
            )
        if not event.acting:
            return self._broken(f"region {event.primary_region} does not act (yet)")
        if self.lineage.contradicts(event.lineage, self.region_epoch):
            self.refused_history = (
                f"region {event.primary_region} acts under region epoch {self.region_epoch} from another base than the one"
                " that this region has followed: its data folder was wound back and it took over a second time. Nothing"
                " is copied, cut or deleted here until an operator chooses: tidemark region failover to this region, or"
                f" tidemark region accept-loss at {event.primary_region}"
            )
            return self._broken(self.refused_history)
        self._go_to(LinkState.PROVING)
        self.session_count += 1
        self.cursor = Cursor()
        self._ends = {}
        self._in_flight = 0
        self._forgotten = ()
        return [ShowHistory()]

    def _compared(self, event: HistoryShown) -> list[LinkEffect]:
        """Follow a primary that holds what was shown here; what an older epoch reached is for the lineage to judge.

        A region that comes back may hold a history that the lineage has cut off: leader epochs find that (T23).
        """
        assert self.state is LinkState.PROVING, self.state
        self.refused_history = ""
        if event.missing and event.reached_region_epoch == self.region_epoch:
            named = "; ".join(event.missing[:NAMED_MAX])
            self.refused_history = (
                f"region {self.primary_region} does not hold what this region has shown ({len(event.missing)}"
                f" logs: {named}). Nothing is copied, cut or deleted here until an operator chooses:"
                " tidemark region failover to this region, which keeps all that it has, or"
                f" tidemark region accept-loss at {self.primary_region}"
            )
            return self._broken(self.refused_history)
        self._go_to(LinkState.SYNCING)
        self._gives_up = bool(event.missing)  # a loss was accepted that this region had shown
        return [ReadRegistry()]

    def _follow_topics(self, event: RegistryRead) -> list[LinkEffect]:
        assert self.state in (LinkState.SYNCING, LinkState.STREAMING), self.state
        if event.unnamed:
            named = ", ".join(key.encode() for key in event.unnamed[:NAMED_MAX])
            self.refused_history = (
                f"region {self.primary_region} has no log {named} ({len(event.unnamed)} in all), which holds records"
                " here, and names no deletion of it: absence is no deletion. Nothing is copied, cut or deleted"
                " here until an operator chooses: tidemark region failover to this region, or tidemark region"
                f" accept-loss at {self.primary_region}"
            )
            return self._broken(self.refused_history)
        self._go_to(LinkState.APPLYING)
        self.metadata_version = event.metadata_version
        self._topics = event.registry
        difference = topic_difference(event.mirrored, event.registry)
        effects: list[LinkEffect] = []
        if difference.gone:
            effects.append(AwaitTidemarkToDelete(event.metadata_version, difference.gone))
            self._forget(key for topic in difference.gone for key in topic.logs())
        if difference.shrunk:
            effects.append(AwaitTidemarkToShrink(event.metadata_version, difference.shrunk))
            kept = {key for topic in event.registry for key in topic.logs()}
            self._forget([key for key in self._ends if key not in kept])
        apply = ApplyTopics(
            difference.created, difference.reconfigured, event.registry, difference.grown
        )
        return [*effects, apply]

    def _forget(self, keys: Iterable[LogKey]) -> None:
        for key in keys:
            self._ends.pop(key, None)
            self.waiting.pop(key, None)
            if key in self.cursor.positions:
                self.cursor.forget(key)
                self._forgotten += (key,)

    def halt(self, reasons: Mapping[LogKey, str]) -> None:
        """Let these logs wait: the primary is asked for no more of them (INV-LK8)."""
        self._forget(reasons)
        self.waiting.update(reasons)

    def look_again(self) -> None:
        """Have the primary's registry read with the next answer: logs that wait are tried again then."""
        self.metadata_version = -1

    def _check(self, event: TopicsApplied | DivergenceResolved) -> list[LinkEffect]:
        is_applied = isinstance(event, TopicsApplied)
        expected = LinkState.APPLYING if is_applied else LinkState.DIVERGED
        assert self.state is expected, (self.state, expected)
        if is_applied:
            self.followed_version = self.metadata_version
        self._ends.update(event.logs)
        self._unchecked = tuple(key for key in self._ends if key not in self.cursor.positions)
        self._go_to(LinkState.CHECKING)
        if not self._unchecked:
            return self._stream({})
        return [CheckEpochs({key: self._ends[key] for key in self._unchecked})]

    def _checked(self, answers: Mapping[LogKey, PrimaryLogEnd]) -> list[LinkEffect]:
        assert self.state is LinkState.CHECKING, self.state
        # A log without an answer was deleted at the primary since the registry was read: the next one says so.
        checked = {
            key: (self._ends[key], answers[key]) for key in self._unchecked if key in answers
        }
        diverged = [
            Diverged(key, primary.leader_epoch, primary.end_offset, mirror.end_offset)
            for key, (mirror, primary) in checked.items()
            if not agrees(mirror, primary)
        ]
        if diverged:
            self._go_to(LinkState.DIVERGED)
            hidden: list[LinkEffect] = [TakeBackView()] if self._gives_up else []  # INV-LK9
            return [*hidden, HandOverDivergence(tuple(diverged))]
        behind = {
            key: primary.log_start_offset
            for key, (mirror, primary) in checked.items()
            if mirror.end_offset < primary.log_start_offset
        }
        passed = {
            key: f"{key.encode()} ends at {checked[key][0].end_offset} here and begins at {log_start_offset} at the primary,"
            " whose retention has passed this mirror: seed it again from an empty data folder"
            for key, log_start_offset in behind.items()
            if checked[key][0].leader_epoch >= 0
        }
        self.halt(passed)
        behind = {key: offset for key, offset in behind.items() if key not in passed}
        ends = {key: mirror.end_offset for key, (mirror, _) in checked.items() if key not in passed}
        added = ends | behind
        for key, position in added.items():
            self.cursor.begin(key, position)
            self.waiting.pop(key, None)
        taken_back = {
            key: primary.readable_from
            for key, (mirror, primary) in checked.items()
            if 0 <= primary.readable_from < mirror.hidden_below
        }
        effects: list[LinkEffect] = [StartLogs(behind)] if behind else []
        if taken_back:
            effects.append(TakeBackStarts(taken_back))
        reconciled = LogsReconciled(self.region_epoch, tuple(added))
        return [*effects, reconciled, *self._stream(added)]

    def _stream(self, added: Mapping[LogKey, int]) -> list[LinkEffect]:
        self._go_to(LinkState.STREAMING)
        self.last_error = ""
        forgotten, self._forgotten = self._forgotten, ()
        effects: list[LinkEffect] = []
        if added or forgotten or self._in_flight == 0:
            effects.append(SendFetch(added, forgotten))
            self._in_flight += 1
        while self._in_flight < FETCHES_IN_FLIGHT:
            effects.append(SendFetch({}, ()))
            self._in_flight += 1
        return effects

    def _answered(self, metadata_version: int) -> list[LinkEffect]:
        assert self.state is LinkState.STREAMING, self.state
        assert self._in_flight > 0, "an answer that nobody asked for"
        self._in_flight -= 1
        # Several are under way: one that was sent before the registry was read last names an older version.
        return [ReadRegistry()] if metadata_version > self.metadata_version else []

    def _fetched(self, slices: Iterable[FetchedSlice]) -> list[LinkEffect]:
        # Only an answer that was taken: a mirror whose disk is full gets as far as the first one each time.
        self._backoff_ms = BACKOFF_MS_MIN
        for part in slices:
            self.cursor.advance(part)
        return self._stream({})

    def _broken(self, reason: str) -> list[LinkEffect]:
        self._go_to(LinkState.PAUSED)
        self.last_error = reason
        self._in_flight = 0
        wait_ms = self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MS_MAX)
        return [Disconnect(reason), WaitBackoff(wait_ms)]
