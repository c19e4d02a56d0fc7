"""Places for requests of a kind that takes much memory, or time: few have one at once.

INV-HLP2 nobody waits for a place, or for the memory that belongs to it, longer than FRAME_TIMEOUT_MS: its connection is closed then, with
         a text. Else those whose clients have long gone would be served one after the other before who still waits
INV-HLP3 who waits for a place gets it in the turn of who asks (a principal, else a network): one that asks over a thousand connections keeps
         another one from it no longer than one that asks once
Not here: which requests need one, and when they take it (`listing_places`, `large_requests`).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from region_broker.limits import FRAME_TIMEOUT_MS, LARGE_REQUESTS_MAX
from region_broker.ports.fair_turns import FairTurns, InTurn
from region_broker.wire.server import CloseConnection

WAIT_MS_MAX: Final = FRAME_TIMEOUT_MS


class RequestPlace:
    """That of one request, which may leave it, and take it again."""

    __slots__ = ("_api_name", "_asker", "_places", "is_taken")

    def __init__(self, places: "RequestPlaces", api_name: str, asker: str) -> None:
        """Have none yet."""
        self._places = places
        self._api_name = api_name
        self._asker = asker
        self.is_taken = False

    async def take(self) -> None:
        """Return once there is a place; raises `CloseConnection` (INV-HLP2)."""
        if self.is_taken:
            return
        await self._places.take(self._api_name, self._asker)
        self.is_taken = True

    def leave(self) -> None:
        """Let another one have it, if it was taken."""
        if self.is_taken:
            self.is_taken = False
            self._places.leave()


class RequestPlaces:
    """Those of a node for one kind of requests."""

    def __init__(self, count: int, busy: str) -> None:
        """Let so many have one at once; `busy`: what others do meanwhile, for who is told that it got none."""
        self._free = count
        self._busy: Final = f"{count} {busy}"
        self._waiting: Final = InTurn[asyncio.Future[None]]()
        """INV-HLP3"""

    async def take(self, api_name: str, asker: str) -> None:
        """Take one of them, by which one request is answered; see `RequestPlace.take`."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(api_name, asker)

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
                f"{api_name} was not answered for {WAIT_MS_MAX} ms: {self._busy} all that time; ask again later"
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


def _one() -> FairTurns:
    return FairTurns(1)


def _large() -> RequestPlaces:
    return RequestPlaces(LARGE_REQUESTS_MAX, "other large requests were being answered")


@dataclass(frozen=True, slots=True)
class RequestTurns:
    """Those of a node that handlers take themselves."""

    patterns: FairTurns = field(default_factory=_one)
    """For who has a thread match a client's pattern: or patterns would take the threads that logs need (INV-HLT1)."""
    errors: FairTurns = field(default_factory=_one)
    """For who has a thread say one error for all that a large request names (INV-HWE1)."""
    large: RequestPlaces = field(default_factory=_large)
    """For what has more elements than are read at once (INV-HLR1)."""
