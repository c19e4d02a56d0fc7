"""A link at work: the asyncio shell around `core`, `frontier` and `TidemarkBook` of one mirror.

INV-LD1  a reader of this region is shown D(k) only after k is durable here (T16, T17)
INV-LD2  cancelling `run` stops the link: nothing is fetched, reached, shown or reported afterwards, and
         `reached` is then exactly what is durable
INV-LD3  a failed session ends in back-off and a new session; a corrupt `__tidemarks` stops reaching, loudly

Four tasks: sessions (fetch and append), reaching (durable -> complete -> durable fact -> shown), showing what
had to wait, reporting.
Not here: decisions (`core`, `frontier`), sockets and disks (`ports`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from geo_replicator.core import LinkCore, LinkState
from geo_replicator.cursor import CursorBroken
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
    StartLogs,
    WaitBackoff,
)
from geo_replicator.events import (
    BackoffOver,
    DivergenceResolved,
    Fetched,
    FetchedSlice,
    Greeted,
    LinkBroken,
    LinkEvent,
    LinkStarted,
    LogsChecked,
    RegistryRead,
    TopicsApplied,
)
from geo_replicator.frontier import Frontier
from geo_replicator.lag import LagBook
from geo_replicator.lineage import BEFORE_ALL, EMPTY_CUT, Cut, Lineage, LogKey, TidemarkPoint
from geo_replicator.ports import (
    DivergenceHandler,
    FetchAnswer,
    Home,
    HomeSession,
    LinkFailed,
    MirrorLogs,
    MirrorTopics,
    ReachedStore,
)
from geo_replicator.reading import read_book
from geo_replicator.tidemark import TidemarkBook, TidemarkError, decode
from geo_replicator.topic_changes import TopicChanges
from geo_replicator.topology import LedgerTopics
from idempotency.ports import Chance, Clock

_log: Final = logging.getLogger("tidemark.link")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPorts:
    """Everything a link is handed."""

    home: Home
    logs: MirrorLogs
    topics: MirrorTopics
    reached: ReachedStore
    divergence: DivergenceHandler
    clock: Clock
    chance: Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """What a link follows: under which region epoch, whose lineage, which ledgers."""

    region_epoch: int
    home_region: str
    lineage: Lineage
    ledgers: LedgerTopics


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
        self.core = LinkCore(region_epoch=facts.region_epoch, home_region=facts.home_region)
        self.lag = LagBook()
        self.book = TidemarkBook(facts.ledgers)
        self.frontier = Frontier(facts.ledgers, facts.lineage)
        self.stopped_reaching: str = ""
        self._restored = False
        self._shown = BEFORE_ALL
        self._saving: TidemarkPoint | None = None
        self._read_to = 0
        self._dirty: dict[LogKey, None] = {}
        self._moved = asyncio.Event()
        self._reached_changed = asyncio.Event()
        self._show_again = asyncio.Event()
        self._show_again_ms = 0
        self._session: HomeSession | None = None
        self._answers: deque[Awaitable[FetchAnswer]] = deque()
        self._changes = TopicChanges()

    def restore(self) -> None:
        """Rebuild the tidemarks from the log, and show what was reached before (T16).

        Raises `TidemarkError` when `__tidemarks` cannot be read.
        """
        facts = self._facts
        reached = facts.lineage.greatest_valid([self._ports.reached.point])
        if reached != self._ports.reached.point:
            reached = _lowered(facts.lineage, self._ports.reached.point)
        read = read_book(self._ports.logs, facts.ledgers, reached)
        self.book, self._read_to = read.book, read.next_offset
        self.frontier = Frontier(facts.ledgers, facts.lineage, reached)
        for key in self._ports.logs.keys():  # noqa: SIM118 -- a port's method, no mapping
            self.frontier.seeded(key, self._ports.logs.whole_from(key))
            self.frontier.advanced(key, self._ports.logs.high_watermark(key))
        for tidemark in read.above:
            self.frontier.observe(tidemark)
        self._restored = True
        self._show_all()

    def _show_all(self) -> None:
        floor = self.book.floor
        shown = floor is not None and floor.newest.point <= self.frontier.reached
        cut = self.book.cut_of(floor) if floor is not None and shown else Cut(self.frontier.reached)
        logs = self._ports.logs
        self._show_logs({key: cut.position_of(key) for key in logs.keys()})  # noqa: SIM118 -- a port
        self._shown = self.frontier.reached

    def _show_logs(self, cuts: Mapping[LogKey, int]) -> None:
        self._show_again_ms = self._ports.logs.show(cuts)
        if self._show_again_ms > 0:
            self._show_again.set()

    async def run(self) -> None:
        """Follow home until cancelled (INV-LD2)."""
        if not self._restored:
            self.restore()
        self._ports.logs.watch(self._log_moved)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(), name="link-sessions")
                tasks.create_task(self._reach(), name="link-reaching")
                tasks.create_task(self._report(), name="link-reporting")
                tasks.create_task(self._show_later(), name="link-showing")
        finally:
            self._ports.logs.unwatch()
            self._session = None
            self.core.state = LinkState.STOPPED
            if self._saving is not None and self._ports.reached.point == self._saving:
                self.frontier.persisted(self._saving)
            self._saving = None

    # Sessions.

    async def _follow(self) -> None:
        event: LinkEvent = LinkStarted()
        while True:
            self.core.step(event)
            wait_ms = await self._hold_session()
            self._session = None
            self._answers.clear()
            self.frontier.unreconcile()
            _log.info("link to %s: %s", self._facts.home_region, self.core.last_error)
            await self._ports.clock.sleep_ms(wait_ms * self._ports.chance.uniform(0.5, 1.5))
            event = BackoffOver()

    async def _hold_session(self) -> int:
        """Serve one session to its end; return the pause in ms before the next."""
        try:
            async with self._ports.home.session() as (session, greeted):
                await self._serve(session, greeted)
        except (LinkFailed, CursorBroken, TidemarkError) as failure:
            return _pause_of(self.core.step(LinkBroken(str(failure))))
        except _SessionOver as over:
            return over.wait_ms

    async def _serve(self, session: HomeSession, greeted: Greeted) -> NoReturn:
        self._session = session
        event: LinkEvent | None = greeted
        while True:
            effects = self.core.step(event) if event is not None else []
            event = None
            for effect in effects:
                if isinstance(effect, Disconnect):
                    raise _SessionOver(effect.reason, _pause_of(effects))
                event = await self._perform(effect, session) or event
            if event is None:
                event = await self._next_answer()

    async def _perform(self, effect: LinkEffect, session: HomeSession) -> LinkEvent | None:
        match effect:
            case ReadRegistry():
                version, registry = await session.registry()
                return RegistryRead(version, registry, self._ports.topics.mirrored())
            case ApplyTopics():
                return await self._apply_topics(effect)
            case CheckEpochs(logs=logs):
                return LogsChecked(await session.check(logs))
            case HandOverDivergence(divergences=divergences):
                return await self._hand_over(divergences)
            case _:
                self._note(effect, session)
                return None

    def _note(self, effect: LinkEffect, session: HomeSession) -> None:
        match effect:
            case AwaitTidemarkToDelete(metadata_version=version, topics=topics):
                self._changes.delete(topics, version)
                self._moved.set()
            case AwaitTidemarkToShrink(metadata_version=version, topics=topics):
                self._changes.shrink(topics, version)
                self._moved.set()
            case StartLogs(offsets=offsets):
                for key, offset in offsets.items():
                    self._ports.logs.start_at(key, offset)
                    self._log_moved(key)
            case LogsReconciled(region_epoch=region_epoch, keys=keys):
                self.frontier.reconciled(keys, region_epoch)
                self._moved.set()
            case SendFetch(positions=positions, forgotten=forgotten):
                self._answers.append(session.fetch(positions, forgotten))
            case _:
                raise AssertionError(f"{effect} within a session")

    async def _hand_over(self, divergences: tuple[Diverged, ...]) -> DivergenceResolved:
        await self._ports.divergence.diverged(divergences)
        self.restore()
        keys = [diverged.key for diverged in divergences]
        return DivergenceResolved({key: self._ports.logs.end(key) for key in keys})

    async def _apply_topics(self, effect: ApplyTopics) -> TopicsApplied:
        for topic in effect.created:
            await self._ports.topics.create(topic)
        for topic in effect.grown:
            self._ports.topics.open_logs(topic)
        self._changes.growing = effect.grown
        self._moved.set()
        for topic in effect.reconfigured:
            await self._ports.topics.update_configs(topic)
        logs = self._ports.logs
        wanted = [key for topic in effect.all_topics for key in topic.logs()]
        return TopicsApplied({key: logs.end(key) for key in wanted})

    async def _next_answer(self) -> Fetched:
        answer = await self._answers.popleft()
        slices = []
        for part in answer.parts:
            next_position = part.position
            if self.core.cursor.check(part.key, part.position) and part.data:
                self._ports.logs.cleaned_at_home(part.key, part.cleaned_below)
                next_position = self._ports.logs.append(part.key, part.data)
                self.frontier.seeded(part.key, self._ports.logs.whole_from(part.key))
            slices.append(
                FetchedSlice(
                    part.key,
                    part.position,
                    next_position,
                    len(part.data),
                    part.high_watermark,
                    part.log_start_offset,
                    part.unsent_bytes,
                )
            )
        self.lag.note(tuple(slices), now_ms=self._ports.clock.monotonic_ms())
        return Fetched(answer.metadata_version, tuple(slices))

    # Reaching.

    def _log_moved(self, key: LogKey) -> None:
        self._dirty[key] = None
        self._moved.set()

    async def _reach(self) -> None:
        while True:
            await self._moved.wait()
            self._moved.clear()
            try:
                self._take_moves()
                await self._reach_complete()
                await self._drop_logs()
            except (TidemarkError, OSError) as error:
                self.stopped_reaching = str(error)
                _log.error("no tidemark is reached any more: %s", error)
                return

    async def _reach_complete(self) -> None:
        point = self.frontier.complete
        if point <= self.frontier.reached:
            return
        await self._grow_topics(point)
        self._saving = point
        await self._ports.reached.save(point)
        self._saving = None
        self.frontier.persisted(point)
        self._show(point)
        self._reached_changed.set()

    def _take_moves(self) -> None:
        dirty, self._dirty = self._dirty, {}
        if self._facts.ledgers.tidemark_key in dirty:
            self._read_tidemarks()
        for key in dirty:
            self.frontier.advanced(key, self._ports.logs.high_watermark(key))

    def _read_tidemarks(self) -> None:
        for at, key, value in self._ports.logs.tidemark_records(self._read_to):
            tidemark = self.book.apply(at, decode(key, value))
            if tidemark is not None:
                self.frontier.observe(tidemark)
            self._read_to = at + 1

    def _show(self, point: TidemarkPoint) -> None:
        assert self.book.floor is not None, point
        first = self.book.floor.newest.point > self._shown
        changed = self.book.raise_floor(point)
        if first:
            self._show_all()
        else:
            self._show_logs(changed)
        for key in changed:
            position = self.book.floor.positions.get(key)
            if position is not None and position.log_start_offset > 0:
                self._ports.logs.delete_below(
                    key, min(position.log_start_offset, position.cut_offset)
                )
        self._shown = point

    async def _show_later(self) -> None:
        while True:
            await self._show_again.wait()
            self._show_again.clear()
            await self._ports.clock.sleep_ms(self._show_again_ms)
            self._show_logs({})

    async def _grow_topics(self, point: TidemarkPoint) -> None:
        """Let topics have the partitions that `point` names, before it counts as reached (T15).

        1. A topic grew, and `point` covers records of a new partition. 2. Reached is durable. 3. This region dies
        and takes over at `point`: if the topic had not grown by then, those records would be gone.
        """
        vector = self.book.vector(point) if self._changes.growing else None
        if vector is not None:
            for topic_id, count in self._changes.grown_at(vector.positions).items():
                try:
                    await self._ports.topics.grow(topic_id, count)
                except LinkFailed as failure:
                    raise TidemarkError(f"{point} cannot be reached: {failure}") from failure

    async def _drop_logs(self) -> None:
        """Delete the topics and partitions that home has no more, at a tidemark past that (T15)."""
        floor = self.book.floor
        if floor is None or floor.newest.point != self.frontier.reached:
            return
        if floor.newest.region_epoch != self._facts.region_epoch:
            return
        for change in self._changes.due(floor.newest.metadata_version):
            topic = change.topic
            try:
                if change.keeps == 0:
                    await self._ports.topics.delete(topic)
                else:
                    await self._ports.topics.shrink(topic.topic_id, change.keeps)
            except LinkFailed as failure:
                _log.warning("topic %s is still here: %s", topic.name, failure)
                continue
            self._changes.done(change)
            for key in self.frontier.logs_of(topic.topic_id, change.keeps):
                self.frontier.removed(key)
                self.lag.forget(key)

    # Reporting.

    async def _report(self) -> None:
        while True:
            await self._reached_changed.wait()
            self._reached_changed.clear()
            session = self._session
            if session is None:
                continue
            lag = self.lag.total(now_ms=self._ports.clock.monotonic_ms())
            try:
                await session.report_reached(self.frontier.reached, lag)
            except LinkFailed as failure:
                _log.debug("reached was not reported: %s", failure)

    # For others.

    @property
    def reached(self) -> TidemarkPoint:
        """Return the last tidemark reached, durable and shown."""
        return self.frontier.reached

    def reached_cut(self) -> Cut:
        """Return the last reached tidemark with its positions: what a takeover would cut at.

        Raises `TidemarkError` when `__tidemarks` does not hold it: nobody may cut a log then.
        """
        reached = self.frontier.reached
        cut = EMPTY_CUT if reached == BEFORE_ALL else self.book.positions(reached)
        if cut is None:
            raise TidemarkError(f"{reached} was reached here, but __tidemarks does not hold it")
        return cut

    def status(self) -> dict[str, Any]:
        """Return what an operator wants to know, as JSON-able values."""
        now_ms = self._ports.clock.monotonic_ms()
        total = self.lag.total(now_ms=now_ms)
        floor, newest = self.book.floor, self.book.newest
        reached_wall_ms = floor.newest.wall_ms if floor is not None else 0
        heard = self.lag.heard_at_ms
        return {
            "home": self._facts.home_region,
            "state": self.core.state.name.lower(),
            "last_error": self.core.last_error,
            "stopped_reaching": self.stopped_reaching,
            "sessions": self.core.session_count,
            "region_epoch": self._facts.region_epoch,
            "reached": {
                "region_epoch": self.reached.region_epoch,
                "number": self.reached.number,
                "published_wall_ms": reached_wall_ms,
                "age_ms": max(0, self._ports.clock.wall_ms() - reached_wall_ms),
            },
            "known_number": newest.newest.number if newest is not None else 0,
            "heard_ms_ago": None if heard is None else now_ms - heard,
            "lag": {"records": total.records, "bytes": total.bytes, "ms": total.ms},
            "logs": {
                key.encode(): {"records": lag.records, "bytes": lag.bytes, "ms": lag.ms}
                for key, lag in self.lag.by_log(now_ms=now_ms).items()
            },
        }


def _pause_of(effects: list[LinkEffect]) -> int:
    return next((effect.wait_ms for effect in effects if isinstance(effect, WaitBackoff)), 0)


def _lowered(lineage: Lineage, point: TidemarkPoint) -> TidemarkPoint:
    """Return the lowest base since: where a point that became void falls back to (T25)."""
    return min(entry.base for entry in lineage.since(point.region_epoch))
