"""What the HTTP routes need of the node.

Not here: who implements it (`region_broker.region.view`, joined by `node`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class RegionApi(Protocol):
    """A region: how it stands, and the orders it takes. All values are plain JSON."""

    @property
    def region(self) -> str:
        """Return this node's region."""
        ...

    @property
    def domain(self) -> str:
        """Return the domain that the region speaks for."""
        ...

    @property
    def refusal(self) -> type[Exception]:
        """Return the exception of refused orders; it has `code` and `reason`."""
        ...

    def not_ready(self) -> str | None:
        """Return why neither writes nor mirrored reads are served, None if they are."""
        ...

    def remark(self) -> str:
        """Return what is wrong elsewhere although this region is ready; empty where nothing is."""
        ...

    def http_address(self, region: str) -> str | None:
        """Return the HTTP base URL of `region`, None if there is no such region."""
        ...

    def not_leading(self) -> tuple[str, str | None] | None:
        """Return why this node takes no orders of its region, and the HTTP base URL of who does; None: it does."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return role, epochs, tidemark, lag and peers."""
        ...

    def describe_in_brief(self) -> Mapping[str, Any]:
        """Return whether the region acts, and its peers: what costs nothing and names nothing of anybody."""
        ...

    async def topics(self) -> Sequence[Mapping[str, Any]]:
        """Return where the logs of each topic begin and end."""
        ...

    async def loss_statement(self) -> Mapping[str, Any]:
        """Return what a failover to this region would lose at most."""
        ...

    def begin_failover(self, *, confirmed: bool, accept_behind: bool) -> Mapping[str, Any]:
        """Begin a failover to this region and return the operation; raises `refusal`.

        `accept_behind`: give up what another region has reached beyond this one, if it cannot be copied.
        """
        ...

    async def loss_to_accept(self) -> Mapping[str, Any]:
        """Return what accepting the loss here would give up; raises `refusal`."""
        ...

    def begin_accept_loss(self, *, confirmed: bool) -> Mapping[str, Any]:
        """Begin to act with what is held here, in a dispute, and return the operation; raises `refusal`."""
        ...

    def begin_switch(self) -> Mapping[str, Any]:
        """Begin a planned switch to this region and return the operation; raises `refusal`."""
        ...

    def operation(self, operation_id: str) -> Mapping[str, Any] | None:
        """Return an operation and its progress, None if it is not known here."""
        ...

    async def deleted_topics(self) -> Sequence[Mapping[str, Any]]:
        """Return which deletions are kept here, and until when."""
        ...

    async def losses(self) -> Sequence[Mapping[str, Any]]:
        """Return what each takeover lost."""
        ...

    def losses_elsewhere(self) -> Mapping[str, Any]:
        """Return which nodes of the region may have cut off what `losses` does not name."""
        ...
