"""The records of one shard on their way into its ledger, and the news that they are durable.

INV-TD1  one event loop owns everything here; no `await` stands between a core's step and the queue, and the queue is
         flushed in order, so queue order is log order (T2)
INV-TD2  a record is reported durable when the ledger says so, in ledger order (B2, C19); all records of one
         append are reported by one call

Not here: what is written (`core`), the ledger (`ports.TransactionLog`).
"""

import asyncio
from typing import Protocol

import msgspec

from idempotency import ledger_records as lr
from idempotency.identity import CoordinatorEpoch, ProducerId, Round
from idempotency.ledger_records import PairsRecord, TransactionRecord
from txn_coordinator import transitions as tr
from txn_coordinator.events import RecordDurable, RoundAppended
from txn_coordinator.ports import LedgerFailed, LedgerPosition, TransactionLog


class LedgerUser(Protocol):
    """Whose records these are: the driver of the shard."""

    @property
    def closed(self) -> bool:
        """Whether nothing of it counts any more (INV-TD3)."""
        ...

    def step(self, event: RecordDurable | RoundAppended) -> None:
        """Take what became of a record."""
        ...

    def fail(self, error: LedgerFailed) -> None:
        """Stop: what is not confirmed has an unknown outcome."""
        ...


class _Outgoing(msgspec.Struct, frozen=True):
    """A ledger record on its way: `report` names the entry that waits for it, if one does."""

    key: bytes
    value: bytes | None
    report: str | None = None
    round: Round = Round(-1)


class _Flushed:
    """The records of one append that somebody waits for."""

    __slots__ = ("_records", "_user")

    def __init__(self, user: LedgerUser, records: list[tuple[LedgerPosition, str]]) -> None:
        self._user = user
        self._records = records

    def committed(self) -> None:
        """See `DurableListener`."""
        user = self._user
        for position, name in self._records:
            if not user.closed:
                user.step(RecordDurable(name, position))

    def not_committed(self, error: Exception) -> None:
        """See `DurableListener`."""
        self._user.fail(LedgerFailed(str(error)))


class LedgerQueue:
    """The way of one shard into its ledger."""

    def __init__(
        self,
        ledger: TransactionLog,
        shard: int,
        coordinator_epoch: CoordinatorEpoch,
        user: LedgerUser,
    ) -> None:
        """Start with nothing queued."""
        self._ledger = ledger
        self._shard = shard
        self._coordinator_epoch = coordinator_epoch
        self._user = user
        self._queued: list[_Outgoing] = []
        self._last_offset = -1

    # ---- putting in

    def put_record(self, record: TransactionRecord, *, report: bool) -> None:
        """Queue the value of an entry."""
        name = record.transactional_id
        value = lr.encode_transaction_value(record)
        self._put(_Outgoing(_key(name), value, name if report else None))

    def put_tombstone(self, transactional_id: str) -> None:
        """Queue the removal of an entry."""
        self._put(_Outgoing(_key(transactional_id), None, transactional_id))

    def put_round(self, round_: Round) -> None:
        """Queue ROUND{round}."""
        value = lr.encode_round_value(lr.RoundRecord(round_, self._coordinator_epoch))
        self._put(_Outgoing(lr.encode_round_key(), value, round=round_))

    def put_pairs(self, record: PairsRecord) -> None:
        """Queue what says since when pairs are in force."""
        self._put(_Outgoing(lr.encode_pairs_key(), lr.encode_pairs_value(record)))

    def _put(self, outgoing: _Outgoing) -> None:
        """Put a record behind those of this turn of the loop; all go out as one batch."""
        if self._user.closed:
            return
        if not self._queued:
            asyncio.get_running_loop().call_soon(self.flush)
        self._queued.append(outgoing)

    # ---- writing out

    def flush(self) -> None:
        """Append what is queued."""
        if not self._queued or self._user.closed:
            return
        batch, self._queued = self._queued, []
        try:
            first = self._ledger.append(self._shard, [(out.key, out.value) for out in batch])
        except LedgerFailed as error:
            self._user.fail(error)
            return
        self._last_offset = first.offset + len(batch) - 1
        reports: list[tuple[LedgerPosition, str]] = []
        for offset, item in enumerate(batch, first.offset):
            if item.report is not None:
                reports.append((LedgerPosition(first.leader_epoch, offset), item.report))
            elif item.round >= 0:
                self._user.step(RoundAppended(item.round, offset))
        if reports:
            flushed = _Flushed(self._user, reports)
            self._ledger.notify_committed(self._shard, self._last_offset, flushed)

    async def committed(self, offset: int) -> bool:
        """Return whether the record at `offset` came below the high watermark here."""
        try:
            await self._ledger.committed(self._shard, offset)
        except LedgerFailed as error:
            self._user.fail(error)
        return not self._user.closed

    async def sync(self) -> bool:
        """Append what is queued; return whether all that was ever appended here is durable."""
        self.flush()
        if self._last_offset < 0 or self._user.closed:
            return not self._user.closed
        return await self.committed(self._last_offset)


def _key(name: str) -> bytes:
    """Return the ledger key of an entry."""
    if name.startswith(tr.ORPHAN_PREFIX):
        return lr.encode_orphan_key(ProducerId(int(name.removeprefix(tr.ORPHAN_PREFIX))))
    return lr.encode_transaction_key(name)
