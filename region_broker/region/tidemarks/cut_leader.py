"""The cut leader at work: drives the ledger's shards through rounds, collects D, writes `__tidemarks`.

INV-CL5  while it rests, the first log that moves wakes it and the others do not: that a round is due is known
INV-CL8  a term publishes nothing if a log could not be opened, unless it is the first to adopt a takeover's cut: what the region
         had written there behind the last tidemark may be halves of what the next one would hold (T9, T12)
INV-CL9  what this term's last record says counts as published once it is durable, also where the term ended before: mirrors copy and reach it
         1. A record of k + 1 is appended, its sync is under way. 2. The region promises, and stands still. 3. The sync ends, and mirrors reach
         k + 1. A claim of k would keep it from acting again. That a candidate does not go on from k either, a promise waits for the
         sync, for a second (INV-FD8): after one that takes longer the candidate may, and mirrors that reached k + 1 are taken back.
INV-CL7  since when something durable waits for a tidemark is known by the first log that moved past the last one
INV-CL10 a term counts on from the last record that its log holds, durable by then, and not from the last one that was durable when
         it began: the sync of the term before may be under way, and mirrors take no number twice (T10)
One cut leader runs per term, in the region that acts, where `__tidemarks` is led (T1). A log that has stopped stops the
tidemarks, loudly, and nothing else: transactions go on (T4, T12). Whoever publishes nothing any more releases every
round of its term: nobody else would.

Not here: when rounds start and close (`geo_replicator.cut_rounds`), the record (`geo_replicator.tidemark_writer`), which logs
moved (`moved_logs`), when D may be read from a copy (`copied_logs`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn, Protocol
from uuid import UUID

from geo_replicator.cut_rounds import (
    ROUND_INTERVAL_MS,
    AnswerVerdict,
    Collection,
    LogAnswer,
    RoundPhase,
    RoundsCore,
)
from geo_replicator.effects import (
    CollectPositions,
    EnterRound,
    PublishTidemark,
    RecordTerm,
    ReleaseRound,
    RoundEffect,
)
from geo_replicator.events import (
    IntervalChanged,
    PositionsCollected,
    RoundEvent,
    ShardEntered,
    SomethingChanged,
    TermRecorded,
    TidemarkDurable,
    TimePassed,
)
from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.reading import book_in_pieces
from geo_replicator.tidemark import (
    LogPosition,
    TermRecord,
    Tidemark,
    TidemarkBook,
    TidemarkError,
    Vector,
    encode,
)
from geo_replicator.tidemark_writer import ClosedCut, TidemarkWriter
from geo_replicator.topology import LedgerTopics
from idempotency.decision import ROUND_NUMBER_MAX, round_of
from idempotency.identity import CoordinatorEpoch, LeaderEpoch, Member, Round
from idempotency.ports import Clock
from region_broker.controller.metadata_image import DEFAULT_DOMAIN
from region_broker.log.failures import LogError, NotLeader, PartitionFailed
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.records.batches import Record, build_batch
from region_broker.region.mirror.mirror_log import TidemarkLog, key_of
from region_broker.region.ports import MetadataSide, RoundFailed, Term
from region_broker.region.tidemarks.copied_logs import CopiedLogs, CoveredCopy
from region_broker.region.tidemarks.moved_logs import MovedLogs
from region_broker.wire.cooperative_yield import run_yielding
from txn_coordinator.ports import LedgerFailed

_log: Final = logging.getLogger("tidemark.cut_leader")
_NOT_ACTING: Final = (
    "this region publishes no tidemarks while it does not act; it goes on when a region acts"
)


class EnteredShard(Protocol):
    """A shard's ENTERED (`txn_coordinator`): where its ROUND record lies (L)."""

    @property
    def shard(self) -> int:
        """Return the ledger shard."""
        ...

    @property
    def coordinator_epoch(self) -> CoordinatorEpoch:
        """Return the epoch of its coordinator."""
        ...

    @property
    def ledger_offset(self) -> int:
        """Return L."""
        ...


