"""The loop around reading, writing and committing: what comes again, what never does.

Played: a consumer with a committed position, and a producer that commits both or neither; the rule is the loop's.
"""

import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from region_broker.client import (
    Fenced,
    OutcomeUnknown,
    Refused,
    TidemarkError,
    TransactionAborted,
    Unreachable,
)
from region_broker.client import read_batches as module
from region_broker.client.read_batches import process, read_in_transactions
from region_broker.client.transaction import Positioned


class Fixture:
    """Offsets of one partition, what was written, and what happens to the next transactions."""

    def __init__(self, length: int, *fates: TidemarkError | str) -> None:
        self.length, self.at, self.committed = length, 0, 0
        self.written: list[int] = []
        self.fates = list(fates)
        self.rewinds = 0
        self.generation = 1
        self.offsets_under: list[object] = []
        """The generation of each commit's offsets."""

    # the consumer

    async def poll_many(self, count_max: int = 500, timeout_s: float = 0.5) -> list[Any]:
        if self.at >= self.length:
            raise Done
        found = list(range(self.at, min(self.at + count_max, self.length)))
        self.at = found[-1] + 1
        return found

    async def rewind(self) -> None:
        self.rewinds += 1
        self.at = self.committed

    async def commit(self) -> None:
        self.committed = self.at

    def position(self) -> list[Any]:
        return [self.at]

    def group_metadata(self) -> object:
        return self.generation

    # the producer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Txn"]:
        fate = self.fates.pop(0) if self.fates else "commits"
        if isinstance(fate, Unreachable):
            raise fate
        txn = Txn()
        yield txn
        if fate == "commits" or isinstance(fate, OutcomeUnknown):
            self.written += txn.sent
            self.committed = txn.position
            self.offsets_under.append(txn.membership)
        if isinstance(fate, TidemarkError):
            raise fate


class Done(Exception):
    """Everything was read."""


class Txn:
    def __init__(self) -> None:
        self.sent: list[int] = []
        self.position = -1
        self.membership: object = None

    async def send(self, value: int) -> None:
        self.sent.append(value)

    async def send_offsets(self, consumer: Positioned) -> None:
        (self.position,) = consumer.to_send()  # type: ignore[assignment]  # played
        self.membership = consumer.group_metadata()


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "backoff_s", lambda _count: 0)


async def invoice_all(fixture: Fixture, count_max: int = 2) -> None:
    with pytest.raises(Done):  # noqa: PT012
        async for batch in read_in_transactions(fixture, fixture, count_max, None):  # type: ignore[arg-type]  # played
            async with batch as txn:
                for order in batch:
                    await txn.send(order)  # type: ignore[call-arg,arg-type]  # played


# Holds INV-CRB1.
@pytest.mark.parametrize(
    "fates",
    [
        (),
        (TransactionAborted("failover"),),
        ("commits", TransactionAborted("a"), TransactionAborted("b"), "commits"),
        (OutcomeUnknown("it was committed"),),
        ("commits", OutcomeUnknown("it was committed"), TransactionAborted("x")),
        (Unreachable("no region acts"), Unreachable("still none")),
    ],
)
async def test_INV_CRB2_each_order_is_invoiced_once_whatever_happens(
    fates: tuple[Any, ...],
) -> None:
    fixture = Fixture(5, *fates)
    await invoice_all(fixture)
    assert fixture.written == [0, 1, 2, 3, 4]
    assert fixture.committed == 5


async def test_INV_CRB1_a_batch_commits_the_position_and_the_membership_that_it_was_handed_out_with() -> (
    None
):
    fixture = Fixture(2)
    batches = read_in_transactions(fixture, fixture, 2, None)  # type: ignore[arg-type]  # played
    async with await anext(batches) as txn:
        await txn.send(0)  # type: ignore[call-arg,arg-type]  # played
        # Meanwhile the partition goes, in a rebalance or by a seek.
        fixture.at, fixture.generation = -1, 2
    assert (fixture.written, fixture.committed, fixture.offsets_under) == ([0], 2, [1])


async def test_what_stands_in_the_way_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidemark.client"):
        await invoice_all(Fixture(1, TransactionAborted("a failover")))
    assert "done again from the committed position: a failover" in caplog.text


