"""A coordinator core with a ledger in memory, and ports for the driver: what the transaction tests share.

`CoreWorld` plays the driver for one core: it appends at once, keeps every record, and lets a test say when
records become durable and markers arrive. Nothing here decides anything.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from idempotency import ledger_records as lr
from idempotency.identity import TopicName, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.producer_ids import ProducerIdBlock
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.effects import (
    Answer,
    AppendRecord,
    AppendRound,
    AppendTombstone,
    Held,
    SendMarkers,
)
from txn_coordinator.image import LedgerImage
from txn_coordinator.ports import (
    DurableListener,
    IdsUnavailable,
    LedgerFailed,
    LedgerPosition,
    MarkerOrder,
    MarkerResult,
)
from txn_coordinator.shard.table import Entry

LEADER_EPOCH = 8 << 16 | 1
REGION_EPOCH = 8
FIRST_ID = 1000


def tp(topic: str, partition: int = 0) -> TopicPartition:
    """Return a partition."""
    return TopicPartition(TopicName(topic), partition)


Row = tuple[LedgerPosition, bytes, bytes | None]


def key_of(name: str) -> bytes:
    """Return the ledger key of an entry, orphans included."""
    if name.startswith(tr.ORPHAN_PREFIX):
        return lr.encode_orphan_key(int(name.removeprefix(tr.ORPHAN_PREFIX)))
    return lr.encode_transaction_key(name)


@dataclass
class CoreWorld:
    """One core and its ledger shard."""

    core: TxnCoordinatorCore = field(
        default_factory=lambda: TxnCoordinatorCore(0, region_epoch=REGION_EPOCH)
    )
    leader_epoch: int = LEADER_EPOCH
    now_ms: int = 0
    wall_ms: int = 1_000_000
    rows: list[Row] = field(default_factory=list)
    unconfirmed: list[tuple[LedgerPosition, str]] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    held: list[int] = field(default_factory=list)
    sent: list[SendMarkers] = field(default_factory=list)
    requests: int = 0
    ids_given: int = 0

    def __post_init__(self) -> None:
        """Stock producer ids."""
        self.stock()

    def stock(self, count: int = 50) -> None:
        """Grant fresh producer ids."""
        self.step(ev.ProducerIdsGranted(FIRST_ID + self.ids_given, count))
        self.ids_given += count

    def step(self, event: ev.TxnEvent) -> None:
        """Feed one event and carry out its effects."""
        for effect in self.core.step(event, now_ms=self.now_ms, wall_ms=self.wall_ms):
            self._carry_out(effect)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case AppendRecord(record=record, report=report):
                name = record.transactional_id
                position = self._append(key_of(name), lr.encode_transaction_value(record))
                if report:
                    self.unconfirmed.append((position, name))
            case AppendTombstone(transactional_id=name):
                self.unconfirmed.append((self._append(key_of(name), None), name))
            case AppendRound(round=round_):
                position = self._append(
                    lr.encode_round_key(), lr.encode_round_value(lr.RoundRecord(round_, 1))
                )
                self.step(ev.RoundAppended(round_, position.offset))
            case Answer():
                assert effect.request_id not in self.answers, "answered twice"
                self.answers[effect.request_id] = effect
            case Held(request_id=number):
                self.held.append(number)
            case SendMarkers():
                self.sent.append(effect)
            case _:
                raise AssertionError(effect)

    def _append(self, key: bytes, value: bytes | None) -> LedgerPosition:
        position = LedgerPosition(self.leader_epoch, len(self.rows))
        self.rows.append((position, key, value))
        return position

    def persist(self) -> None:
        """Make everything appended durable, also what follows from that."""
        while self.unconfirmed:
            position, name = self.unconfirmed.pop(0)
            self.step(ev.RecordDurable(name, position))

    def deliver(self) -> None:
        """Let every marker that was sent be confirmed, and persist."""
        while self.sent or self.unconfirmed:
            self.persist()
            if self.sent:
                order = self.sent.pop(0)
                for partition in order.partitions:
                    confirmed = ev.MarkerConfirmed(
                        order.transactional_id, order.decision, partition
                    )
                    self.step(confirmed)

    # requests: return the request number

    def _number(self) -> int:
        self.requests += 1
        return self.requests

    def init(
        self, name: str = "t", timeout_ms: int = 60_000, pid: int = -1, epoch: int = -1
    ) -> int:
        """InitProducerId."""
        number = self._number()
        self.step(ev.InitProducerIdReceived(number, name, timeout_ms, pid, epoch))
        return number

    def add(
        self, pid: int, epoch: int, *partitions: TopicPartition, name: str = "t", tv: int = 1
    ) -> int:
        """AddPartitions."""
        number = self._number()
        self.step(ev.AddPartitionsReceived(number, name, pid, epoch, tuple(partitions), tv))
        return number

    def end(self, pid: int, epoch: int, commit: bool, name: str = "t", tv: int = 1) -> int:
        """EndTxn."""
        number = self._number()
        self.step(ev.EndTxnReceived(number, name, pid, epoch, commit, tv))
        return number

    @property
    def entries(self) -> dict[str, Entry]:
        """The core's table, for looking only."""
        return self.core._table.entries

    def record(self, name: str = "t") -> lr.TransactionRecord:
        """Return the entry's value."""
        return self.entries[name].record

    def install(self, record: lr.TransactionRecord) -> None:
        """Put an entry into the ledger as if it had been written before, and replay it."""
        position = self._append(
            key_of(record.transactional_id), lr.encode_transaction_value(record)
        )
        self.core.replay(position, *self.rows[position.offset][1:])

    def reload(
        self, *, rows: int | None = None, leader_epoch: int | None = None, region_epoch: int = 8
    ) -> "CoreWorld":
        """Return a world whose core has replayed this ledger (its first `rows` records)."""
        kept = self.rows[:rows] if rows is not None else list(self.rows)
        core = TxnCoordinatorCore(0, region_epoch=region_epoch)
        for row in kept:
            core.replay(*row)
        world = CoreWorld(
            core=core,
            leader_epoch=leader_epoch or self.leader_epoch + 1,
            now_ms=self.now_ms,
            rows=kept,
            ids_given=self.ids_given,
        )
        world.step(ev.TimersRestarted())
        return world

    def resume(self) -> None:
        """Send the markers of decided entries again."""
        for orphans in (False, True):
            self.step(ev.MarkersResumed(orphans))


