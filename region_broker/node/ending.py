"""How a node ends: with all of its connections, or handing them over to whoever goes on in its process.

INV-NHO1  a node that hands over begins no request any more, and answers what is under way, before it resigns: what is written then is
          answered as ever. What waits for others longer than that is answered as by a coordinator that moves. It ends as at a clean
          stop, but for its Kafka port: whoever comes next serves the same connections (`growing_node`)
INV-NHO2  what is not answered by ANSWERED_S_MAX is cut off, and cancelled UNDER_WAY_S_MAX later: a request that waits for a region that is gone
          does not keep a node from handing over. Only what must not be left half (INV-UB1) does: it works on files that the next node opens
          (INV-GRN2)
Not here: what else ends with a node (`node`).
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from region_broker.handlers.dispatch.deadlines import Deadlines
from region_broker.handlers.fetch.reading import Reading
from region_broker.region.role import RegionRole
from region_broker.wire.server import KafkaServer

ANSWERED_S_MAX: Final = 5
UNDER_WAY_S_MAX: Final = 1
"""What is not answered by then waits for others: a member for its group, a request for another region."""

_log: Final = logging.getLogger("tidemark.node")


class Ending:
    """What was asked: to stop, or to hand over; a stop counts for more."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self._asked = asyncio.Event()
        self.hands_over = False
        """Whether another node in this process goes on for the clients (INV-NHO1)."""

    def stop(self) -> None:
        """Have the node end with all of its connections."""
        self.hands_over = False
        self._asked.set()

    def hand_over(self) -> None:
        """Have it end without those of clients."""
        if not self._asked.is_set():
            self.hands_over = True
            self._asked.set()

    async def asked(self) -> None:
        """Return once one of both is asked."""
        await self._asked.wait()


async def end_connections(
    kafka: KafkaServer, role: RegionRole, serving: asyncio.Task[None]
) -> None:
    """Answer what is under way, as far as that is possible soon, and end all connections; `serving` ends with them."""
    role.close_gate("this node is stopping")
    kafka.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWERED_S_MAX):
            await serving


async def end_requests(kafka: KafkaServer, role: RegionRole, deadlines: Deadlines) -> None:
    """Answer what is under way, begin nothing more, and keep all connections (INV-NHO1)."""
    kafka.hold()
    deadlines.end(Reading)
    with suppress(TimeoutError):
        async with asyncio.timeout(UNDER_WAY_S_MAX):
            await kafka.until_answered()
    await role.stand_still("this node becomes one of several; it goes on by itself")
    try:
        async with asyncio.timeout(ANSWERED_S_MAX):
            await kafka.until_answered()
    except TimeoutError:
        count = kafka.end_unanswered()
        _log.warning("%d connections are ended: what they wait for does not end here", count)
        with suppress(TimeoutError):
            async with asyncio.timeout(UNDER_WAY_S_MAX):
                await kafka.until_answered()
        kafka.end_unanswered(cancels=True)
        await kafka.until_answered()
