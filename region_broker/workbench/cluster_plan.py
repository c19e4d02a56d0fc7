"""Where the nodes of a local cluster live on this machine: their names, ports and folders, kept for the next time.

INV-LC4  a port that a node is given is none that the system takes for what it dials: while the node is down, its port
         stays free
INV-LC5  nor is it one that another cluster was given, as long as that one is open: both would be free at once
The node of a region that has one goes by the region's name, the nodes of others by that and their id (`eu/2`): the name
is the path of its folder, too.

Not here: the processes (`local_cluster`).
"""

import contextlib
import errno
import socket
from pathlib import Path
from typing import Any, Final

import msgspec

from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.dialled_ports import not_dialled

REGION_NAMES: Final = ("eu", "us", "ap", "sa", "af", "me", "oc", "an")
FIRST_PORT: Final = 9092
# Below what systems give to connections (Linux: 32768 on, where nobody changed it), above FIRST_PORT and its like.
PORTS_OF_OUR_OWN: Final = (20_000, 32_768)
_PORTS_TRIED_MAX: Final = 1_000
# Who is given a port of 127.0.0.1 holds the same one here until its cluster is closed (INV-LC5). Where a system has no such
# address, ports are only looked at.
_HELD_AT: Final = "127.0.0.77"
PORTS_PER_NODE: Final = 10
PLAN_FILE: Final = "cluster.json"


class ClusterError(Exception):
    """The local cluster cannot do what was asked; the text says why and what to do."""


