"""Cutting logs to a tidemark, and reading what lies beyond one.

INV-LS1  a tail is in quarantine, durably, before its log is truncated (T20, INV-Q2)
INV-LS2  doing it again changes nothing: a log that ends at its position is left alone
INV-LS4  a log that has stopped is left as it is, and costs nobody else anything: what of it lies beyond the cut is named
         as unreadable, and cut off when it can be read again, before it serves
INV-LS5  below what was shown under the region epoch that is followed, a log is cut by a new lineage entry only
         (`cut_logs`, T25); a divergence that reaches below it is refused, whoever found it (T35)
INV-LS6  a region that returns shows nothing beyond the cut from before it knows whom to forward to: its answers are of
         one history (T31)
Several logs are cut side by side, with their syncs in threads (`side_by_side`). Work is done in chunks of `CHUNK_BYTES`, the event loop
gets its turn in between.

Not here: where to cut (`geo_replicator.quarantine.plan_cut`), what a tail holds (`geo_replicator.tail`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Self

import msgspec

from geo_replicator.effects import Diverged
from geo_replicator.later_leaders import LaterLeaders
from geo_replicator.lineage import EMPTY_CUT, Cut, Lineage, LogKey
from geo_replicator.loss import LogBound
from geo_replicator.ports import LinkFailed, LogHalted
from geo_replicator.quarantine import CutCause, LogCut, LogExtent, Provenance, plan_cut
from geo_replicator.tail import GroupCommit, Tail, TailDecision
from idempotency.fencing import region_epoch_of
from idempotency.identity import LeaderEpoch, RegionEpoch
from idempotency.ledger_records import (
    LedgerError,
    TransactionKey,
    TxnStatus,
    decode_key,
    decode_transaction_value,
)
from idempotency.record_batch import BatchHeader, Buffer, iter_headers
from region_broker.controller.metadata_image import (
    OFFSETS_LEDGER,
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    DomainImage,
)
from region_broker.groups.records import LedgerRecordError, OffsetKey, decode_offset_value
from region_broker.groups.records import decode_key as decode_group_key
from region_broker.log.failures import CutIntoCleaned, LogError, PartitionFailed
from region_broker.records.batches import RecordsError, iter_records
from region_broker.region.failover.quarantine_store import (
    CHUNK_BYTES,
    QuarantineDamaged,
    QuarantineStore,
    ReadBatches,
)
from region_broker.region.failover.side_by_side import LogWork, side_by_side
from region_broker.region.ports import RegionLog
from region_broker.wire.cooperative_yield import CooperativeYield, give_way

_log: Final = logging.getLogger("tidemark.failover")


@dataclass(frozen=True, slots=True)
class CutReason:
    """Why logs are cut: what a provenance says beside positions."""

    domain: str
    lineage_epoch: RegionEpoch
    region: str
    region_epoch: RegionEpoch
    acting_region: str
    now_wall_ms: int
    acts_now: str = ""
    """Who acts now, where that is another one than the region which took over then."""

    @classmethod
    def divergence(cls, domain: DomainImage, region: str, now_wall_ms: int) -> Self:
        """Return the reason of a cut in `region` because its log differs from that of the region which acts."""
        epoch = domain.region_epoch
        return cls(domain.name, epoch, region, epoch, domain.acting_region, now_wall_ms)

    @property
    def is_followed(self) -> bool:
        """Return whether another region acts, from which a log can be copied anew."""
        return (self.acts_now or self.acting_region) != self.region


def key_of(log: RegionLog) -> LogKey:
    """Return the key of a partition's log."""
    return LogKey(log.topic_id, log.tp.partition)


def extent_of(log: RegionLog) -> LogExtent:
    """Return where a partition's log begins and ends."""
    return LogExtent(key_of(log), str(log.tp.topic), log.kept_from, log.log_end_offset)


