"""The file `topic.json` in a topic's folder: what people and offline tools are told of it.

INV-TPF1  it is replaced whole, by one at a time: it is written beside the loop before a topic is there, and by the loop where that failed

Not here: what the node itself goes by (`controller.metadata_store`).
"""

import threading
from pathlib import Path
from typing import Final

import msgspec

from region_broker.partitions.laying_out import TopicSpec
from region_broker.ports.disk import Disk

TOPIC_FILE_NAME: Final = "topic.json"


class TopicFiles:
    """Those of one node, for any thread."""

    def __init__(self, disk: Disk) -> None:
        """Write nothing yet."""
        self._disk = disk
        self._lock = threading.Lock()

    def write(self, folder: Path, text: bytes) -> None:
        """Make the file in `folder` say this, durably; nothing is done, and nobody waited for, where it does. Raises OSError."""
        path = folder / TOPIC_FILE_NAME
        if self._says(path, text):
            return
        with self._lock:
            self._disk.write_file_atomic(path, text)

    def _says(self, path: Path, text: bytes) -> bool:
        return self._disk.exists(path) and self._disk.read_file(path) == text


def told_of(topic: TopicSpec) -> bytes:
    """Return what the file says of a topic."""
    described = {
        "topic_id": str(topic.topic_id),
        "name": topic.name,
        "partition_count": topic.partition_count,
        "internal": topic.internal,
    }
    return msgspec.json.format(msgspec.json.encode(described, order="sorted"), indent=2) + b"\n"
