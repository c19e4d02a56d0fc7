"""Up to where markers were confirmed by nodes that lead logs apart from the main group: a cut of such a log lies there or above (ADR 53).

INV-MKE1 a confirmed marker lies below the end that is noted of its log; an end that is noted never goes back within a term
INV-MKE2 what was confirmed is forgotten in the step in which another election of a main leader is there: that one leads all logs
INV-MKE3 nothing is kept of a topic that was deleted
Not here: who confirms (`region.cluster.marker_sending`), what is cut (`region.tidemarks`).
"""

from idempotency.identity import LeaderEpoch, LogKey
from region_broker.controller.metadata_image import MetadataImage


class MarkerEnds:
    """Of the term of the main leader that this node is; belongs to the event loop."""

    def __init__(self) -> None:
        """Nothing was confirmed yet."""
        self._ends: dict[LogKey, int] = {}
        self._election: LeaderEpoch | None = None
        self._topics: object = None
        """Those of the last image."""

    def take_image(self, image: MetadataImage) -> None:
        """Hear of an image (INV-MKE2)."""
        election = None if image.leadership is None else image.leadership.leader_epoch
        if election != self._election:
            self._election = election
            self.clear()
        elif image.topics is not self._topics:
            self._ends = {
                key: end for key, end in self._ends.items() if image.topic_by_id(key.topic_id) is not None
            }  # fmt: skip
        self._topics = image.topics

    def note(self, key: LogKey, end: int) -> None:
        """Note that a marker below the offset `end` was confirmed."""
        if end > self._ends.get(key, 0):
            self._ends[key] = end

    def end_of(self, key: LogKey) -> int:
        """Return the offset below which all confirmed markers of a log lie; 0 where there are none."""
        return self._ends.get(key, 0)

    def clear(self) -> None:
        """Forget all, where a term begins: this node leads all logs then, or none."""
        self._ends.clear()
