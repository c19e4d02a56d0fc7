"""Reading, writing and committing in one: the loop around a consumer and a transactional producer.

INV-CRB1  what a batch read counts as read if, and only if, what was written in its block is committed: the position goes
          into the same transaction. Position and membership are those of the step that handed the batch out: a partition that
          goes while the block works is committed all the same, and refused where a rebalance took it
INV-CRB2  whatever ends a transaction otherwise (an abort, a failover, a rebalance, an outcome that nobody knows), the
          consumer goes back to the committed position, and what is read there decides what comes next: nothing is
          skipped, nothing done twice
INV-CRB3  a batch that was handed out and not used is an error, never a commit; an exception of the block aborts, and where
          the loop goes on all the same, it goes on from the committed position
INV-CRB4  a handler that is called again after an exception gets what it had not done: no record is passed by

An unknown outcome needs no verdict here: the next producer id decides whatever was open, and the committed position is
part of it.
Not here: transactions by themselves (`transactional_producer`), reading (`read_committed_consumer`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol

from confluent_kafka import Message, TopicPartition

from region_broker.client.errors import (
    OutcomeUnknown,
    Refused,
    TidemarkError,
    TransactionAborted,
    Unreachable,
)
from region_broker.client.transaction import Transaction
from region_broker.client.transactional_producer import TransactionalProducer
from region_broker.client.waiting_calls import backoff_s

_log: Final = logging.getLogger("tidemark.client")
_PASSING: Final = (TransactionAborted, OutcomeUnknown, Unreachable)


class Reader(Protocol):
    """What the loop needs of a consumer."""

    async def poll_many(self, count_max: int = ..., timeout_s: float = ...) -> list[Message]:
        """Return up to `count_max` records, none when none came in time."""
        ...

    async def rewind(self) -> None:
        """Go back to the committed position; raises `Unreachable`."""
        ...

    async def commit(self) -> None:
        """Commit the position; raises `Unreachable`, `Refused`."""
        ...

    def position(self) -> list[TopicPartition]:
        """Return the offsets after what was handed out."""
        ...

    def group_metadata(self) -> object:
        """Return the membership that a transaction's offsets are fenced by."""
        ...