async def cut_logs(
    logs: Iterable[RegionLog], cut: Cut, reason: CutReason, quarantine: QuarantineStore
) -> list[Provenance]:
    """Cut every log to `cut`, tails to quarantine first; return what was moved (INV-LS1, INV-LS2).

    A log that starts above the cut is emptied; where another region acts, it is copied anew, from the beginning.

    A log whose tail cannot be read whole stops, uncut (INV-LS4). Raises OSError, which names the logs whose tails quarantine does not take;
    running it again goes on where it stopped.
    """
    by_key = {key_of(log): log for log in logs}
    steps = [
        (by_key[step.log.key], step) for step in plan_cut(map(extent_of, by_key.values()), cut)
    ]
    moved = await side_by_side(
        LogWork(f"{log.tp} is not cut", partial(cut_log, log, step, cut, reason, quarantine))
        for log, step in steps
    )
    return [tail for tail in moved if tail is not None]


async def cut_log(
    log: RegionLog, step: LogCut, cut: Cut, reason: CutReason, quarantine: QuarantineStore
) -> Provenance | None:
    """Cut one log for a lineage entry, as `cut_logs` does; return what was moved. Raises OSError."""
    what = f"it is not cut to {step.position}, where {cut.point} ends"
    moved = None
    try:
        if step.moves_tail:
            provenance = _provenance(step, cut, reason, CutCause.LINEAGE)
            moved = await _cut_one(log, provenance, quarantine)
        if step.lacks and reason.is_followed:
            _copy_anew(log, str(cut.point))
    except (LogError, QuarantineDamaged) as error:
        _not_cut(log, error, what, reason)
    log.rewind_cut(step.position)
    return moved


async def cut_copy(
    log: RegionLog, meets_at: int, reason: CutReason, quarantine: QuarantineStore
) -> None:
    """Cut a copy of the log of the node that leads this region, at `meets_at`, from where on that one has another history (T23).

    The region mirrors another one, whose history counts. The tail goes to quarantine first (INV-LS1); a log whose tail cannot be
    read whole stops. One that starts above `meets_at` is copied anew. Raises OSError; running it again goes on where it stopped.
    """
    step = LogCut(extent_of(log), max(meets_at, log.kept_from), lacks=meets_at < log.kept_from)
    if log.failed is not None:
        return
    what = f"it is not cut at {meets_at}, as the leading node's log was"
    try:
        if step.moves_tail:
            provenance = _provenance(step, EMPTY_CUT, reason, CutCause.DIVERGENCE)
            tell_diverged(await _cut_one(log, provenance, quarantine), quarantine)
        if step.lacks:
            _copy_anew(log, what)
    except (LogError, QuarantineDamaged) as error:
        _not_cut(log, error, what, reason)


def _not_cut(log: RegionLog, error: Exception, what: str, reason: CutReason) -> None:
    """Stop a log that could not be cut; empty it where only cleaning is in the way, and it can be copied anew (T13)."""
    if isinstance(error, CutIntoCleaned) and reason.is_followed:
        with suppress(PartitionFailed):  # the disk refused it: the log has stopped, and said so
            _copy_anew(log, what)  # all beyond the cut is in quarantine by now
    else:
        log.stop(f"{what}: {error}")


def show_no_more_than(logs: Iterable[RegionLog], cut: Cut) -> None:
    """Take readers back to `cut`, in all logs at once, before the first of them is cut (INV-LS6).

    1. A region that was cut off has written on, and shows it. 2. It hears who acts, and forwards to that one. 3. A
    processor asks for its committed offset, and gets the new primary's. 4. It reads on from there what is lost, and
    commits what it made of that at the new primary, with an offset that skips other records there.
    """
    for log in logs:
        log.rewind_cut(cut.position_of(key_of(log)))
        log.doubt_start()


def _copy_anew(log: RegionLog, cut: str) -> None:
    """Empty a log that has nothing, or not all, of what the cut holds: its link fills it from the primary's first
    offset on."""
    _log.warning("%s cannot be cut back (%s): it is copied anew", log.tp, cut)
    log.start_at(0)


def uncut_logs(logs: Iterable[RegionLog], cut: Cut, older_than: LeaderEpoch) -> list[RegionLog]:
    """Return the logs that hold records of leader epochs below `older_than` beyond `cut`: they had stopped when the
    others were cut (INV-LS4).
    """
    found = []
    for log in logs:
        position = max(cut.position_of(key_of(log)), log.kept_from)
        if key_of(log) in cut.positions and log.end_of_older(older_than) > position:
            found.append(log)
    return found