ORDERS = tp("orders")


def record(status: TxnStatus, epoch: int, **changes: object) -> TransactionRecord:
    """Return an entry of producer 5 in some state."""
    base = TransactionRecord(
        transactional_id="t",
        producer_id=5,
        previous_producer_id=-1,
        next_producer_id=-1,
        producer_epoch=epoch,
        last_producer_epoch=-1,
        timeout_ms=60_000,
        status=status,
        partitions=(ORDERS,)
        if status in (TxnStatus.ONGOING, TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT)
        else (),
        last_update_ms=0,
        start_ms=0,
        stamp=0 if status in (TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT) else None,
        region_epoch=8,
        client_tv=2,
    )
    return msgspec.structs.replace(base, **changes)


def world_with(entry: TransactionRecord) -> CoreWorld:
    """Return a world that has replayed this entry."""
    world = CoreWorld()
    world.install(entry)
    return world


def started(tv: int = 1) -> tuple[CoreWorld, int]:
    """Return a world with an open transaction at epoch 0, and the producer id."""
    world = CoreWorld()
    first = world.init()
    world.persist()
    pid = world.answers[first].producer_id
    world.add(pid, 0, ORDERS, tv=tv)
    world.persist()
    return world, pid


class Gate(asyncio.Event):
    """An event that is set at first; what was to happen while it was not happens when it is set again."""

    def __init__(self) -> None:
        """Start open."""
        super().__init__()
        self._held: list[Callable[[], None]] = []
        self.set()

    def set(self) -> None:
        """Open."""
        super().set()
        held, self._held = self._held, []
        for call in held:
            call()

    def pass_or_hold(self, call: Callable[[], None]) -> None:
        """Call now, or when the gate opens."""
        if self.is_set():
            call()
        else:
            self._held.append(call)


