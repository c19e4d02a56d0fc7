"""The four ports of a node, and what it speaks on them.

Not here: what is behind them (`ports`), what is spoken (`node_tls`).
"""

from dataclasses import dataclass, replace

from idempotency.ports import Chance, Clock
from region_broker.config.node_config import NodeConfig
from region_broker.controller.image_database import ConnectSqlite
from region_broker.node.node_tls import NodeTls
from region_broker.ports.disk import Disk
from region_broker.ports.network import Network
from region_broker.security.tls import TlsRefused


class NodeRefused(Exception):
    """The node cannot start; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The four ports. `connect_sqlite` is SQLite's own way to the disk; None for that of the machine."""

    clock: Clock
    chance: Chance
    disk: Disk
    network: Network
    connect_sqlite: ConnectSqlite | None = None
    tls: NodeTls | None = None
    """What the node speaks; made by `secured`."""

    def secured(self, config: NodeConfig) -> "Ports":
        """Return the ports of the node of a configuration, that speaks what this says; raises `NodeRefused`. Reads its certificates."""
        if self.tls is not None:
            return self
        try:
            return replace(self, tls=NodeTls(config, self.network, self.clock))
        except TlsRefused as refused:
            raise NodeRefused(
                f"TLS cannot be spoken as the configuration says: {refused}"
            ) from refused

    @property
    def speaks(self) -> NodeTls:
        """Return what the node speaks, after `secured`."""
        assert self.tls is not None, "nobody has read the configuration"
        return self.tls

    @property
    def peer_network(self) -> Network:
        """Return the network between nodes."""
        return self.speaks.peer_network