async def _cut_one(
    log: RegionLog, provenance: Provenance, quarantine: QuarantineStore
) -> Provenance:
    # Only durable bytes are read back: the tail must not be shorter in quarantine than in the log.
    # On this node: others of the region may never have it, nor be there.
    await log.commits.wait_durable(provenance.last_offset + 1)
    read = _reader(log)
    # Where histories parted, the cut of the other one may lie within a batch of this one: all of that batch goes.
    headers = iter_headers(read(provenance.first_offset))
    first = min([provenance.first_offset, *(header.base_offset for _, header in headers)])
    # Before the tail is read: nothing may come between its quarantine and the cut.
    await log.trimming.prepare_cut(first)
    moved = await quarantine.move_in(msgspec.structs.replace(provenance, first_offset=first), read)
    assert log.log_end_offset in {first, provenance.last_offset + 1}, (log.tp, log.log_end_offset)
    await truncate_aside(log, first)
    return moved


async def truncate_aside(log: RegionLog, offset: int) -> None:
    """Cut a log with syncs in threads: the event loop waits for none. Nothing may be appended meanwhile (INV-CTJ2).

    Cancelled in the middle it ends between two of its steps, each of which may be done again.
    """
    end_offset = log.log_end_offset
    await log.trimming.lower(offset)
    assert log.log_end_offset in {offset, end_offset}, log.tp  # what came since is in no quarantine
    log.truncate_to(offset, settles=False)
    await log.trimming.settle()