class MemoryLedger:
    """`TransactionLog` in memory: durable at once, unless `frozen`; `broken` fails it."""

    def __init__(self, shard_count: int = 2) -> None:
        """Start empty."""
        self.shard_count = shard_count
        self.leader_epoch = LEADER_EPOCH
        self.rows: list[list[Row]] = [[] for _ in range(shard_count)]
        self.batches = 0
        self.broken = False
        self.thawed = Gate()

    def append(self, shard: int, records: Sequence[tuple[bytes, bytes | None]]) -> LedgerPosition:
        """Append."""
        if self.broken:
            raise LedgerFailed("the disk is gone")
        first = len(self.rows[shard])
        self.batches += 1
        for offset, (key, value) in enumerate(records, first):
            self.rows[shard].append((LedgerPosition(self.leader_epoch, offset), key, value))
        return LedgerPosition(self.leader_epoch, first)

    async def committed(self, shard: int, offset: int) -> None:
        """Wait while frozen."""
        assert offset < len(self.rows[shard])
        await self.thawed.wait()
        if self.broken:
            raise LedgerFailed("the disk is gone")

    def tell_committed(self, shard: int, offset: int, listener: DurableListener) -> None:
        """Tell at once, or when thawed."""
        assert offset < len(self.rows[shard])
        self.thawed.pass_or_hold(lambda: _tell(listener, self.broken))

    def whole_from(self, shard: int) -> int:
        """See `TransactionLog`."""
        return 0

    async def load(self, shard: int) -> Iterator[Row]:
        """Return the rows of the image at half of the ledger, and the others."""
        rows = self.rows[shard]
        below, above = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        image = LedgerImage()
        for row in below:
            image.apply(row)
        return iter([*image.rows(), *above])

    def replay(self, shard: int) -> Iterator[Row]:
        """Yield a copy."""
        return iter(list(self.rows[shard]))

    def records(self) -> list[lr.TransactionRecord]:
        """Return every transaction record, shard by shard."""
        found = []
        for shard in self.rows:
            for _, key, value in shard:
                decoded = lr.decode_key(key)
                if isinstance(decoded, lr.TransactionKey) and value is not None:
                    found.append(lr.decode_transaction_value(decoded.transactional_id, value))
        return found


def _tell(listener: DurableListener, broken: bool) -> None:
    if broken:
        listener.not_committed(LedgerFailed("the disk is gone"))
    else:
        listener.committed()


class MemoryMarkers:
    """`MarkerChannel` that records orders; a cleared `gate` holds them back."""

    def __init__(self) -> None:
        """Let everything through."""
        self.orders: list[MarkerOrder] = []
        """One for each marker."""
        self.gate = Gate()
        self.results: list[MarkerResult] = []

    def write(self, orders: Sequence[MarkerOrder]) -> None:
        """Note the orders; answer the next of `results`, else DONE."""
        self.gate.pass_or_hold(lambda: self._write(orders))

    def _write(self, orders: Sequence[MarkerOrder]) -> None:
        for order in orders:
            if order.listener.closed:
                continue  # the process is gone
            for partition in order.partitions:
                self.orders.append(msgspec.structs.replace(order, partitions=(partition,)))
                result = self.results.pop(0) if self.results else MarkerResult.DONE
                order.listener.marked(order, partition, result)


class MemoryIds:
    """`IdBlocks`: blocks of three ids, so that running out is common."""

    def __init__(self) -> None:
        """Start at FIRST_ID."""
        self.next = FIRST_ID
        self.broken = False

    async def next_block(self) -> ProducerIdBlock:
        """Return the next three ids."""
        if self.broken:
            raise IdsUnavailable("the metadata is not there")
        block = ProducerIdBlock(self.next, 3)
        self.next += 3
        return block


class ManualClock:
    """A clock that a test moves; sleepers wake when their time has come."""

    def __init__(self) -> None:
        """Start at 0."""
        self.now_ms = 0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic_ms(self) -> int:
        """Return the time."""
        return self.now_ms

    def wall_ms(self) -> int:
        """Return the time, from another origin."""
        return 1_700_000_000_000 + self.now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait for `advance`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_ms + duration_ms, future))
        await future

    def advance(self, duration_ms: int) -> None:
        """Move the time and wake who is due."""
        self.now_ms += duration_ms
        due = [future for at, future in self._sleepers if at <= self.now_ms]
        self._sleepers = [(at, future) for at, future in self._sleepers if at > self.now_ms]
        for future in due:
            if not future.done():
                future.set_result(None)
