"""The coordinator's markers for logs of data groups, on their way to the nodes that lead those (ADR 53).

INV-AMK1 a marker is confirmed only by the leader of its log's group, and while, when the answer comes, this node leads the main group, and that
         one its group, under the leader epochs under which it was sent; whatever else comes, or does not come, is `RETRY`: the order
         is sent again, to whoever leads by then, and the decision is found in the log, or written (T6)
INV-AMK2 what is confirmed is noted before anybody hears of it, with an end that lies above the marker: whoever cuts next waits for the copy (T2)
INV-AMK3 an order is under way once at a time: what is not answered is sent again after its pause, so that their number is that of the
         markers owed; those of one call for one node are one message
INV-AMK4 who waits for a leader that is deposed is told `RETRY` in the step that says it
Not here: writing (`marker_taking`), pauses (`txn_coordinator.serving.shard_driver`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from idempotency.identity import LeaderEpoch, LogKey, Member, TopicPartition
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.controller.metadata_image import MetadataImage
from region_broker.region.cluster.leader_lines import LeaderLines
from region_broker.region.cluster.leader_messages import (
    LedLog,
    SentMarker,
    WriteMarkers,
    WrittenMarkers,
    leads_apart,
    main_epoch_of,
    result_named,
)
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from txn_coordinator.ports import MarkerOrder, MarkerResult

_log: Final = logging.getLogger("tidemark.cluster")


class MarkersOfALog(Protocol):
    """`ledgers.marker_channel.LogMarkers`."""

    @property
    def tp(self) -> TopicPartition:
        """Return which partition it is."""
        ...

    @property
    def key(self) -> LogKey:
        """Return which log it is."""
        ...

    @property
    def orders(self) -> Sequence[MarkerOrder]:
        """Return the orders for it, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingParts:
    """What it is joined with. `note`: hears up to where markers of a log are confirmed (`ledgers.marker_ends.MarkerEnds`)."""

    me: Member
    image: Callable[[], MetadataImage]
    lines: LeaderLines
    note: Callable[[LogKey, int], None]


class _Sent:
    """What one message brings, until each of its markers has a result."""

    def __init__(self, main_epoch: LeaderEpoch, leader: Member) -> None:
        self.main_epoch = main_epoch
        self.leader = leader
        self.logs: list[LedLog] = []
        self.places: list[TopicPartition] = []
        self.orders: dict[MarkerOrder, list[int]] = {}
        """Each order, and into which of the logs it goes; in the order in which they were decided."""
        self.told: set[tuple[MarkerOrder, int]] = set()

    def add(self, log: LedLog, found: MarkersOfALog) -> None:
        self.logs.append(log)
        self.places.append(found.tp)
        for order in found.orders:
            self.orders.setdefault(order, []).append(len(self.logs) - 1)

    def message(self) -> WriteMarkers:
        return WriteMarkers(
            main_epoch=self.main_epoch,
            logs=tuple(self.logs),
            markers=tuple(_sent(order, logs) for order, logs in self.orders.items()),
        )

    def tell(self, order: MarkerOrder, log: int, result: MarkerResult) -> None:
        if (order, log) not in self.told:
            self.told.add((order, log))
            order.listener.marked(order, self.places[log], result)

    def give_up(self, lost: Callable[[LedLog], bool]) -> None:
        """Tell whoever waits for logs that are `lost` to try again."""
        gone = {number for number, log in enumerate(self.logs) if lost(log)}
        for order, logs in self.orders.items():
            for log in gone.intersection(logs):
                self.tell(order, log, MarkerResult.RETRY)


class MarkerSending:
    """`ledgers.marker_channel.MarkersApart`; `take_image` hears of each image in the step in which it is there."""

    def __init__(self, parts: SendingParts) -> None:
        """Send nothing yet."""
        self._parts = parts
        self._under_way: dict[_Sent, None] = {}

    def is_apart(self, key: LogKey) -> bool:
        """See `MarkersApart`."""
        return self._parts.image().group_of(key) != MAIN_GROUP

    def write(self, found: Sequence[MarkersOfALog]) -> None:
        """See `MarkersApart`; listeners are told in a turn of the loop of their own."""
        image = self._parts.image()
        main_epoch = main_epoch_of(image, self._parts.me)
        of_nodes: dict[Member, _Sent] = {}
        for each in found:
            row = image.leadership_of(each.key)
            if main_epoch is None or row is None or row.leader is None:
                asyncio.get_running_loop().call_soon(_retry, each)
                continue
            sent = of_nodes.get(row.leader)
            if sent is None:
                sent = of_nodes[row.leader] = _Sent(main_epoch, row.leader)
            sent.add(LedLog(each.key.topic_id, each.key.partition, row.leader_epoch), each)
        for sent in of_nodes.values():
            self._send(sent)

    def _send(self, sent: _Sent) -> None:
        self._under_way[sent] = None

        def done(answer: WrittenMarkers | PeerRefused | PeerUnreachable) -> None:
            del self._under_way[sent]
            if isinstance(answer, WrittenMarkers):
                self._take(sent, answer)
            else:
                _log.info("markers at node %s are tried again: %s", sent.leader, answer)
            sent.give_up(lambda _log: True)

        self._parts.lines.begin(sent.leader, sent.message(), WrittenMarkers, done)

    def _take(self, sent: _Sent, answer: WrittenMarkers) -> None:
        counts = [self._counts(sent, log) for log in sent.logs]
        for (order, logs), results in zip(sent.orders.items(), answer.results, strict=False):
            for log, (name, end) in zip(logs, results, strict=False):
                result = result_named(name)
                if not counts[log] or (order, log) in sent.told:
                    continue
                if result is MarkerResult.DONE:
                    self._parts.note(sent.logs[log].key, end)  # INV-AMK2
                sent.tell(order, log, result)

    def _counts(self, sent: _Sent, log: LedLog) -> bool:
        """Return whether what a leader says of a log counts (INV-AMK1)."""
        image = self._parts.image()
        is_ours = main_epoch_of(image, self._parts.me) == sent.main_epoch
        return is_ours and leads_apart(image, sent.leader, log)

    def take_image(self, _image: MetadataImage) -> None:
        """Hear of an image (INV-AMK4)."""
        for sent in list(self._under_way):
            sent.give_up(lambda log, sent=sent: not self._counts(sent, log))  # type: ignore[misc]


def _retry(found: MarkersOfALog) -> None:
    for order in found.orders:
        order.listener.marked(order, found.tp, MarkerResult.RETRY)


def _sent(order: MarkerOrder, logs: Sequence[int]) -> SentMarker:
    return SentMarker(
        order.transactional_id, order.producer_id, order.producer_epoch, order.commit, order.coordinator_epoch,
        order.decision, order.tv2, tuple(logs),
    )  # fmt: skip
