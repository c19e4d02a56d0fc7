"""The table of a ledger shard: what is looked up in it."""

from msgspec import structs

from idempotency.identity import ProducerId, TopicName, TopicPartition
from idempotency.ledger_records import TxnStatus
from txn_coordinator.shard.table import Entry, TransactionTable, missing_partitions
from txn_coordinator.transitions import orphan_id, unborn

COUNT = 1_000


class Counted(str):
    """A name that counts how often it is compared with another one."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def partitions() -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(TopicName(Counted(f"t{at}")), 0) for at in range(COUNT))


def test_INV_TC15_partitions_of_a_large_transaction_are_looked_up_and_not_searched() -> None:
    """One request may ask for 20,000, of a transaction that has them: each was compared with each."""
    record = structs.replace(unborn("x"), status=TxnStatus.ONGOING, partitions=partitions())
    entry = Entry(record)
    Counted.compared = 0
    assert missing_partitions(entry, partitions()) == ()
    assert Counted.compared <= 4 * COUNT


def test_INV_TC15_what_has_joined_is_found_and_what_has_ended_is_not() -> None:
    record = structs.replace(unborn("x"), status=TxnStatus.ONGOING, partitions=partitions())
    entry, more = Entry(record), TopicPartition(TopicName("more"), 0)
    assert not entry.has(more)
    entry.record = structs.replace(record, partitions=(*record.partitions, more))
    assert entry.has(more)
    assert missing_partitions(entry, (more, more)) == ()
    entry.record = structs.replace(entry.record, status=TxnStatus.EMPTY)
    assert missing_partitions(entry, (more, more)) == (more,)


def test_INV_TC16_how_many_ids_are_in_which_state_is_known_without_counting() -> None:
    table, orphan = TransactionTable(), orphan_id(ProducerId(9))
    for number, name in enumerate(("a", "b", orphan)):
        entry = table.get_or_add(name)
        for status in (TxnStatus.EMPTY, TxnStatus.ONGOING, TxnStatus.PREPARE_ABORT):
            table.install(entry, structs.replace(entry.record, producer_id=number, status=status))
    table.get_or_add("never written")
    counted = {status: count for status, count in table.status_counts.items() if count}
    assert counted == {TxnStatus.PREPARE_ABORT: 2}
    table.install(
        entry := table.entries["a"], structs.replace(entry.record, status=TxnStatus.COMPLETE_ABORT)
    )
    table.forget(entry)
    table.forget(table.entries[orphan])
    table.forget(table.entries["never written"])
    counted = {status: count for status, count in table.status_counts.items() if count}
    assert counted == {TxnStatus.PREPARE_ABORT: 1}
