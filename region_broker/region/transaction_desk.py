"""Open transactions by partition, and ending one: what an operator does about readers that stand still.

INV-OT1  only the primary region answers: its coordinator is the one that decides
INV-OT2  an abort names what it ends: a transactional id, or the offset at which a transaction begins in a partition,
         so that a later transaction is not ended in its place
INV-OT3  what is open in a log that another node leads, is said by the copy here only once that holds every marker that was confirmed there: an
         older one may show as open what has ended, and the abort would end the producer's next transaction
INV-OT4  what is shown is of one moment, as a transaction that begins or ends between two looks would seem to be nobody's; whose it is, is looked up
         in pieces, never searched for (INV-TC15): there may be tens of thousands

Not here: how an abort is decided (`txn_coordinator.serving.administration`), HTTP (`http_api.routes_transactions`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from idempotency.identity import LogKey, ProducerEpoch, ProducerId, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.partitions.table import PartitionTable
from region_broker.region.verdict_service import VerdictRefused
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding
from txn_coordinator.serving.administration import TransactionAdministration
from txn_coordinator.verdicts import TxnVerdict

_OPEN: Final = (TxnStatus.ONGOING, TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT)


COPIED_WITHIN_S: Final = 2.0
"""How long an order waits for what it speaks of to be copied here."""


class OpenAt(NamedTuple):
    """A transaction that is open in a partition, from `first_offset` on; `log_end`: to where the log reached for whoever said so."""

    tp: TopicPartition
    first_offset: int
    log_end: int


class _CopyBehind(Exception):
    """A copy here does not hold all that was confirmed where its log is led (INV-OT3)."""


def led_here(_key: LogKey) -> int:
    """Return 0: no marker was confirmed by another node."""
    return 0


class ActingCheck(Protocol):
    """`region.verdict_service.VerdictService`."""

    def check_acting(self) -> None:
        """Raise `VerdictRefused` where this region does not act."""
        ...


@dataclass(frozen=True, slots=True)
class OpenInPartition:
    """A transaction with data in a partition and no marker; `transactional_id` is empty if nobody knows it."""

    tp: TopicPartition
    found: OpenTxn
    transactional_id: str


class TransactionDesk:
    """Serves operators at the primary region."""

    def __init__(
        self, partitions: PartitionTable, admin: TransactionAdministration, region: ActingCheck,
        marker_end: Callable[[LogKey], int] = led_here,
    ) -> None:  # fmt: skip
        """Look into `partitions`, end through `admin`, while `region` acts.

        `marker_end`: up to where another node that leads a log has confirmed markers.
        """
        self._marker_end = marker_end
        self._partitions = partitions
        self._admin = admin
        self._region = region

    def listing(self) -> Iterator[TransactionRecord]:
        """Return the value of every transactional id; raises `VerdictRefused`."""
        self._region.check_acting()
        records = self._admin.listing()
        if isinstance(records, TxnVerdict):
            raise _refusal(records, "the transactions")
        return records

    def describe(self, transactional_id: str) -> TransactionRecord | None:
        """Return the value of one transactional id, None if there is none; raises `VerdictRefused`."""
        self._region.check_acting()
        found = self._admin.describe(transactional_id)
        if found is TxnVerdict.INVALID_REQUEST:
            return None  # no id can be called so
        if isinstance(found, TxnVerdict):
            raise _refusal(found, f"the transaction of {transactional_id!r}")
        return found

    async def open_transactions(self) -> list[OpenInPartition]:
        """Return what is open in every partition (INV-OT4); raises `VerdictRefused`."""
        records = self.listing()
        found_open = list(self._all_open())
        owners = _Owners(records)
        return await each_yielding(
            found_open,
            lambda each: OpenInPartition(*each, owners.of(each[1].producer_id, each[0])),
            CooperativeYield(),
        )

    async def abort_id(self, transactional_id: str) -> None:
        """Abort the open transaction of a transactional id; raises `VerdictRefused`."""
        self._region.check_acting()
        verdict = await self._admin.abort(transactional_id)
        if verdict is not TxnVerdict.OK:
            raise _refusal(verdict, f"the transaction of {transactional_id!r}")

    async def abort_at(self, topic: str, partition: int, start_offset: int) -> None:
        """Abort the transaction that begins at an offset of a partition; raises `VerdictRefused`."""
        self._region.check_acting()
        found = self._partitions.get(topic, partition)
        if found is None:
            raise VerdictRefused(404, "unknown-partition", f"there is no {topic}-{partition}")
        opened = [
            txn for txn in found.state.open_transactions() if txn.first_offset == start_offset
        ]
        if not opened:
            raise VerdictRefused(
                404, "not-open", f"no open transaction begins at {topic}-{partition}@{start_offset}"
            )
        (txn,) = opened
        at = OpenAt(found.tp, txn.first_offset, found.log_end_offset)
        verdict = await self.abort_open(txn.producer_id, txn.producer_epoch, [at])
        if verdict is not TxnVerdict.OK:
            raise _refusal(verdict, f"the transaction at {topic}-{partition}@{start_offset}")

    async def abort_open(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, found: Sequence[OpenAt]
    ) -> TxnVerdict:
        """Abort what a producer has open in partitions, as far as it is still open (INV-OT3).

        CONCURRENT, too, where a copy here was not there in time.
        """
        still_open = partial(self._still_open, producer_id, found)
        clock = asyncio.get_running_loop().time
        until_s = clock() + COPIED_WITHIN_S
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    await self._copied(found)
            except TimeoutError:
                return TxnVerdict.CONCURRENT
            except PartitionFailed:
                return TxnVerdict.UNAVAILABLE
            try:
                return await self._admin.abort_producer(producer_id, producer_epoch, still_open)
            except _CopyBehind:  # markers were confirmed while the abort waited for its turn
                continue

    async def _copied(self, found: Sequence[OpenAt]) -> None:
        for each in found:
            while (partition := self._partitions.get(each.tp.topic, each.tp.partition)) is not None:
                end = max(each.log_end, self._marker_end(partition.key))
                if partition.log_end_offset >= end:
                    break
                try:
                    await partition.commits.wait_durable(end)
                except NotLeader:  # it was cut, and is copied on
                    await asyncio.sleep(0)

    def _still_open(self, producer_id: ProducerId, found: Sequence[OpenAt]) -> list[TopicPartition]:
        """Return where it is still open; raises `_CopyBehind`."""
        still: list[TopicPartition] = []
        for each in found:
            partition = self._partitions.get(each.tp.topic, each.tp.partition)
            if partition is None:
                continue
            if partition.log_end_offset < self._marker_end(partition.key):
                raise _CopyBehind
            known = partition.state.producer(producer_id)
            if known is not None and known.txn_first_offset == each.first_offset:
                still.append(each.tp)
        return still

    def _all_open(self) -> Iterator[tuple[TopicPartition, OpenTxn]]:
        for partition in self._partitions:
            for found in partition.state.open_transactions():
                yield partition.tp, found


class _Owners:
    """Whose an open transaction is."""

    def __init__(self, records: Iterable[TransactionRecord]) -> None:
        self._open = {each.producer_id: each for each in records if each.status in _OPEN}
        self._partitions: dict[ProducerId, frozenset[TopicPartition]] = {}

    def of(self, producer_id: ProducerId, tp: TopicPartition) -> str:
        """Return the transactional id, empty if the ledger does not know that it is open there."""
        record = self._open.get(producer_id)
        if record is None:
            return ""
        partitions = self._partitions.get(producer_id)
        if partitions is None:
            partitions = self._partitions[producer_id] = frozenset(record.partitions)
        return record.transactional_id if tp in partitions else ""


def _refusal(verdict: TxnVerdict, what: str) -> VerdictRefused:
    match verdict:
        case TxnVerdict.UNKNOWN_PRODUCER_MAPPING:
            return VerdictRefused(404, "unknown-transactional-id", f"{what}: nobody knows that id")
        case TxnVerdict.INVALID_STATE:
            return VerdictRefused(404, "not-open", f"{what} is not open: there is nothing to abort")
        case TxnVerdict.CONCURRENT:
            return VerdictRefused(
                409,
                "busy",
                f"{what}: another transaction of the producer is open, or markers could not be written"
                " in time; look again with `tidemark txn list`",
            )
        case _:
            return VerdictRefused(
                503, "no-coordinator", f"{what}: the coordinator is not served now ({verdict.name})"
            )
