"""What clients ask of the coordinator: pairs, partitions that join, ends of transactions, and whether data may be written.

Each method finds the shard of its transactional id, asks for the order of connections where that counts, and gives the
request to the shard. No `await` stands between the two.
Not here: Kafka's numbers and frames (region_broker.handlers), the rules (`core`), administrators (`administration`).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    TopicName,
    TopicPartition,
)
from idempotency.java_hash import ledger_shard
from idempotency.ledger_records import TxnStatus
from txn_coordinator import events as ev
from txn_coordinator.connection_order import Arrival, Sender
from txn_coordinator.effects import Answer
from txn_coordinator.ports import IdsUnavailable, TransactionLog
from txn_coordinator.serving.abort_log import tell_replaced
from txn_coordinator.serving.admission import Admission
from txn_coordinator.serving.id_stock import IdStock
from txn_coordinator.serving.loaded_shards import LoadedShards
from txn_coordinator.serving.shard_driver import ShardDriver
from txn_coordinator.settings import TxnSettings
from txn_coordinator.shard.connection_fence import CoordinatorRequest
from txn_coordinator.verdicts import EndOutcome, InitOutcome, TxnVerdict

_LOG: Final = logging.getLogger(__name__)

DomainCheck = Callable[[str, Sequence[TopicPartition]], bool]
"""Whether all partitions are of the transactional id's domain (T28)."""


