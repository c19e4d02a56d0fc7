"""Markers on their way from all ledger shards to the partitions.

INV-TQ1  what all shards decided in one turn of the loop goes to the channel in one call, in order, so that a partition
         gets all its markers by one write, up to MARKERS_AT_ONCE_MAX markers
INV-TQ2  more than those go in later turns, first come, first served, whoever decided them: others are served in between. One commit of
         a ledger, or one load, may free hundreds of thousands, and a leader that is silent for so long is deposed
An order whose shard was closed meanwhile is dropped: another load, or another region, has it (C23). A wave is over when
no marker of it is tried any more, or its shard is closed.

Not here: what becomes of a marker (`shard_driver`), writing (the channel).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from idempotency.decision import DecisionId
from idempotency.identity import TopicPartition
from txn_coordinator.ports import MarkerChannel, MarkerOrder

MARKERS_AT_ONCE_MAX: Final = 500
"""One takes some 50 us where its partition is led."""


class MarkerQueue:
    """One for all shards of a coordinator."""

    __slots__ = ("_channel", "_orders")

    def __init__(self, channel: MarkerChannel) -> None:
        """Start empty."""
        self._channel = channel
        self._orders: deque[MarkerOrder] = deque()

    def put(self, order: MarkerOrder) -> None:
        """Send an order with all others of this turn of the loop."""
        if not self._orders:
            asyncio.get_running_loop().call_soon(self._flush)
        self._orders.append(order)

    def _flush(self) -> None:
        ours = self._take(MARKERS_AT_ONCE_MAX)
        if self._orders:
            asyncio.get_running_loop().call_soon(self._flush)
        if ours:
            self._channel.write(ours)

    def _take(self, count: int) -> list[MarkerOrder]:
        """Take the first orders that have so many markers; the last one of them may be cut in two."""
        taken: list[MarkerOrder] = []
        while self._orders and count > 0:
            order = self._orders.popleft()
            if order.listener.closed:
                continue
            first, rest = order.partitions[:count], order.partitions[count:]
            if rest:
                self._orders.appendleft(replace(order, partitions=rest))
                order = replace(order, partitions=first)
            taken.append(order)
            count -= len(first)
        return taken


class MarkerWave:
    """Markers that somebody waits for, all of them together."""

    __slots__ = ("_left", "_over")

    def __init__(self) -> None:
        """Start with nothing to wait for."""
        self._left: set[tuple[DecisionId, TopicPartition]] = set()
        self._over = asyncio.Event()

    def expect(self, decision: DecisionId, partitions: Iterable[TopicPartition]) -> None:
        """Wait for these, too."""
        self._left.update((decision, tp) for tp in partitions)

    def ended(self, decision: DecisionId, tp: TopicPartition) -> None:
        """Note that a marker is not tried any more."""
        self._left.discard((decision, tp))
        if not self._left:
            self._over.set()

    def give_up(self) -> None:
        """Wait no longer."""
        self._left.clear()
        self._over.set()

    async def over(self) -> None:
        """Return when the wave is over."""
        if self._left:
            self._over.clear()  # what was expected first may have ended before the rest was known
            await self._over.wait()
