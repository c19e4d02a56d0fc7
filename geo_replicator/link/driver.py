"""A link at work: its sessions with the primary, and the tasks of one mirror.

INV-LD6  what fails at one log, or one topic, halts that and nothing else; it is tried again every `RETRY_HALTED_MS`
INV-LD3  a failed session ends in back-off and a new session
Cancelling `run` stops the link: nothing is fetched, reached, shown or reported afterwards, and `reached` is then
exactly what is durable.

Four tasks: sessions (fetch and append), reaching and showing (`reaching`), reporting.
Not here: decisions (`core`), sockets and disks (`ports`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from geo_replicator.effects import (
    ApplyTopics,
    AwaitTidemarkToDelete,
    AwaitTidemarkToShrink,
    CheckEpochs,
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
    RegistryRead,
    TopicsApplied,
)
from geo_replicator.history import in_pieces
from geo_replicator.lag import Lag, LagBook
from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.link.comparing import compared
from geo_replicator.link.core import LinkCore, LinkState
from geo_replicator.link.cursor import CursorBroken
from geo_replicator.link.reaching import Reaching
from geo_replicator.loss import UndoneChange
from geo_replicator.ports import (
    FetchAnswer,
    LinkFacts,
    LinkFailed,
    LinkPorts,
    LogHalted,
    PrimarySession,
    SentSlice,
)
from geo_replicator.tidemark import TidemarkError
from geo_replicator.topology import topic_difference, unnamed_absences
from idempotency.identity import RegionEpoch

RETRY_HALTED_MS: Final = 5_000
UNHEARD_MS: Final = 5_000
"""After so long without an answer this mirror's lag is not known: a waiting fetch is answered every second."""
_log: Final = logging.getLogger("tidemark.link")


class _SessionOver(Exception):
    """The core ended the session; `wait_ms` is the pause it asked for."""

    def __init__(self, reason: str, wait_ms: int) -> None:
        super().__init__(reason)
        self.wait_ms = wait_ms


