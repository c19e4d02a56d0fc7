"""Transactional batches at the leader of a data group: the coordinator is at another node, and is asked there (ADR 53).

INV-HPA1 a batch of a TV1 client asks for each request; one of a TV2 client asks unless its very producer epoch has a transaction open in the
         partition: a new transaction has a new epoch, and its first batch here was asked for
INV-HPA5 of a TV2 batch whose request names a transactional id nobody is asked only where the coordinator has said before that the producer is of
         that very id: who may use one id writes into no transaction of another
          1. Somebody reads which producer has a transaction open in a topic, its epoch and its next sequence. 2. He sends a batch with those, and
          names an id of his own, which he may use. 3. It is open already: it would be appended, and the producer's own batch be answered as
          a duplicate.
INV-HPA2 a TV1 batch is asked for at once, before those ahead of it on its connection are appended: its guard has begun, so whatever ends
         its transaction here meanwhile is seen (INV-G1). A TV2 batch is asked for when its turn has come: those ahead may have added the
         partition, and a coordinator takes one addition after the other
INV-HPA3 an answer counts while the leader epoch under which the batch came is the one under which this node leads (INV-HLA3, INV-HLA4)
INV-HPA4 nothing that its connection brings behind a batch of which nobody has said anything is executed (INV-HD4)
          1. The answer about a producer's first batch in a partition is lost. 2. The client, which has sent the second one meanwhile, hears that it
          is to send the first one again. 3. The second one's answer comes, and the log knows nothing of the producer: it would begin
          there, and the first one would be out of order for good
Not here: who is asked, and how (`region.cluster.txn_asking`), the rules of all batches (`batches`).
"""

import struct
from collections.abc import Awaitable, Sequence
from typing import Final

from idempotency.identity import SequenceNumber
from region_broker.handlers.dispatch.led_apart import AskedBatch, Question
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce.wait import Item
from region_broker.wire.codec.fast_paths.produce import ProduceRequest
from region_broker.wire.cooperative_yield import CooperativeYield
from txn_coordinator.verdicts import TxnVerdict

TV2_SINCE: Final = 12
NOTHING_SAID: Final = frozenset(
    {TxnVerdict.LOADING, TxnVerdict.NOT_COORDINATOR, TxnVerdict.UNAVAILABLE}
)
"""Verdicts that say nothing of a batch, only that nobody judges it now (INV-HPA4)."""
_SEQUENCE: Final = struct.Struct(">i")
_SEQUENCE_AT: Final = 53


def base_sequence(item: Item) -> SequenceNumber:
    """Return the first sequence of a batch that has a whole header."""
    (found,) = _SEQUENCE.unpack_from(item.data, _SEQUENCE_AT)
    return SequenceNumber(found)


def note_led(ctx: RequestContext, item: Item) -> None:
    """Note under which leader epoch this node leads a batch's partition, which it does now."""
    assert item.partition is not None
    assert ctx.services.apart is not None, "INV-HLA1: it leads data groups"
    item.led_under = ctx.services.apart.leads_under(item.partition.key)
    assert item.led_under is not None, "INV-HLA1: what is served is led"


def is_led_still(ctx: RequestContext, item: Item) -> bool:
    """Return whether this node leads a batch's partition as it did when it came (INV-HLA3)."""
    assert item.partition is not None
    apart = ctx.services.apart
    return apart is not None and apart.leads_under(item.partition.key) == item.led_under


def is_shut(ctx: RequestContext) -> bool:
    """Return whether the leader of the main group has said that the region takes no writes now (INV-RGR11)."""
    apart = ctx.services.apart
    return apart is not None and not apart.takes_writes


def is_open_already(ctx: RequestContext, transactional_id: str | None, item: Item) -> bool:
    """Return whether nobody need be asked about a batch (INV-HPA1, INV-HPA5).

    Without an id the producer's own one counts, and only where nobody's rights are judged (INV-HPP1).
    """
    if ctx.version < TV2_SINCE:
        return False
    assert item.partition is not None
    known = item.partition.state.producer(item.producer_id)
    is_open = known is not None and known.txn_first_offset >= 0
    if known is None or not is_open or known.producer_epoch != item.producer_epoch:
        return False
    elsewhere = ctx.services.txn_elsewhere
    assert elsewhere is not None, "INV-HLA4: data groups have a coordinator"
    if transactional_id is not None and not elsewhere.is_of(transactional_id, item.producer_id):
        return False
    item.verdict = TxnVerdict.OK
    return True


def answered(item: Item) -> TxnVerdict:
    """Return what was said of a batch; `LOADING` of one that nobody was asked about (INV-HLA4)."""
    return TxnVerdict.LOADING if item.verdict is None else item.verdict


class Asking:
    """The question about the batches of one request that are of data groups."""

    def __init__(self, ctx: RequestContext, request: ProduceRequest) -> None:
        """Ask nothing yet."""
        self._ctx = ctx
        self._request = request
        self._is_tv2 = ctx.version >= TV2_SINCE
        self._asked: list[Item] = []
        self._answer: Awaitable[Sequence[TxnVerdict]] | None = None

    def at_once(self, transactional: Sequence[Item]) -> None:
        """Ask about batches of a TV1 client, which are guarded, and wait for nothing (INV-HPA2)."""
        if not self._is_tv2:
            self._ask([item for item in transactional if item.open and item.led_under is not None])

    async def settle(self, transactional: Sequence[Item]) -> None:
        """Ask about the batches of a TV2 client, whose turn has come; note all verdicts."""
        if self._is_tv2:
            name, yielding = self._request.transactional_id, CooperativeYield()
            unknown: list[Item] = []
            for item in transactional:
                await yielding.row()
                if item.open and item.led_under is not None and not is_open_already(self._ctx, name, item):  # fmt: skip
                    unknown.append(item)
            self._ask(unknown)
        if self._answer is not None:
            verdicts = await self._answer
            for item, verdict in zip(self._asked, verdicts, strict=True):
                item.verdict = verdict

    def _ask(self, items: Sequence[Item]) -> None:
        if not items:
            return
        elsewhere = self._ctx.services.txn_elsewhere
        assert elsewhere is not None, "INV-HLA4: data groups have a coordinator"
        self._asked = list(items)
        adds = self._is_tv2 and self._request.transactional_id is not None
        batches = tuple(_asked(item) for item in items)
        first = items[0]
        self._answer = elsewhere.verify(
            Question(
                self._request.transactional_id, first.producer_id, first.producer_epoch, adds,
                self._ctx.sender, batches,
            )
        )  # fmt: skip


def _asked(item: Item) -> AskedBatch:
    assert item.partition is not None
    assert item.led_under is not None
    return AskedBatch(item.partition.key, item.led_under, base_sequence(item))
