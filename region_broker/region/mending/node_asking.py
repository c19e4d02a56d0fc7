"""One question to another node of this region, over a connection of its own.

Not here: what is asked (`node_ranges`, `copying_anew`).
"""

import asyncio
from typing import Final

from idempotency.identity import Member
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.standing import StandingTowards
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import REPLICA
from region_broker.region.peers.protocol import (
    AnyMessage,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
)

ANSWER_TIMEOUT_S: Final = 10.0


async def asked(
    line: LineParts, member: Member, message: PeerMessage, answer_type: type[AnyMessage]
) -> tuple[AnyMessage, bytes]:
    """Return the answer of a node, and what is attached to it; raises `PeerUnreachable`, `PeerRefused`."""
    address = line.where(member)
    if address is None:
        raise PeerUnreachable("nobody knows where it is", sent=False)
    client = await NodeClient.connect(line.network, address)
    found: tuple[AnyMessage, bytes] | PeerRefused | PeerUnreachable
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(client.run())
        try:
            await client.handshake(StandingTowards(line.standing, member), REPLICA)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer, attachment = await client.begin(message, answer_type)
                found = answer, bytes(attachment)
        except TimeoutError:
            found = PeerUnreachable(f"it did not answer within {ANSWER_TIMEOUT_S:.0f} s", sent=True)
        except (PeerRefused, PeerUnreachable) as error:
            found = error  # raised below, as itself and in no group
        finally:
            client.close()
            serving.cancel()
    if isinstance(found, tuple):
        return found
    raise found