class Link:
    """One mirror's link. `restore` before readers are served, then `run` until it is cancelled."""

    def __init__(self, ports: LinkPorts, facts: LinkFacts) -> None:
        """Nothing is read or sent yet."""
        self._ports = ports
        self._facts = facts
        self.core = LinkCore(facts.region_epoch, facts.primary_region, facts.lineage)
        self.lag = LagBook()
        self.reaching = Reaching(ports, facts, self.lag)
        self._restored = False
        self._session: PrimarySession | None = None
        self._linked_since_ms = 0
        self._proven: dict[LogKey, int] = {}
        self._answers: deque[Awaitable[FetchAnswer]] = deque()
        self._untaken: FetchAnswer | None = None
        self._retry_at_ms: int | None = None
        self._started_ms = ports.clock.monotonic_ms()

    def restore(self) -> None:
        """Rebuild the tidemarks from the log, and show what was reached before (T16).

        Where `__tidemarks` cannot be read, nothing is shown, and `run` copies nothing: what is wrong is told.
        """
        if self._ports.reached.point.region_epoch < self.core.region_epoch:
            self._ports.logs.doubt_starts()
        try:
            self.reaching.restore()
            self._ports.logs.confirm_starts(self.reaching.starts_as_named())
            self._restored = True
        except TidemarkError as error:
            self.reaching.stopped = (
                f"this mirror shows nothing and copies nothing: {error}. Stop this node, remove that "
                "folder, and start it: it copies the log again"
            )
            _log.error("%s", self.reaching.stopped)

    async def run(self) -> None:
        """Follow the primary until cancelled."""
        if not self._restored:
            self.restore()
        if not self._restored:
            await asyncio.Event().wait()
        self._ports.logs.watch(self.reaching.log_moved)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(), name="link-sessions")
                tasks.create_task(self.reaching.run(), name="link-reaching")
                tasks.create_task(self._report(), name="link-reporting")
                tasks.create_task(self.reaching.show_later(), name="link-showing")
        finally:
            self._ports.logs.unwatch()
            self._session = None
            self.core.stop()
            self.reaching.end()

    # Sessions.

    async def _follow(self) -> None:
        event: LinkEvent = LinkStarted()
        refused = ""
        while True:
            self.core.step(event)
            wait_ms = await self._hold_session()
            self._session = None
            self._answers.clear()
            self._untaken = None
            self.reaching.frontier.unreconcile()
            is_news = self.core.refused_history not in ("", refused)
            refused = self.core.refused_history
            level = logging.ERROR if is_news else logging.INFO
            _log.log(level, "link to %s: %s", self._facts.primary_region, self.core.last_error)
            await self._ports.clock.sleep_ms(wait_ms * self._ports.chance.uniform(0.5, 1.5))
            event = BackoffOver()

    async def _hold_session(self) -> int:
        """Serve one session to its end; return the pause in ms before the next."""
        try:
            async with self._ports.primary.session() as (session, handshake):
                await self._serve(session, handshake)
        except (LinkFailed, CursorBroken, TidemarkError) as failure:
            return _pause_of(self.core.step(LinkBroken(str(failure))))
        except _SessionOver as over:
            return over.wait_ms

    async def _serve(self, session: PrimarySession, handshake: HandshakeDone) -> NoReturn:
        self._session = session
        self._linked_since_ms = self._ports.clock.monotonic_ms()
        event: LinkEvent | None = handshake
        while True:
            effects = self.core.step(event) if event is not None else []
            event = None
            for effect in effects:
                if isinstance(effect, Disconnect):
                    raise _SessionOver(effect.reason, _pause_of(effects))
                event = await self._perform(effect, session) or event
            if event is None:
                event = await self._next_answer()

    async def _perform(self, effect: LinkEffect, session: PrimarySession) -> LinkEvent | None:
        match effect:
            case ShowHistory():
                return await self._show_history(session)
            case ReadRegistry():
                return await self._read_registry(session)
            case ApplyTopics():
                return await self._apply_topics(effect)
            case CheckEpochs(logs=logs):
                answers = await session.check(logs)
                own = self._ports.logs
                return LogsChecked(await compared(session, own, logs, answers, self._proven))
            case HandOverDivergence(divergences=divergences):
                return await self._hand_over(divergences)
            case _:
                self._note(effect, session)
                return None

    async def _read_registry(self, session: PrimarySession) -> RegistryRead:
        """Read the primary's topics; of what is gone there, ask which deletion took it (T34)."""
        version, registry = await session.registry()
        mirrored = self._ports.topics.mirrored()
        difference = topic_difference(mirrored, registry)
        unnamed = unnamed_absences(difference, (), self._holds_records)
        if unnamed:
            newest = {key: self._ports.logs.end(key).leader_epoch for key in unnamed}
            deleted = frozenset(await session.deletions(newest))
            unnamed = unnamed_absences(difference, deleted, self._holds_records)
        return RegistryRead(version, registry, mirrored, unnamed)

    def _holds_records(self, key: LogKey) -> bool:
        end = self._ports.logs.durable_end(key)
        return end is not None and self._ports.logs.end(key).leader_epoch >= 0

    async def _show_history(self, session: PrimarySession) -> HistoryShown:
        """Show the primary, piece by piece, what was reached here (T33)."""
        cut = self.reaching.shown_cut()
        names = {topic.topic_id: topic.name for topic in self._ports.topics.mirrored()}
        missing: list[str] = []
        self._proven = {}
        for keys in in_pieces(cut.positions):
            shown = await self._ports.logs.evidence(cut, keys)
            for found in await session.show_history(cut.point, shown):
                name = names.get(found.key.topic_id, found.key.topic_id.hex)
                missing.append(
                    f"{name}-{found.key.partition}, shown up to {found.shown_end}: {found.reason}"
                )
        self._proven = {} if missing else dict(cut.positions)
        return HistoryShown(cut.point.region_epoch, tuple(missing))

    def _note(self, effect: LinkEffect, session: PrimarySession) -> None:
        match effect:
            case AwaitTidemarkToDelete(metadata_version=version, topics=topics):
                self.reaching.topics.delete(topics, version)
                self.reaching.look_again()
            case AwaitTidemarkToShrink(metadata_version=version, topics=topics):
                self.reaching.topics.shrink(topics, version)
                self.reaching.look_again()
            case TakeBackView():
                self.reaching.take_back_view()
            case StartLogs(offsets=offsets):
                for key, offset in offsets.items():
                    with self._halting((key,)):
                        self._ports.logs.start_at(key, offset)
                    self.reaching.log_moved(key)
            case TakeBackStarts(offsets=offsets):
                for key, offset in offsets.items():
                    with self._halting((key,)):
                        self._ports.logs.take_back_start(key, offset)
            case LogsReconciled(region_epoch=region_epoch, keys=keys):
                self._ports.logs.confirm_starts(keys)
                self.reaching.frontier.reconciled(keys, region_epoch)
                self.reaching.changed.set()  # the primary may have been restarted: it knows nothing of this mirror
                self.reaching.look_again()
            case SendFetch(positions=positions, forgotten=forgotten):
                self._answers.append(session.fetch(positions, forgotten))
            case _:
                raise AssertionError(f"{effect} within a session")

    async def _hand_over(self, divergences: tuple[Diverged, ...]) -> DivergenceResolved:
        try:
            await self.reaching.forget_whole_ends()
            for diverged in divergences:
                with self._halting((diverged.key,)):
                    await self._ports.divergence.diverged((diverged,))
        except BaseException:
            # What is left is looked at again, and not hidden until the next session (INV-LK9).
            with suppress(TidemarkError):
                self.reaching.restore()
            raise
        self.reaching.restore()
        keys = (diverged.key for diverged in divergences)
        return DivergenceResolved(self._ends(key for key in keys if key not in self.core.waiting))

    def _ends(self, keys: Iterable[LogKey]) -> dict[LogKey, MirrorLogEnd]:
        """Return where the logs end, of those of which something can be copied (INV-LD6)."""
        ends: dict[LogKey, MirrorLogEnd] = {}
        for key in keys:
            with self._halting((key,)):
                ends[key] = self._ports.logs.end(key)
        return ends

    @contextmanager
    def _halting(self, keys: Iterable[LogKey]) -> Iterator[None]:
        """Let these logs wait if they cannot go on (INV-LD6)."""
        try:
            yield
        except LogHalted as failure:
            reasons = dict.fromkeys(keys, str(failure))
            if not reasons.keys() <= self.core.waiting.keys():
                _log.error("not copied any more, while other logs are: %s", failure)
            self.core.halt(reasons)

    async def _apply_topics(self, effect: ApplyTopics) -> TopicsApplied:
        self.reaching.topics.follow(effect.all_topics)
        await self._ports.topics.rename(self.reaching.topics.names)
        for topic in effect.created:
            await self._ports.topics.create(topic)
        for topic in (*effect.created, *effect.grown):
            with self._halting(topic.logs()):
                await self._ports.topics.open_logs(topic)
        self.reaching.topics.growing = effect.grown
        self.reaching.look_again()
        for topic in effect.reconfigured:
            with self._halting(topic.logs()):
                await self._ports.topics.update_configs(topic)
        return TopicsApplied(self._ends(key for topic in effect.all_topics for key in topic.logs()))

    async def _next_answer(self) -> LinkEvent:
        """Wait for an answer; the second time take what it has (INV-LK10)."""
        if self._untaken is None:
            self._untaken = await self._answers.popleft()
            return Answered(self._untaken.metadata_version)
        answer, self._untaken = self._untaken, None
        return self._take(answer)

    def _take(self, answer: FetchAnswer) -> Fetched:
        slices = []
        for part in answer.parts:
            with self._halting((part.key,)):
                slices.append(
                    FetchedSlice(
                        part.key,
                        part.position,
                        self._append(part),
                        len(part.data),
                        part.high_watermark,
                        part.log_start_offset,
                        part.unsent_bytes,
                    )
                )
        now_ms = self._ports.clock.monotonic_ms()
        self.lag.note(tuple(slices), now_ms=now_ms)
        self._retry_halted(now_ms)
        return Fetched(tuple(slices))

    def _append(self, part: SentSlice) -> int:
        """Append what the primary sent of one log; return where that stands then. Raises `LogHalted`,
        `CursorBroken`."""
        if not self.core.cursor.check(part.key, part.position) or not part.data:
            return part.position
        self._ports.logs.cleaned_at_primary(part.key, part.cleaned_below)
        next_position = self._ports.logs.append(part.key, part.data)
        self.reaching.frontier.seeded(part.key, self._ports.logs.whole_from(part.key))
        return next_position

    def _retry_halted(self, now_ms: int) -> None:
        if not self.core.waiting:
            self._retry_at_ms = None
        elif self._retry_at_ms is None:
            self._retry_at_ms = now_ms + RETRY_HALTED_MS
        elif now_ms >= self._retry_at_ms:
            self._retry_at_ms = now_ms + RETRY_HALTED_MS
            self.core.look_again()

    # Reporting.

    async def _report(self) -> None:
        while True:
            await self.reaching.changed.wait()
            self.reaching.changed.clear()
            session = self._session
            if session is None:
                continue
            lag = self.lag.total(now_ms=self._ports.clock.monotonic_ms())
            try:
                await session.report_reached(self.reaching.frontier.reached, lag)
            except LinkFailed as failure:
                _log.debug("reached was not reported: %s", failure)

    # For others.

    @property
    def reached(self) -> TidemarkPoint:
        """Return the last tidemark reached, durable and shown."""
        return self.reaching.frontier.reached

    @property
    def followed(self) -> tuple[RegionEpoch, int]:
        """Return which version of the primary's registry was carried out here last, and under which region epoch; -1 for none."""
        return self.core.region_epoch, self.core.followed_version

    @property
    def follows_topics(self) -> bool:
        """Return whether the primary's registry, as of the tidemark reached, has been carried out here (T15)."""
        floor = self.reaching.book.floor
        if floor is None or floor.newest.point != self.reached:
            return True
        version, changes = floor.newest.metadata_version, self.reaching.topics
        waits = self.core.state is LinkState.APPLYING or changes.growing or changes.due(version)
        return self.core.metadata_version >= version and not waits

    def silent_ms(self) -> int:
        """Return how long the primary has not answered, counted from the begin of this link where it never did."""
        heard = self.lag.heard_at_ms
        since_ms = self._started_ms if heard is None else heard
        return self._ports.clock.monotonic_ms() - since_ms

    def waiting_topic_changes(self) -> list[UndoneChange]:
        """Return the changes of topics that wait for a tidemark (T15)."""
        return self.reaching.topics.waiting()

    def status(self) -> dict[str, object]:
        """Return what an operator wants to know, as JSON-able values."""
        now_ms = self._ports.clock.monotonic_ms()
        total = self.lag.total(now_ms=now_ms)
        floor, newest = self.reaching.book.floor, self.reaching.book.newest
        reached_wall_ms = floor.newest.wall_ms if floor is not None else 0
        heard = self.lag.heard_at_ms
        copied = (
            not self.core.waiting
        )  # the primary says nothing of the end of a log that it is not asked for
        return {
            "primary": self._facts.primary_region,
            "state": self.core.state.name.lower(),
            "last_error": self.core.last_error,
            "refused_history": self.core.refused_history,
            "waiting": {key.encode(): reason for key, reason in self.core.waiting.items()},
            "stopped_reaching": self.reaching.stopped,
            "lost_here": self.reaching.lost,
            "sessions": self.core.session_count,
            "link_age_ms": None if self._session is None else now_ms - self._linked_since_ms,
            "region_epoch": self._facts.region_epoch,
            "reached": {
                "region_epoch": self.reached.region_epoch,
                "number": self.reached.number,
                "published_wall_ms": reached_wall_ms,
                "age_ms": max(0, self._ports.clock.wall_ms() - reached_wall_ms),
            },
            "known_number": newest.newest.number if newest is not None else 0,
            "heard_ms_ago": None if heard is None else now_ms - heard,
            "silent_ms": self.silent_ms(),
            "lag": _known(total, copied and heard is not None and now_ms - heard < UNHEARD_MS),
            "lag_when_heard": _known(total, copied and heard is not None),
            "logs": {
                key.encode(): {"records": lag.records, "bytes": lag.bytes, "ms": lag.ms}
                for key, lag in self.lag.by_log(now_ms=now_ms).items()
            },
        }


def _known(lag: Lag, known: bool) -> dict[str, int | None]:
    """Return the lag as JSON-able values: what is not known is None, never 0."""
    if not known:
        return {"records": None, "bytes": None, "ms": None}
    return {"records": lag.records, "bytes": lag.bytes, "ms": lag.ms}


def _pause_of(effects: list[LinkEffect]) -> int:
    return next((effect.wait_ms for effect in effects if isinstance(effect, WaitBackoff)), 0)
