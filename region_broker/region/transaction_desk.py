"""Open transactions by partition, and ending one: what an operator does about readers that stand still.

INV-OT1  only the primary region answers: its coordinator is the one that decides
INV-OT2  an abort names what it ends: a transactional id, or the offset at which a transaction begins in a partition,
         so that a later transaction is not ended in its place

Not here: how an abort is decided (`txn_coordinator.serving.administration`), HTTP (`http_api.routes_transactions`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from region_broker.partitions.table import PartitionTable
from region_broker.region.verdict_service import VerdictRefused
from txn_coordinator.serving.administration import TransactionAdministration
from txn_coordinator.verdicts import TxnVerdict

_OPEN: Final = (TxnStatus.ONGOING, TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT)


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
        self, partitions: PartitionTable, admin: TransactionAdministration, region: ActingCheck
    ) -> None:
        """Look into `partitions`, end through `admin`, while `region` acts."""
        self._partitions = partitions
        self._admin = admin
        self._region = region

    def open_transactions(self) -> list[OpenInPartition]:
        """Return what is open in every partition; raises `VerdictRefused`."""
        self._region.check_acting()
        records = self._admin.listing()
        if isinstance(records, TxnVerdict):
            raise _refusal(records, "the transactions")
        known = {record.producer_id: record for record in records}
        return [
            OpenInPartition(tp, found, _owner(known.get(found.producer_id), tp))
            for tp, found in self._all_open()
        ]

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
        still_open = self._still_open(found.tp, txn)
        verdict = await self._admin.abort_producer(txn.producer_id, txn.producer_epoch, still_open)
        if verdict is not TxnVerdict.OK:
            raise _refusal(verdict, f"the transaction at {topic}-{partition}@{start_offset}")

    def _still_open(self, tp: TopicPartition, txn: OpenTxn) -> Callable[[], list[TopicPartition]]:
        def still_open() -> list[TopicPartition]:
            partition = self._partitions.get(tp.topic, tp.partition)
            known = None if partition is None else partition.state.producer(txn.producer_id)
            is_open = known is not None and known.txn_first_offset == txn.first_offset
            return [tp] if is_open else []

        return still_open

    def _all_open(self) -> Iterator[tuple[TopicPartition, OpenTxn]]:
        for partition in self._partitions:
            for found in partition.state.open_transactions():
                yield partition.tp, found


def _owner(record: TransactionRecord | None, tp: TopicPartition) -> str:
    """Return whose transaction it is, empty if the ledger does not know that it is open there."""
    if record is None or record.status not in _OPEN or tp not in record.partitions:
        return ""
    return record.transactional_id


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
