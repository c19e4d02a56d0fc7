"""Which partitions a consumer's application has paused, and what librdkafka was told of it.

INV-CP34 what the application has paused holds over rebalances: librdkafka is told once a partition is there. Until it is, it can be told
         nothing of it, and keeps what it was told before
1. A partition is paused. 2. A rebalance takes all partitions away for a second. 3. The application resumes it, while nothing is
assigned. 4. It comes back, and librdkafka has it paused still: nobody reads it any more. The other way round, what is paused in that second
is fetched all the same.
What goes on already is not resumed once more: an answer that librdkafka waits for would count as outdated (`expected_places`).

Not here: what was fetched of a paused partition (`read_committed_consumer`).
"""

from collections.abc import Iterable
from typing import Protocol

from confluent_kafka import TopicPartition

from region_broker.client.expected_places import Place


class Pausing(Protocol):
    """What is needed of a confluent-kafka consumer."""

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that it has."""
        ...

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Fetch nothing more of these; raises KafkaException."""
        ...

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Fetch these again; raises KafkaException."""
        ...


class Pauses:
    """What is `wanted` is set in the loop; the rest is used in the consumer's thread only."""

    def __init__(self) -> None:
        """Nothing is paused."""
        self.wanted: frozenset[Place] = frozenset()
        """Replaced, never changed, as the thread reads it."""
        self._marked: set[Place] = set()
        """What librdkafka was told to pause, and not to resume."""
        self._came: set[Place] = set()
        """Assigned since it was told: it may have forgotten of these that they are paused."""

    @property
    def is_due(self) -> bool:
        """Return whether partitions came that librdkafka was told nothing of."""
        return bool(self._came)

    def came(self, places: Iterable[Place]) -> None:
        """Note that these are about to be assigned."""
        self._came.update(places)

    def carry_out(self, kafka: Pausing) -> None:
        """Tell librdkafka of what is wanted, as far as it is assigned."""
        wanted, known = self.wanted, self._marked - self._came
        assigned = {(each.topic, each.partition): each for each in kafka.assignment()}
        pausing = (wanted - known) & assigned.keys()
        resuming = (self._marked - wanted) & assigned.keys()
        kafka.pause([assigned[place] for place in pausing])
        self._marked |= pausing
        kafka.resume([assigned[place] for place in resuming])
        self._marked -= resuming
        self._came.clear()
