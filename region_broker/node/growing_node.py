"""A node from its start to its end, alone in its region or with others; and the turn from the one to the other, with clients connected.

INV-GRN1  a folder whose region has given itself other nodes, or has elected a leader, is started as one of several, whatever the file
          says: what was added is a fact of the metadata (INV-MN8), and a leader that was elected is not forgotten
INV-GRN2  the turn is a clean stop of the node that was alone, and a start of one of several, on the same folder, in the same process:
          nothing of the first one runs, or holds a file, when the second one opens it. Only the Kafka port stays, with its connections
INV-GRN3  requests that come during the turn wait for its end, in the order of their connection; none is lost, refused or answered by
          a node that has resigned
A process that ends anywhere in it is started anew as one of several, because the addition is durable before (INV-NAD3).

Not here: what each of both does (`node`, `cluster_node`), who adds nodes (`node_adding`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self

from geo_replicator.failover import Phase
from region_broker.config.node_config import NodeConfig
from region_broker.config.region_growth import with_added
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.metadata_store import region_in_log
from region_broker.node.cluster_node import ClusterNode
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.node import Node
from region_broker.node.node_ports import Ports
from region_broker.node.storage import METADATA_FILE, Storage
from region_broker.wire.server import KafkaServer

LOOK_MS: Final = 5
HELD_MS_MAX: Final = 10_000
"""How long requests wait for a region that has turned and takes nothing yet: then they are answered as it is."""
_log: Final = logging.getLogger("tidemark.node")


def _nobody_waits() -> None:
    """The node was ready before."""


def _serves(node: Node) -> bool:
    """Return whether clients are answered by who takes writes here, or told who does; as `on_ready`, but that somebody leads."""
    follows = node.operating is not None and node.operating.view.follows
    disputed = node.failover.state.phase is Phase.DISPUTED
    return node.role.acting or node.role.mirrors or disputed or follows


async def _none_work() -> None:
    """Nothing works beside the loop."""


class GrowingNode:
    """`open`, then `run` until `stop` is called; as `Node`."""

    def __init__(
        self, config: NodeConfig, ports: Ports, levels: range,
        until_threads_ended: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Use `open`."""
        self._config = config
        self._ports = ports
        self._levels = levels
        self._until_threads_ended = until_threads_ended
        self._is_stopping = False
        self._serving: asyncio.Task[None] | None = None
        self._present: Node | ClusterNode
        self.on_node: Callable[[Node], None] = lambda _node: None
        """Told of each node once it is joined together, before it runs; set before `run`."""

    @classmethod
    async def open(
        cls, config: NodeConfig, ports: Ports, levels: range = SUPPORTED, *,
        until_threads_ended: Callable[[], Awaitable[None]] = _none_work,
    ) -> Self:  # fmt: skip
        """Open the data folder; nothing is bound or run yet. `levels`: the feature levels that the code knows.

        `until_threads_ended` returns once no thread works any more for what has ended in this process (INV-GRN2).
        Raises what is in `storage.START_REFUSALS`, and `OSError`.
        """
        ports = ports.secured(config)
        path = Path(config.data_dir) / METADATA_FILE
        image = await asyncio.to_thread(region_in_log, path, ports.disk)
        has_elected = image is not None and image.leadership is not None
        if image is not None:
            config = with_added(config, image.added_nodes)
        made = cls(config, ports, levels, until_threads_ended)
        if config.siblings or has_elected:  # INV-GRN1
            made._present = await made._open_cluster(config)
        else:
            made._present = await Node.open(config, ports, levels)
        return made

    @property
    def config(self) -> NodeConfig:
        """Return the configuration that it was started with, and what was added to the region before."""
        return self._config

    @property
    def node(self) -> Node | None:
        """Return the node that is joined together now, None while it joins its region."""
        return self._present if isinstance(self._present, Node) else self._present.node

    def stop(self) -> None:
        """Ask `run` to end cleanly; may be called from a signal handler of the loop."""
        self._is_stopping = True
        self._present.stop()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take note of a callback of the loop that failed: for `loop.set_exception_handler`."""
        self._present.failed_callbacks.handle(loop, context)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`; calls `on_ready` once. Raises as `Node.run`."""
        present = self._present
        if isinstance(present, ClusterNode):
            await present.run(on_ready)
            return
        self.on_node(present)
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            present.run_kafka = lambda: self._run_kafka(tasks, present.kafka)
            try:
                await present.run(on_ready)
                if present.ending.hands_over and not self._is_stopping:
                    await self._turn(tasks, present.kafka)
            except Exception as error:  # noqa: BLE001 - it is raised as it is, behind the end of the connections
                failure = error
            finally:
                present.kafka.close()
                if self._serving is not None:
                    self._serving.cancel()  # whoever could answer what is left has ended
        if failure is not None:
            raise failure

    async def _run_kafka(self, tasks: asyncio.TaskGroup, kafka: KafkaServer) -> None:
        """Return when the Kafka port is closed; it runs on where this is cancelled."""
        if self._serving is None:
            self._serving = tasks.create_task(kafka.run(), name="kafka")
        await asyncio.wait([self._serving])

    async def _turn(self, tasks: asyncio.TaskGroup, kafka: KafkaServer) -> None:
        """Go on as one of several (INV-GRN2)."""
        _log.warning(
            "region %s has more nodes from now on: this one goes on as one of several",
            self._config.region,
        )
        await self._until_threads_ended()
        path = Path(self._config.data_dir) / METADATA_FILE
        image = await asyncio.to_thread(region_in_log, path, self._ports.disk)
        assert image is not None, "INV-NAD3: what was added is in the log"
        self._config = with_added(self._config, image.added_nodes)
        cluster = await self._open_cluster(self._config)

        def made(config: NodeConfig, ports: Ports, storage: Storage, parts: ClusterParts) -> Node:
            node = Node(config, ports, storage, parts, kafka)
            node.run_kafka = lambda: self._run_kafka(tasks, kafka)
            return node

        cluster.make_node = made
        self._present = cluster
        if self._is_stopping:
            cluster.stop()
        async with asyncio.TaskGroup() as releasing:
            letting = releasing.create_task(self._release(kafka), name="releases")
            try:
                await cluster.run(_nobody_waits)
            finally:
                letting.cancel()

    async def _release(self, kafka: KafkaServer) -> None:
        """Begin what waits, once the region serves again, or has not for too long (INV-GRN3)."""
        clock = self._ports.clock
        while self.node is None:  # until then nobody is there who could answer
            await clock.sleep_ms(LOOK_MS)
        began_ms = clock.monotonic_ms()
        while not _serves(self.node):
            if clock.monotonic_ms() - began_ms > HELD_MS_MAX:
                _log.warning(
                    "the region does not serve yet: what clients ask is answered as it stands"
                )
                break
            await clock.sleep_ms(LOOK_MS)
        kafka.release()

    async def _open_cluster(self, config: NodeConfig) -> ClusterNode:
        cluster = await ClusterNode.open(config, self._ports, self._levels)
        cluster.on_node = self._take_node
        return cluster

    def _take_node(self, node: Node) -> None:
        self.on_node(node)
