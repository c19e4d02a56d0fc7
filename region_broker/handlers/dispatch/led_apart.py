"""Partitions that another node of the region leads than the rest, while leaders are spread (ADR 53): what is served where.

INV-HLA1 while leaders are spread, a partition is served by the node that leads its group, and by no other: by the leader of the main group
         where it belongs to that, and the region acts; else where this node leads it, has all that is older committed, and the region acts
         (`DataGroups`). A copy that lags is served to nobody
INV-HLA2 what is served for a partition goes by that one alone: the others of its request are answered as if they had been asked alone
INV-HLA3 what waited before it is appended is appended under the leader epoch under which it came, or not at all
         1. A batch waits at the leader of a data group. 2. Leaders are gathered, and this very node leads all logs. 3. It has not loaded yet what
         it must know before it takes writes (INV-RR1).
INV-HLA4 who leads a data group judges a transactional batch by what the coordinator, at the leader of the main group, has said of this very
         batch since it came, under the leader epochs of both that still hold (`TransactionsElsewhere`, INV-AVT1). Without a word from
         there it is refused, with an error after which clients send it again
Not here: who leads what (`region.cluster`), which APIs there are of partitions (`not_led_here`).
"""

from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, Protocol

from idempotency.identity import (
    LeaderEpoch,
    LogKey,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
)
from region_broker.partitions.partition import Partition
from txn_coordinator.connection_order import Sender
from txn_coordinator.verdicts import TxnVerdict

MAIN_GATE_SHUT: Final = (
    "the region takes no writes now, as the node says that leads it: send it again"
)
"""Why the leader of a data group refuses a write (INV-RGR11)."""


class DataGroups(Protocol):
    """The data groups of this node (`region.cluster.region_groups.RegionGroups`)."""

    @property
    def any_open(self) -> bool:
        """Return whether this node leads any data group that is open."""
        ...

    def is_open(self, partition: Partition) -> bool:
        """Return whether this node leads the partition in a data group, has all that is older committed, and the region acts."""
        ...

    @property
    def takes_writes(self) -> bool:
        """Return whether groups that are open take writes of clients, as far as the main leader has said (INV-RGR11)."""
        ...

    def leads_under(self, key: LogKey) -> LeaderEpoch | None:
        """Return under which leader epoch this node leads a log in a data group that is open, None where it does not."""
        ...


class AskedBatch(NamedTuple):
    """One transactional batch that waits: where it goes, under which leader epoch of its group, and where it stands in its producer's order."""

    key: LogKey
    leader_epoch: LeaderEpoch
    base_sequence: SequenceNumber


class Question(NamedTuple):
    """What is asked about the transactional batches of one request.

    `adds`: partitions that are not in the transaction are to be added (TV2). `sender`: the connection, for the order of connections (TV1).
    """

    transactional_id: str | None
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    adds: bool
    sender: Sender
    batches: tuple[AskedBatch, ...]


class OpenHere(NamedTuple):
    """A transaction that is open in a log of a data group: where it begins there, and where the log ends, as its leader has it."""

    key: LogKey
    leader_epoch: LeaderEpoch
    first_offset: int
    log_end: int


class TransactionsElsewhere(Protocol):
    """The coordinator, at the leader of the main group, as the leader of a data group asks it (`region.cluster.txn_asking.TransactionsAsked`)."""

    def verify(self, question: Question) -> Awaitable[Sequence[TxnVerdict]]:
        """Return a verdict for each batch, in the order of the question; `LOADING` for what nobody answered in time (INV-HLA4)."""
        ...

    def is_of(self, transactional_id: str, producer_id: ProducerId) -> bool:
        """Return whether the coordinator has said that a producer is of a transactional id; False: ask (INV-AVT4)."""
        ...

    async def abort_producer(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        still_open: Sequence[OpenHere],
    ) -> TxnVerdict:
        """Have the coordinator abort what a producer has open here (B13)."""
        ...
