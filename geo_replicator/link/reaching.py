"""What a mirror has reached: a tidemark whose logs are all durable here becomes a durable fact, and is shown.

INV-LD1  a reader of this region is shown D(k), and the whole cut there, only after both are durable here (T16, T17)
INV-LD5  a claim does not outlive its bytes: after a loss the greatest tidemark that the logs hold counts as reached;
         what was reached, and is stored as that, does not go down by it (T16)
INV-LD8  what was not reached is read in pieces, and others are served in between: after an absence, or behind a log that waits, that is
         days of tidemarks. A node that answers nobody meanwhile is fenced, and so is the next one that begins to lead
INV-LD7  the ends of a whole cut are forgotten, durably, before a log is cut whose history was given up: the history that is
         copied instead may give the same number to another tidemark (T17)
A corrupt `__tidemarks` stops reaching, loudly; what was shown stays. What the disk does not take is tried again.

Durable -> complete -> durable fact -> shown; the topics change in step with it (T15).
Not here: decisions (`frontier`, `tidemark`, `topic_changes`), fetching (`driver`).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from geo_replicator.frontier import Frontier
from geo_replicator.history import NAMED_MAX
from geo_replicator.lag import LagBook
from geo_replicator.lineage import BEFORE_ALL, EMPTY_CUT, Cut, Lineage, LogKey, TidemarkPoint
from geo_replicator.link.thinning import Thinning
from geo_replicator.link.topic_changes import TopicChanges
from geo_replicator.ports import LinkFacts, LinkFailed, LinkPorts, LogHalted
from geo_replicator.reading import (
    LOGS_AT_ONCE,
    Shortfall,
    cost_of,
    held_point,
    read_book,
    shortfalls,
)
from geo_replicator.tidemark import TidemarkBook, TidemarkError, decode
from geo_replicator.whole_ends import NOTHING_WHOLE, View

RETRY_DISK_MS: Final = 5_000
_log: Final = logging.getLogger("tidemark.link")


class Reaching:
    """The state of one link's mirror. `restore` first; then `run` and `show_later` until the link ends, then `end`."""

    def __init__(self, ports: LinkPorts, facts: LinkFacts, lag: LagBook) -> None:
        """Nothing is read yet. `lag` forgets the logs that go."""
        self._ports = ports
        self._facts = facts
        self._lag = lag
        self.book = TidemarkBook(facts.ledgers)
        self.frontier = Frontier(facts.ledgers, facts.lineage)
        self._thinning = Thinning(self.book, self.frontier)
        self.topics = TopicChanges()
        self.stopped: str = ""
        self.lost: str = ""
        self.stored = BEFORE_ALL
        self.changed = asyncio.Event()
        self._restored = False
        self._shown = BEFORE_ALL
        self._is_taken_back = False
        self._absent: Mapping[LogKey, int] = {}
        self._saving: TidemarkPoint | None = None
        self._read_to = 0
        self._dirty: dict[LogKey, None] = {}
        self._moved = asyncio.Event()
        self._show_again = asyncio.Event()
        self._show_again_ms = 0
        self._look_due = False

    def restore(self) -> None:
        """Rebuild the tidemarks from the log, and show what was reached before (T16).

        Raises `TidemarkError` when `__tidemarks` cannot be read.
        """
        facts = self._facts
        reached = facts.lineage.greatest_valid([self._ports.reached.point])
        if reached != self._ports.reached.point:
            reached = facts.lineage.fallback_of(self._ports.reached.point).point
        self.stored = reached
        reached = self._held(reached)
        read = read_book(self._ports.logs, facts.ledgers, reached)
        self.book, self._read_to = read.book, read.next_offset
        self.frontier = Frontier(facts.ledgers, facts.lineage, reached)
        self._thinning = Thinning(self.book, self.frontier)
        for key in self._ports.logs.keys():  # noqa: SIM118 -- a port's method, no mapping
            self.frontier.seeded(key, self._ports.logs.whole_from(key))
            self.frontier.advanced(key, self._ports.logs.high_watermark(key))
        self._absent = self._named_and_absent(reached)
        self.frontier.absent(self._absent)
        self.log_moved(facts.ledgers.tidemark_key)  # what is not reached is read by `run` (INV-LD8)
        self._restored = True
        self._saving = None  # what is on its way to the disk is no fact of these logs
        self._show_stored(is_held=reached == self._ports.reached.point)

    def _named_and_absent(self, reached: TidemarkPoint) -> Mapping[LogKey, int]:
        """Return the logs of topics that are not here, though the tidemark reached names records of them (INV-FR8)."""
        cut = self.book.positions(reached)
        here = set(self._ports.logs.keys())
        named = {} if cut is None else cut.positions
        return {key: end for key, end in named.items() if end > 0 and key not in here}

    def _held(self, reached: TidemarkPoint) -> TidemarkPoint:
        """Return what the bytes hold of the stored fact, and say what they lack (INV-LD5)."""
        logs, ledgers = self._ports.logs, self._facts.ledgers
        self.lost = ""
        if reached == BEFORE_ALL:
            return reached
        cut = read_book(logs, ledgers, reached).book.positions(reached)
        lacking = [] if cut is None else shortfalls(cut, logs.durable_end)
        if cut is not None and not lacking:
            return reached
        held = held_point(logs, ledgers, reached, logs.durable_end)
        self.lost = lost_text(reached, held, lacking, self._facts.lineage)
        is_new_base = bool(self._facts.lineage.since(reached.region_epoch))
        _log.log(logging.INFO if is_new_base else logging.ERROR, "%s", self.lost)
        return held

    def log_moved(self, key: LogKey) -> None:
        """Note that more of a log is durable here."""
        self._dirty[key] = None
        self._moved.set()

    def look_again(self) -> None:
        """Note that something else changed that a tidemark may wait for."""
        self._moved.set()

    async def run(self) -> None:
        """Reach and show, until cancelled."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            try:
                is_read = self._take_moves()
                await self._reach_complete()
                await self._drop_logs()
            except TidemarkError as error:
                self.stopped = str(error)
                _log.error("no tidemark is reached any more: %s", error)
                return
            except OSError as error:
                self.stopped = f"{error}; it is tried again"
                _log.error("no tidemark is reached until the disk takes it: %s", error)
                await self._ports.clock.sleep_ms(RETRY_DISK_MS)
                self.stopped = ""
                self._look_due = True
                self._moved.set()
            else:
                if not is_read:
                    await asyncio.sleep(0)

    def end(self) -> None:
        """Take note of what was being made durable when `run` was cancelled: the link is over."""
        if self._saving is not None and self._ports.reached.point == self._saving:
            self.frontier.persisted(self._saving)
        self._saving = None

    async def _reach_complete(self) -> None:
        frontier = self.frontier
        point = frontier.complete
        await self._grow_topics(point)
        if frontier is not self.frontier:
            self.look_again()  # restored meanwhile: a log may be shorter now than it was
            return
        if self._waits_for_restore():
            return
        is_news = point > frontier.reached
        # While logs are absent, nobody knows what of a transaction lies there.
        if not is_news and (not self._look_due or self._absent):
            return
        self._look_due = False
        every = bool(self._absent) or self._is_first
        view = self._ports.logs.view(self._cuts_of(point, every=every) if is_news else {})
        await self._save(point, view)
        if frontier is not self.frontier:
            self.look_again()  # restored meanwhile, from what was durable then
            return
        if self._waits_for_restore():
            return
        if is_news:
            self.lost = "" if point >= self.stored else self.lost
            frontier.persisted(point)
            self._show(point, view, every=every)
            self.changed.set()
        else:
            self._show_view(view)

    def _waits_for_restore(self) -> bool:
        """Return whether nothing may be shown before `restore`, which has all looked at again."""
        return self._is_taken_back

    async def _save(self, point: TidemarkPoint, view: View) -> None:
        """Make durable what is to be shown, unless it is; what was reached and is lost in part stays the fact (INV-LD5)."""
        reached = self._ports.reached
        is_known = point == reached.point and view.whole == reached.whole
        if is_known or point < reached.point or point == BEFORE_ALL:
            return
        self._saving = point if point > reached.point else None
        await reached.save(point, view.whole)
        self._saving = None
        self.stored = point

    def _take_moves(self) -> bool:
        """Take in what has moved, and one piece of the tidemarks (INV-LD8); return whether these are read to their end."""
        dirty, self._dirty = self._dirty, {}
        is_read = self._facts.ledgers.tidemark_key not in dirty or self._read_tidemarks()
        for key in dirty:
            self.frontier.advanced(key, self._ports.logs.high_watermark(key))
        self._thinning.look((self.stored, self._facts.wanted))
        if not is_read:
            self.log_moved(self._facts.ledgers.tidemark_key)
        return is_read

    def _read_tidemarks(self) -> bool:
        left = LOGS_AT_ONCE
        for at, key, value in self._ports.logs.tidemark_records(self._read_to):
            if left <= 0:
                return False
            tidemark = self.book.apply(at, decode(key, value))
            if tidemark is not None:
                self.frontier.observe(tidemark)
            self._read_to = at + 1
            left -= cost_of(tidemark)
        return True

    @property
    def _is_first(self) -> bool:
        floor = self.book.floor
        return floor is not None and floor.newest.point > self._shown

    def _cuts_of(self, point: TidemarkPoint, *, every: bool) -> Mapping[LogKey, int]:
        """Return where the logs end at `point`: those that moved since the floor, or every one."""
        if not every:
            return self.book.moved_since_floor(point)
        cut = self.book.positions(point)
        assert cut is not None, point
        return {key: cut.position_of(key) for key in self._ports.logs.keys()}  # noqa: SIM118 -- a port

    def _show(self, point: TidemarkPoint, view: View, *, every: bool) -> None:
        changed: Iterable[LogKey] = self.book.raise_floor(point)
        assert self.book.floor is not None, point
        if every:
            self._absent = {}  # they are here now, or a tidemark has named their removal
            changed = self.book.floor.positions
        self._show_view(view)
        self._delete_below(changed)
        self._shown = point

    def _show_stored(self, *, is_held: bool) -> None:
        """Show what was shown before; `run` looks what the whole cut adds to that."""
        floor = self.book.floor
        shown = floor is not None and floor.newest.point <= self.frontier.reached
        cut = self.book.cut_of(floor) if floor is not None and shown else Cut(self.frontier.reached)
        logs = self._ports.logs
        self._is_taken_back = False
        whole = self._ports.reached.whole if is_held else NOTHING_WHOLE
        logs.show_again({key: cut.position_of(key) for key in logs.keys()}, whole)  # noqa: SIM118 -- a port
        if floor is not None and shown:
            # A cut takes log starts back, and an idle log is in no later tidemark's news (T14).
            self._delete_below(floor.positions)
        self._shown = self.frontier.reached
        self._look_due = True
        self._moved.set()

    def take_back_view(self) -> None:
        """Show nothing, in one step, until `restore`: what the primary does not hold is about to be cut, log by log (T17)."""
        self._is_taken_back = True
        self._ports.logs.take_back_view()

    async def forget_whole_ends(self) -> None:
        """Make durable that nothing is known to be whole, where the view was taken back (INV-LD7); raises `LinkFailed`."""
        if not self._is_taken_back:
            return
        try:
            await self._ports.reached.forget_whole()
        except OSError as error:
            raise LinkFailed(
                f"nothing is cut before the disk takes that the view was given up ({error}); it is tried again"
            ) from error

    def starts_as_named(self) -> list[LogKey]:
        """Return the logs that begin no further than the tidemark that is shown says: no lost order moved those (T14)."""
        floor, found = self.book.floor, list[LogKey]()
        if floor is None or floor.newest.point > self.frontier.reached:
            return found
        for key, position in floor.positions.items():
            with suppress(LogHalted):
                if self._ports.logs.end(key).hidden_below <= position.deleted_below:
                    found.append(key)
        return found

    def _delete_below(self, keys: Iterable[LogKey]) -> None:
        """Let logs start where the tidemark that is shown says, and not before (T14)."""
        assert self.book.floor is not None
        for key in keys:
            position = self.book.floor.positions.get(key)
            if position is not None and position.log_start_offset > 0:
                self._ports.logs.delete_below(key, position.deleted_below)

    def _show_view(self, view: View) -> None:
        self._ports.logs.show(view)
        self._show_again_ms = view.again_ms
        if view.again_ms > 0:
            self._show_again.set()

    async def show_later(self) -> None:
        """Have `run` look again for what had to wait, when its time has come; until cancelled."""
        while True:
            await self._show_again.wait()
            self._show_again.clear()
            await self._ports.clock.sleep_ms(self._show_again_ms)
            self._look_due = True
            self._moved.set()

    async def _grow_topics(self, point: TidemarkPoint) -> None:
        """Let topics have the partitions that `point` names, before it counts as reached (T15).

        1. A topic grew, and `point` covers records of a new partition. 2. Reached is durable. 3. This region dies
        and takes over at `point`: if the topic had not grown by then, those records would be gone.
        A tidemark may have been reached before the primary's registry was read: then the topic grows as soon as it was.
        """
        vector = self.book.vector(point) if self.topics.growing else None
        if vector is not None:
            for topic_id, count in self.topics.grown_at(vector.positions).items():
                try:
                    await self._ports.topics.grow(topic_id, count)
                except LinkFailed as failure:
                    raise TidemarkError(f"{point} cannot be reached: {failure}") from failure
                self.topics.grown(topic_id, count)

    async def _drop_logs(self) -> None:
        """Delete the topics and partitions that the primary has no more, at a tidemark past that (T15)."""
        floor = self.book.floor
        if floor is None or floor.newest.point != self.frontier.reached:
            return
        if floor.newest.region_epoch != self._facts.region_epoch:
            return
        due = self.topics.due(floor.newest.metadata_version)
        for change in due:
            topic = change.topic
            try:
                if change.keeps == 0:
                    await self._ports.topics.delete(topic)
                else:
                    await self._ports.topics.shrink(topic.topic_id, change.keeps)
            except LinkFailed as failure:
                _log.warning("topic %s is still here: %s", topic.name, failure)
                continue
            self.topics.done(change)
            for key in self.frontier.logs_of(topic.topic_id, change.keeps):
                self.frontier.removed(key)
                self._lag.forget(key)
        if due:
            await self._take_names()

    async def _take_names(self) -> None:
        try:
            await self._ports.topics.rename(self.topics.names)
        except LinkFailed as failure:
            _log.warning("a topic waits for its name: %s", failure)

    def shown_cut(self) -> Cut:
        """Return what was reached and shown, also where its bytes are gone by now, as far as it is known (T33)."""
        return self.book.positions(self.stored) or self.reached_cut()

    def reached_cut(self) -> Cut:
        """Return the last reached tidemark with its positions: what a takeover would cut at.

        Raises `TidemarkError` when `__tidemarks` does not hold it: nobody may cut a log then.
        """
        if not self._restored:
            raise TidemarkError(self.stopped or "the tidemarks were not read yet")
        reached = self.frontier.reached
        cut = EMPTY_CUT if reached == BEFORE_ALL else self.book.positions(reached)
        if cut is None:
            raise TidemarkError(f"{reached} was reached here, but __tidemarks does not hold it")
        return cut


def lost_text(
    stored: TidemarkPoint, held: TidemarkPoint, lacking: Sequence[Shortfall], lineage: Lineage
) -> str:
    """Return, for people, why a region holds less than what it has reached before.

    The base of a new region epoch counts as reached by whom it cuts, also by who never held all of it: no disk is to blame
    then.
    """
    named = "; ".join(
        f"{found.key.encode()} ends at {found.end_offset}, below {found.position}"
        for found in lacking[:NAMED_MAX]
    )
    why = f"{len(lacking)} logs: {named}" if lacking else "__tidemarks does not hold its record"
    later = lineage.in_force_since(stored.region_epoch)
    if later:
        return (
            f"region epoch {later[0].region_epoch} begins at {stored}, which is not here whole yet ({why}): only {held} is"
            " claimed until the primary region has sent the rest"
        )
    return (
        f"{stored} was reached and shown here, but the disk has lost a part of it ({why}): only {held} is held"
        " whole, and only that is claimed until the primary region has sent the rest again"
    )