class NodePorts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The three ports of one node. `host`: another address than loopback is for who gives each node a network of its own."""

    kafka_port: int
    http_port: int
    peer_port: int
    host: str = "127.0.0.1"
    http_scheme: str = "http"
    """`https` where the cluster is secured; said anew each time that it is opened."""

    @property
    def http(self) -> str:
        """The base address of the HTTP API."""
        return f"{self.http_scheme}://{self.host}:{self.http_port}"


class NodePlace(NodePorts, frozen=True, kw_only=True):
    """Where one node lives on this machine; `title` is for people."""

    name: str
    title: str
    node_id: int
    rack: str = ""
    """Where it is said to stand: each node of a region of several has a rack of its own."""

    @property
    def bootstrap(self) -> str:
        """The Kafka bootstrap address."""
        return f"{self.host}:{self.kafka_port}"

    def as_config(self, peer_port: int | None) -> dict[str, Any]:
        """Return what a configuration says of the node; `peer_port`: where it is dialled, None for its own port."""
        return {
            "node_id": self.node_id,
            "kafka": self.bootstrap,
            "peer": f"{self.host}:{peer_port or self.peer_port}",
            "http": f"{self.host}:{self.http_port}",
            **({"rack": self.rack} if self.rack else {}),
        }


class RegionPlace(NodePorts, frozen=True, kw_only=True, omit_defaults=True):
    """Where one region lives on this machine: its first node's ports, and those of the others, if there are any."""

    name: str
    ordinal: int
    siblings: list[NodePorts] = []

    @property
    def nodes(self) -> list[NodePlace]:
        """Its nodes. Each region of a cluster has as many, so ids are unique over all of them."""
        count = 1 + len(self.siblings)
        if count == 1:
            return [self._node(self, self.ordinal + 1, self.name, f"region {self.name}")]
        first_id = self.ordinal * count + 1
        return [
            self._node(ports, node_id, f"{self.name}/{node_id}", f"node {node_id} of region {self.name}", f"rack-{node_id}")
            for node_id, ports in enumerate((self, *self.siblings), first_id)
        ]  # fmt: skip

    @staticmethod
    def _node(ports: NodePorts, node_id: int, name: str, title: str, rack: str = "") -> NodePlace:
        return NodePlace(
            rack=rack,
            name=name,
            title=title,
            node_id=node_id,
            kafka_port=ports.kafka_port,
            http_port=ports.http_port,
            peer_port=ports.peer_port,
            host=ports.host,
            http_scheme=ports.http_scheme,
        )

    @property
    def bootstrap(self) -> str:
        """The Kafka bootstrap addresses of all of its nodes, with commas."""
        return ",".join(node.bootstrap for node in self.nodes)


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster.json` keeps."""

    cluster_id: str
    regions: list[RegionPlace]
    born: bool = True
    """A plan that does not say so is of a version whose clusters were born by their first start."""
    founded: tuple[str, ...] = ()
    """The other regions of several nodes whose first node was told to begin."""

    @property
    def nodes(self) -> list[NodePlace]:
        """The nodes of all regions."""
        return [node for region in self.regions for node in region.nodes]

    def speaking(self, http_scheme: str) -> "ClusterPlan":
        """Return the plan with another scheme of HTTP."""
        replace = msgspec.structs.replace
        regions = [
            replace(
                region,
                http_scheme=http_scheme,
                siblings=[replace(each, http_scheme=http_scheme) for each in region.siblings],
            )
            for region in self.regions
        ]
        return replace(self, regions=regions)


def planned(
    path: Path, new_cluster_id: str, counts: tuple[int, int], port: int | None,
    held: contextlib.ExitStack,
) -> ClusterPlan:  # fmt: skip
    """Return the plan that `path` keeps, else a new one; `counts`: how many regions, how many nodes in each.

    `port` 0 takes free ports; None those that the cluster had, of a new one from `FIRST_PORT` on. Raises
    `ClusterError`, `OSError`.
    """
    if not path.exists():
        places = _places(counts, FIRST_PORT if port is None else port, held)
        return ClusterPlan(cluster_id=new_cluster_id, regions=places, born=False)
    plan = _read_plan(path)
    region_count, node_count = counts
    if len(plan.regions) != region_count:
        raise ClusterError(
            f"{path.parent} holds a cluster of {len(plan.regions)} regions, not {region_count}: give"
            " another --data-dir or the same --regions"
        )
    there = {len(region.nodes) for region in plan.regions}
    if there != {node_count}:
        raise ClusterError(
            f"{path.parent} holds a cluster with {' or '.join(map(str, sorted(there)))} nodes in a region, not"
            f" {node_count}: give another --data-dir or the same --nodes"
        )
    if port is None:
        return plan
    return msgspec.structs.replace(plan, regions=_places(counts, port, held))


def _read_plan(path: Path) -> ClusterPlan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterPlan)
    except (msgspec.MsgspecError, OSError) as error:
        raise ClusterError(
            f"{path} does not describe a local cluster ({error}): give another --data-dir"
        ) from error


def write_plan(path: Path, plan: ClusterPlan) -> None:
    """Replace it as a whole: half a plan would keep a cluster with all its data from being started again."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(msgspec.json.encode(plan))
    temporary.replace(path)


def _places(counts: tuple[int, int], port: int, held: contextlib.ExitStack) -> list[RegionPlace]:
    region_count, node_count = counts
    if not 1 <= region_count <= len(REGION_NAMES):
        raise ClusterError(f"--regions {region_count} is not in 1..{len(REGION_NAMES)}")
    total = region_count * node_count
    last = port + PORTS_PER_NODE * (total - 1) + 2
    if last > 65_535:
        raise ClusterError(
            f"--port {port} leaves no room: {total} nodes would need ports up to {last}"
        )
    ports = (
        free_ports(3 * total, held)
        if port == 0
        else [port + PORTS_PER_NODE * i + j for i in range(total) for j in range(3)]
    )
    nodes = [
        NodePorts(kafka_port=ports[at], http_port=ports[at + 1], peer_port=ports[at + 2])
        for at in range(0, 3 * total, 3)
    ]
    return [
        RegionPlace(
            name=REGION_NAMES[at],
            ordinal=at,
            **msgspec.structs.asdict(nodes[at * node_count]),
            siblings=nodes[at * node_count + 1 : (at + 1) * node_count],
        )
        for at in range(region_count)
    ]


def free_ports(count: int, held: contextlib.ExitStack) -> list[int]:
    """Return ports that are free now, that the system gives to no connection that is dialled (INV-LC4), and that `held` keeps
    from other clusters (INV-LC5)."""
    chance = SystemChance()
    own = range(*PORTS_OF_OUR_OWN)
    # A machine that gives all of these to connections has no better ones.
    ports = not_dialled(own) or own
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_PORTS_TRIED_MAX):
            port = ports[int(chance.uniform(0, len(ports) - 1))]
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                if _hold(port, held):
                    found.append(port)
            if len(found) == count:
                return found
    raise ClusterError(
        f"of {_PORTS_TRIED_MAX} ports of this machine from {own.start} to {own.stop} not {count} are free: name free ones"
        " by --port"
    )


def _hold(port: int, held: contextlib.ExitStack) -> bool:
    """Keep other clusters from a port; return whether none holds it."""
    guard = socket.socket()
    try:
        guard.bind((_HELD_AT, port))
    except OSError as error:
        guard.close()
        return error.errno == errno.EADDRNOTAVAIL
    held.enter_context(guard)
    return True
