"""Where the next record of each partition is to come from: librdkafka (2.16 and before) does not always go on there.

INV-CP19 of a partition that comes nothing is handed out that lies before what the group has committed there, and of one that is
         read nothing twice, whatever librdkafka does by itself: it is sent to where it is to be, and what it says then counts
Seen, with a server whose answers were right (`docs/reference/clients.md`):
1. Nothing is committed, so it asks where the log begins (ListOffsets). A rebalance, or a pause, makes the answer outdated. It asks
again half a second later, whatever has become of the partition since, and goes back to the beginning: of a partition that it reads,
or has given back and got again.
2. What is committed is undecided (UNSTABLE_OFFSET_COMMIT), and partitions come or go while it asks again. It takes that for "nothing is
committed".
A log may have been cut by a failover, and then it is right to go back: it gives out records of a younger leader epoch. What it gives
out after it was sent is always taken, so nobody is sent in circles, and no record is passed by.

Used in the consumer's thread only. Not here: the consumer (`read_committed_consumer`).
"""

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from confluent_kafka import KafkaException, Message, TopicPartition

Place = tuple[str, int]
_ANYWHERE: Final = -1

_log: Final = logging.getLogger("tidemark.client")


class Positioned(Protocol):
    """What is needed of a confluent-kafka consumer."""

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that it has."""
        ...

    def committed(
        self, partitions: list[TopicPartition], timeout: float = ...
    ) -> list[TopicPartition]:
        """Return what the group has committed; raises KafkaException."""
        ...

    def seek(self, partition: TopicPartition) -> None:
        """Read on elsewhere; raises KafkaException."""
        ...


def place_of(message: Message) -> Place:
    """Return the partition that a record is from."""
    return str(message.topic()), int(message.partition() or 0)


def committed_places(
    kafka: Positioned, partitions: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """Return what the group has committed, a negative offset where nothing; raises KafkaException where one is not known."""
    return known_places(kafka.committed(partitions, timeout=timeout_s))


def known_places(found: list[TopicPartition]) -> list[TopicPartition]:
    """Return `found`; raises KafkaException where one of them is an error, whose offset says nothing."""
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found


class ExpectedPlaces:
    """Judges what librdkafka gives out; `from_beginning`: where it looks for a start if nothing is committed."""

    def __init__(self, committed_s: float, *, from_beginning: bool) -> None:
        """Nothing is assigned yet."""
        self._committed_s = committed_s
        self._from_beginning = from_beginning
        self._committed: dict[Place, int] = {}
        """Of partitions that nothing was taken of yet."""
        self._due: dict[Place, int] = {}
        self._epochs: dict[Place, int] = {}
        """The youngest leader epoch of what was taken."""
        self._sent: set[Place] = set()
        """Sent back; nothing was taken since."""

    def takes(self, kafka: Positioned, message: Message) -> bool:
        """Return whether this record comes next; if not, librdkafka is sent where it is to be, and gives it out in its turn."""
        place, offset = place_of(message), int(message.offset() or 0)
        try:
            due = self._due_of(kafka, place)
        except KafkaException as error:
            _log.warning("what is committed of %s-%d is not known: %s", *place, error)
            self._send(kafka, place, offset)
            return False
        epoch = message.leader_epoch()
        if place not in self._sent and self._is_amiss(place, offset, due, epoch):
            level = logging.WARNING if offset < due else logging.DEBUG
            _log.log(
                level, "librdkafka gave out %s-%d at %d, and is sent to %d", *place, offset, due
            )
            self._sent.add(place)
            self._send(kafka, place, due)
            return False
        self._sent.discard(place)
        self._committed.pop(place, None)
        self._due[place] = offset + 1
        if epoch is not None:
            self._epochs[place] = max(epoch, self._epochs.get(place, epoch))
        return True

    def forget(self, places: Iterable[Place]) -> None:
        """The group has taken these away."""
        for place in places:
            for known in (self._committed, self._due, self._epochs):
                known.pop(place, None)
            self._sent.discard(place)

    def moved(self, place: Place, offset: int) -> None:
        """It was sent to `offset` by who reads; a negative one says that nobody knows where that is."""
        self._committed.pop(place, None)
        self._sent.discard(place)
        self._due[place] = max(offset, _ANYWHERE)

    def _due_of(self, kafka: Positioned, place: Place) -> int:
        if place in self._due:
            return self._due[place]
        if place not in self._committed:
            self._ask(kafka)
        return self._committed.get(place, _ANYWHERE)

    def _ask(self, kafka: Positioned) -> None:
        """Ask for all that came, at once: the group may be in another region."""
        came = [
            each for each in kafka.assignment() if (each.topic, each.partition) not in self._due
        ]
        for each in committed_places(kafka, came, self._committed_s):
            self._committed[each.topic, each.partition] = max(each.offset, _ANYWHERE)

    def _is_amiss(self, place: Place, offset: int, due: int, epoch: int | None) -> bool:
        """Return whether it went back by itself, or began elsewhere than what is committed."""
        if place in self._due:
            youngest = self._epochs.get(place)
            is_old = epoch is not None and youngest is not None and epoch <= youngest
            return offset < due and is_old
        if due == _ANYWHERE:
            return False
        # Behind what is committed lie records that are no application's; but "latest" may have left some out.
        return offset < due or (offset > due and not self._from_beginning)

    def _send(self, kafka: Positioned, place: Place, offset: int) -> None:
        epoch = self._epochs.get(place, -1)
        try:
            kafka.seek(TopicPartition(*place, offset, leader_epoch=epoch))
        except KafkaException as error:
            # It is being taken away: nothing more comes of it, and who has it next begins at what is committed.
            _log.info("%s-%d is not read any more: %s", *place, error)
