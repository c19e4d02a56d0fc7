"""Places for answers that list all that there is, or what a large request names: few are made at once.

INV-HLP1 who waits for something else has no place: a request takes one when its turn on its connection has come and it is executed here,
         and leaves it before it waits for a thread that others have. Else a few connections, behind requests that wait for others as long
         as these like, would keep everybody from a list. Who holds rows, or a large request, leaves none, as it would wait with them for a place:
         what it waits for then is bounded (INV-OFE1, INV-HWE1)
Not here: which requests need one (`Api.lists`), and when they take it (`dispatcher`); how they take turns (`request_places`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from idempotency.ports import Clock
from region_broker.handlers.dispatch import request_places
from region_broker.handlers.dispatch.request_places import RequestPlace, RequestPlaces
from region_broker.limits import LISTINGS_AT_ONCE_MAX
from region_broker.wire.memory_budget import MemoryBudget
from region_broker.wire.server import CloseConnection


class ListingPlaces(RequestPlaces):
    """Those of a node, LISTINGS_AT_ONCE_MAX."""

    def __init__(self, memory: MemoryBudget, clock: Clock) -> None:
        """Let as many be made at once as there are, while `memory` has room."""
        super().__init__(LISTINGS_AT_ONCE_MAX, "other lists were being made")
        self._memory = memory
        self._clock = clock

    @contextmanager
    def of(self, api_name: str, asker: str) -> Iterator[RequestPlace]:
        """Yield the place of one request, which it has not taken yet, and leave it in the end."""
        place = RequestPlace(self, api_name, asker)
        try:
            yield place
        finally:
            place.leave()

    async def take(self, api_name: str, asker: str) -> None:
        """Take one of them, once the memory budget has room as well."""
        until_ms = self._clock.monotonic_ms() + request_places.WAIT_MS_MAX
        await super().take(api_name, asker)
        has_room = False
        try:
            left_ms = max(0, until_ms - self._clock.monotonic_ms())
            has_room = await self._memory.wait_room(self._clock, left_ms)
        finally:
            if not has_room:
                self.leave()
        if not has_room:
            raise CloseConnection(
                f"there was no memory to answer {api_name} for {request_places.WAIT_MS_MAX} ms (request_memory_bytes)"
            )
