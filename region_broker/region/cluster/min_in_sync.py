"""Which logs may have to have another number of nodes in sync, once the metadata have changed.

INV-MIS1 a change of the metadata costs a leader the logs of the topics that it changes, and all logs only where it changes how many
         nodes there are: each is taken in within one step of the loop, and most are of users, ACLs, quotas and tokens
Not here: what a topic asks for (`replica_leading`), what follows from it (`replication.leading`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from idempotency.identity import LogKey
from region_broker.controller.metadata_image import TopicImage


class Wishes(NamedTuple):
    """What it depends on; `least`: what is asked for where a topic asks for nothing."""

    topics: Mapping[str, TopicImage]
    node_count: int
    grown_to: int
    least: int

    def changed_since(self, former: "Wishes | None", led: Iterable[LogKey]) -> Iterable[LogKey]:
        """Return the logs that may ask for another number than under `former`; `led`: all of them."""
        if former is None or former[1:] != self[1:]:
            return tuple(led)
        if former.topics is self.topics:
            return ()
        return [
            LogKey(topic.topic_id, number)
            for name, topic in self.topics.items()
            if former.topics.get(name) is not topic
            for number in range(topic.partition_count)
        ]
