"""The nodes of this region as clients are told of them, and which of them leads: facts of one moment.

INV-HNV1 a region of one node that registers nowhere is told as its only node says of itself, and that one leads
INV-HNV2 while leaders are spread, who leads a partition, under which leader epoch, and who is in sync, is told of its own group; where
         changes are sent, and who coordinates, is told of the main group
INV-HMN1 who came by a listener is told of each node where it is met by that very listener; a node of which that is not known is not
         told at all, never at another address, where something else may be spoken
INV-HMN2 what such a node leads, nobody leads for that client: its partitions are told with LISTENER_NOT_FOUND, as in Kafka, what it
         coordinates with COORDINATOR_NOT_AVAILABLE, and no error names it as the leader
INV-HMN3 a client of another region, whose request was forwarded, is told of no node of this one: it goes on with those of its own
Not here: where nodes are met by a listener (`node.node_tls`), where the facts come from (`region.cluster.view`), what a node answers that does not lead (`not_led_here`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from uuid import UUID

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey
from region_broker.controller.cluster_image import Spread

NO_NODE: Final = -1
"""Kafka's id of a leader, or controller, that there is none of."""
Places = Mapping[int, tuple[str, int]]
"""Node id -> host and port."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """One node: its id, where clients meet it, its rack ("": none), and whether it is not heard (`fenced`)."""

    node_id: int
    kafka_host: str
    kafka_port: int
    rack: str = ""
    fenced: bool = False

    def row(self, id_field: str = "node_id") -> dict[str, Any]:
        """Return the node as a row of an answer."""
        place = {"host": self.kafka_host, "port": self.kafka_port, "rack": self.rack or None}
        return {id_field: self.node_id, **place}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What holds at one moment. Node ids are sorted, but for `replicas`: who leads is the first, or who is to lead where leaders are spread.

    `registered`: all nodes that clients may know, fenced ones too; this node is always among them. `leads`: whether this node
    leads the logs of its region. `leader`: who does, None while nobody does. `leader_epoch`: of the leadership, None where each
    log says under which it is written: in a region of one node, and in one that mirrors another. `replicas` have each log;
    `in_sync` of them hold all that was committed. `is_alone`: the region has one node, which registers nowhere.
    `is_primary`: this region is the one that acts, as far as is known here. `groups`: while leaders are spread, the same of each replica
    group, by number; the first one is the main group, whose facts these are, too.
    """

    registered: tuple[KnownNode, ...]
    leader: KnownNode | None
    leads: bool
    leader_epoch: LeaderEpoch | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    is_alone: bool = False
    is_primary: bool = True
    groups: tuple["NodeFacts", ...] = ()
    spread: Spread | None = field(default=None, compare=False)
    """Tells the group of a log."""
    hides_leader: bool = False
    """Somebody leads whom the client that is told of it does not meet: `leader` is None (INV-HMN2)."""
    hides_nodes: bool = False
    """There are nodes that it does not meet: they are not among `registered`."""

    def of(self, key: LogKey) -> "NodeFacts":
        """Return the facts of the group that a log belongs to (INV-HNV2)."""
        return self if self.spread is None else self.groups[self.spread.group_of(key)]

    def around(self, topic_id: UUID) -> Sequence["NodeFacts"]:
        """Return the facts of the groups that the partitions of a topic go round, beginning with partition 0."""
        if self.spread is None:
            return (self,)
        first, second = (self.spread.group_of(LogKey(topic_id, number)) for number in (0, 1))
        if first == second:  # it is not spread
            return (self.groups[first],)
        return (*self.groups[first:], *self.groups[:first])

    @property
    def told(self) -> tuple[KnownNode, ...]:
        """Return the nodes that clients are to know: those that are heard."""
        return tuple(node for node in self.registered if not node.fenced)

    @property
    def leader_id(self) -> int:
        """Return the leader's id, -1 while nobody leads: where clients send what is to be changed."""
        return NO_NODE if self.leader is None else self.leader.node_id

    @property
    def offline(self) -> tuple[int, ...]:
        """Return the replicas that are not heard."""
        heard = {node.node_id for node in self.told}
        return tuple(node_id for node_id in self.replicas if node_id not in heard)

    def epoch_to_tell(self, of_log: LeaderEpoch) -> LeaderEpoch:
        """Return the leader epoch that clients are told of a log which is written here under `of_log`."""
        return of_log if self.leader_epoch is None else self.leader_epoch

    @property
    def current_leader(self) -> dict[str, int]:
        """Return who leads, as Produce and Fetch tell it beside NOT_LEADER_OR_FOLLOWER (KIP-951); -1 while nobody does.

        Without a leader epoch of its own the leadership cannot be told so: a client would take -1 for the older news.
        """
        if self.leader is None or self.leader_epoch is None:
            return {"leader_id": NO_NODE, "leader_epoch": NO_LEADER_EPOCH}
        return {"leader_id": self.leader.node_id, "leader_epoch": self.leader_epoch}

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """Return where the leader of `current_leader` is met (KIP-951)."""
        named = self.leader is not None and self.leader_epoch is not None
        return [self.leader.row()] if named and self.leader is not None else []


class NodesView(Protocol):
    """What this node knows of the nodes of its region (`region.cluster.view.RegionNodes`)."""

    @property
    def facts(self) -> NodeFacts:
        """Return the facts as of now; equal while nothing of them changes."""
        ...


class OnlyNode(Protocol):
    """What the only node of a region says of itself (`services.RegionView`)."""

    @property
    def node_id(self) -> int:
        """Return its id."""
        ...

    @property
    def kafka_host(self) -> str:
        """Return the host that clients are told."""
        ...

    @property
    def kafka_port(self) -> int:
        """Return the port that clients are told."""
        ...


def alone(node: OnlyNode) -> NodeFacts:
    """Return the facts of a region of one node (INV-HNV1)."""
    known = KnownNode(node.node_id, node.kafka_host, node.kafka_port)
    return NodeFacts(
        registered=(known,), leader=known, leads=True, leader_epoch=None, replicas=(known.node_id,),
        in_sync=(known.node_id,), is_alone=True,
    )  # fmt: skip


# -- by a listener ---------------------------------------------------------------------------------


def as_met(facts: NodeFacts, met_at: Places) -> NodeFacts:
    """Return what a client is told that meets nodes at `met_at`, and no others."""
    leader = facts.leader
    met = None if leader is None else _met(leader, met_at)
    return replace(
        facts,
        registered=tuple(node for each in facts.registered if (node := _met(each, met_at)) is not None),
        leader=met,
        hides_leader=leader is not None and met is None,
        hides_nodes=any(each.node_id not in met_at for each in facts.registered),
        groups=tuple(as_met(group, met_at) for group in facts.groups),
    )  # fmt: skip


def _met(node: KnownNode, met_at: Places) -> KnownNode | None:
    place = met_at.get(node.node_id)
    return None if place is None else replace(node, kafka_host=place[0], kafka_port=place[1])


class MetNodes:
    """One per node: what is told by each listener is made once for the facts of one moment."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._kept: dict[str, tuple[NodeFacts, Places, NodeFacts]] = {}

    def of(self, facts: NodeFacts, listener: str, met_at: Places | None) -> NodeFacts:
        """Return `facts` as who came by `listener` is told of them; `met_at`: where it meets nodes, None where everybody does."""
        if met_at is None:
            return facts
        kept = self._kept.get(listener)
        if kept is not None and kept[0] is facts and kept[1] is met_at:
            return kept[2]
        made = as_met(facts, met_at)
        self._kept[listener] = facts, met_at, made
        return made