async def test_INV_CRB3_an_exception_of_the_block_aborts_and_is_raised() -> None:
    fixture = Fixture(4, "commits")
    with pytest.raises(KeyError):  # noqa: PT012
        async for batch in read_in_transactions(fixture, fixture, 2, None):  # type: ignore[arg-type]  # played
            async with batch as txn:
                for order in batch:
                    await txn.send(order)  # type: ignore[call-arg,arg-type]  # played
                if 2 in list(batch):  # type: ignore[comparison-overlap]  # played
                    raise KeyError
    assert fixture.written == [0, 1]
    assert fixture.committed == 2
    await invoice_all(fixture)  # a new loop begins where the last one committed
    assert fixture.written == [0, 1, 2, 3]


def _fail() -> None:
    raise KeyError


async def test_INV_CRB3_a_loop_that_goes_on_behind_an_exception_skips_nothing() -> None:
    fixture = Fixture(4)
    failed: list[object] = []
    with pytest.raises(Done):  # noqa: PT012
        async for batch in read_in_transactions(fixture, fixture, 2, None):  # type: ignore[arg-type]  # played
            try:
                async with batch as txn:
                    for order in batch:
                        await txn.send(order)  # type: ignore[call-arg,arg-type]  # played
                    if not failed:
                        _fail()
            except KeyError:
                failed += list(batch)
    assert failed == [0, 1]
    assert fixture.written == [0, 1, 2, 3]


async def test_INV_CRB3_a_position_that_cannot_be_committed_aborts_and_is_raised() -> None:
    ended: list[Refused] = []

    class Over(Txn):
        async def send_offsets(self, consumer: Positioned) -> None:
            raise Refused("this transaction is over")

    class Closing(Fixture):
        @asynccontextmanager
        async def transaction(self) -> AsyncIterator["Txn"]:
            try:
                yield Over()
            except Refused as refused:
                ended.append(refused)
                raise

    closing = Closing(2)
    with pytest.raises(Refused, match="is over"):
        await invoice_all(closing)
    assert len(ended) == 1
    assert closing.written == []


async def test_INV_CRB3_records_without_a_block_are_an_error_and_not_committed() -> None:
    fixture = Fixture(4)
    with pytest.raises(Refused, match="async with batch as txn"):
        async for _batch in read_in_transactions(fixture, fixture, 2, None):  # type: ignore[arg-type]  # played
            pass
    assert (fixture.written, fixture.committed, fixture.at) == ([], 0, 0)


async def test_a_batch_is_used_once() -> None:
    fixture = Fixture(2)
    batches = read_in_transactions(fixture, fixture, 2, None)  # type: ignore[arg-type]  # played
    batch = await anext(batches)
    async with batch:
        pass
    with pytest.raises(Refused, match="had their transaction"):
        await batch.__aenter__()


@pytest.mark.parametrize("fate", [Fenced("another"), Refused("wrong")])
async def test_what_does_not_pass_is_raised(fate: TidemarkError) -> None:
    fixture = Fixture(2, fate)
    with pytest.raises(type(fate)):
        await invoice_all(fixture)


async def test_patience_may_have_an_end() -> None:
    fixture = Fixture(2, *[TransactionAborted("again") for _ in range(100)])
    with pytest.raises(TransactionAborted, match="again"):  # noqa: PT012
        async for batch in read_in_transactions(fixture, fixture, 2, 0.0):  # type: ignore[arg-type]  # played
            async with batch:
                pass
    assert fixture.written == []


async def test_a_handler_is_called_for_each_record_with_or_without_transactions() -> None:
    seen: list[int] = []

    async def write(order: int, txn: Txn) -> None:
        await txn.send(order)

    async def look(order: int) -> None:
        seen.append(order)

    fixture = Fixture(5, TransactionAborted("x"))
    await until_done(process(fixture, write, fixture, 2))  # type: ignore[arg-type]  # played
    assert fixture.written == [0, 1, 2, 3, 4]
    plain = Fixture(5)
    await until_done(process(plain, look, None, 2))
    assert (seen, plain.committed) == ([0, 1, 2, 3, 4], 5)


async def test_INV_CRB4_a_handler_that_failed_gets_again_what_it_had_not_done() -> None:
    fixture, seen = Fixture(3), []

    async def look(order: int) -> None:
        seen.append(order)
        if seen == [0, 1]:
            raise KeyError

    with pytest.raises(KeyError):
        await process(fixture, look, None, 2)
    await until_done(process(fixture, look, None, 2))
    assert seen == [0, 1, 0, 1, 2]
    assert fixture.committed == 3


async def until_done(work: Awaitable[None]) -> None:
    with pytest.raises(Done):
        await work


async def test_a_batch_has_a_record() -> None:
    fixture = Fixture(1)
    with pytest.raises(Refused, match="one record at least"):
        await anext(read_in_transactions(fixture, fixture, 0, None))  # type: ignore[arg-type]  # played
