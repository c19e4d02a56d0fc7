"""The nodes of two regions, who acts, an operator, and what was wrong.

Not here: what runs (`node_faults.stage`), faults (`faults`), clients (`spots`), the judgement (`life`, `watch`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from chaos.judges.contacts import NEVER, Contacts
from chaos.story import Story, Word
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from region_broker.region.failover.operations import OperationRefused
from region_broker.region.view import RegionService
from tests.simulation.cluster_regions import CUT_OFF, AnyNode, ClusterRegion, NodeAmong, Regions
from tests.simulation.node_faults.stage import NodesStage
from tests.simulation.regions_swarm.plan import Plan
from tests.simulation.routed_connection import RoutedConnection
from tests.simulation.spread_facts import hasten_spread, leader_port_of
from tests.simulation.trace import Trace

ORDER_S: Final = 15.0
OPEN_TO_ALL: Final = {"super_users": "User:ANONYMOUS"}
"""Where access changes clients are let in all the same: they do not log in."""
READERS: Final = ("watcher-", "auditor", "trimmed-reader-")
"""Sites of clients that only read."""


class Stage(NodesStage[AnyNode]):
    """Everything that faults are done to."""

    def __init__(self, plan: Plan, trace: Trace, say: Callable[[str], None] | None) -> None:
        """Plan the nodes; nothing is started. `say` gets what happens, a line each."""
        chance = plan.stream("stage")
        self.plan = plan
        self.all = Regions(
            Path("/simulated"), chance.getrandbits(32), plan.layout, delay_ms_max=plan.delay_ms_max,
            tidemark_interval_ms=plan.tidemark_interval_ms, retention_check_interval_ms=1_000,
            **(OPEN_TO_ALL if plan.changes_access else {}),
        )  # fmt: skip
        self.regions = self.all.regions
        self.names = tuple(self.regions)
        self.cut: set[frozenset[str]] = set()
        self._ports = [node.kafka_port for node in self.all.nodes.values()]
        self.story = Story()
        self._contacts = Contacts(self.names, self.story.separations)
        super().__init__(self.all.nodes, self.all.fabric, trace, say, chance)
        self._mirror_opened = True
        """Whether clients may write through the region that mirrors."""
        if plan.spreads:
            self.fabric.leader_of, self.fabric.routed = self.leader_port, RoutedConnection
            for node in self.nodes.values():
                if isinstance(node, NodeAmong):
                    hasten_spread(node)

    # -- who runs ----------------------------------------------------------------------------------

    def serving(self, region: ClusterRegion) -> list[AnyNode]:
        """Return the nodes of a region that run and are joined together."""
        return [
            node for name, node in region.nodes.items()
            if name in self.running and not (isinstance(node, NodeAmong) and node.member.node is None)
        ]  # fmt: skip

    def leader_port(self, topic: str, partition: int, near: int) -> int | None:
        """Return where the leader of a partition is met in the region of port `near`, as who leads that tells in Metadata."""
        for region in self.regions.values():
            ports = [node.kafka_port for node in region.nodes.values()]
            if near in ports and region.leader is not None:
                image = region.led.node.storage.metadata.image
                # Node ids count through all regions.
                return leader_port_of(image, topic, partition, self._ports)
        return None

    def leading(self, region: ClusterRegion, log: Partition) -> Partition:
        """Return the same log at the node of its region that leads it; itself, while nobody has it."""
        port = self.leader_port(str(log.tp.topic), log.tp.partition, region.led.kafka_port)
        [node, *_] = [n for n in region.nodes.values() if n.kafka_port == port] or [region.led]
        found = (
            node.node.storage.partitions.by_id(*log.key) if node in self.serving(region) else None
        )
        return log if found is None else found

    # -- clients of a mirror -----------------------------------------------------------------------

    def opens_mirror(self, *, opened: bool) -> None:
        """Let clients write through the mirror, or not: where leaders are spread they do only now and then, or no leaders were (INV-SPD3)."""
        self._mirror_opened = opened or not self.plan.spreads

    def may_write_at(self, name: str) -> bool:
        """Return whether clients write through a region now."""
        return self._mirror_opened or self.regions[name].acts

    def have_mirrors_left(self) -> None:
        """Let clients leave the regions through which they do not write."""
        for name, region in self.regions.items():
            if not self.may_write_at(name):
                self.fabric.leave(region.nodes, self._writes)

    def _writes(self, site: str) -> bool:
        return site not in self.nodes and not site.startswith(READERS)

    def up(self, name: str) -> bool:
        """Return whether somebody speaks for a region."""
        return self.regions[name].leader is not None

    def acting(self) -> list[str]:
        """Return the regions that take writes."""
        return [name for name, region in self.regions.items() if region.acts]

    def given_up(self, name: str) -> int:
        """Count the words that gave up what a region has shown."""
        return sum(each.kind == "accept-loss" and each.target != name for each in self.story.words)

    def view(self, name: str) -> Mapping[str, Any] | None:
        """Return what `GET /v1/region` says at who leads a region."""
        leader = self.regions[name].leader
        return None if leader is None else service_of(leader).describe()

    def note_contacts(self) -> None:
        """Look which regions can talk: those whose leaders do."""
        self._contacts.note(self.now_s(), self._are_apart)

    def end_separations(self) -> None:
        """Close the books."""
        self._contacts.end()

    def _are_apart(self, one: str, other: str) -> bool:
        leaders = [self.regions[name].leader for name in (one, other)]
        names = [node.name for node in leaders if node is not None and node.name not in self.paused]
        return len(names) < 2 or frozenset(names) in self.cut

    @override
    def told_state(self) -> str:
        return self.all.told()

    @override
    def changed(self) -> None:
        self.note_contacts()

    def part(self, one: str, other: str, *, silent: bool) -> None:
        """Part two nodes."""
        self.between(self.fabric.hush if silent else self.fabric.cut, one, other)

    def between(self, begin: Callable[[str, str], None], one: str, other: str) -> None:
        """Let something be in the way between two nodes, one way or both."""
        begin(one, other)
        self.cut.add(frozenset((one, other)))
        self.note_contacts()

    def heal(self, one: str, other: str) -> None:
        """Let two nodes talk again."""
        for end in (self.fabric.heal, self.fabric.unmute, self.fabric.unbar):
            end(one, other)
            end(other, one)
        self.cut.discard(frozenset((one, other)))
        self.note_contacts()

    # -- the operator ------------------------------------------------------------------------------

    async def order(self, kind: str, name: str) -> str:
        """Order what makes a region act; return why it did not work, empty if it did."""
        region = self.regions[name]
        leader = region.leader
        if leader is None or leader.name in self.paused:
            return f"nobody speaks for {name}"
        operations, given_s = leader.node.operations, self.now_s()
        begin = {
            "switch": operations.begin_switch,
            "failover": lambda: operations.begin_failover(confirmed=True),
            "accept-loss": lambda: operations.begin_accept_loss(confirmed=True),
        }[kind]
        try:
            operation = leader.within(begin)
        except OperationRefused as error:
            if not str(error):
                self.blame(f"{kind} to {name} is refused without a reason")
            return str(error)
        number = len(self.story.words)
        if kind != "switch":
            self.story.words.append(Word(kind, name, given_s, NEVER))

        def ended() -> bool:
            given_up = operation.status == "failed" and operation.error not in CUT_OFF
            return region.acts or given_up

        if not await self.until(ended, ORDER_S):
            return f"not done after {ORDER_S:.0f} s: {operation.steps[-1:]}"
        if not region.acts:
            return operation.error
        if kind != "switch":
            self.story.words[number] = Word(kind, name, given_s, self.now_s())
        return ""

    async def order_spread(self, region: ClusterRegion, *, wanted: bool) -> None:
        """Order that the leaders of a region are spread, or gathered, at whichever of its nodes takes orders; a mirror keeps it for later."""
        kind, why = "spread" if wanted else "gather", "nobody takes orders"
        for node in self.serving(region):
            operating = node.node.operating
            if operating is None or node.name in self.paused or node.died:
                continue
            order = operating.order(kind, None, dry_run=False, confirmed=False)
            try:
                await node.as_process(order)
            except (ClusterOrderRefused, OSError) as error:
                why = str(error)
                if not why:
                    self.blame(f"{kind} at {node.name} is refused without a reason")
            else:
                self.tell(f"  {region.name} is to {kind} its leaders")
                return
        self.tell(f"  {kind} of {region.name} is not done: {why[:200]}")

    async def order_as_told(self, kind: str, name: str) -> None:
        """Order it, unless all would be lost by it: no operator confirms that."""
        leader = self.regions[name].leader
        if (
            kind == "failover"
            and leader is not None
            and not leader.node.tidemarks.claim().point.number
        ):
            self.tell(f"  not done: {name} has reached no tidemark")
        elif refused := await self.order(kind, name):
            self.tell(f"  not done: {refused[:300]}")


def service_of(node: AnyNode) -> RegionService:
    """Return what serves a node's HTTP routes."""
    found = node.node
    partitions = found.storage.partitions
    return RegionService(
        found.failover, found.operations, partitions.kept, lambda: partitions.room.refusal
    )