@dataclass(frozen=True, slots=True)
class _ReadUpTo:
    """Where a consumer stood, and as which member of its group (`Positioned`)."""

    offsets: list[TopicPartition]
    membership: object

    def to_send(self, offsets: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """Return the offsets after what was handed out."""
        assert offsets is None
        return self.offsets

    def group_metadata(self) -> object:
        """Return the membership that the offsets are fenced by (KIP-447)."""
        return self.membership


class ReadBatch:
    """Records that belong into one transaction: iterate over them within ``async with batch as transaction``."""

    def __init__(self, records: Sequence[Message], reader: Reader, producer: TransactionalProducer, patience: "Patience") -> None:  # fmt: skip
        """Nothing is begun yet; `reader` stands behind `records`."""
        self._records = tuple(records)
        # Now, and not when the block ends: by then a rebalance, or a seek in the block, may have taken the position away, and
        # what the block wrote would be committed without it.
        self._read_up_to = _ReadUpTo(reader.position(), reader.group_metadata())
        self._producer = producer
        self._patience = patience
        self._context: AbstractAsyncContextManager[Transaction] | None = None
        self._transaction: Transaction | None = None
        self.committed = False

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the records, each partition's in order."""
        return iter(self._records)

    def __len__(self) -> int:
        """Return how many records there are, at least one."""
        return len(self._records)

    @property
    def used(self) -> bool:
        """Return whether a transaction was begun for it."""
        return self._context is not None

    async def __aenter__(self) -> Transaction:
        """Begin the transaction, waiting as long as no region acts; raises `Fenced`, `Refused`."""
        if self.used:
            raise Refused("these records had their transaction: take the next ones from the loop")
        while True:
            self._context = self._producer.transaction()
            try:
                self._transaction = await self._context.__aenter__()
            except Unreachable as unreachable:
                await self._patience.wait(unreachable)
            else:
                return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit records and position, or abort for an exception of the block, which is raised on (INV-CRB3)."""
        assert self._context is not None
        assert self._transaction is not None
        try:
            if error is None:
                await self._transaction.send_offsets(self._read_up_to)
        except BaseException as refused:
            await self._context.__aexit__(type(refused), refused, refused.__traceback__)
            raise
        try:
            await self._context.__aexit__(kind, error, trace)
        except _PASSING as passing:
            if passing is error:
                raise
            self._patience.note(passing)
            return
        if error is None:
            self.committed = True
            self._patience.over()


class Patience:
    """How long it has been since something was committed, and how long to wait before the next try."""

    def __init__(self, give_up_after_s: float | None) -> None:
        """Nothing has failed yet."""
        self._give_up_after_s = give_up_after_s
        self._since_s: float | None = None
        self._count = 0
        self._last: TidemarkError | None = None

    def note(self, error: TidemarkError) -> None:
        """Take note of what stood in the way."""
        self._last = error
        self._since_s = time.monotonic() if self._since_s is None else self._since_s
        self._count += 1
        _log.warning("the transaction is done again from the committed position: %s", error)

    def over(self) -> None:
        """Begin anew: something was committed."""
        self._since_s, self._count, self._last = None, 0, None

    async def wait(self, error: TidemarkError) -> None:
        """Note `error` and wait; raises it when patience is over."""
        self.note(error)
        await self.pause()

    async def pause(self) -> None:
        """Wait before the next try, longer each time; raises what stands in the way when patience is over."""
        if self._last is None or self._since_s is None:
            return
        past_s = time.monotonic() - self._since_s
        if self._give_up_after_s is not None and past_s > self._give_up_after_s:
            raise self._last
        await asyncio.sleep(backoff_s(self._count))


async def read_in_transactions(
    reader: Reader, producer: TransactionalProducer, count_max: int, give_up_after_s: float | None
) -> AsyncIterator[ReadBatch]:
    """Yield batches for ever, from the committed position after each that was not committed (INV-CRB2)."""
    if count_max < 1:
        raise Refused(f"count_max = {count_max}: a batch has one record at least")
    patience = Patience(give_up_after_s)
    await _rewind(reader, patience)
    while True:
        records = await reader.poll_many(count_max)
        if not records:
            continue
        batch = ReadBatch(records, reader, producer, patience)
        yield batch
        if not batch.used:
            await _rewind(reader, patience)
            raise Refused(
                "records were taken from the loop without `async with` around their work, so nothing would be"
                " committed: write `async for batch in consumer.transactions(producer): async with batch as txn: ...`"
            )
        if not batch.committed:
            await patience.pause()
            await _rewind(reader, patience)


async def _rewind(reader: Reader, patience: Patience) -> None:
    while True:
        try:
            await reader.rewind()
        except Unreachable as unreachable:
            await patience.wait(unreachable)
        else:
            return


async def process(
    reader: Reader, handler: Callable[..., Awaitable[object]],
    producer: TransactionalProducer | None, count_max: int,
) -> None:  # fmt: skip
    """Call `handler` for each record, for ever; see `ReadCommittedConsumer.run`."""
    if producer is not None:
        async for batch in read_in_transactions(reader, producer, count_max, None):
            async with batch as transaction:
                for record in batch:
                    await handler(record, transaction)
        return
    patience = Patience(None)
    await _rewind(reader, patience)  # what an earlier call was given and had not done (INV-CRB4)
    while True:
        for record in await reader.poll_many(count_max):
            await handler(record)
        await _commit(reader, patience)


async def _commit(reader: Reader, patience: Patience) -> None:
    """Commit, as long as it takes; what the group has given to others is read again by them."""
    while True:
        try:
            await reader.commit()
        except Unreachable as unreachable:
            await patience.wait(unreachable)
        except Refused as refused:
            _log.warning("%s", refused)
            await _rewind(reader, patience)
            return
        else:
            patience.over()
            return
