"""Logs that are about to be made: their files are made beside the event loop, and they are opened in pieces, before their topic is there.

INV-LAY1  threads lay out a few logs at a time, and the loop goes on; what is laid out is an empty log as a clean stop leaves it, which
          opening reads. Nobody has it open, or opens it, meanwhile: its topic is not in the image yet (INV-M20)
INV-LAY4  they are opened on the loop a few at a time, for `PartitionTable.open_topic` to take in the step in which their topic is in the
          image. Until then nobody finds them: they are in no table, have no role, and take nothing
INV-LAY2  only what has no folder is laid out. A crash, or a disk that refuses it, leaves what opening finishes, as after one that fails in
          the middle of making a log (INV-T8)
INV-LAY5  what is said of them for people (`topic.json`) and for the next start (the manifest) is written beside the loop, too, once they are
          open and before their topic is in the image: `open_topic` syncs nothing then. What the manifest names has all that a log has from
          its making on, so a start finds it (INV-T6), or its topic is in no image
INV-LAY6  they are made ready for one lot of topics at a time, and for none in whose folder something is left of one that was deleted: that
          has to go first, with all that is in the folder: a deletion that is under way is waited for, and opening the topic sees to what a disk
          refused
INV-LAY3  its fence is the journal's mark of a time at which no log of that name was open (INV-K4): what the journal has of one that was
          dropped before is void

Not here: taking them in (`table`), when (`controller.metadata_store`), which files (`log.recovery.opening`).
"""

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from region_broker.log.failures import UnsupportedConfig
from region_broker.log.indexes.checked_file import JournalMark
from region_broker.log.recovery.opening import lay_out
from region_broker.ports.disk import Disk
from region_broker.ports.offload import Offload

LOGS_AT_ONCE: Final = 8
"""Laid out by a thread in one go: whoever is cancelled waits no longer than that."""
THREADS: Final = 4
_log: Final = logging.getLogger(__name__)

Key = tuple[UUID, int]
Carry = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]


class TopicSpec(Protocol):
    """What the table must know of a topic; `controller.metadata_image.TopicImage` is one."""

    @property
    def topic_id(self) -> UUID:
        """The id, fixed for the topic's life."""
        ...

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def partition_count(self) -> int:
        """How many partitions."""
        ...

    @property
    def internal(self) -> bool:
        """Whether it is a ledger: nothing of it goes by age or size."""
        ...

    @property
    def configs(self) -> Mapping[str, str]:
        """The configs that were set, in Kafka's names."""
        ...


class ComingTopic(Protocol):
    """Partitions of a topic that is made, or gets more of them; `controller.metadata_store.Coming` is one."""

    @property
    def topic(self) -> TopicSpec:
        """The topic as it will be opened."""
        ...

    @property
    def numbers(self) -> range:
        """Its partitions that nobody has opened."""
        ...


@dataclass(frozen=True, slots=True)
class LayingOut:
    """Of one node. `clear`: waits for a deletion that is under way, of the topic or of partitions of it; `is_free`: whether nothing is left in a topic's folder of one that was deleted; `is_open`: whether a partition is open;
    `mark`: the last block of the journal; `open_ahead`: opens one, for who opens its topic to find; `write_down`: returns what writes down
    that those of a topic are there, in a thread.
    """

    disk: Disk
    folder_of: Callable[[UUID, int], Path]
    clear: Callable[[UUID], Coroutine[Any, Any, None]]
    is_free: Callable[[UUID], bool]
    is_open: Callable[[Key], bool]
    mark: Callable[[], JournalMark]
    open_ahead: Callable[[TopicSpec, int], None]
    write_down: Callable[[TopicSpec], Callable[[], None]]
    offload: Offload = asyncio.to_thread
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, topics: Sequence[ComingTopic], carry: Carry) -> None:
        """Make the logs of these topics ready; what is not possible is left to their opening (INV-LAY2).

        `carry` lets a piece of that end, whoever is cancelled.
        """
        async with self.turn:
            for each in topics:
                await carry(self.clear(each.topic.topic_id))
            await self._run([each for each in topics if self.is_free(each.topic.topic_id)], carry)

    async def _run(self, topics: Sequence[ComingTopic], carry: Carry) -> None:
        keys = [(each.topic.topic_id, number) for each in topics for number in each.numbers]
        keys = [key for key in keys if not self.is_open(key)]
        fence = self.mark()  # INV-LAY3
        async with asyncio.TaskGroup() as tasks:
            for start in range(THREADS):
                share = keys[start::THREADS]
                if share:
                    tasks.create_task(self._share(share, fence, carry), name="laying-out")
        await self._open(topics, frozenset(keys))
        await self._write_down([each.topic for each in topics], carry)

    async def _open(self, topics: Sequence[ComingTopic], keys: Container[Key]) -> None:
        """Open them, a few in each turn of the loop (INV-LAY4)."""
        done = 0
        for each in topics:
            for number in each.numbers:
                if (each.topic.topic_id, number) not in keys:
                    continue
                try:
                    self.open_ahead(each.topic, number)
                except UnsupportedConfig:  # said to who opens the topic
                    break
                done += 1
                if done % LOGS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _write_down(self, topics: Sequence[TopicSpec], carry: Carry) -> None:
        """Say that they are there (INV-LAY5)."""
        for topic in topics:
            try:
                await carry(self._aside(self.write_down(topic)))
            except OSError as error:  # INV-LAY2
                _log.warning(
                    "%s is not described yet (%s): opening it tries again", topic.name, error
                )

    async def _aside(self, work: Callable[[], None]) -> None:
        await self.offload(work)

    async def _share(self, keys: Sequence[Key], fence: JournalMark, carry: Carry) -> None:
        for start in range(0, len(keys), LOGS_AT_ONCE):
            folders = [self.folder_of(*key) for key in keys[start : start + LOGS_AT_ONCE]]
            try:
                await carry(self._aside(partial(self._lay_out, folders, fence)))
            except (
                OSError
            ) as error:  # INV-LAY2: who opens it meets it, too, and says what stops by it
                _log.warning(
                    "%s was not made ahead (%s): it is tried again as its topic is opened",
                    folders[0].parent,
                    error,
                )
                return

    def _lay_out(self, folders: Sequence[Path], fence: JournalMark) -> None:
        for folder in folders:
            if not self.disk.exists(folder):
                lay_out(folder, self.disk, fence)
