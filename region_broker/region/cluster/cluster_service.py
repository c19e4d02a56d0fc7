"""A region of several nodes as HTTP is told of it, and takes orders for it: everything that leaves here is plain JSON.

Not here: what is told (`cluster_view`), what is done (`cluster_orders`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from region_broker.region.cluster.cluster_orders import (
    ClusterOrder,
    ClusterOrderRefused,
    ClusterOrders,
)
from region_broker.region.cluster.cluster_view import ClusterView
from region_broker.region.cluster.controller_driver import ControllerDriver


class ClusterService:
    """Implements what `http_api` needs of a region with several nodes."""

    def __init__(self, view: ClusterView, controller: ControllerDriver) -> None:
        """Tell what `view` sees, and order `controller`."""
        self.view: Final = view
        self._orders = ClusterOrders(view, controller)

    @property
    def refusal(self) -> type[ClusterOrderRefused]:
        """Return the exception of refused orders."""
        return ClusterOrderRefused

    def describe(self) -> Mapping[str, Any]:
        """Return nodes, leadership, quorum, and what this node does."""
        return self.view.describe()

    async def partitions(self, topic: str | None) -> Sequence[Mapping[str, Any]]:
        """Return the logs of this node, of `topic` alone where one is given."""
        return await self.view.partitions(topic)

    async def order(
        self, kind: str, node_id: int | None, *, dry_run: bool, confirmed: bool
    ) -> Mapping[str, Any]:
        """Carry out an order; raises `ClusterOrderRefused`."""
        return await self._orders.order(ClusterOrder(kind, node_id, dry_run, confirmed))