class RoundTaker(Protocol):
    """The transaction coordinator's side of a round (T2, T3)."""

    async def enter_round(self, r: Round, /) -> Mapping[int, EnteredShard]:
        """Enter the round on every shard led here; return those that did, once ROUND is below HW."""
        ...

    def release(self, r: Round, /) -> None:
        """Free the COMMIT markers of stamps up to the round."""
        ...

    @property
    def held_decisions(self) -> int:
        """Return how many decisions' markers wait for a release."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLeaderParts:
    """Everything a cut leader is handed."""

    partitions: PartitionTable
    metadata: MetadataSide
    rounds: RoundTaker
    ledgers: LedgerTopics
    clock: Clock
    interval_ms: int = ROUND_INTERVAL_MS
    on_published: Callable[[TidemarkPoint], None] = lambda _: None
    me: Member | None = None
    """This member of its region; None in a region of one node."""


class LastBook(NamedTuple):
    """What `__tidemarks` ends with; `unreadable` says why nobody can tell, empty where it can be read."""

    book: TidemarkBook
    unreadable: str


async def last_book(partitions: PartitionTable, ledgers: LedgerTopics) -> LastBook:
    """Read where `__tidemarks` ends, giving way to others (INV-TR3): for `CutLeader`, and before anything is written there in its term."""
    records = TidemarkLog(partitions, ledgers)
    if (log := records.partition) is not None:
        with suppress(PartitionFailed):  # who reads it is told that it has stopped, and where
            await log.wait_committed(log.log_end_offset)  # INV-CL10
    try:
        read = await run_yielding(book_in_pieces(records, ledgers, None))
    except TidemarkError as error:
        return LastBook(TidemarkBook(ledgers), str(error))
    return LastBook(read.book, "")


class CutLeader:
    """The cut leader of one term. `run` until cancelled; `__tidemarks` must be led here already."""

    def __init__(self, parts: CutLeaderParts, term: Term, last: LastBook, *, adopts: bool) -> None:
        """Go on after `last`; where that cannot be read, `run` publishes nothing and says why.

        `adopts`: nothing was written in the term's region epoch yet, so D of a log that has stopped is known (INV-CL8).
        """
        self._parts = parts
        self._term = term
        self._records = TidemarkLog(parts.partitions, parts.ledgers)
        book, self._unreadable = last
        self._stopped = "" if adopts else _stopped_in(parts.partitions)
        self._writer = TidemarkWriter(DEFAULT_DOMAIN, book)
        image = parts.metadata.image
        self.core = RoundsCore(
            term=term.leader_epoch,
            shard_count=image.main_domain.shard_count,
            interval_ms=parts.interval_ms,
        )
        self._events: asyncio.Queue[RoundEvent] = asyncio.Queue()
        self._kicked = False
        self._copies = CopiedLogs(parts.me, parts.metadata, parts.partitions, parts.clock)
        self._moved = MovedLogs(
            parts.partitions, parts.metadata, parts.ledgers, self._writer.book, self._log_moved,
            adopts=adopts,
        )  # fmt: skip
        self._moved.end_of = self._copies.end_of
        self._collected: Collection | None = None
        self._collected_at_ms = 0
        self.waiting_since_ms: int | None = None
        """Since when something durable is under no tidemark, monotonic ms; None while all is."""
        self._metadata_version = 0
        self._appended: tuple[int, int] | None = None
        """(offset, bytes) of a tidemark that is not known to be durable."""
        self._published = asyncio.Condition()
        self._published_round = 0
        self._failed = ""

    # What others may ask.

    @property
    def published(self) -> TidemarkPoint:
        """Return the last tidemark that is in the log, also one of an older term."""
        if self._failed:
            self._note_late()
        return self._writer.last_point

    @property
    def publishes(self) -> bool:
        """Return whether a tidemark was appended that is not known to be durable."""
        if self._failed:
            self._note_late()
        return self._appended is not None

    def published_cut(self) -> Cut:
        """Return the last tidemark with its positions.

        Raises `TidemarkError` when `__tidemarks` cannot be read: it may hold more than is known, so nobody may cut
        a log at what is known.
        """
        if self._unreadable:
            raise TidemarkError(self._unreadable)
        return self._writer.book.positions(self.published) or Cut(self.published)

    def published_vector(self) -> Vector | None:
        """Return the last tidemark with where its logs start, too; None where it is not known."""
        return None if self._unreadable else self._writer.book.vector(self.published)

    def change_interval(self, interval_ms: int) -> None:
        """Let rounds start no sooner after each other than that, from the last one on."""
        if not self._failed:
            self._events.put_nowait(IntervalChanged(interval_ms))

    def notice_topics(self) -> None:
        """Say that topics were created, changed or deleted."""
        if self._moved.follow_topics():
            self._kick(urgent=False)

    async def first_tidemark(self) -> TidemarkPoint:
        """Return once a tidemark of this term is below HW; raises `RoundFailed`."""
        if self._published_round == 0:
            await self._publish_after(0)
        return self.published

    async def final_round(self) -> TidemarkPoint:
        """Publish all that is durable now, writes being refused already, and return that tidemark.

        Raises `RoundFailed`.
        """
        await self._publish_after(self.core.round)
        while self._moved.hold_news():
            await self._publish_after(self.core.round)
        return self.published

    async def _publish_after(self, number: int) -> None:
        """Return once a tidemark of a round later than `number` is below HW."""
        self._kick(urgent=True)
        async with self._published:
            await self._published.wait_for(lambda: self._published_round > number or self._failed)
        if self._failed:
            raise RoundFailed(self._failed)

    @property
    def failed(self) -> str:
        """Return why no tidemark is published any more, empty while they are."""
        return self._failed

    def status(self) -> dict[str, object]:
        """Return the state of the rounds as JSON-able values."""
        return {
            "phase": self.core.phase.name.lower(),
            "published": {
                "region_epoch": self.published.region_epoch,
                "number": self.published.number,
            },
            "rounds_closed": self.core.closed_count,
            "rounds_abandoned": self.core.abandoned_count,
            "last_closing_ms": self.core.last_closing_ms,
            "failed": self._failed,
            "waits_for": self._copies.waits_for,
        }

    # At work.

    async def run(self) -> None:
        """Open and close rounds until cancelled."""
        try:
            self._moved.open()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._drive_or_wait(tasks), name="rounds")
        finally:
            self._failed = self._failed or _NOT_ACTING
            self._moved.close()
            await self._announce()

    async def _drive_or_wait(self, tasks: asyncio.TaskGroup) -> None:
        try:
            error = self._unreadable or self._stopped
            if not error:
                await self._drive(tasks)
        except LogError as stopped:
            error = str(stopped)
        self._failed = (
            f"no tidemark is published any more, so no mirror shows anything newer; transactions go on: {error}. "
            "Take over in a region that mirrors (tidemark region failover), then repair this one"
        )
        _log.error("%s", self._failed)
        # 1. A shard has held COMMIT markers of its last round since it was loaded (T3). 2. Without rounds no release
        # comes. 3. They would be held for ever, and the last stable offset with them (T4).
        self._parts.rounds.release(round_of(self._term.leader_epoch, ROUND_NUMBER_MAX))
        await self._announce()
        await asyncio.Event().wait()

    async def _announce(self) -> None:
        async with self._published:
            self._published.notify_all()

    async def _drive(self, tasks: asyncio.TaskGroup) -> NoReturn:
        for effect in self.core.start():
            await self._perform(effect, tasks)
        while True:
            event = await self._next_event()
            effects = self.core.step(event, now_ms=self._parts.clock.monotonic_ms())
            if self.core.phase is not RoundPhase.RESTING:
                self._kicked = False
            for effect in effects:
                await self._perform(effect, tasks)

    async def _next_event(self) -> RoundEvent:
        wake_at_ms = self.core.wake_at_ms
        if not self._events.empty() or wake_at_ms is None:
            return await self._events.get()
        wait_ms = wake_at_ms - self._parts.clock.monotonic_ms()
        if wait_ms <= 0:
            return TimePassed()
        async with asyncio.TaskGroup() as tasks:
            event = tasks.create_task(self._events.get())
            timer = tasks.create_task(self._parts.clock.sleep_ms(wait_ms))
            await asyncio.wait((event, timer), return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            event.cancel()
        return TimePassed() if event.cancelled() else event.result()

    async def _perform(self, effect: RoundEffect, tasks: asyncio.TaskGroup) -> None:
        match effect:
            case RecordTerm():
                await self._record_term()
            case EnterRound(round=number):
                tasks.create_task(self._enter(number), name="round-enter")
            case ReleaseRound(round=number):
                self._parts.rounds.release(number)
            case CollectPositions(round=number):
                await self._collect(number, tasks)
            case PublishTidemark(round=number, ledger=ledger):
                await self._publish(number, ledger)

    async def _record_term(self) -> None:
        """Make sure that this node leads `__tidemarks` (T1)."""
        record = self._writer.term_record(self._term.region_epoch, self._term.leader_epoch)
        at, _ = self._append(record, self._parts.clock.wall_ms())
        await self._tidemarks().wait_committed(at + 1)
        self._events.put_nowait(TermRecorded())

    async def _enter(self, number: Round) -> None:
        try:
            entered = await self._parts.rounds.enter_round(number)
        except LedgerFailed as error:
            _log.warning("round %d is not entered: %s", number, error)
            return  # the round is abandoned in time (T4)
        holds = self._parts.rounds.held_decisions > 0
        for shard in entered.values():
            key = self._parts.ledgers.shard_key(shard.shard)
            self._moved.note_round(key, shard.ledger_offset + 1)
            self._events.put_nowait(
                ShardEntered(
                    number, shard.shard, shard.coordinator_epoch, shard.ledger_offset, holds
                )
            )

    # D of every log (T9).

    async def _collect(self, number: Round, tasks: asyncio.TaskGroup) -> None:
        image = self._parts.metadata.image
        self._metadata_version = image.version
        self._moved.follow_topics()
        asked = self._moved.take()
        self._collected_at_ms = self._parts.clock.monotonic_ms()
        asked_under: dict[LogKey, LeaderEpoch] = {}
        collection = Collection(number, asked_under)
        saying = None
        ends = {key: log.commits.durable_end for key, log in asked.items() if self._copies.has(key)}
        if ends:
            saying = tasks.create_task(self._copies.say_what_lags(), name="tidemarks-wait")
        for key, partition in asked.items():
            await self._ask(key, partition, collection, asked_under, ends.get(key))
        if saying is not None:
            saying.cancel()
        assert not collection.missing, collection.missing
        self._collected = collection
        self._events.put_nowait(PositionsCollected(number))

    async def _ask(
        self, key: LogKey, partition: Partition, collection: Collection, asked_under: dict[LogKey, LeaderEpoch],
        durable_end: int | None,
    ) -> None:  # fmt: skip
        """Take D of a log; nothing of one that is gone by now (T15)."""
        while True:
            if self._copies.has(key):
                copy = await self._copies.covered(key, durable_end)
                if copy is not None:
                    asked_under[key] = copy.leader_epoch
                    verdict = collection.take(_answer_of_copy(key, copy, collection.round))
                    assert verdict is AnswerVerdict.TAKEN, (key, verdict)
                    return
                if self._parts.partitions.by_id(key.topic_id, key.partition) is None:
                    return
                continue
            asked_under[key] = partition.sight.leader_epoch
            if collection.take(_answer_of(key, partition, collection.round)) is AnswerVerdict.TAKEN:
                return
            try:
                await partition.wait_committed(partition.sight.leader_epoch_start_offset)
            except NotLeader:
                if not self._copies.has(key):
                    raise

    # Publishing (T10, T11).

    async def _publish(self, number: Round, ledger: Mapping[int, int]) -> None:
        collected = self._collected
        assert collected is not None, number
        assert collected.round == number, (collected.round, number)
        wall_ms = self._parts.clock.wall_ms()
        tidemark = self._writer.prepare(
            ClosedCut(
                round=number,
                region_epoch=self._term.region_epoch,
                metadata_version=self._metadata_version,
                ledger=ledger,
                moved={**self._absent(), **collected.positions},
                existing=self._existing(),
                wall_ms=wall_ms,
            )
        )
        at, record_bytes = self._appended = self._append(tidemark, wall_ms)
        await self._tidemarks().wait_committed(at + 1)
        self._appended = None
        self._writer.published(at, record_bytes)
        self._settle(collected)
        self._published_round = number
        self._parts.on_published(self.published)
        self._events.put_nowait(TidemarkDurable(number))
        await self._announce()

    def _note_late(self) -> None:
        """Count a record that became durable when nobody waited for it any more (INV-CL9), unless another term has written since."""
        appended, log = self._appended, self._records.partition
        if appended is None or log is None or log.high_watermark <= appended[0]:
            return
        self._appended = None
        if log.written_epoch == self._term.leader_epoch:
            self._writer.published(*appended)

    def _absent(self) -> dict[LogKey, LogPosition]:
        """Return D = 0 of logs that exist and were never named: the tidemark must know them (T15)."""
        if self._same_topics():
            return {}
        book = self._writer.book.newest
        known = {} if book is None else book.positions
        return {
            key: LogPosition(0, 0)
            for partition in self._parts.partitions
            if self._parts.ledgers.has_cut_offset(key := key_of(partition)) and key not in known
        }

    def _existing(self) -> frozenset[UUID]:
        """Return the topics that there are, for what is gone to be named: nobody asks unless topics changed."""
        if self._same_topics():
            return frozenset()
        return frozenset(topic.topic_id for topic in self._parts.metadata.image.topics.values())

    def _same_topics(self) -> bool:
        """Whether the last tidemark was published in this term's epoch, with the topics of now (T15)."""
        book = self._writer.book.newest
        return book is not None and (book.newest.region_epoch, book.newest.metadata_version) == (
            self._term.region_epoch,
            self._metadata_version,
        )

    def _settle(self, collected: Collection) -> None:
        """Prune what the tidemark makes needless, and see what moved past it meanwhile."""
        for key, position in collected.positions.items():
            partition = self._parts.partitions.by_id(key.topic_id, key.partition)
            if partition is None:
                continue
            partition.state.prune_cut_index(collected.round)
            if self._copies.end_of(partition) > position.cut_offset:
                self._moved.add(key)
        more = self._moved.forget_old()
        self.waiting_since_ms = self._collected_at_ms if more else None
        if more:
            self._kick(urgent=False)

    def _tidemarks(self) -> Partition:
        partition = self._records.partition
        assert partition is not None, "the ledgers are opened before the cut leader"
        return partition

    def _append(self, record: Tidemark | TermRecord, wall_ms: int) -> tuple[int, int]:
        """Append one record; return (offset, bytes). Raises `LogError` when the log takes none."""
        key, value = encode(record)
        batch = build_batch([Record(key=key, value=value, timestamp_ms=wall_ms)])
        outcome = self._tidemarks().writer.append_ledger(batch)
        if outcome.verdict is not AppendVerdict.APPENDED:
            raise LogError(f"__tidemarks takes no record: {outcome.verdict.name} {outcome.detail}")
        return outcome.base_offset, len(batch)

    def _log_moved(self) -> None:
        if self.waiting_since_ms is None:
            self.waiting_since_ms = self._parts.clock.monotonic_ms()
        # During a round this may be its own ROUND record: judged again when the round is over.
        if self.core.phase is RoundPhase.RESTING:
            self._kick(urgent=False)

    def _kick(self, *, urgent: bool) -> None:
        if not self._kicked or urgent:
            self._kicked = True
            self._events.put_nowait(SomethingChanged(urgent))


def _answer_of(key: LogKey, partition: Partition, number: Round) -> LogAnswer:
    return LogAnswer(
        key=key,
        leader_epoch=partition.sight.leader_epoch,
        leader_epoch_start_offset=partition.sight.leader_epoch_start_offset,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
        first_commit_marker=partition.state.first_commit_marker(number),
    )


def _answer_of_copy(key: LogKey, copy: CoveredCopy, number: Round) -> LogAnswer:
    partition = copy.partition
    return LogAnswer(
        key=key,
        leader_epoch=copy.leader_epoch,
        leader_epoch_start_offset=copy.covers,
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
        first_commit_marker=partition.state.first_commit_marker(number),
    )


def _stopped_in(partitions: PartitionTable) -> str:
    """Return which logs could not be opened, and why; empty if all could (INV-CL8)."""
    stopped = [found for found in partitions if not found.log.is_opened]
    named = "; ".join(f"{found.tp} has stopped: {found.failed}" for found in stopped)
    return named and f"{named}. Nobody knows what lies there behind the last tidemark"
