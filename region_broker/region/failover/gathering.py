"""Leaders are gathered before the region changes what it is: one node leads all logs again, elected anew (ADR 53).

INV-GTH1  nothing of the failover machine is recorded while leaders are spread: the gate is closed first, where the event ends acting, then
          they are gathered, and whoever leads then goes on. A spread that came while an event was being recorded is seen by the
          refusal, and gathered as well
INV-GTH2  whoever asks for a promise, or for a drain, while leaders are spread is answered by the node that leads all logs afterwards: by this
          one, if it acts again within `ACTS_AGAIN_MS`; else it hears that this node does not lead, and asks again
INV-GTH5  whoever asks this node while it begins to act is answered when it acts, if that is within the same time, or, for a drain,
          `DRAINS_AGAIN_MS`: also where somebody else's question, or an earlier one of the same region, has gathered the leaders
          1. A region asks for a drain, for which leaders are gathered; that takes longer than it is waited for. 2. It asks again: nothing is
          spread any more, and the ledgers are loaded still. 3. It would be refused for that, and a failover would go on without a drain:
          what lies behind the last tidemark is lost, though the region is up.
INV-GTH3  a region that stands aside (T36) records nothing, and gathers all the same: the leaders of data groups would go on, and one that has not
          heard that the gate is shut (INV-RGR11) takes writes
INV-GTH6  who is to lead all logs is decided as the keeper of a spread decides it (`controller.cluster.spreading.gathering`): this node, or
          another one where this one lacks what a data group has committed, and could never be elected
INV-GTH4  what this node had heard, and could not record because leaders were gathered for it, is recorded when it leads again

Nothing of this runs at the beginning of a term, nor while a region takes over, returns or mirrors: the election that began the term has
ended the spread, and another one begins only where the region acts (INV-RR7). It is tried for as long as this node leads: data groups go on
meanwhile, without writes where they hear that the gate is shut (INV-RGR11), and nothing was promised. Who leads them is fenced by the election
itself: its followers have another leader epoch, so nothing more of it is acknowledged (INV-RPL6).

Not here: the election (`controller`), when leaders are spread (`region.cluster`), the machine (`driver`).
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from idempotency.fencing import EpochExhausted
from idempotency.identity import LeaderEpoch
from idempotency.ports import Clock
from region_broker.controller.cluster.spreading import gathering
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.refusals import CommandRefused
from region_broker.region.ports import MetadataSide

AGAIN_MS: Final = 100
LOUD_EVERY: Final = 50
"""Tries."""
LOOK_MS: Final = 5
ACTS_AGAIN_MS: Final = 3_000
"""Less than a region that asks for a promise waits for it (`FailoverSettings`)."""
DRAINS_AGAIN_MS: Final = 10_000
"""Less than a region that asks for a drain waits for it (`FailoverSettings.switch_timeout_ms`)."""
_log: Final = logging.getLogger("tidemark.failover")


class GatheringSide(Protocol):
    """How leaders are gathered."""

    @property
    def is_due(self) -> bool:
        """Return whether leaders are spread now."""
        ...

    async def gather(self) -> None:
        """Return once this node leads no more as it does now, because leaders are gathered; at once where they are not spread."""
        ...

    async def until_led_alone(self, serves: Callable[[], bool], within_ms: int) -> bool:
        """Gather, where that is due, and wait until this node leads all logs, and `serves`.

        Return False where leaders were gathered, and it does not within `within_ms`, and where it does not lead within `ACTS_AGAIN_MS`;
        whatever else keeps it from serving is for whoever asks to see.
        """
        ...


class NeverSpread:
    """A `GatheringSide` of a region of one node."""

    is_due = False

    async def gather(self) -> None:
        """See `GatheringSide`."""

    async def until_led_alone(self, _serves: Callable[[], bool], _within_ms: int) -> bool:
        """See `GatheringSide`."""
        return True


class Gathering:
    """A `GatheringSide`. `leads_under`: the leader epoch under which this node leads, None where it does not."""

    def __init__(
        self, metadata: MetadataSide, clock: Clock, leads_under: Callable[[], LeaderEpoch | None]
    ) -> None:
        """Ask `metadata`."""
        self._metadata = metadata
        self._clock = clock
        self._leads_under = leads_under

    @property
    def is_due(self) -> bool:
        """See `GatheringSide`."""
        return self._metadata.image.spread is not None

    async def gather(self) -> None:
        """See `GatheringSide`; tried again until then, loudly after a while."""
        epoch, tries = self._leads_under(), 0
        while self.is_due and epoch is not None and self._leads_under() == epoch:
            why = await self._asked_once()
            if why is not None:
                tries += 1
                level = logging.ERROR if tries % LOUD_EVERY == 0 else logging.INFO
                _log.log(level, "the leaders of this region are not gathered yet: %s", why)
                await self._clock.sleep_ms(AGAIN_MS)

    async def _asked_once(self) -> str | None:
        """Ask for the election that gathers (INV-GTH6); return why that came to nothing, None where it did not."""
        try:
            command = gathering(self._metadata.image)
            if command is None:
                return "nobody who runs has all that was committed in every group: start the nodes that were in sync"
            await self._metadata.apply(command)
        except (MetadataUnwritable, CommandRefused, EpochExhausted) as error:
            return str(error)
        return None

    async def until_led_alone(self, serves: Callable[[], bool], within_ms: int) -> bool:
        """See `GatheringSide` (INV-GTH2, INV-GTH5)."""
        was_due, former = self.is_due, None
        if was_due:
            former = self._leads_under()
            await self.gather()
        began_ms = self._clock.monotonic_ms()
        while not (self._leads_under() not in {None, former} and serves()):
            leads = self._leads_under() is not None
            waited_ms = self._clock.monotonic_ms() - began_ms
            if waited_ms >= within_ms or (waited_ms >= ACTS_AGAIN_MS and not leads):
                return leads and not was_due
            await self._clock.sleep_ms(LOOK_MS)
        return not self.is_due
