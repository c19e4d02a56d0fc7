"""What a group is made of, and what is handed in to it: the state machine, the transport, the ports.

Not here: who draws the incarnation of a member, and keeps the founders (whoever joins the parts together).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from idempotency.ports import Chance, Clock
from region_broker.controller.raft.effects import Joining, Message, RoleChanged
from region_broker.controller.raft.entries import Entry, Member, Membership
from region_broker.controller.raft.settings import RaftSettings
from region_broker.ports.disk import Disk
from region_broker.ports.offload import Offload

SNAPSHOT_AFTER_BYTES: Final = 8 * 1024 * 1024


class StateMachine(Protocol):
    """What the committed entries make."""

    async def apply(self, entries: Sequence[Entry]) -> None:
        """Take entries, of all kinds, in order; deterministic, and no entry is refused. What it makes of them may take long (`applying`)."""
        ...

    def image(self) -> bytes:
        """Return all that was applied."""
        ...

    def load(self, image: bytes) -> None:
        """Be what an image says, and nothing else."""
        ...


class Transport(Protocol):
    """Brings messages to other members, each at most once.

    What arrives goes to `RaftGroup.request_handler`, as `Received` from the member that the connection proved.
    """

    def send(self, target: Member, message: Message) -> None:
        """Begin to send it, and return; what cannot be sent is lost."""
        ...

    def send_to_node(self, node_id: int, message: Message) -> None:
        """The same to a node of which it is not known which member it is."""
        ...


def _nothing(_: RoleChanged | Joining) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetup:
    """One member of one group. `folder`: its own.

    `founders`: who votes at first, the same for each of them; nobody for a member that joins a group later.
    `transport`: None where the member is alone. `snapshot_after_bytes`: how much is applied before the state machine's
    image takes the place of the log.
    `on_leader`, `on_follower`: called in the turn in which the core changed its role; `on_follower` for each new leader, too.
    `on_joining`: called where this member leads, each time that a folder asks to be taken in.
    """

    member: Member
    founders: Membership
    disk: Disk
    folder: Path
    clock: Clock
    chance: Chance
    transport: Transport | None = None
    settings: RaftSettings = field(default_factory=RaftSettings)
    snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES
    on_leader: Callable[[RoleChanged], None] = _nothing
    on_follower: Callable[[RoleChanged], None] = _nothing
    on_joining: Callable[[Joining], None] = _nothing
    offload: Offload = asyncio.to_thread
