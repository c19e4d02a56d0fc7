"""The nodes of two regions, who acts, an operator, and what was wrong.

Not here: what runs (`node_faults.stage`), faults (`faults`), clients (`spots`), the judgement (`life`, `watch`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from chaos.judges.contacts import NEVER, Contacts
from chaos.story import Story, Word
from region_broker.region.failover.operations import OperationRefused
from region_broker.region.view import RegionService
from tests.simulation.cluster_regions import CUT_OFF, AnyNode, ClusterRegion, NodeAmong, Regions
from tests.simulation.node_faults.stage import NodesStage
from tests.simulation.regions_swarm.plan import Plan
from tests.simulation.trace import Trace

ORDER_S: Final = 15.0


class Stage(NodesStage[AnyNode]):
    """Everything that faults are done to."""

    def __init__(self, plan: Plan, trace: Trace, say: Callable[[str], None] | None) -> None:
        """Plan the nodes; nothing is started. `say` gets what happens, a line each."""
        chance = plan.stream("stage")
        self.plan = plan
        self.all = Regions(
            Path("/simulated"), chance.getrandbits(32), plan.layout, delay_ms_max=plan.delay_ms_max,
            tidemark_interval_ms=plan.tidemark_interval_ms, retention_check_interval_ms=1_000,
        )  # fmt: skip
        self.regions = self.all.regions
        self.names = tuple(self.regions)
        self.cut: set[frozenset[str]] = set()
        self.story = Story()
        self._contacts = Contacts(self.names, self.story.separations)
        super().__init__(self.all.nodes, self.all.fabric, trace, say, chance)

    # -- who runs ----------------------------------------------------------------------------------

    def serving(self, region: ClusterRegion) -> list[AnyNode]:
        """Return the nodes of a region that run and are joined together."""
        return [
            node for name, node in region.nodes.items()
            if name in self.running and not (isinstance(node, NodeAmong) and node.member.node is None)
        ]  # fmt: skip

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
