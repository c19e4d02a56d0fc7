"""Up to where a consumer has handed out records, as which member of its group, and what was taken away before it was committed.

INV-CP35 a transaction that sends a consumer's position is aborted where the group has taken a partition away whose records were handed out since it was last
         sent or committed: they may have gone into that transaction, its new owner reads them again, and no position would say that they were done
INV-CP36 what is sent is fenced by the membership of the step that took the last records in (KIP-447): that of now may be of a later generation, which the
         partitions are no longer of

1. A poll hands out record 7 of a partition; what comes of it is written. 2. The next poll takes part in a rebalance, which gives the partition to another
member. 3. The position of the transaction is sent without it, or, where that poll was given up and goes on in its thread, as a member that may send
anything. 4. The other member begins at 7.
Not here: the fetches (`read_committed_consumer`).
"""

from collections.abc import Iterable

from confluent_kafka import TopicPartition

from region_broker.client.errors import TransactionAborted
from region_broker.client.expected_places import Place


class HandedOut:
    """Notes each record that is handed out, and what becomes of its partition."""

    __slots__ = ("_gone", "_position", "_sent", "membership")

    def __init__(self) -> None:
        """Nothing was handed out yet."""
        self._position: dict[Place, int] = {}
        self._sent: dict[Place, int] = {}
        self._gone: set[Place] = set()
        self.membership: object | None = None
        """As which member the records were taken in; None: none were yet."""

    def note(self, place: Place, offset: int) -> None:
        """Note that the record at `offset` was handed out."""
        self._position[place] = offset + 1

    def position(self) -> list[TopicPartition]:
        """Return the offsets after what was handed out."""
        return [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in sorted(self._position.items())
        ]

    def forget(self, places: Iterable[Place]) -> None:
        """Forget where these stand: they were sent elsewhere."""
        for place in places:
            self._position.pop(place, None)
            self._sent.pop(place, None)

    def taken_away(self, places: Iterable[Place]) -> None:
        """Forget them, but that there was something to send of them (INV-CP35)."""
        for place in places:
            reached, sent = self._position.pop(place, None), self._sent.pop(place, None)
            if reached is not None and (sent is None or sent < reached):
                self._gone.add(place)

    def committed(self, position: Iterable[TopicPartition]) -> None:
        """Note what was committed outside a transaction; of what was taken away, nothing was."""
        for each in position:
            if (each.topic, each.partition) in self._position:
                self._sent[each.topic, each.partition] = each.offset

    def rewound(self) -> None:
        """All that is not committed is read again."""
        self._sent = dict(self._position)
        self._gone.clear()

    def send(self, chosen: Iterable[TopicPartition] | None = None) -> list[TopicPartition]:
        """Return what a transaction sends, `chosen` or the position, which counts as sent; raises `TransactionAborted` (INV-CP35)."""
        sent = self.position() if chosen is None else list(chosen)
        gone = (
            self._gone
            if chosen is None
            else self._gone & {(each.topic, each.partition) for each in sent}
        )
        if gone:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(gone))
            raise TransactionAborted(
                f"the group has taken {names} away, with records that were handed out and are not committed: its new owner reads them again. rewind() the"
                " consumer, and run the transaction again from what is read then"
            )  # fmt: skip
        for each in sent:
            self._sent[each.topic, each.partition] = each.offset
        return sent
