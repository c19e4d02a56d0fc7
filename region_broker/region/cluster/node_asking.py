"""Asking another node of the region over a connection of its own, and waiting until there is something to ask again.

Not here: what is asked (`statement_copies`, `tail_copies`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.standing import StandingTowards
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import Purpose
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable

BREAKS: Final = (PeerUnreachable, PeerRefused, OSError)
"""What ends an exchange that may be tried again; OSError holds TimeoutError."""


async def ask_node(
    line: LineParts,
    member: Member,
    purpose: Purpose,
    ask: Callable[[NodeClient], Awaitable[Exception | None]],
) -> Exception | None:
    """Connect to a member, and `ask` it; return what `ask` returns, or what kept it from ending."""
    address = line.where(member)
    if address is None:
        return PeerUnreachable("nobody knows where it is", sent=False)
    try:
        client = await NodeClient.connect(line.network, address)
    except PeerUnreachable as error:
        return error
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(client.run())
        try:
            await client.handshake(StandingTowards(line.standing, member), purpose)
            return await ask(client)
        except BREAKS as error:
            return error
        finally:
            client.close()
            serving.cancel()


async def wait_until(changed: asyncio.Event, clock: Clock, pause_ms: int) -> None:
    """Return when `changed` is set, or after `pause_ms`."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(changed.wait())
        timer = tasks.create_task(clock.sleep_ms(pause_ms))
        await asyncio.wait((waiting, timer), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        timer.cancel()