class ClientRequests:
    """Asked through `TransactionCoordinator.clients`."""

    def __init__(
        self,
        shards: LoadedShards,
        ids: IdStock,
        *,
        admission: Admission,
        ledger: TransactionLog,
        settings: TxnSettings,
        domain_check: DomainCheck | None,
    ) -> None:
        """Take the shards, and what a request is held against."""
        self._shards = shards
        self._ids = ids
        self._admission = admission
        self._ledger = ledger
        self._settings = settings
        self._domain_check = domain_check

    # ---- requests

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ) -> InitOutcome:
        """InitProducerId (KIP-98, KIP-360). Without transactional id: a fresh id at epoch 0."""
        if transactional_id is None:
            return await self._init_idempotent()
        if (producer_id == -1) != (producer_epoch == -1):
            return InitOutcome(TxnVerdict.INVALID_REQUEST)
        shard = self._shards.serving_of(transactional_id)
        if isinstance(shard, TxnVerdict):
            return InitOutcome(shard)
        number = self._shards.next_request()
        event = ev.InitProducerIdReceived(
            number, transactional_id, timeout_ms, producer_id, producer_epoch
        )
        replaced = shard.view.record_of(transactional_id)
        id_count = sum(each.view.id_count for each in self._shards)
        admitted = self._admission.of_init(transactional_id, replaced, id_count)
        if admitted is not TxnVerdict.OK:
            return InitOutcome(admitted)
        answer = await shard.ask(event, takes_id=True)
        was_open = replaced is not None and replaced.status is TxnStatus.ONGOING
        if replaced is not None and was_open and answer.verdict is TxnVerdict.OK:
            tell_replaced(replaced)
        return InitOutcome(answer.verdict, answer.producer_id, answer.producer_epoch)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Sequence[TopicPartition],
        *,
        implicit: bool,
        sender: Sender | None = None,
    ) -> TxnVerdict:
        """Let partitions join the transaction, durably before OK (B2).

        `implicit`: the add came with Produce or TxnOffsetCommit under TV2.
        """
        asked = (transactional_id, producer_id, producer_epoch, partitions)
        found = self._joining(*asked, implicit=implicit, sender=sender)
        if isinstance(found, TxnVerdict):
            return found
        shard, event = found
        return self._admission.joined(transactional_id, (await shard.ask(event)).verdict)

    def begin_add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Sequence[TopicPartition],
        *,
        sender: Sender,
        done: Callable[[TxnVerdict], None],
    ) -> None:
        """As `add_partitions`, for AddPartitionsToTxn, without a task: `done` is called once, perhaps at once."""
        asked = (transactional_id, producer_id, producer_epoch, partitions)
        found = self._joining(*asked, implicit=False, sender=sender)
        if isinstance(found, TxnVerdict):
            done(found)
        else:
            shard, event = found
            admission = self._admission
            shard.tell(
                event, lambda answer: done(admission.joined(transactional_id, answer.verdict))
            )

    def _joining(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Sequence[TopicPartition],
        *,
        implicit: bool,
        sender: Sender | None,
    ) -> tuple[ShardDriver, ev.AddPartitionsReceived] | TxnVerdict:
        shard = self._shards.serving_of(transactional_id)
        if isinstance(shard, TxnVerdict):
            return shard
        pair = (producer_id, producer_epoch)
        of_group = any(tp.topic == self._settings.offsets_topic for tp in partitions)
        request = CoordinatorRequest.JOIN_OFFSETS if of_group else CoordinatorRequest.JOIN
        order = self._order(shard, transactional_id, pair, sender, request)
        if order is not TxnVerdict.OK:
            return order
        if self._domain_check is not None and not self._domain_check(transactional_id, partitions):
            return TxnVerdict.WRONG_DOMAIN
        event = ev.AddPartitionsReceived(
            self._shards.next_request(),
            transactional_id,
            producer_id,
            producer_epoch,
            tuple(partitions),
            2 if implicit else 1,
        )
        if shard.view.has_joined(event):
            return TxnVerdict.OK
        admitted = self._admission.of_join(
            shard.view.record_of(transactional_id),
            ends=all(tp.topic == self._settings.offsets_topic for tp in partitions),
            joining=len(partitions),
            open_count=sum(each.view.partition_count for each in self._shards),
        )
        return (shard, event) if admitted is TxnVerdict.OK else admitted

    async def add_offsets(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        group_id: str,
        *,
        implicit: bool = False,
        sender: Sender | None = None,
    ) -> TxnVerdict:
        """Let the offsets partition of `group_id` join the transaction."""
        return await self.add_partitions(
            transactional_id,
            producer_id,
            producer_epoch,
            (self.offsets_partition(group_id),),
            implicit=implicit,
            sender=sender,
        )

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the ledger partition that holds the offsets of `group_id`."""
        number = ledger_shard(group_id, self._ledger.shard_count)
        return TopicPartition(TopicName(self._settings.offsets_topic), number)

    async def end_txn(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        tv: int,
        sender: Sender | None = None,
    ) -> EndOutcome:
        """Decide the transaction; OK means that the decision is durable (C17-C19)."""
        found = self._ending(transactional_id, producer_id, producer_epoch, commit, tv, sender)
        if isinstance(found, TxnVerdict):
            return EndOutcome(found)
        shard, event = found
        return _end_outcome(await shard.ask(event, takes_id=tv >= 2))

    def begin_end_txn(  # noqa: PLR0913 - the rest by keyword
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        commit: bool,
        tv: int,
        sender: Sender,
        done: Callable[[EndOutcome], None],
    ) -> bool:
        """As `end_txn`, without a task: `done` is called once, perhaps at once.

        False: it may take a producer id, and the stock must be filled first; nothing was done, use `end_txn`.
        """
        found = self._ending(transactional_id, producer_id, producer_epoch, commit, tv, sender)
        if isinstance(found, TxnVerdict):
            done(EndOutcome(found))
            return True
        shard, event = found
        if tv >= 2 and not shard.is_stocked:
            return False
        shard.tell(event, lambda answer: done(_end_outcome(answer)))
        return True

    def _ending(
        self, name: str, producer_id: ProducerId, producer_epoch: ProducerEpoch, commit: bool, tv: int, sender: Sender | None
    ) -> tuple[ShardDriver, ev.EndTxnReceived] | TxnVerdict:  # fmt: skip
        shard = self._shards.serving_of(name)
        if isinstance(shard, TxnVerdict):
            return shard
        pair = (producer_id, producer_epoch)
        kind = CoordinatorRequest.COMMIT if commit else CoordinatorRequest.ABORT
        order = TxnVerdict.OK if tv >= 2 else self._order(shard, name, pair, sender, kind)
        if order is not TxnVerdict.OK:
            return order
        number = self._shards.next_request()
        return shard, ev.EndTxnReceived(number, name, producer_id, producer_epoch, commit, tv)

    def verify(
        self,
        transactional_id: str | None,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
        arrival: Arrival | None = None,
    ) -> TxnVerdict:
        """Return whether `partition` is in the producer's transaction now (C27).

        `arrival`: data of a TV1 client that is to be written now; ask once per request (INV-TO4).
        Synchronous: a caller that appends without an `await` in between cannot be overtaken by a
        marker (P4).
        """
        serving = self._shards.serving()
        if isinstance(serving, TxnVerdict):
            return serving
        for shard in serving if transactional_id is None else (self._shards.of(transactional_id),):
            if shard.closed:
                return shard.closed_verdict
            verdict = shard.view.verify(transactional_id, producer_id, producer_epoch, partition)
            if verdict is None:
                continue
            if verdict is not TxnVerdict.OK or arrival is None:
                return verdict
            if self._settings.connection_order and not shard.connections.admits_data(
                transactional_id, producer_id, partition, arrival
            ):
                return TxnVerdict.UNPROVEN_CONNECTION
            return verdict
        return TxnVerdict.UNKNOWN_PRODUCER_MAPPING

    # ---- parts

    def _order(
        self,
        shard: ShardDriver,
        name: str,
        pair: ProducerPair,
        sender: Sender | None,
        request: CoordinatorRequest,
    ) -> TxnVerdict:
        """Return whether a coordinator request came in order (INV-TO1); no `await` follows until its step."""
        if sender is None or not self._settings.connection_order:
            return TxnVerdict.OK
        order = shard.connections.judge(name, pair, sender, request)
        if order is TxnVerdict.STALE_CONNECTION:
            self._admission.was_late(name, sender)
        return order

    async def _init_idempotent(self) -> InitOutcome:
        if not self._shards.active:
            return InitOutcome(self._shards.refusal())
        try:
            ids = await self._ids.take(1)
        except IdsUnavailable as error:
            _LOG.error("no producer id for an idempotent producer: %s", error)
            return InitOutcome(TxnVerdict.UNAVAILABLE)
        return InitOutcome(TxnVerdict.OK, ids.first, ProducerEpoch(0))


def _end_outcome(answer: Answer) -> EndOutcome:
    return EndOutcome(answer.verdict, answer.producer_id, answer.producer_epoch)