class DivergedLogs:
    """Cuts single logs that differ from the primary region's although the lineage is followed (T23).

    That is what leader epochs say (KIP-101); the lineage's positions should have cut them already.
    Implements `geo_replicator.ports.DivergenceHandler`.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[RegionLog]],
        quarantine: QuarantineStore,
        reason: Callable[[], CutReason],
        shown: Callable[[], Cut],
    ) -> None:
        """Cut among `logs`, for the `reason` of the moment; never below `shown` (INV-LS5)."""
        self._shown = shown
        self._logs = logs
        self._quarantine = quarantine
        self._reason = reason

    async def diverged(self, divergences: Sequence[Diverged]) -> None:
        """Return once every diverged tail is in quarantine and cut off; raises `LogHalted`."""
        logs = {key_of(log): log for log in self._logs()}
        shown = self._shown()
        for divergence in divergences:
            log = logs.get(divergence.key)
            if log is None:
                continue
            position = _agreed_end(log, divergence)
            step = LogCut(extent_of(log), position)
            if not step.moves_tail:
                continue
            if position < shown.position_of(divergence.key):
                raise LinkFailed(
                    f"{log.tp} was shown up to {shown.position_of(divergence.key)} ({shown.point}), and would be"
                    f" cut at {position}: what was shown goes back at a new lineage entry only. Nothing was cut"
                )
            provenance = _provenance(step, EMPTY_CUT, self._reason(), CutCause.DIVERGENCE)
            try:
                moved = await _cut_one(log, provenance, self._quarantine)
            except (LogError, OSError, QuarantineDamaged) as error:
                raise LogHalted(f"{log.tp} diverged and could not be cut: {error}") from error
            tell_diverged(moved, self._quarantine)


def tell_diverged(moved: Provenance, quarantine: QuarantineStore) -> None:
    """Count and tell what nobody gave up; tidemarks are no records, and go with the history that they speak of."""
    named = f"{moved.topic}-{moved.partition} offsets {moved.first_offset}..{moved.last_offset}"
    if moved.topic == TIDEMARK_LEDGER or _was_accepted(moved, quarantine):
        _log.warning("moved %s to quarantine: they are of a history that ended", named)
        return
    quarantine.diverged_records += moved.last_offset - moved.first_offset + 1
    _log.error(
        "moved %s to quarantine: they were copied here, and region %s does not hold them. Was its folder an older copy,"
        " or did its disk lose writes? tidemark region losses lists them",
        named,
        moved.acting_region,
    )


def _was_accepted(moved: Provenance, quarantine: QuarantineStore) -> bool:
    try:
        return quarantine.cause_of(moved) is CutCause.LINEAGE
    except QuarantineDamaged:
        return False


def _agreed_end(log: RegionLog, divergence: Diverged) -> int:
    _, own_end = log.epoch_end_offset(divergence.primary_leader_epoch)
    agreed = min(own_end, divergence.primary_end_offset)
    return max(agreed, log.kept_from)


def _provenance(step: LogCut, cut: Cut, reason: CutReason, cause: CutCause) -> Provenance:
    log = step.log
    return Provenance(
        domain=reason.domain,
        topic=log.topic,
        topic_id=log.key.topic_id,
        partition=log.key.partition,
        lineage_epoch=reason.lineage_epoch,
        first_offset=step.position,
        last_offset=log.end_offset - 1,
        region=reason.region,
        region_epoch=reason.region_epoch,
        acting_region=reason.acting_region,
        base_region_epoch=cut.point.region_epoch,
        base_number=cut.point.number,
        byte_count=0,
        batch_count=0,
        crc32c=0,
        moved_wall_ms=reason.now_wall_ms,
        cause=cause,
    )


def _reader(log: RegionLog) -> ReadBatches:
    end = log.log_end_offset
    return lambda offset: log.reader.read_durable(offset, CHUNK_BYTES, end)


def bounds_of(logs: Iterable[RegionLog], cut: Cut) -> list[LogBound]:
    """Return what the cut covers and what was copied, of each log."""
    return [
        LogBound(
            topic=str(log.tp.topic),
            topic_id=log.topic_id.hex,
            partition=log.tp.partition,
            cut=max(cut.position_of(key_of(log)), log.kept_from),
            copied_end=log.log_end_offset,
            stopped=log.failed or "",
        )
        for log in logs
    ]


async def tail_beyond(logs: Iterable[RegionLog], cut: Cut) -> Tail:
    """Return everything beyond `cut` that these logs hold, but for ranges of transactional records, and which of them cannot be read.

    Waits until what was appended is durable: a mirror may have copied more than is synced, and only durable
    bytes are read back. Without that a loss statement would leave out what it says was copied.
    """
    tail = Tail(plain_only=True)
    await _take_beyond(tail, sorted(logs, key=lambda log: log.tp.topic != TRANSACTION_LEDGER), cut)
    return tail


async def stated_tail(
    logs: Sequence[RegionLog], cut: Cut, quarantine: QuarantineStore, given_up: Sequence[Provenance]
) -> Tail:
    """Return everything beyond `cut`, as `tail_beyond` does, and what takeovers that were given up had cut off before."""
    tail = Tail({each.key.log for each in given_up}, plain_only=True)
    for decides in (True, False):  # decisions are taken first, wherever they lie
        tails = [each for each in given_up if (each.topic == TRANSACTION_LEDGER) is decides]
        await _take_quarantined(tail, quarantine, tails, _nothing)
        held = [log for log in logs if (log.tp.topic == TRANSACTION_LEDGER) is decides]
        await _take_beyond(tail, held, cut)
    return tail


async def _take_beyond(tail: Tail, logs: Iterable[RegionLog], cut: Cut) -> None:
    for log in logs:
        if log.tp.topic == TIDEMARK_LEDGER:
            continue
        start = max(cut.position_of(key_of(log)), log.kept_from)
        try:
            if log.failed is None:
                await log.commits.wait_durable(log.log_end_offset)
            if log.commits.durable_end > start:
                async for chunk in _chunks_of(log, start):
                    await _take(tail, key_of(log), str(log.tp.topic), chunk, _nothing)
        except (LogError, QuarantineDamaged) as error:
            tail.unreadable.append(f"{log.tp}: {error}")


async def _chunks_of(log: RegionLog, offset: int) -> AsyncIterator[bytes | bytearray]:
    end = log.log_end_offset
    while offset < end:
        chunk = log.reader.read_durable(offset, CHUNK_BYTES, end)
        last: BatchHeader | None = None
        for _, header in iter_headers(chunk):
            last = header
        if last is None:
            return
        yield chunk
        offset = last.next_offset
        await asyncio.sleep(0)


IsHeld = Callable[[LogKey, BatchHeader], bool]
"""Tells whether a batch of a log in quarantine is there again."""


def _nothing(_key: LogKey, _header: BatchHeader) -> bool:
    return False


def there_again(lineage: Lineage, logs: Iterable[RegionLog]) -> IsHeld:
    """Return what tells of a batch that a takeover had cut off which was passed over since (INV-LO7).

    It is there again where the histories in force hold what was written there under its region epoch, and this region's
    own log has no other batch in its place: after an accepted loss two histories share a region epoch.
    """
    held_of = cache(lineage.held_of)
    own = {key_of(log): log for log in logs}

    def is_held(key: LogKey, header: BatchHeader) -> bool:
        held = held_of(region_epoch_of(header.leader_epoch))
        if held is None or header.last_offset >= held.position_of(key):
            return False
        return key not in own or not own[key].reader.has_another(header)

    return is_held


async def quarantined_tail(
    quarantine: QuarantineStore, tails: Sequence[Provenance], is_held: IsHeld | None = None, *,
    elected_clean: bool = False,
) -> Tail:  # fmt: skip
    """Return what is in quarantine under `tails`, and which of them cannot be read: one does not hide the others.

    Without what is there again by `is_held`, where it is given: that is no loss. Nor, of what a takeover has cut off, is what a later leader
    of the region had passed over, where all leaders were in sync when they were elected (INV-LO9).
    """
    counts = Counter(each.key.log for each in tails)
    tail = Tail({key for key, count in counts.items() if count > 1})
    later, is_there = LaterLeaders(), is_held or _nothing
    if elected_clean and all(each.cause is CutCause.LINEAGE for each in tails):
        # Known once all tails of a log were read: they are read twice, and not held meanwhile (INV-LO10).
        several = [each for each in tails if counts[each.key.log] > 1]
        await _note_leaders(later, quarantine, several, is_there)

    def is_no_loss(key: LogKey, header: BatchHeader) -> bool:
        passed_over = later.passed_over(key, header.leader_epoch, header.last_offset)
        return passed_over or is_there(key, header)

    decisions_first = sorted(tails, key=lambda each: each.topic != TRANSACTION_LEDGER)
    await _take_quarantined(tail, quarantine, decisions_first, is_no_loss)
    return tail


async def _note_leaders(
    later: LaterLeaders, quarantine: QuarantineStore, tails: Iterable[Provenance], is_held: IsHeld
) -> None:
    for provenance in tails:
        key = provenance.key.log
        with suppress(
            QuarantineDamaged, OSError
        ):  # whoever takes what it holds meets that again, and tells it
            for chunk in quarantine.chunks(provenance):
                for _, header in iter_headers(chunk):
                    if not is_held(key, header):
                        later.note(key, header)
                await asyncio.sleep(0)


async def _take_quarantined(
    tail: Tail, quarantine: QuarantineStore, tails: Iterable[Provenance], is_no_loss: IsHeld
) -> None:
    for provenance in tails:
        if provenance.topic == TIDEMARK_LEDGER:
            continue
        try:
            for chunk in quarantine.chunks(provenance):
                await _take(tail, provenance.key.log, provenance.topic, chunk, is_no_loss)
                await asyncio.sleep(0)
        except (QuarantineDamaged, OSError) as error:
            where = f"{provenance.topic}-{provenance.partition}"
            first, last = provenance.first_offset, provenance.last_offset
            tail.unreadable.append(f"{where} from {first} to {last}: {error}")


def given_up_tails(
    quarantine: QuarantineStore, cut: Cut, region: str, region_epoch: RegionEpoch, unreadable: list[str]
) -> list[Provenance]:  # fmt: skip
    """Return the tails that takeovers of `region` cut off behind `cut`, and then gave up, since `region_epoch`.

    1. A region takes over, states the loss, and cuts its logs. 2. It is promised away, or learns of another, before
    it acts. 3. The operator begins again: its logs no longer hold what the first statement named.

    Of what cannot be read the reasons are added to `unreadable`, for the statement: the region that acted before has promised by now, and
    nobody would act (INV-QS4).
    """
    try:
        tails = quarantine.readable_tails(unreadable)
    except OSError as error:
        unreadable.append(f"what an earlier takeover moved into quarantine: {error}")
        return []
    return [
        tail
        for tail in tails
        if tail.cause is CutCause.LINEAGE
        and (tail.region, tail.acting_region) == (region, region)
        and tail.lineage_epoch > region_epoch
        and tail.first_offset >= cut.position_of(tail.key.log)
    ]


def with_tails(bounds: Iterable[LogBound], tails: Iterable[Provenance]) -> list[LogBound]:
    """Return the bounds with what `tails` hold as copied."""
    ends: dict[tuple[str, int], int] = {}
    for tail in tails:
        place = (tail.topic_id.hex, tail.partition)
        ends[place] = max(ends.get(place, 0), tail.last_offset + 1)
    return [
        msgspec.structs.replace(
            bound,
            copied_end=max(bound.copied_end, ends.get((bound.topic_id, bound.partition), 0)),
        )
        for bound in bounds
    ]


_READ_LEDGERS: Final = {TRANSACTION_LEDGER, OFFSETS_LEDGER}
_LEDGER_ROWS: Final = 10
"""For so many batches of data one of a ledger counts, whose records are read."""
_FOLLOW_UP: Final = {TxnStatus.COMPLETE_COMMIT, TxnStatus.COMPLETE_ABORT}
"""What a coordinator notes by itself, and only for itself."""


def is_acknowledged_work(tail: Tail) -> bool:
    """Return whether a tail holds anything that a client may have been told is done, or may hold it.

    Markers and the coordinators' own follow-up records may lie beyond the last cut of a drained region:
    whoever takes over writes them again. A pair that was given out, or a partition that joined, may not: after a planned
    switch producers go on with what they were answered (T22).
    """
    answered = bool(tail.statuses - _FOLLOW_UP)
    return tail.has_records or tail.has_group_batches or bool(tail.unreadable) or answered


async def _take(tail: Tail, key: LogKey, topic: str, chunk: Buffer, is_no_loss: IsHeld) -> None:
    """Sort whole batches of one log into data, decisions and what groups wrote; the loop runs in between (INV-HW2)."""
    yielding = CooperativeYield()
    for position, header in iter_headers(chunk):
        if yielding.due(_LEDGER_ROWS if topic in _READ_LEDGERS else 1):
            await give_way()
        if is_no_loss(key, header):
            continue
        batch = chunk[position : position + header.size_bytes] if topic in _READ_LEDGERS else b""
        if topic == TRANSACTION_LEDGER:
            for decision in _decisions(key.partition, header, batch):
                tail.take_decision(decision)
        elif header.is_control:
            continue
        elif topic == OFFSETS_LEDGER:
            tail.take_commits(key, header, _commits(key.partition, header, batch))
        else:
            tail.take_data(key, topic, header)


def _decisions(shard: int, header: BatchHeader, batch: Buffer) -> list[TailDecision]:
    found = []
    try:
        for record in iter_records(batch):
            if record.key is None or record.value is None:
                continue
            key = decode_key(record.key)
            if isinstance(key, TransactionKey):
                state = decode_transaction_value(key.transactional_id, record.value)
                found.append(TailDecision(shard, header.leader_epoch, record.offset, state))
    except (RecordsError, LedgerError) as error:
        raise QuarantineDamaged(
            f"ledger shard {shard} is not readable at offset {header.base_offset}: {error}"
        ) from error
    return found


def _commits(shard: int, header: BatchHeader, batch: Buffer) -> Iterator[GroupCommit]:
    """Yield the offsets that groups commit in one batch of the offsets ledger.

    What cannot be read is named by its place: it must not keep a region from acting, nor be passed over in silence.
    """
    try:
        for record in iter_records(batch):
            key = decode_group_key(record.key)
            if isinstance(key, OffsetKey) and record.value is not None:
                at = decode_offset_value(record.value).committed_offset
                yield GroupCommit(key.group_id, str(key.tp.topic), key.tp.partition, at)
    except (RecordsError, LedgerRecordError) as error:
        yield GroupCommit(f"(unreadable: {error})", OFFSETS_LEDGER, shard, header.base_offset)


def tell_cut(tail: Provenance) -> None:
    """Tell what a takeover cut off here. A planned switch cuts off the last marks of the ledgers, and nothing of a client's."""
    _log.warning(
        "moved %s-%d offsets %d..%d to quarantine: %s took over at tidemark %d; `tidemark region losses` tells what of clients was"
        " among it, if anything",
        tail.topic, tail.partition, tail.first_offset, tail.last_offset, tail.acting_region, tail.base_number,
    )  # fmt: skip
