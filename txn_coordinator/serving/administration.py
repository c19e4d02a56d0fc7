"""What an administrator asks of the coordinator: which transactions there are, and to end one (KIP-664).

INV-TN1  an abort is a decision in the ledger, with the producer's epoch bumped: nothing writes a marker
         behind the coordinator's back, and the producer cannot commit afterwards (B13)
INV-TN2  OK is answered when every marker is written and readable, so whoever looks next sees nothing open
INV-TN3  what is said of all transactional ids comes from all shards, or is refused: a part would look like the whole, and none as
         if there were none

Not here: Kafka's and HTTP's words for it (`region_broker`), the rules of a shard (`core`).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from idempotency.identity import ProducerEpoch, ProducerId, ProducerPair, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.ports import IdsUnavailable
from txn_coordinator.serving.abort_log import tell_ordered
from txn_coordinator.serving.loaded_shards import LoadedShards
from txn_coordinator.serving.shard_driver import ShardDriver
from txn_coordinator.verdicts import TxnVerdict

_LOG: Final = logging.getLogger(__name__)
_TRIES: Final = 5
"""How often an abort is tried against a producer that is busy."""

StillOpen = Callable[[], Sequence[TopicPartition]]
"""The partitions that have data of a producer now and no marker."""


class TransactionAdministration:
    """Asked through `TransactionCoordinator.admin`; holds no state of its own."""

    def __init__(self, shards: LoadedShards) -> None:
        """Take the shards."""
        self._shards = shards

    # ---- looking

    def listing(self) -> Iterator[TransactionRecord] | TxnVerdict:
        """Return the value of every transactional id as of now, orphans left out; or why there is none.

        What is left out is found as the values are gone through, so that who does may give way in between.
        """
        shards = self._all_open()
        if isinstance(shards, TxnVerdict):
            return shards
        records = [record for shard in shards for record in shard.view.records()]
        return filter(tr.is_visible, records)

    def status_counts(self) -> Mapping[TxnStatus, int] | TxnVerdict:
        """Return how many transactional ids are in which state; or why nobody can say."""
        shards = self._all_open()
        if isinstance(shards, TxnVerdict):
            return shards
        counts = [shard.view.status_counts for shard in shards]
        return {status: sum(each[status] for each in counts) for status in TxnStatus}

    def _all_open(self) -> Sequence[ShardDriver] | TxnVerdict:
        """Return all shards; or why not all can be asked (INV-TN3)."""
        shards = self._shards.serving()
        if isinstance(shards, TxnVerdict):
            return shards
        for shard in shards:
            if shard.closed:
                return shard.closed_verdict
        return shards

    def describe(self, transactional_id: str) -> TransactionRecord | TxnVerdict | None:
        """Return the current value of one transactional id; None if there is none; or why not."""
        shard = self._shards.serving_of(transactional_id)
        if isinstance(shard, TxnVerdict):
            return shard
        record = shard.view.record_of(transactional_id)
        return record if record is not None and tr.is_visible(record) else None

    # ---- ending

    async def abort(self, transactional_id: str) -> TxnVerdict:
        """Abort the open transaction of a transactional id.

        INVALID_STATE: nothing is open. UNKNOWN_PRODUCER_MAPPING: no such id. CONCURRENT: its markers could
        not be written in time; the decision stands, and they are tried on.
        """
        shard = self._shards.serving_of(transactional_id)
        if isinstance(shard, TxnVerdict):
            return shard
        record = shard.view.record_of(transactional_id)
        if record is None or not tr.is_visible(record):
            return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
        return await self._abort_known(shard, transactional_id, None, tuple)

    async def abort_producer(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, still_open: StillOpen
    ) -> TxnVerdict:
        """Abort what a producer has open in the partitions that `still_open` names whenever it is asked.

        The transactional id that has this producer id is ended by a decision of its own. If there is none
        (it expired, or an older region gave it out), an orphan abort is decided (T21).
        CONCURRENT: a later transaction of the producer is open, or markers could not be written in time.
        """
        shards = self._shards.serving()
        if isinstance(shards, TxnVerdict):
            return shards
        for shard in shards:
            known = shard.view.record_of_producer(producer_id)
            if known is not None:
                name = known.transactional_id
                return await self._abort_known(
                    shard, name, (producer_id, producer_epoch), still_open
                )
        shard = shards[producer_id % len(shards)]
        return await self._abort_orphan(shard, producer_id, producer_epoch, still_open)

    async def _abort_known(
        self, shard: ShardDriver, name: str, pair: ProducerPair | None, still_open: StillOpen
    ) -> TxnVerdict:
        """End the transaction of `name`; without `pair`, whichever is open."""
        verdict = TxnVerdict.CONCURRENT
        for _ in range(_TRIES):
            settled = await self._prepared(shard, name)
            if settled is not TxnVerdict.OK:
                return settled
            # From here to the step of the core nothing is awaited: what is open now is what is ended.
            partitions = tuple(still_open())
            if pair is not None and not partitions:
                return TxnVerdict.OK
            found = shard.view.record_of(name)
            if found is None:
                return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
            whose = pair or (found.producer_id, found.producer_epoch)
            event = ev.AbortReceived(self._shards.next_request(), name, *whose, partitions)
            verdict = (await shard.ask(event, takes_id=True)).verdict
            if verdict is TxnVerdict.OK:
                tell_ordered(found)
            if verdict is not TxnVerdict.CONCURRENT:
                break
        return await self._settled(shard, name) if verdict is TxnVerdict.OK else verdict

    async def _abort_orphan(
        self,
        shard: ShardDriver,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        still_open: StillOpen,
    ) -> TxnVerdict:
        name = tr.orphan_id(producer_id)
        settled = await self._settled(shard, name)  # one abort of an orphan at a time
        if settled is not TxnVerdict.OK:
            return settled
        partitions = tuple(still_open())
        if not partitions:
            return TxnVerdict.OK
        shard.step(ev.AbortOrphan(producer_id, producer_epoch, partitions))
        if not await shard.ledger.sync():
            return shard.closed_verdict
        return await self._settled(shard, name)

    async def _prepared(self, shard: ShardDriver, name: str) -> TxnVerdict:
        """Wait until nothing of `name` is under way, with a producer id in stock for the abort."""
        settled = await self._settled(shard, name)
        if settled is not TxnVerdict.OK:
            return settled
        try:
            await shard.stock_ids()
        except IdsUnavailable as error:
            _LOG.error("no producer id for the abort of %s: %s", name, error)
            return TxnVerdict.UNAVAILABLE
        return TxnVerdict.OK

    async def _settled(self, shard: ShardDriver, name: str) -> TxnVerdict:
        """Wait until nothing of `name` is under way."""
        answer = await shard.ask(ev.SettledAsked(self._shards.next_request(), name))
        return answer.verdict
