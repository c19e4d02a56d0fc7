"""Places for answers that list all that there is, or what a large request names: few are made at once.

INV-HLP1 who waits for something else has no place: a request takes one when its turn on its connection has come and it is executed here,
         and leaves it before it waits for a thread that others have. Else a few connections, behind requests that wait for others as long
         as these like, would keep everybody from a list. Who holds rows leaves none, as it would wait with them for a place: what it waits
         for then is bounded (INV-OFE1)
INV-HLP2 nobody waits for a place, or for the memory that belongs to it, longer than FRAME_TIMEOUT_MS: its connection is closed then, with
         a text. Else those whose clients have long gone would be served one after the other before who still waits
INV-HLP3 who waits for a place gets it in the turn of who asks (a principal, else a network): one that asks over a thousand connections keeps
         another one from it no longer than one that asks once
Not here: which requests need one (`Api.lists`), and when they take it (`dispatcher`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from idempotency.ports import Clock
from region_broker.limits import FRAME_TIMEOUT_MS, LISTINGS_AT_ONCE_MAX
from region_broker.ports.fair_turns import InTurn
from region_broker.wire.memory_budget import MemoryBudget
from region_broker.wire.server import CloseConnection

WAIT_MS_MAX: Final = FRAME_TIMEOUT_MS


class ListingPlace:
    """That of one request, which may leave it, and take it again."""

    __slots__ = ("_api_name", "_asker", "_places", "is_taken")

    def __init__(self, places: "ListingPlaces", api_name: str, asker: str) -> None:
        """Use `ListingPlaces.of`."""
        self._places = places
        self._api_name = api_name
        self._asker = asker
        self.is_taken = False

    async def take(self) -> None:
        """Return once there is a place, and room in the memory budget; raises `CloseConnection` (INV-HLP2)."""
        if self.is_taken:
            return
        await self._places.take(self._api_name, self._asker)
        self.is_taken = True

    def leave(self) -> None:
        """Let another one have it, if it was taken."""
        if self.is_taken:
            self.is_taken = False
            self._places.leave()


class ListingPlaces:
    """Those of a node, LISTINGS_AT_ONCE_MAX."""

    def __init__(self, memory: MemoryBudget, clock: Clock) -> None:
        """Let as many be made at once as there are, while `memory` has room."""
        self._memory = memory
        self._clock = clock
        self._free = LISTINGS_AT_ONCE_MAX
        self._waiting: InTurn[asyncio.Future[None]] = InTurn()
        """INV-HLP3"""

    @contextmanager
    def of(self, api_name: str, asker: str) -> Iterator[ListingPlace]:
        """Yield the place of one request, which it has not taken yet, and leave it in the end."""
        place = ListingPlace(self, api_name, asker)
        try:
            yield place
        finally:
            place.leave()

    async def take(self, api_name: str, asker: str) -> None:
        """Take one of them, by which one request is answered; see `ListingPlace.take`."""
        until_ms = self._clock.monotonic_ms() + WAIT_MS_MAX
        if self._free:
            self._free -= 1
        else:
            await self._wait(api_name, asker)
        has_room = False
        try:
            left_ms = max(0, until_ms - self._clock.monotonic_ms())
            has_room = await self._memory.wait_room(self._clock, left_ms)
        finally:
            if not has_room:
                self.leave()
        if not has_room:
            raise CloseConnection(
                f"there was no memory to answer {api_name} for {WAIT_MS_MAX} ms (request_memory_bytes)"
            )

    def leave(self) -> None:
        """Give one back."""
        while (found := self._waiting.pop()) is not None:
            _, next_one = found
            if not next_one.done():  # it waits still
                next_one.set_result(None)
                return
        self._free += 1

    async def _wait(self, api_name: str, asker: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(asker, turn)
        is_given = False
        try:
            async with asyncio.timeout(WAIT_MS_MAX / 1_000):
                await turn
            is_given = True
        except TimeoutError as error:
            raise CloseConnection(
                f"{api_name} was not answered for {WAIT_MS_MAX} ms: {LISTINGS_AT_ONCE_MAX} other lists were being made"
                " all that time; ask again later"
            ) from error
        finally:
            if not is_given:
                self._withdraw(turn, asker)

    def _withdraw(self, turn: asyncio.Future[None], asker: str) -> None:
        """Wait no more."""
        if not turn.cancelled():
            self.leave()  # it was given one in the step in which it gave up
        else:
            self._waiting.withdraw(asker, turn)
