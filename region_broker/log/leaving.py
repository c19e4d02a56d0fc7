"""A log that is deleted: left in one step of the loop, made durable beside it, and its files closed on the loop again.

INV-LVG1  from the step in which it is left it takes nothing, no job of it is begun, and those under way are void; that step waits for no disk
INV-LVG2  what is to be kept of it is synced in its own files before its folder goes: until then, or until that is gone, the journal keeps what
          it has of it. Of what is not kept nothing is synced
INV-LVG3  its files are closed on the loop, behind that: who reads one there never meets another file under its number

Not here: its folder (`log.recovery.putting_away`), a log that a stop of the node closes (`partitions.closing`).
"""

import logging
from typing import Final

from region_broker.log.partition_log import PartitionLog

logger: Final = logging.getLogger(__name__)


class Leaving:
    """Of one log, from the step in which this is made. `sync` may run in any thread; all else belongs to the event loop."""

    def __init__(self, log: PartitionLog, *, keep: bool) -> None:
        """Leave it (INV-LVG1); `keep`: whether what it holds is to be on disk once its folder is away."""
        content, durability = log.content, log.durability
        self._log = log
        self._was_open = not content.closed
        self._owes = keep and self._was_open and log.is_running
        self._job = durability.begin_last_sync() if self._owes else None
        if self._was_open:
            content.closed = True
            durability.owes_sync = self._owes
            durability.files.leave()
            log.cleaning.void()

    def sync(self) -> None:
        """Make durable what is to be kept (INV-LVG2); what the disk refuses is lost with the deleted log, and logged."""
        if not self._owes:
            return
        try:
            self._log.settle_left(self._job)
        except OSError as error:
            logger.warning("%s is not kept whole: %s", self._log.folder, error)
        self._owes = False

    def end(self) -> None:
        """Close its files (INV-LVG3)."""
        if self._was_open:
            self._was_open = False
            self._log.close_left()

    def give_up(self) -> None:
        """Note that its folder is durably gone: nobody needs what the journal has of it."""
        self._log.durability.give_up()
